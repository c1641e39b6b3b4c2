"""The two functions of vector_ops.cu in Triton: a kernel, and the launcher below it."""

import torch
import triton
import triton.language as tl

from common.check.arguments import require_float
from common.day import aligned, require

BLOCK = 1024  # elements per program of leaky_add
ROWS, COLS = 16, 256  # elements per program of clamp_columns
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def leaky_add_kernel(x, y, z, n, slope, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,)
    mask = i < n  # the last program reaches beyond the end
    v = tl.load(x + i, mask=mask).to(tl.float32) + tl.load(y + i, mask=mask).to(tl.float32)
    tl.store(z + i, tl.where(v < 0, slope * v, v), mask=mask)


def leaky_add_v3_triton(x, y, slope):
    """x, y: (n,) of one floating dtype. Raises TypeError or ValueError for what it cannot take."""
    require(x, "x", dtypes=FLOATS, rank=1)
    require(y, "y", like=x)
    require_float(slope, "slope")
    x, y = aligned(x, y)
    z = torch.empty_like(x)
    n = x.numel()
    if n > 0:
        with torch.cuda.device_of(x):
            leaky_add_kernel[(triton.cdiv(n, BLOCK),)](x, y, z, n, slope, BLOCK)
    return z


@triton.jit
def clamp_columns_kernel(x, low, high, y, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    across = tl.cdiv(cols, COLS)  # programs per row of programs
    r = program // across * ROWS + tl.arange(0, ROWS)  # (ROWS,)
    c = program % across * COLS + tl.arange(0, COLS)  # (COLS,)
    least = tl.load(low + c, mask=c < cols).to(tl.float32)[None, :]  # (1, COLS)
    most = tl.load(high + c, mask=c < cols).to(tl.float32)[None, :]
    at = r[:, None] * cols + c[None, :]  # (ROWS, COLS)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    v = tl.load(x + at, mask=mask).to(tl.float32)
    v = tl.where((v < least) | (least != least), least, v)
    v = tl.where((v > most) | (most != most), most, v)
    tl.store(y + at, v, mask=mask)


def clamp_columns_v2_triton(x, low, high):
    """x: (rows, cols) of a floating dtype; low, high: (cols,) of the same. Raises TypeError or
    ValueError for others."""
    require(x, "x", dtypes=FLOATS, rank=2)
    rows, cols = x.shape
    for bound, name in ((low, "low"), (high, "high")):
        require(bound, name, dtypes=(x.dtype,), shape=(cols,), device=x.device)
    x, low, high = aligned(x, low, high)
    y = torch.empty_like(x)
    if x.numel() > 0:
        programs = triton.cdiv(cols, COLS) * triton.cdiv(rows, ROWS)
        with torch.cuda.device_of(x):
            clamp_columns_kernel[(programs,)](x, low, high, y, rows, cols, ROWS, COLS)
    return y
