"""A GPT-2 in PyTorch that decodes: inputs, references, and what the rungs are timed beside."""

from functools import cache

import torch
import torch.nn.functional as F

from common.day import Cost

VECTORS = 13  # of C elements in a layer: norm 1, three biases of qkv, of proj, norm 2, fc, out


def model(case, draw):
    """The arguments of a rung.

    case.shape: (layers, heads, channels, words, positions, position, steps). The cache holds random
    rows before `position`, and NaN from there on, which no kernel may read. At a position, the
    embedding of some word is added twice, which then has by far the largest logit: rounding does
    not decide a token.
    """
    layers, heads, channels, words, positions, position, steps = case.shape
    wte = draw(words, channels)
    favourites = draw(positions, dtype="int64", low=0, high=words)
    wpe = draw(positions, channels)
    wpe.copy_(2 * wte[favourites])
    vectors = draw(layers, VECTORS * channels).mul_(0.1)
    vectors[:, :channels] += 1
    vectors[:, 6 * channels : 7 * channels] += 1
    last = draw(2 * channels).mul_(0.1)
    last[:channels] += 1
    root = channels**-0.5
    qkv = draw(layers, 3 * channels, channels).mul_(root)
    proj = draw(layers, channels, channels).mul_(root / 2)
    fc = draw(layers, 4 * channels, channels).mul_(root)
    out = draw(layers, channels, 4 * channels).mul_(root / 4)
    cache = draw(layers, 2, heads, positions, channels // heads)
    cache[:, :, :, position:] = torch.nan
    token = draw(1, dtype="int64", low=0, high=words)
    if case.values == "offset":
        token.fill_(words)
    return wte, wpe, vectors, last, qkv, proj, fc, out, cache, token, position, steps


# ---------------------------------------------------------------- references


def parts_of(vectors):
    """(norm, qkv bias, proj bias, norm, fc bias, out bias) of one layer."""
    channels = len(vectors) // VECTORS
    return vectors.split([channels * n for n in (2, 3, 1, 2, 4, 1)])


def normed(x, norm):
    weight, bias = norm.chunk(2)
    return F.layer_norm(x, weight.shape, weight, bias)


def layer_of(x, positions, vectors, qkv, proj, fc, out, cache):
    """One layer, of x (rows, C) at consecutive positions; cache (2, H, P, D) is filled."""
    heads, _, size = cache.shape[1:]
    norm1, qkv_bias, proj_bias, norm2, fc_bias, out_bias = parts_of(vectors)
    rows = F.linear(normed(x, norm1), qkv, qkv_bias).view(-1, 3, heads, size).transpose(0, 2)
    q = rows[:, 0]  # (H, rows, D)
    first, end = positions
    cache[:, :, first:end] = rows[:, 1:].transpose(0, 1).to(cache.dtype)
    keys, values = cache[:, :, :end].to(x.dtype)
    scores = q @ keys.mT * size**-0.5
    later = torch.ones(end - first, end, dtype=torch.bool, device=x.device).triu(first + 1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1)
    values = values.where(~values.isnan(), 0)  # where a later value is NaN, 0 · NaN would be, too
    x = x + F.linear((weights @ values).transpose(0, 1).flatten(1), proj, proj_bias)
    hidden = F.gelu(F.linear(normed(x, norm2), fc, fc_bias), approximate="tanh")
    return x + F.linear(hidden, out, out_bias)


def logits_of(x, wte, last):
    return F.linear(normed(x, last), wte)


def embedded(wte, wpe, tokens, first):
    inside = (tokens >= 0) & (tokens < len(wte))
    words = wte[tokens.where(inside, 0)].where(inside[:, None], torch.nan)
    return words + wpe[first : first + len(tokens)]


def at_work(tensors):
    """The tensors in the precision in which the reference computes: at least fp32."""
    return [t if t.dtype == torch.float64 else t.float() for t in tensors]


def best_of(logits):
    """NaN is never the largest."""
    return logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argmax(-1)


def decode(wte, wpe, vectors, last, qkv, proj, fc, out, cache, token, position, steps):
    """Token by token, or without a cache where it starts empty. Only it is in its own dtype."""
    if position == 0:
        return prefilled(wte, wpe, vectors, last, qkv, proj, fc, out, cache, token, steps)
    wte, wpe, vectors, last, qkv, proj, fc, out = at_work(
        (wte, wpe, vectors, last, qkv, proj, fc, out)
    )
    tokens, rows = [], []
    for at in range(position, position + steps):
        x = embedded(wte, wpe, token, at)
        for weights in zip(vectors, qkv, proj, fc, out, cache, strict=True):
            x = layer_of(x, (at, at + 1), *weights)
        rows.append(logits_of(x, wte, last))
        token = best_of(rows[-1])
        tokens.append(token)
    return torch.cat(tokens), torch.cat(rows)


def prefilled(wte, wpe, vectors, last, qkv, proj, fc, out, cache, token, steps):
    """From position 0, without a cache: for each token, all positions are computed again,
    and the last time's keys and values are the cache."""
    wte, wpe, vectors, last, qkv, proj, fc, out = at_work(
        (wte, wpe, vectors, last, qkv, proj, fc, out)
    )
    tokens = token
    for _ in range(steps):
        x = embedded(wte, wpe, tokens, 0)
        for weights in zip(vectors, qkv, proj, fc, out, cache, strict=True):
            x = layer_of(x, (0, len(tokens)), *weights)
        logits = logits_of(x, wte, last)
        tokens = torch.cat([tokens, best_of(logits[-1:])])
    return tokens[1:], logits


# ---------------------------------------------------------------- PyTorch's calls


def by_pytorch(wte, wpe, vectors, last, qkv, proj, fc, out, cache, token, position, steps):
    """As a user writes it: bf16, a static cache, attention by one call. In a CUDA graph, the
    launches cost the host nothing."""
    heads, _, size = cache.shape[2:]
    tokens, rows = [], []
    for at in range(position, position + steps):
        x = wte[token] + wpe[at]
        for layer in range(len(qkv)):
            norm1, qkv_bias, proj_bias, norm2, fc_bias, out_bias = parts_of(vectors[layer])
            q, k, v = F.linear(normed(x, norm1), qkv[layer], qkv_bias).view(3, heads, 1, size)
            cache[layer, 0, :, at], cache[layer, 1, :, at] = k[:, 0], v[:, 0]
            keys, values = cache[layer, :, None, :, : at + 1]
            attended = F.scaled_dot_product_attention(q[None], keys, values)
            x = x + F.linear(attended.view(1, -1), proj[layer], proj_bias)
            hidden = F.gelu(F.linear(normed(x, norm2), fc[layer], fc_bias), approximate="tanh")
            x = x + F.linear(hidden, out[layer], out_bias)
        rows.append(F.linear(normed(x, last), wte).float())
        token = rows[-1].argmax(-1)
        tokens.append(token)
    return torch.cat(tokens), torch.cat(rows)


@cache
def compiled():
    """Tuned as day 100's step: products with one row become sums, fused with what follows."""
    return torch.compile(by_pytorch, dynamic=False, options={"coordinate_descent_tuning": True})


def compiled_pytorch(*arguments):
    return compiled()(*arguments)


def cost(case):
    """Each weight is read once per token, and each row of the cache that is there."""
    layers, _, channels, words, _, position, steps = case.shape
    weights = layers * (12 * channels**2 + VECTORS * channels) + (words + 4) * channels
    rows = sum(2 * layers * channels * at for at in range(position, position + steps))
    return Cost(bytes=2 * (weights * steps + rows), flops=2 * weights * steps + 2 * rows)
