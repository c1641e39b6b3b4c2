"""The norms of norm_twins.cu in Triton: kernels, and their launchers below them."""

import torch
import triton
import triton.language as tl

from common.check.arguments import require_float
from common.day import aligned, require

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LONGEST_ROW = 16384  # that a program keeps in registers
SHORTEST_ROW = 1024  # that has a kernel of its own: shorter ones are padded to as much
# Per thread: with 78, which the compiler takes by itself, 3 programs of 8192 columns are resident
# per multiprocessor, with 64 they are 4.
MOST_REGISTERS = 64
ROWS = 32  # of a tile of batch norm
PLACES = 8  # rows of a tile where each place has its moments
STAGES = tl.constexpr(4)  # tiles of that kind that are in flight or in use
MOST_PROGRAMS = 2048  # of batch norm
MERGED = 8192  # moments per program that merges slices: 32 per thread
FEWEST_SLICES = 64  # that have a kernel of their own


@triton.jit
def merge(count, mean, m2, other_count, other_mean, other_m2):
    """The moments of two sets of elements together: number, mean, squared distances from it."""
    total = count + other_count
    share = other_count / tl.maximum(total, 1)
    distance = other_mean - mean
    added = other_m2 + distance * distance * (count * share)
    return total, mean + distance * share, m2 + added


@triton.jit
def moments_of(v, counted, count):
    """Mean and m2 along dimension 0 of those elements that count; their number is `count`. The mean
    of the distances from the rounded mean is what rounding took away."""
    mean = tl.sum(v, 0) / tl.maximum(count, 1)
    distance = tl.where(counted, v - mean, 0.0)
    rest = tl.sum(distance, 0) / tl.maximum(count, 1)
    return mean + rest, tl.sum(distance * distance, 0) - rest * rest * count


@triton.jit
def merge_rows(count, mean, m2):
    """The moments of all rows together. count: (rows, 1), mean and m2: (rows, cols)."""
    total = tl.sum(count, 0)
    rounded = tl.sum(mean * count, 0) / total
    distance = tl.where(count > 0, mean - rounded[None, :], 0.0)
    rest = tl.sum(distance * count, 0) / total
    return rounded + rest, tl.sum(m2 + distance * distance * count, 0) - rest * rest * total


@triton.jit
def scale_of(m2, count, eps):
    """Rounding may leave an m2 below 0. The comparison passes NaN on."""
    return tl.rsqrt(tl.where(m2 < 0, 0.0, m2 / count) + eps)


@triton.jit
def row_kernel(x, weight, bias, y, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)  # (BLOCK,)
    v = tl.load(x + row * cols + c, mask=c < cols, other=0.0).to(tl.float32)
    mean, m2 = moments_of(v, c < cols, cols * 1.0)  # Triton makes an int of cols = 1
    normal = (v - mean) * scale_of(m2, cols, eps)
    w = tl.load(weight + c, mask=c < cols).to(tl.float32)
    b = tl.load(bias + c, mask=c < cols).to(tl.float32)
    tl.store(y + row * cols + c, normal * w + b, mask=c < cols)


