"""Inputs, references, and what the rungs are timed beside."""

from functools import cache

import torch
import torch.nn.functional as F

from common.day import Cost
from common.references.philox import philox_words
from days.day96 import model as decoder

WEIGHTS = 8  # arguments before the cache
SEED = 100
# (temperature, top-k, top-p, seed): chosen by the last number of a shape. In the inputs the largest
# logit is far above the others, so that a draw needs a high temperature to be one.
WAYS = (
    (0.0, 0, 1.0, SEED),
    (25.0, 0, 1.0, SEED),
    (25.0, 5, 1.0, SEED),
    (25.0, 0, 0.5, SEED),
    (25.0, 40, 0.8, SEED),
    (25.0, 1 << 24, 1.0, SEED),
    (25.0, (1 << 24) + 1, 1.0, SEED),  # refused
    (0.5, 0, 1.0, 13123938),  # after position 4, the number of word 0 would round to 1
)


def decode_inputs(case, draw):
    """case.shape: day 96's (layers, heads, channels, words, positions, position, steps), and a
    number of WAYS."""
    *shape, way = case.shape
    return *decoder.model(type(case)(tuple(shape), case.dtype, case.values), draw), *WAYS[way]


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
    return *arguments, steps, *WAYS[way]


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
            x = decoder.layer_of(x, (at, at + 1), *layer)
        rows.append(decoder.logits_of(x, wte, last))
        token = drawn(rows[-1], at, temperature, top_k, top_p, seed)
        tokens.append(token)
    return torch.cat(tokens), torch.cat(rows)


def prefill(wte, wpe, vectors, last, qkv, proj, fc, out, cache, prompt):
    """In the dtype of its arguments: what is compared with the rungs rounds as often as they do."""
    x = decoder.embedded(wte, wpe, prompt, 0)
    for layer in zip(vectors, qkv, proj, fc, out, cache, strict=True):
        x = decoder.layer_of(x, (0, len(prompt)), *layer)
    logits = decoder.logits_of(x[-1:], wte, last)[0]
    return logits.float() if logits.dtype == torch.bfloat16 else logits


def generate(*arguments):
    """All positions are computed again for every token, without a cache."""
    *weights, cache, prompt, steps, temperature, top_k, top_p, seed = arguments
    tokens = prompt
    for _ in range(steps):
        logits = prefill(*(*weights, cache, tokens))[None]
        drawn_now = drawn(logits, len(tokens) - 1, temperature, top_k, top_p, seed)
        tokens = torch.cat([tokens, drawn_now])
    return tokens[len(prompt) :]


# ---------------------------------------------------------------- PyTorch's calls


def decode_by_pytorch(*arguments):
    """The largest logit, as timed: without noise."""
    return decoder.by_pytorch(*arguments[:-4])


def per_layer(cache):
    """Keys, values: one tensor (H, P, D) per layer, as programs for torch.compile keep them."""
    return list(cache[:, 0]), list(cache[:, 1])


def prefill_into(wte, wpe, vectors, last, qkv, proj, fc, out, keys, values, prompt):
    """As a user writes it: bf16, attention by one call."""
    heads, _, size = keys[0].shape
    n = len(prompt)
    x = wte[prompt] + wpe[:n]
    for layer in range(len(qkv)):
        norm1, qkv_bias, proj_bias, norm2, fc_bias, out_bias = decoder.parts_of(vectors[layer])
        rows = F.linear(decoder.normed(x, norm1), qkv[layer], qkv_bias).view(n, 3, heads, size)
        q, k, v = rows.permute(1, 2, 0, 3)
        keys[layer][:, :n], values[layer][:, :n] = k, v
        attended = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
        x = x + F.linear(attended[0].transpose(0, 1).flatten(1), proj[layer], proj_bias)
        hidden = F.linear(decoder.normed(x, norm2), fc[layer], fc_bias)
        x = x + F.linear(F.gelu(hidden, approximate="tanh"), out[layer], out_bias)
    return F.linear(decoder.normed(x[-1:], last), wte)[0].float()


def prefill_by_pytorch(*arguments):
    *weights, cache, prompt = arguments
    return prefill_into(*(*weights, *per_layer(cache), prompt))


def generate_by_pytorch(*arguments):
    """Eager prefill of all but the last token, then decoding by the largest logit."""
    *given, prompt, steps, _, _, _, _ = arguments
    prefill_by_pytorch(*given, prompt[:-1])
    return decoder.by_pytorch(*(*given, prompt[-1:], len(prompt) - 1, steps))[0]


def step_at(wte, wpe, vectors, last, qkv, proj, fc, out, keys, values, token, position):
    """The next token and its logits, at a position (1) that is a tensor: compiled once for all of
    them. Attention takes all rows and a mask."""
    heads, positions, size = keys[0].shape
    seen = torch.arange(positions, device=position.device) <= position
    x = wte[token] + wpe[position]
    for layer in range(len(qkv)):
        norm1, qkv_bias, proj_bias, norm2, fc_bias, out_bias = decoder.parts_of(vectors[layer])
        rows = F.linear(decoder.normed(x, norm1), qkv[layer], qkv_bias)
        q, k, v = rows.view(3, heads, 1, size)
        keys[layer][:, position], values[layer][:, position] = k, v
        attended = F.scaled_dot_product_attention(
            q[None], keys[layer][None], values[layer][None], attn_mask=seen[None, None, None]
        )
        x = x + F.linear(attended.view(1, -1), proj[layer], proj_bias)
        hidden = F.linear(decoder.normed(x, norm2), fc[layer], fc_bias)
        x = x + F.linear(F.gelu(hidden, approximate="tanh"), out[layer], out_bias)
    logits = F.linear(decoder.normed(x, last), wte).float()
    return logits.argmax(-1), logits


@cache
def compiled_step():
    """Tuned as decoders are: products with one row become sums that are fused with what follows."""
    return torch.compile(step_at, dynamic=False, options={"coordinate_descent_tuning": True})


@cache
def compiled_prefill():
    return torch.compile(prefill_into, dynamic=False)


def prefill_compiled(*arguments):
    *weights, cache, prompt = arguments
    return compiled_prefill()(*weights, *per_layer(cache), prompt)


def decode_stepwise(step, *arguments):
    """By the largest logit. `step`: step_at, or what is compiled of it."""
    *weights, cache, token, first, steps = arguments
    keys, values = per_layer(cache)
    cache[:, :, :, first:] = 0  # the mask multiplies unused rows by 0
    made = []
    for position in torch.arange(first, first + steps, device=token.device).split(1):
        made.append(step(*weights, keys, values, token, position))
        token = made[-1][0]
    return tuple(torch.cat(each) for each in zip(*made, strict=True))


def decode_compiled(*arguments):
    return decode_stepwise(compiled_step(), *arguments[:-4])


def generate_compiled(*arguments):
    *given, prompt, steps, _, _, _, _ = arguments
    prefill_compiled(*given, prompt[:-1])
    return decode_stepwise(compiled_step(), *given, prompt[-1:], len(prompt) - 1, steps)[0]


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
