"""The kernels of dequantize.cu in Triton, and their launchers below them."""

import os

import torch
import triton
import triton.language as tl

from common.day import aligned, require

GROUP = tl.constexpr(128)  # codes of int4 that share a scale
COLS = 8192  # of y, per program of GELU
GROUPS = 64  # of y, per program of SwiGLU
WARPS = 8
# The interpreter cuts bf16 off where a GPU rounds it, so it stores fp32, which PyTorch rounds.
STORED = torch.float32 if os.environ.get("TRITON_INTERPRET") == "1" else torch.bfloat16
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
TANH_LINEAR = tl.constexpr(1.5957691216057308)  # 2 · √(2/π)
TANH_CUBIC = tl.constexpr(0.071354816272600250)  # 0.044715 · 2 · √(2/π)


@triton.jit
def number_of(bits, OFFSET: tl.constexpr):
    """u - OFFSET, of bits in int32 that are 0x4b0000uu: in fp32, that is 2^23 + u."""
    return bits.to(tl.float32, bitcast=True) - (8388608.0 + OFFSET)


@triton.jit
def divided_by_power(v, x):
    """v / (1 + 2^x). Triton's `/` takes six instructions, a reciprocal square root takes one."""
    root = tl.rsqrt(1 + tl.exp2(x))
    return v * root * root


@triton.jit
def gelu(h):
    """Of v = 2h: max(v, 0) - |v| · Φ(-|v|), with the polynomial of dequantize.cu.

    Where h is a product, the compiler fuses it with h + |h|, which then is not 0 for h < 0, but
    what was rounded off h. So h is a multiply-add already.
    """
    t = tl.minimum(tl.abs(h), 6.6)
    p = t * -4.0893536e-05 + 1.1402730e-03
    p = p * t - 1.3390527e-02
    p = p * t + 8.7293331e-02
    p = p * t - 3.5525363e-01
    p = p * t - 1.8917839
    p = p * t - 2.2858654
    p = p * t - 7.8189869e-04
    return (h + tl.abs(h)) - t * tl.exp2(p)


@triton.jit
def gelu_kernel(codes, scales, y, cols, TANH: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    # Declared contiguous by eights only: a thread loads the 8 codes whose results it stores.
    c = tl.max_contiguous(tl.program_id(1) * COLS + tl.arange(0, COLS), 8)  # (COLS,)
    byte = tl.load(codes + row * cols + c, mask=c < cols, other=0).to(tl.int32)
    number = number_of(byte ^ 0x4B000080, 128)  # with its sign bit flipped, a code is code + 128
    scale = tl.load(scales + row)
    if TANH:
        v = number * scale
        v = divided_by_power(v, v * (-LOG2_E * TANH_LINEAR - LOG2_E * TANH_CUBIC * (v * v)))
    else:
        v = gelu(tl.fma(number, scale * 0.5, 0.0))
    tl.store(y + row * cols + c, v, mask=c < cols)


@triton.jit
def int4_numbers(codes, scales, g, groups, PRE: tl.constexpr, GROUPS: tl.constexpr):
    """PRE times the numbers of GROUPS groups, (GROUPS, 128); a row of the block has one scale."""
    b = g[:, None] * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]  # (GROUPS, 64)
    b = tl.max_contiguous(b, (1, 4))  # a thread loads 4 bytes, the codes of 8 results
    byte = tl.load(codes + b, mask=g[:, None] < groups, other=0).to(tl.int32)
    scale = PRE * tl.load(scales + g, mask=g < groups, other=0)[:, None]
    eight = 8 * scale
    high = (byte & 0xF0).to(tl.float32) * (scale / 16) - eight  # one multiply-add, rounded once
    low = (byte & 0x0F).to(tl.float32) * scale - eight
    return tl.interleave(high, low)


@triton.jit(do_not_specialize=("groups",))  # a group is 128 results, so addresses are aligned
def swiglu_kernel(codes, scales, y, groups, GROUPS: tl.constexpr):
    """groups: of a row of y, which are those of a half of the codes."""
    row = tl.program_id(0).to(tl.int64)
    g = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)  # (GROUPS,)
    codes += row * groups * GROUP
    scales += row * groups * 2
    y += row * groups * GROUP
    x = int4_numbers(codes, scales, g, groups, -LOG2_E, GROUPS)  # of silu, -a · log2(e)
    b = int4_numbers(codes + groups * (GROUP // 2), scales + groups, g, groups, -LN_2, GROUPS)
    at = g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]  # (GROUPS, 128)
    tl.store(y + at, divided_by_power(x, x) * b, mask=g[:, None] < groups)


def gelu_v4_triton(codes, scales, approximate):
    """codes: (rows, cols) int8, scales: (rows,) fp32, approximate: "none" or "tanh"."""
    require(codes, "codes", dtypes=(torch.int8,), rank=2)
    rows, cols = codes.shape
    require(scales, "scales", dtypes=(torch.float32,), shape=(rows,), device=codes.device)
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate: expected none or tanh, got {approximate!r}")
    codes, scales = aligned(codes, scales)
    y = torch.empty_like(codes, dtype=STORED)
    if y.numel() > 0:
        grid = (rows, triton.cdiv(cols, COLS))
        with torch.cuda.device_of(codes):
            gelu_kernel[grid](
                codes.view(torch.uint8), scales, y, cols, approximate == "tanh", COLS,
                num_warps=WARPS,
            )  # fmt: skip
    return y.to(torch.bfloat16)


def swiglu_v4_triton(codes, scales):
    """codes: (rows, cols) uint8, cols a multiple of 128; scales: (rows, cols / 64) fp32."""
    require(codes, "codes", dtypes=(torch.uint8,), rank=2)
    rows, cols = codes.shape
    if cols % 128:
        raise ValueError(f"codes: expected rows of a multiple of 128 bytes, got {cols}")
    require(
        scales, "scales", dtypes=(torch.float32,), shape=(rows, cols // 64), device=codes.device
    )
    codes, scales = aligned(codes, scales)
    y = torch.empty_like(codes, dtype=STORED)
    if y.numel() > 0:
        grid = (rows, triton.cdiv(cols // 128, GROUPS))
        with torch.cuda.device_of(codes):
            swiglu_kernel[grid](codes, scales, y, cols // 128, GROUPS, num_warps=WARPS)
    return y.to(torch.bfloat16)