@triton.jit
def long_row_kernel(x, weight, bias, y, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    count, mean, m2 = 0.0, 0.0, 0.0
    for first in range(0, cols, BLOCK):
        c = first + tl.arange(0, BLOCK)  # (BLOCK,)
        here = tl.minimum(cols - first, BLOCK).to(tl.float32)
        v = tl.load(x + row * cols + c, mask=c < cols, other=0.0).to(tl.float32)
        tile_mean, tile_m2 = moments_of(v, c < cols, here)
        count, mean, m2 = merge(count, mean, m2, here, tile_mean, tile_m2)
    scale = scale_of(m2, cols, eps)
    for first in range(0, cols, BLOCK):
        c = first + tl.arange(0, BLOCK)  # (BLOCK,)
        v = tl.load(x + row * cols + c, mask=c < cols).to(tl.float32)
        w = tl.load(weight + c, mask=c < cols).to(tl.float32)
        b = tl.load(bias + c, mask=c < cols).to(tl.float32)
        tl.store(y + row * cols + c, (v - mean) * scale * w + b, mask=c < cols)


def check(x, weight, bias, eps):
    """Raises TypeError or ValueError for what the launchers cannot take."""
    require(x, "x", dtypes=FLOATS, rank=2)
    for tensor, name in ((weight, "weight"), (bias, "bias")):
        require(tensor, name, dtypes=(x.dtype,), shape=(x.shape[1],), device=x.device)
    require_float(eps, "eps")
    if not eps >= 0:
        raise ValueError(f"eps: expected 0 or more, got {eps}")


def layer_norm_v3_triton(x, weight, bias, eps):
    """x: (rows, cols); weight, bias: (cols,) of the same floating dtype."""
    check(x, weight, bias, eps)
    x, weight, bias = aligned(x, weight, bias)
    y = torch.empty_like(x)
    rows, cols = x.shape
    if x.numel() > 0:
        with torch.cuda.device_of(x):
            if cols <= LONGEST_ROW:
                block = max(SHORTEST_ROW, triton.next_power_of_2(cols))
                warps = min(16, max(4, block // 1024))
                row_kernel[(rows,)](
                    x,
                    weight,
                    bias,
                    y,
                    cols,
                    eps,
                    block,
                    num_warps=warps,
                    maxnreg=MOST_REGISTERS,
                )
            else:
                long_row_kernel[(rows,)](x, weight, bias, y, cols, eps, 4096, num_warps=8)
    return y


@triton.jit(do_not_specialize=("strips",))
def reduce_tiles_kernel(
    x, means, m2s, rows, cols, strips, length, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """The moments of the columns of a slice of `length` rows, stored as (slices, cols). Each tile
    is reduced, and its moments are merged with those before."""
    program = tl.program_id(0)
    slice = (program // strips).to(tl.int64)
    c = program % strips * COLS + tl.arange(0, COLS)  # (COLS,)
    count = tl.zeros((COLS,), tl.float32)
    mean = tl.zeros((COLS,), tl.float32)
    m2 = tl.zeros((COLS,), tl.float32)
    last = tl.minimum((slice + 1) * length, rows)
    for first in range(slice * length, last, ROWS):
        r = first + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        mask = (r < last) & (c[None, :] < cols)
        v = tl.load(x + r * cols + c[None, :], mask=mask, other=0.0).to(tl.float32)
        here = tl.minimum(last - first, ROWS).to(tl.float32)
        tile_mean, tile_m2 = moments_of(v, r < last, here)  # (COLS,)
        count, mean, m2 = merge(count, mean, m2, here, tile_mean, tile_m2)
    tl.store(means + slice * cols + c, mean, mask=c < cols)
    tl.store(m2s + slice * cols + c, m2, mask=c < cols)


@triton.jit(do_not_specialize=("strips",))
def reduce_places_kernel(
    x, means, m2s, rows, cols, strips, length, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """The same moments. Each place of the tile has its own, to which every tile adds one element
    (Welford), and the places of a column are merged at the end."""
    program = tl.program_id(0)
    slice = (program // strips).to(tl.int64)
    c = program % strips * COLS + tl.arange(0, COLS)  # (COLS,)
    count = tl.zeros((ROWS, 1), tl.float32)
    mean = tl.zeros((ROWS, COLS), tl.float32)
    m2 = tl.zeros((ROWS, COLS), tl.float32)
    last = tl.minimum((slice + 1) * length, rows)
    tiles = 0.0
    for first in tl.range(slice * length, last, ROWS, num_stages=STAGES):  # by cp.async
        r = first + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        here = r < last
        v = tl.load(x + r * cols + c[None, :], mask=here & (c[None, :] < cols), other=0.0)
        tiles += 1
        share = tl.where(here, 1 / tiles, 0.0)  # places beyond the last row stay as they are
        count += here.to(tl.float32)
        distance = v.to(tl.float32) - mean
        mean += distance * share
        m2 += tl.where(here, distance * (v.to(tl.float32) - mean), 0.0)
    slice_mean, slice_m2 = merge_rows(count, mean, m2)
    tl.store(means + slice * cols + c, slice_mean, mask=c < cols)
    tl.store(m2s + slice * cols + c, slice_m2, mask=c < cols)


@triton.jit(do_not_specialize=("rows", "slices", "length"))
def merge_kernel(
    means, m2s, scales, rows, cols, slices, length, eps, SLICES: tl.constexpr, COLS: tl.constexpr
):
    """The mean of each column, in place of that of the first slice, and its scale."""
    s = tl.arange(0, SLICES)[:, None]  # (SLICES, 1)
    c = tl.program_id(0) * COLS + tl.arange(0, COLS)  # (COLS,)
    at = s.to(tl.int64) * cols + c[None, :]
    mask = (s < slices) & (c[None, :] < cols)
    # The last slice may be shorter.
    count = tl.where(s < slices, tl.minimum(rows - s.to(tl.int64) * length, length), 0)
    slice_mean = tl.load(means + at, mask=mask, other=0.0)  # (SLICES, COLS)
    slice_m2 = tl.load(m2s + at, mask=mask, other=0.0)
    mean, m2 = merge_rows(count.to(tl.float32), slice_mean, slice_m2)
    tl.store(scales + c, mean, mask=c < cols)
    tl.store(scales + cols + c, scale_of(m2, rows, eps), mask=c < cols)


@triton.jit(do_not_specialize=("strips",))
def apply_kernel(
    x, weight, bias, scales, y, rows, cols, strips, length,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """The last slices come first: of those that were read last, L2 may still have a part."""
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    slice = (program // strips).to(tl.int64)
    c = program % strips * COLS + tl.arange(0, COLS)  # (COLS,)
    mean = tl.load(scales + c, mask=c < cols)[None, :]  # (1, COLS)
    scale = tl.load(scales + cols + c, mask=c < cols)
    w = tl.load(weight + c, mask=c < cols).to(tl.float32)
    b = tl.load(bias + c, mask=c < cols).to(tl.float32)[None, :]
    scale = (scale * w)[None, :]
    last = tl.minimum((slice + 1) * length, rows)
    for first in range(slice * length, last, ROWS):
        r = first + tl.arange(0, ROWS)[:, None]  # (ROWS, 1)
        mask = (r < last) & (c[None, :] < cols)
        v = tl.load(x + r * cols + c[None, :], mask=mask).to(tl.float32)
        tl.store(y + r * cols + c[None, :], (v - mean) * scale + b, mask=mask)


def batch_norm(x, weight, bias, eps, reduce_kernel, tile_rows):
    """x: (rows, cols), not of one row; weight, bias: (cols,) of the same floating dtype."""
    check(x, weight, bias, eps)
    rows, cols = x.shape
    if rows == 1:
        raise ValueError("x: expected more than one row, as a variance needs them")
    x, weight, bias = aligned(x, weight, bias)
    y = torch.empty_like(x)
    if x.numel() == 0:
        return y
    tile_cols = 512 // x.element_size()  # 512 bytes of a row: a warp's load
    strips = triton.cdiv(cols, tile_cols)
    most = max(1, MOST_PROGRAMS // strips)
    length = triton.cdiv(triton.cdiv(rows, ROWS), most) * ROWS
    slices = triton.cdiv(rows, length)
    means, m2s = (x.new_empty(slices, cols, dtype=torch.float32) for _ in range(2))
    scales = x.new_empty(2, cols, dtype=torch.float32)
    grid = (strips * slices,)
    padded = max(FEWEST_SLICES, triton.next_power_of_2(slices))
    merged = min(16, MERGED // padded)  # columns
    with torch.cuda.device_of(x):
        reduce_kernel[grid](x, means, m2s, rows, cols, strips, length, tile_rows, tile_cols)
        merge_kernel[(triton.cdiv(cols, merged),)](
            means, m2s, scales, rows, cols, slices, length, eps, padded, merged, num_warps=8
        )
        apply_kernel[grid](x, weight, bias, scales, y, rows, cols, strips, length, ROWS, tile_cols)
    return y


def batch_norm_v3_triton(x, weight, bias, eps):
    """Reduces each tile to one row of moments."""
    return batch_norm(x, weight, bias, eps, reduce_tiles_kernel, ROWS)


def batch_norm_v4_triton_places(x, weight, bias, eps):
    """Keeps moments for each place of the tile."""
    return batch_norm(x, weight, bias, eps, reduce_places_kernel, PLACES)
