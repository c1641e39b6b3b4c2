"""The reductions of multi_stage_reduction.cu in Triton: kernels, and their launchers below them."""

import torch
import triton
import triton.language as tl

from common.day import aligned, require

BLOCK = 4096  # elements per tile
TILES = 4  # per part at least
MOST_PARTS = 4096  # of all rows
LONGEST_ROW = 32768  # that a program keeps in registers
SHORTEST_ROW = 1024  # that has a kernel of its own: shorter ones are padded to as much
FEWEST_PARTS = 64  # the same for parts that are merged
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def base_of(most):
    """What is subtracted: inf - inf would be NaN."""
    return tl.where(tl.abs(most) == float("inf"), 0.0, most)


@triton.jit
def rescale(old, new):
    """The scale from a sum relative to `old` to one relative to `new`, which is not smaller."""
    return tl.where(old == new, 1.0, tl.exp(old - new))


# What is not specialised decides on no load but a few narrow ones.
GENERAL = {
    "do_not_specialize": ("parts", "tiles"),
    "do_not_specialize_on_alignment": ("maxima", "sums"),
}


@triton.jit(**GENERAL)
def parts_kernel(x, maxima, sums, cols, parts, tiles, LANES: tl.constexpr, EACH: tl.constexpr):
    """A maximum and a sum per part of `tiles` tiles. A tile is LANES × EACH elements, and LANES
    pairs are kept until the end."""
    program = tl.program_id(0).to(tl.int64)
    row, part = program // parts, program % parts
    within = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]  # (LANES, EACH)
    most = tl.full((LANES,), -float("inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    for tile in range(part * tiles, tl.minimum((part + 1) * tiles, tl.cdiv(cols, LANES * EACH))):
        c = tile * (LANES * EACH) + within
        v = tl.load(x + row * cols + c, mask=c < cols, other=-float("inf")).to(tl.float32)
        new = tl.maximum(most, tl.max(v, 1))
        added = tl.sum(tl.exp(v - base_of(new)[:, None]), 1)
        total = total * rescale(most, new) + added
        most = new
    new = tl.max(most, 0)
    tl.store(maxima + program, new)
    tl.store(sums + program, tl.sum(total * rescale(most, new), 0))


@triton.jit
def merged(maxima, sums, row, parts, PARTS: tl.constexpr):
    """The maximum and the sum of a row."""
    p = tl.arange(0, PARTS)
    most = tl.load(maxima + row * parts + p, mask=p < parts, other=-float("inf"))
    total = tl.load(sums + row * parts + p, mask=p < parts, other=0.0)
    new = tl.max(most, 0)
    return new, tl.sum(total * rescale(most, new), 0)


@triton.jit(**GENERAL)
def merge_kernel(maxima, sums, y, parts, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    most, total = merged(maxima, sums, row, parts, PARTS)
    tl.store(y + row, base_of(most) + tl.log(total))


class Parts:
    """How rows are cut, and the maximum and the sum of each part."""

    def __init__(self, x, lanes):
        rows, cols = x.shape
        tiles = triton.cdiv(cols, BLOCK)
        self.tiles = max(TILES, triton.cdiv(tiles, max(1, MOST_PARTS // rows)))  # per part
        self.count = max(1, triton.cdiv(tiles, self.tiles))  # per row
        self.padded = max(FEWEST_PARTS, triton.next_power_of_2(self.count))
        self.grid = (rows * self.count,)
        self.maxima, self.sums = x.new_empty(2, rows * self.count, dtype=torch.float32)
        parts_kernel[self.grid](
            x, self.maxima, self.sums, cols, self.count, self.tiles, lanes, BLOCK // lanes
        )


def log_sum_exp(x, lanes):
    """x: (rows, cols), a floating dtype. Raises TypeError or ValueError for others."""
    require(x, "x", dtypes=FLOATS, rank=2)
    (x,) = aligned(x)
    y = x.new_empty(x.shape[0])
    if x.shape[0] > 0:
        with torch.cuda.device_of(x):
            parts = Parts(x, lanes)
            merge_kernel[(x.shape[0],)](parts.maxima, parts.sums, y, parts.count, parts.padded)
    return y


def log_sum_exp_v3_triton(x):
    """Reduces each tile to one pair."""
    return log_sum_exp(x, 1)


def log_sum_exp_v4_triton_lanes(x):
    """Keeps a pair for every 16 bytes of a tile, which are those of one load."""
    return log_sum_exp(x, BLOCK * x.element_size() // 16)


@triton.jit(**GENERAL)
def scale_kernel(x, maxima, sums, y, cols, parts, tiles, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    row, part = program // parts, program % parts
    most, total = merged(maxima, sums, row, parts, PARTS)
    scale = tl.where(most == float("inf"), float("nan"), 1 / total)  # a row with +inf is NaN
    for tile in range(part * tiles, tl.minimum((part + 1) * tiles, tl.cdiv(cols, BLOCK))):
        c = tile * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,)
        v = tl.load(x + row * cols + c, mask=c < cols).to(tl.float32)
        tl.store(y + row * cols + c, tl.exp(v - base_of(most)) * scale, mask=c < cols)


@triton.jit
def row_kernel(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)  # (BLOCK,)
    v = tl.load(x + row * cols + c, mask=c < cols, other=-float("inf")).to(tl.float32)
    v = tl.exp(v - tl.max(v, 0))  # infinite maximum: NaN for all, as in PyTorch
    tl.store(y + row * cols + c, v * (1 / tl.sum(v, 0)), mask=c < cols)


def softmax_v3_triton(x):
    """x: (rows, cols), a floating dtype. Raises TypeError or ValueError for others."""
    require(x, "x", dtypes=FLOATS, rank=2)
    (x,) = aligned(x)
    rows, cols = x.shape
    y = torch.empty_like(x)
    if x.numel() > 0:
        with torch.cuda.device_of(x):
            if cols <= LONGEST_ROW:
                block = max(SHORTEST_ROW, triton.next_power_of_2(cols))
                row_kernel[(rows,)](x, y, cols, block, num_warps=min(32, max(4, block // 1024)))
            else:
                parts = Parts(x, BLOCK * x.element_size() // 16)
                scale_kernel[parts.grid](
                    x, parts.maxima, parts.sums, y, cols, parts.count, parts.tiles, BLOCK,
                    parts.padded,
                )  # fmt: skip
    return y
