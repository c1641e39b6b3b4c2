"""Inputs, references, and what the rungs are timed beside."""

from functools import cache

import torch
import torch.nn.functional as F

from common.day import Cost, philox_words
from days.day96 import model as decoder

WEIGHTS = 8  # arguments before the cache
# (temperature, top-k, top-p): chosen by the last number of a shape. In the inputs the largest logit
# is far above the others, so that a draw needs a high temperature to be one.
WAYS = ((0.0, 0, 1.0), (25.0, 0, 1.0), (25.0, 5, 1.0), (25.0, 0, 0.5), (25.0, 40, 0.8))
SEED = 100


def decode_inputs(case, draw):
    """case.shape: day 96's (layers, heads, channels, words, positions, position, steps), and a
    number of WAYS."""
    *shape, way = case.shape
    return *decoder.model(type(case)(tuple(shape), case.dtype, case.values), draw), *WAYS[way], SEED


def prompt_inputs(case, draw):
    """case.shape: (layers, heads, channels, words, positions, tokens of the prompt)."""
    *shape, count = case.shape
    plain = type(case)((*shape, 0, 1), case.dtype, case.values)
    *arguments, token, _, _ = decoder.model(plain, draw)
    prompt = draw(count, dtype="int64", low=0, high=shape[3])
    if case.values == "offset":
        prompt[count // 2] = token[0]  # no word
    return *arguments, prompt


def generate_inputs(case, draw):
    """case.shape: that of a prompt, then steps, and a number of WAYS."""
    *shape, steps, way = case.shape
    arguments = prompt_inputs(type(case)(tuple(shape), case.dtype, case.values), draw)
    return *arguments, steps, *WAYS[way], SEED


# ---------------------------------------------------------------- references


def noise(words, position, seed, device):
    """Of each word, float64."""
    index = torch.arange(words, device=device)
    first = philox_words(torch.full_like(index, seed), index, torch.full_like(index, position))[
        :, 0
    ]
    v = ((first.double() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-v))


def kept(logits, temperature, top_k, top_p):
    """Which words top-k and top-p keep: a word's place and the mass before it decide."""
    order = logits.sort(descending=True, stable=True).indices
    mass = (logits[order].double() / temperature).softmax(-1)
    before = mass.cumsum(-1) - mass
    ranks = torch.arange(len(order), device=order.device)
    fine = (ranks < (top_k or len(order))) & ((before < top_p) | (top_p == 1))
    return torch.zeros_like(fine).scatter(0, order, fine)


def drawn(logits, position, temperature, top_k, top_p, seed):
    """The next token (1) after `position`, of logits (1, V). NaN is never drawn."""
    if temperature == 0 or logits.isnan().all():
        return decoder.best_of(logits)
    row = logits[0].nan_to_num(nan=-torch.inf)
    sums = row.double() / temperature + noise(len(row), position, seed, row.device)
    allowed = kept(row, temperature, top_k, top_p)
    return sums.where(allowed, -torch.inf).argmax(-1, keepdim=True)


def decode(*arguments):
    *given, token, position, steps, temperature, top_k, top_p, seed = arguments
    *weights, cache = given
    wte, wpe, vectors, last, qkv, proj, fc, out = decoder.at_work(weights)
    tokens, rows = [], []
    for at in range(position, position + steps):
        x = decoder.embedded(wte, wpe, token, at)
        for layer in zip(vectors, qkv, proj, fc, out, cache, strict=True):
            x = decoder.layer_of(x, *layer, (at, at + 1))
        rows.append(decoder.logits_of(x, wte, last))
        token = drawn(rows[-1], at, temperature, top_k, top_p, seed)
        tokens.append(token)
    return torch.cat(tokens), torch.cat(rows)


def prefill(wte, wpe, vectors, last, qkv, proj, fc, out, cache, prompt):
    """In the dtype of its arguments: what is compared with the rungs rounds as often as they do."""
    x = decoder.embedded(wte, wpe, prompt, 0)
    for layer in zip(vectors, qkv, proj, fc, out, cache, strict=True):
        x = decoder.layer_of(x, *layer, (0, len(prompt)))
    logits = decoder.logits_of(x[-1:], wte, last)[0]
    return logits.float() if logits.dtype == torch.bfloat16 else logits


def generate(*arguments):
    """All positions are computed again for every token, without a cache."""
    *weights, cache, prompt, steps, temperature, top_k, top_p, seed = arguments
    tokens = prompt
    for _ in range(steps):
        logits = prefill(*weights, cache, tokens)[None]
        drawn_now = drawn(logits, len(tokens) - 1, temperature, top_k, top_p, seed)
        tokens = torch.cat([tokens, drawn_now])
    return tokens[len(prompt) :]


# ---------------------------------------------------------------- PyTorch's calls


def decode_by_pytorch(*arguments):
    """The largest logit, as timed: without noise."""
    return decoder.by_pytorch(*arguments[:-4])


@cache
def compiled_decode():
    return torch.compile(decoder.by_pytorch, dynamic=False)


def decode_compiled(*arguments):
    return compiled_decode()(*arguments[:-4])


def prefill_by_pytorch(wte, wpe, vectors, last, qkv, proj, fc, out, cache, prompt):
    """As a user writes it: bf16, attention by one call."""
    heads, size = cache.shape[2], cache.shape[4]
    n = len(prompt)
    x = wte[prompt] + wpe[:n]
    for layer in range(len(qkv)):
        norm1, qkv_bias, proj_bias, norm2, fc_bias, out_bias = decoder.parts_of(vectors[layer])
        rows = F.linear(decoder.normed(x, norm1), qkv[layer], qkv_bias).view(n, 3, heads, size)
        q, k, v = rows.permute(1, 2, 0, 3)
        cache[layer, 0, :, :n], cache[layer, 1, :, :n] = k, v
        attended = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
        x = x + F.linear(attended[0].transpose(0, 1).flatten(1), proj[layer], proj_bias)
        hidden = F.linear(decoder.normed(x, norm2), fc[layer], fc_bias)
        x = x + F.linear(F.gelu(hidden, approximate="tanh"), out[layer], out_bias)
    return F.linear(decoder.normed(x[-1:], last), wte)[0].float()


def generate_by_pytorch(*arguments):
    """Eager prefill of all but the last token, then decoding by the largest logit."""
    *given, prompt, steps, _, _, _, _ = arguments
    prefill_by_pytorch(*given, prompt[:-1])
    return decoder.by_pytorch(*given, prompt[-1:], len(prompt) - 1, steps)[0]


def step_at(wte, wpe, vectors, last, qkv, proj, fc, out, cache, token, position):
    """One token, at a position (1) that is a tensor: compiled once for all of them. Attention takes
    the whole cache and a mask, as users of torch.compile write it."""
    heads, positions, size = cache.shape[2:]
    seen = (torch.arange(positions, device=cache.device) <= position).view(1, 1, 1, positions)
    x = wte[token] + wpe[position]
    for layer in range(len(qkv)):
        norm1, qkv_bias, proj_bias, norm2, fc_bias, out_bias = decoder.parts_of(vectors[layer])
        rows = F.linear(decoder.normed(x, norm1), qkv[layer], qkv_bias).view(3, heads, 1, size)
        cache[layer].index_copy_(2, position, rows[1:])
        keys, values = cache[layer, :, None]
        attended = F.scaled_dot_product_attention(rows[0][None], keys, values, attn_mask=seen)
        x = x + F.linear(attended.view(1, -1), proj[layer], proj_bias)
        hidden = F.linear(decoder.normed(x, norm2), fc[layer], fc_bias)
        x = x + F.linear(F.gelu(hidden, approximate="tanh"), out[layer], out_bias)
    return F.linear(decoder.normed(x, last), wte).float().argmax(-1)


@cache
def compiled_step():
    return torch.compile(step_at, dynamic=False)


@cache
def compiled_prefill():
    return torch.compile(prefill_by_pytorch, dynamic=False)


def prefill_compiled(*arguments):
    return compiled_prefill()(*arguments)


def generate_compiled(*arguments):
    return generate_stepwise(compiled_prefill(), compiled_step(), *arguments)


def generate_stepwise(prefill_all, step, *arguments):
    *given, prompt, steps, _, _, _, _ = arguments
    given[-1].nan_to_num_()  # unused rows of the cache, which a mask multiplies by 0
    prefill_all(*given, prompt[:-1])
    first = len(prompt) - 1
    positions = torch.arange(first, first + steps, device=prompt.device)
    tokens = [prompt[-1:]]
    for position in positions.split(1):
        tokens.append(step(*given, tokens[-1], position))
    return torch.cat(tokens[1:])


# ---------------------------------------------------------------- costs


def decode_cost(case):
    return decoder.cost(type(case)(case.shape[:-1], case.dtype))


def prefill_cost(case):
    """Each weight is read once; keys and values are written. The causal half of attention."""
    layers, _, channels, words, _, count = case.shape
    weights = layers * (12 * channels**2 + 13 * channels) + (words + count) * channels
    operations = layers * (24 * channels**2 * count + 2 * count * (count + 1) * channels)
    return Cost(
        bytes=2 * (weights + 2 * layers * channels * count),
        flops=operations + 2 * words * channels,
        unit="tensor",
    )


def generate_cost(case):
    *shape, count, steps, _ = case.shape
    ahead = prefill_cost(type(case)((*shape, count - 1), case.dtype))
    after = decoder.cost(type(case)((*shape, count - 1, steps), case.dtype))
    return Cost(bytes=ahead.bytes + after.bytes, flops=ahead.flops + after.flops, unit="tensor")
