"""A cache of keys and values: what is stored, and attention of one query per head over it."""

from functools import lru_cache

import torch
import torch.nn.functional as F

from common.references.attention import unused

SCALE = 0.1


def lengths_of(case, draw):
    """The first sequence fills the cache, the last of three or more is empty."""
    B, _, T, _ = case.shape
    lengths = draw(B, dtype="int32", low=0, high=T + 1)
    lengths[:1] = T
    if B > 2:
        lengths[-1] = 0
    if draw.fast:
        lengths.fill_(T)
    return lengths


def query_and_cache(case, draw):
    """What lies beyond the end of a sequence is NaN: no kernel may use it."""
    B, H, T, D = case.shape
    q, keys, values = draw(B, H, D), draw(*case.shape), draw(*case.shape)
    lengths = lengths_of(case, draw)
    if not draw.fast:
        beyond = unused(lengths, T)[:, None, :, None]
        keys.masked_fill_(beyond, torch.nan)
        values.masked_fill_(beyond, torch.nan)
    return q, keys, values, lengths, SCALE


def attention(q, keys, values, lengths, scale):
    beyond = unused(lengths, keys.shape[2])
    scores = torch.einsum("bhd,bhtd->bht", q, keys.to(q.dtype)) * scale
    p = scores.masked_fill(beyond[:, None], -torch.inf).softmax(-1)
    values = values.to(q.dtype).masked_fill(beyond[:, None, :, None], 0)
    o = torch.einsum("bht,bhtd->bhd", p, values)
    return o.masked_fill((lengths <= 0)[:, None, None], 0)


def sdpa(q, keys, values, lengths, scale):
    """All sequences fill the cache: a mask would only cost time."""
    return F.scaled_dot_product_attention(q[:, :, None], keys, values, scale=scale)[:, :, 0]


def codes_and_scales(case, draw):
    B, H, T, D = case.shape
    q = draw(B, H, D)
    keys = draw(*case.shape, dtype="int8", low=-127, high=128)
    values = draw(*case.shape, dtype="int8", low=-127, high=128)
    scales = [draw(B, H, T, dtype="float32", low=0.005, high=0.02) for _ in range(2)]
    lengths = lengths_of(case, draw)
    if not draw.fast:
        for scale in scales:
            scale.masked_fill_(unused(lengths, T)[:, None], torch.nan)
    return q, keys, values, *scales, lengths, SCALE


def rows(codes, scales, dtype):
    wide = torch.promote_types(dtype, torch.float32)
    return (codes.to(wide) * scales.to(wide)[..., None]).to(dtype)


def attention_int8(q, keys, values, key_scales, value_scales, lengths, scale):
    wide = torch.promote_types(q.dtype, torch.float32)
    keys, values = rows(keys, key_scales, wide), rows(values, value_scales, wide)
    return attention(q.to(wide), keys, values, lengths, scale).to(q.dtype)


@lru_cache(maxsize=1)
def kept(dtype, *cache):
    keys, values, key_scales, value_scales = cache
    return rows(keys, key_scales, dtype), rows(values, value_scales, dtype)


def sdpa_16_bits(q, keys, values, key_scales, value_scales, lengths, scale):
    """What a user without int8 calls, on a cache in 16 bits that was stored before."""
    keys, values = kept(q.dtype, keys, values, key_scales, value_scales)
    return sdpa(q, keys, values, lengths, scale)


def new_rows_and_cache(case, draw):
    B, H, _, D = case.shape
    k, v, keys, values = draw(B, H, D), draw(B, H, D), draw(*case.shape), draw(*case.shape)
    return k, v, keys, values, positions_of(case, draw)


def positions_of(case, draw):
    """The first place, the last one, and others."""
    B, _, T, _ = case.shape
    positions = draw(B, dtype="int32", low=0, high=max(T, 1))
    positions[:1] = max(T - 1, 0)
    positions[1:2] = 0
    return positions


def store(k, v, keys, values, positions):
    for b, position in enumerate(positions.tolist()):
        if 0 <= position < keys.shape[2]:
            keys[b, :, position] = k[b]
            values[b, :, position] = v[b]


def new_rows_and_codes(case, draw):
    B, H, T, D = case.shape
    k, v = draw(B, H, D), draw(B, H, D)
    codes = [draw(*case.shape, dtype="int8") for _ in range(2)]
    scales = [draw(B, H, T, dtype="float32") for _ in range(2)]
    return k, v, *codes, *scales, positions_of(case, draw)


def quantised(x):
    """Codes and scales of rows, in fp32 step by step as in the kernel: ties then fall alike."""
    x = x.float()
    most = x.abs().amax(-1, keepdim=True)
    # By a tensor: a CUDA division by a number multiplies by its reciprocal, which rounds twice.
    scale = torch.where(most < torch.inf, most / torch.full_like(most, 127), torch.nan)
    codes = torch.where(scale > 0, (x / scale).round(), 0).clamp(-127, 127)
    return codes.to(torch.int8), scale[..., 0]


def store_int8(k, v, keys, values, key_scales, value_scales, positions):
    rows_k, scales_k = quantised(k)
    rows_v, scales_v = quantised(v)
    store(rows_k, rows_v, keys, values, positions)
    store(
        scales_k[..., None],
        scales_v[..., None],
        key_scales[..., None],
        value_scales[..., None],
        positions,
    )
