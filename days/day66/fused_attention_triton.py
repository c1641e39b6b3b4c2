"""The attention of fused_attention.cu in Triton: kernels, and their launchers below them."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from common.day import aligned, require

# tl.dot of Triton's interpreter takes the bits of bf16 for integers.
TYPES = (torch.float16,) if triton.knobs.runtime.interpret else (torch.bfloat16, torch.float16)
LOG2_E = tl.constexpr(1.4426950408889634)
# By D: rows of q and keys per tile. The smaller the tile, the more programs are resident, of which
# one computes exponentials while another one multiplies.
TILES = {64: (128, 64), 128: (64, 64)}
OPTIONS = {"num_warps": 4, "num_stages": 3}


@triton.jit
def attend(
    o, total, most, q, k, v, head, begin, end, position, window, slope, scale_log2, T,
    MASKED: tl.constexpr, ALIBI: tl.constexpr, TMA: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The online softmax over the tiles of keys [begin, end). position: (BM,), of the rows.
    k, v: descriptors of (heads · T, D) if TMA, else pointers."""
    for j0 in tl.range(begin, end, BN):
        j = j0 + tl.arange(0, BN)  # (BN,)
        if TMA:
            keys = k.load([head * T + j0, 0])  # (BN, D)
        else:
            at = (head.to(tl.int64) * T + j)[:, None] * D + tl.arange(0, D)[None, :]
            keys = tl.load(k + at, mask=j[:, None] < T, other=0.0)
        s = tl.dot(q, keys.T)  # (BM, BN)
        if ALIBI:
            s = s * scale_log2 - slope * (position[:, None] - j[None, :]).to(tl.float32)
        if MASKED:
            distance = position[:, None] - j[None, :]
            s = tl.where((distance >= 0) & (distance < window), s, -float("inf"))
        unit = 1.0 if ALIBI else scale_log2  # of s, in powers of two
        new = tl.maximum(most, tl.max(s, 1) * unit)
        base = tl.where(new == -float("inf"), 0.0, new) if MASKED else new
        p = tl.exp2(s * unit - base[:, None])
        rescale = tl.exp2(most - base)
        total = total * rescale + tl.sum(p, 1)
        if TMA:
            values = v.load([head * T + j0, 0])  # (BN, D)
        else:
            values = tl.load(v + at, mask=j[:, None] < T, other=0.0)
        o = tl.dot(p.to(values.dtype), values, o * rescale[:, None])
        most = new
    return o, total, most


@triton.jit(do_not_specialize=("window", "heads", "H", "S", "T"))
def attention_kernel(
    q, k, v, o, lse, slopes, window, scale_log2, heads, H, S, T,
    SPLIT: tl.constexpr, ALIBI: tl.constexpr, TMA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One program per BM rows of a head. SPLIT: the tiles without hidden keys have a loop of their
    own, without masks."""
    head = tl.program_id(0) % heads
    i0 = (tl.cdiv(S, BM) - 1 - tl.program_id(0) // heads) * BM  # the rows with the most keys first
    i = i0 + tl.arange(0, BM)  # (BM,)
    position = i + T - S
    at = (head.to(tl.int64) * S + i)[:, None] * D + tl.arange(0, D)[None, :]
    rows = tl.load(q + at, mask=i[:, None] < S, other=0.0)  # (BM, D)
    slope = tl.load(slopes + head % H) * LOG2_E if ALIBI else 0.0
    sums = tl.zeros((BM, D), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    most = tl.full((BM,), -float("inf"), tl.float32)

    first, last = i0 + T - S, i0 + BM - 1 + T - S  # positions of the first row and of the last
    begin = tl.maximum(first - window + 1, 0) // BN * BN
    end = tl.minimum(last + 1, T)
    if SPLIT:
        # All rows see all keys of the tiles [open, shut).
        shut = tl.maximum(first + 1, 0) // BN * BN
        open_ = tl.minimum(tl.cdiv(tl.maximum(last - window + 1, 0), BN) * BN, shut)
        open_ = tl.maximum(open_, begin)
        shut = tl.maximum(shut, open_)
        sums, total, most = attend(
            sums, total, most, rows, k, v, head, begin, open_, position, window, slope, scale_log2,
            T, True, ALIBI, TMA, BN, D,
        )  # fmt: skip
        sums, total, most = attend(
            sums, total, most, rows, k, v, head, open_, shut, position, window, slope, scale_log2,
            T, False, ALIBI, TMA, BN, D,
        )  # fmt: skip
        begin = shut
    sums, total, most = attend(
        sums, total, most, rows, k, v, head, begin, end, position, window, slope, scale_log2, T,
        True, ALIBI, TMA, BN, D,
    )  # fmt: skip
    inverse = tl.where(total == 0, 0.0, 1 / total)  # 0: the row has seen no key
    tl.store(o + at, (sums * inverse[:, None]).to(o.dtype.element_ty), mask=i[:, None] < S)
    tl.store(lse + head.to(tl.int64) * S + i, (most + tl.log2(total)) / LOG2_E, mask=i < S)


def attention(q, k, v, slopes, window, split, tma):
    """o like q, and lse (B, H, S) in fp32. q: (B, H, S, D), k, v: (B, H, T, D), bf16 or fp16, D =
    64 or 128; slopes: (H,) or (0,) in fp32. tma: where whole tiles of keys fill T. Raises TypeError
    or ValueError for others."""
    require(q, "q", dtypes=TYPES, rank=4)
    B, H, S, D = q.shape
    if D not in TILES:
        raise ValueError(f"q: expected 64 or 128 elements in the last dimension, got {q.shape}")
    require(k, "k", dtypes=(q.dtype,), rank=4, device=q.device)
    T = k.shape[2]
    require(k, "k", shape=(B, H, T, D))
    require(v, "v", dtypes=(q.dtype,), shape=(B, H, T, D), device=q.device)
    require(slopes, "slopes", dtypes=(torch.float32,), rank=1, device=q.device)
    if slopes.numel() > 0:
        require(slopes, "slopes", shape=(H,))
    if S + T >= 2**24:
        raise ValueError(f"q, k: expected fewer than 2^24 rows, got {S} and {T}")
    if window < 0:
        raise ValueError(f"window: expected 0 (no limit) or more, got {window}")
    q, k, v, slopes = aligned(q, k, v, slopes)
    o, lse = torch.empty_like(q), q.new_empty(B, H, S, dtype=torch.float32)
    if q.numel() == 0:
        return o, lse
    window = min(window or S + T, S + T)  # no window needs to be longer
    BM, BN = TILES[D]
    tma = tma and T > 0 and T % BN == 0
    if tma:
        keys, values = (TensorDescriptor.from_tensor(t.view(-1, D), [BN, D]) for t in (k, v))
    else:
        keys, values = k, v
    with torch.cuda.device_of(q):
        attention_kernel[(triton.cdiv(S, BM) * B * H,)](
            q, keys, values, o, lse, slopes, window, LOG2_E.value / D**0.5, B * H, H, S, T,
            split, slopes.numel() > 0, tma, BM, BN, D, **OPTIONS,
        )  # fmt: skip
    return o, lse


def fused_attention_v3_triton(q, k, v, slopes, window=0):
    """One loop, which masks every tile."""
    return attention(q, k, v, slopes, window, False, False)


def fused_attention_v4_triton_split(q, k, v, slopes, window=0):
    """A loop without masks, between two with masks; keys and values by TMA."""
    return attention(q, k, v, slopes, window, True, True)
