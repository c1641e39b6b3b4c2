"""The cross-entropy of chunked_ce.cu in Triton: kernels, and their launchers below them."""

import torch
import triton
import triton.language as tl

from common.day import require

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LOG2_E = tl.constexpr(1.4426950408889634)
LEAST = tl.constexpr(-3.4028234663852886e38)  # the least number of fp32
LIFT = tl.constexpr(64)  # exponentials are multiplied by 2^LIFT, in 16-bit types
SLACK = tl.constexpr(32.0)  # how far a logit may be above the base of its sum
STAGES = tl.constexpr(4)  # chunks in flight or in use
LONGEST_CHUNK = 4096
PROGRAMS = 2  # per multiprocessor: with more, their rows do not stay in L2 between the two reads


@triton.jit
def exponential(x, base, LIFTED: tl.constexpr):
    """exp(x - base), multiplied by 2^LIFT where LIFTED."""
    return tl.exp2((x - base) * LOG2_E + (LIFT if LIFTED else 0))


@triton.jit
def load_chunk(row, first, cols, BLOCK: tl.constexpr):
    """Columns [first, first + BLOCK) of a row, as fp32."""
    c = first + tl.arange(0, BLOCK)  # (BLOCK,)
    return tl.load(row + c, mask=c < cols, other=-float("inf")).to(tl.float32)


@triton.jit
def count_kernel(target, weight, rows, ignore_index, BLOCK: tl.constexpr):
    count = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, rows, BLOCK):
        r = first + tl.arange(0, BLOCK)  # (BLOCK,)
        counts = tl.load(target + r, mask=r < rows, other=ignore_index) != ignore_index
        count += counts.to(tl.int32)
    # If no row counts it is 1 / 0, and the mean becomes NaN, as in PyTorch.
    tl.store(weight, 1.0 / tl.sum(count, 0).to(tl.float32))


@triton.jit
def mean_kernel(losses, weight, loss, rows, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, rows, BLOCK):
        r = first + tl.arange(0, BLOCK)  # (BLOCK,)
        total += tl.load(losses + r, mask=r < rows, other=0.0)
    tl.store(loss, tl.sum(total, 0) * tl.load(weight))
