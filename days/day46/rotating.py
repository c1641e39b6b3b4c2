"""Rotary embeddings in PyTorch: tables, rotation, and how far angles are off far from the start."""

from functools import cache

import torch

from common.day import print_table

BASE = 10000.0  # of the original paper


def angle_table(positions, rotary_dim, base):
    """cos and sin (positions, R/2) fp32 of angles in the default dtype; float64 for float64."""
    if rotary_dim <= 0 or rotary_dim > 65536 or rotary_dim % 2:
        raise ValueError(f"rotary_dim: expected an even number from 2 to 65536, got {rotary_dim}")
    if not 0 < base < 1e30:
        raise ValueError(f"base: expected above 0 and below 1e30, got {base}")
    dtype = torch.get_default_dtype()
    pairs = torch.arange(rotary_dim // 2, dtype=dtype, device=positions.device)
    angles = positions.to(dtype)[:, None] * base ** (-pairs / (rotary_dim // 2))
    return angles.cos(), angles.sin()


def rotate(x, cos, sin, interleaved, inverse=False):
    """x: (B, S, heads, D); cos, sin: (S, R/2). Computes in fp32 or wider, rounds once."""
    wide = torch.promote_types(x.dtype, cos.dtype)
    rotary = 2 * cos.shape[1]
    cos, sin = cos[:, None, :].to(wide), sin[:, None, :].to(wide)
    sin = -sin if inverse else sin
    rotated, rest = x[..., :rotary].to(wide), x[..., rotary:]
    if interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        turn = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = rotated.chunk(2, -1)
        turn = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([turn.to(x.dtype), rest], -1) if rest.shape[-1] else turn.to(x.dtype)


def rotary(q, k, cos, sin, offset, interleaved, inverse=False):
    """The rotated q and k."""
    if q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3] or q.dtype != k.dtype:
        raise ValueError("k: expected the batch, length, head size and dtype of q")
    if cos.shape != sin.shape or cos.dtype not in (torch.float32, torch.float64):
        raise ValueError("cos, sin: expected two tables of one shape in float32")
    if cos.dtype != sin.dtype or 2 * cos.shape[1] > q.shape[3]:
        raise ValueError("cos, sin: expected one dtype, at most half as many columns as D")
    end = offset + q.shape[1]
    if offset < 0 or end > len(cos):
        raise ValueError(f"offset: expected positions in [0, {len(cos)}), got {offset}")
    tables = cos[offset:end], sin[offset:end]
    return tuple(rotate(x, *tables, interleaved, inverse) for x in (q, k))


@torch.compiler.disable  # compiled, it would compute the tables again for each element
@cache
def exact_tables(positions, rotary_dim, dtype, device):
    """Tables from angles in float64, made once."""
    pairs = torch.arange(rotary_dim // 2, dtype=torch.float64, device=device)
    places = torch.arange(positions, dtype=torch.float64, device=device)
    angles = places[:, None] * BASE ** (-pairs / (rotary_dim // 2))
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotary_at(interleaved, q, k, rotary_dim, offset):
    """The rotated q and k of a module that has made its tables before."""
    if rotary_dim <= 0 or rotary_dim % 2 or not 0 <= offset < 1 << 20:
        raise ValueError("rotary_dim, offset: expected an even number above 0 and a position")
    wide = torch.promote_types(q.dtype, torch.float32)
    cos, sin = exact_tables(offset + q.shape[1], rotary_dim, wide, q.device)
    return rotary(q, k, cos, sin, offset, interleaved)


def in_place(q, k, cos, sin, offset, interleaved):
    for x, result in zip((q, k), rotary(q, k, cos, sin, offset, interleaved), strict=True):
        x.copy_(result)


def tables_by(operators, positions, R):
    """Ways to make the tables that one finds in programs, as (cos, sin) fp32."""
    exponents = -torch.arange(0, R, 2, device=positions.device).double() / R
    frequencies = BASE**exponents
    angles = positions.double()[:, None] * frequencies
    short = torch.bfloat16

    def cos_sin(angles):
        return angles.cos().float(), angles.sin().float()

    single = operators.rope_table_v1_float(positions, R, BASE)
    double = operators.rope_table_v2_double(positions, R, BASE)
    return {
        "angles in float64": double,
        "angles in float32": single,
        "float64, rounded to bf16": tuple(t.to(short).float() for t in double),
        "frequencies in bf16": cos_sin(positions.float()[:, None] * frequencies.to(short).float()),
        "positions in bf16": cos_sin(positions.to(short).float()[:, None] * frequencies.float()),
        "angles in bf16": cos_sin(angles.to(short).float()),
    }


def errors_at(operators, start, device, R=128, count=256):
    """By way: the largest error of cos and sin at the positions from `start` on, and of a score.

    The score is that of a query and the key 7 positions before it, relative to |q| |k|: it should
    not depend on where the two are.
    """
    positions = torch.arange(start, start + count, device=device)
    angles = positions.double()[:, None] * BASE ** (
        -torch.arange(0, R, 2, device=device).double() / R
    )
    generator = torch.Generator().manual_seed(46)
    q, k = torch.randn(2, R, generator=generator).to(device).double()
    found = {}
    exact = (angles.cos(), angles.sin())
    shape = (1, count, 1, R)
    for name, (cos, sin) in tables_by(operators, positions, R).items():
        off = max(
            float((t.double() - e).abs().max()) for t, e in zip((cos, sin), exact, strict=True)
        )
        scores = []
        for tables in ((cos.double(), sin.double()), exact):
            rotated = [rotate(x.expand(shape), *tables, False)[0, :, 0] for x in (q, k)]
            scores.append((rotated[0][7:] * rotated[1][:-7]).sum(-1))
        score = float((scores[0] - scores[1]).abs().max() / (q.norm() * k.norm()))
        found[name] = off, score
    return found


STARTS = (0, 1024, 8192, 131072 - 256)


def print_precision(operators, device):
    """The errors of each way to make the tables, near the start and far from it."""
    at = {start: errors_at(operators, start, device) for start in STARTS}
    for part, title in enumerate(("largest error of cos and sin", "of a score, over |q| |k|")):
        rows = [(name, *(f"{at[start][name][part]:.1e}" for start in STARTS)) for name in at[0]]
        print_table((title, *(f"from {start:,}" for start in STARTS)), rows)
