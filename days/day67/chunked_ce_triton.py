"""The cross-entropy of chunked_ce.cu in Triton: kernels, and their launchers below them."""

import torch
import triton
import triton.language as tl

from common.day import aligned, require

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LOG2_E = tl.constexpr(1.4426950408889634)
LEAST = tl.constexpr(-3.4028234663852886e38)  # the least number of fp32
LIFT = tl.constexpr(64.0)  # of 16-bit logits, exponentials have a factor of 2^LIFT, which cancels
MOST_SUM = tl.constexpr(2.0**100)  # a larger sum has a logit far above its base
CHUNK = 4096  # elements of a row at a time, v4; of a part of a tile, v5
MOST_REGISTERS = 64  # per thread: two programs of 16 warps per multiprocessor, or one of 32
LONG_ROW = 128 * 1024  # bytes; the second time, L2 still has two shorter rows per multiprocessor
COUNTED = 4096  # targets or losses at a time
SHORTEST = 2048  # chunk that has a kernel of its own
GENERAL = {"do_not_specialize": ("rows", "ignore_index")}  # no load depends on them


@triton.jit
def exponential(x, base, LIFTED: tl.constexpr):
    """exp(x - base), and 2^LIFT as much where LIFTED: 64 more in the exponent cost fp32 digits."""
    return tl.exp2((x - base) * LOG2_E + LIFT) if LIFTED else tl.exp(x - base)


@triton.jit(**GENERAL)
def count_kernel(target, weight, rows, ignore_index: tl.int64, BLOCK: tl.constexpr):
    count = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, rows, BLOCK):
        r = first + tl.arange(0, BLOCK)  # (BLOCK,)
        t = tl.load(target + r, mask=r < rows, other=ignore_index)
        count += (t != ignore_index).to(tl.int32)
    # If no row counts it is 1 / 0, and the mean becomes NaN, as in PyTorch.
    tl.store(weight, 1.0 / tl.sum(count, 0).to(tl.float32))


@triton.jit(**GENERAL)
def mean_kernel(losses, weight, loss, rows, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, rows, BLOCK):
        r = first + tl.arange(0, BLOCK)  # (BLOCK,)
        total += tl.load(losses + r, mask=r < rows, other=0.0)
    tl.store(loss, tl.sum(total, 0) * tl.load(weight))


@triton.jit
def finish_row(
    x, dx, target, losses, weight, row, cols, ignore_index, smoothing, base, total, of_x,
    SMOOTHED: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores the loss of a row and, in a second pass over tiles of (PARTS, BLOCK), its gradient. x,
    dx: the row. total: the sum of its exponentials, of_x: that of its logits."""
    t = tl.load(target + row)
    ignored, valid = t == ignore_index, (t >= 0) & (t < cols)
    w = tl.load(weight)
    nan = float("nan")
    LIFTED: tl.constexpr = x.dtype.element_ty.primitive_bitwidth == 16
    log_sum = tl.log(total * (1 / 2**LIFT if LIFTED else 1.0))
    x_target = tl.load(x + tl.where(valid, t, 0)).to(tl.float32)
    loss = log_sum + (base - x_target)
    at_target, everywhere = w, 0.0
    if SMOOTHED:
        loss = (1 - smoothing) * loss + smoothing * (log_sum + (base - of_x / cols))
        at_target, everywhere = w * (1 - smoothing), w * smoothing / cols
    tl.store(losses + row, tl.where(ignored, 0.0, tl.where(valid, loss, nan)))
    scale = tl.where(valid, w / total, nan)
    place = tl.where(valid, t, -1).to(tl.int32)
    tile = tl.arange(0, PARTS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]  # (PARTS, BLOCK)
    for first in range(0, cols, PARTS * BLOCK):
        c = first + tile
        v = tl.load(x + c, mask=c < cols, other=0.0, eviction_policy="evict_first")
        g = exponential(v.to(tl.float32), base, LIFTED) * scale - everywhere
        g = tl.where(c == place, g - at_target, g)
        g = tl.where(ignored, 0.0, g).to(dx.dtype.element_ty)
        tl.store(dx + c, g, mask=c < cols, cache_modifier=".cs")


@triton.jit(**GENERAL)
def online_kernel(
    x, dx, target, losses, weight, rows, cols, ignore_index: tl.int64, smoothing,
    SMOOTHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row. Each chunk is reduced, and the sum is rescaled."""
    row = tl.program_id(0).to(tl.int64)
    LIFTED: tl.constexpr = x.dtype.element_ty.primitive_bitwidth == 16
    base, total, of_x = tl.full((), LEAST, tl.float32), 0.0, 0.0
    for first in range(0, cols, BLOCK):
        c = first + tl.arange(0, BLOCK)  # (BLOCK,)
        v = tl.load(x + row * cols + c, mask=c < cols, other=-float("inf")).to(tl.float32)
        new = tl.maximum(base, tl.max(v, 0))
        total = total * tl.exp(base - new) + tl.sum(exponential(v, new, LIFTED), 0)
        base = new
        if SMOOTHED:
            of_x += tl.sum(tl.where(c < cols, v, 0.0), 0)
    finish_row(
        x + row * cols, dx + row * cols, target, losses, weight, row, cols, ignore_index,
        smoothing, base, total, of_x, SMOOTHED, 1, BLOCK,
    )  # fmt: skip


@triton.jit
def sums_of(x, cols, base, SMOOTHED: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of a row's exponentials and that of its logits, by tiles of (PARTS, BLOCK). Each
    place keeps its own sums until the end: no thread waits for another one within the loop."""
    LIFTED: tl.constexpr = x.dtype.element_ty.primitive_bitwidth == 16
    total = tl.zeros((BLOCK,), tl.float32)
    of_x = tl.zeros((BLOCK,), tl.float32)
    tile = tl.arange(0, PARTS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]  # (PARTS, BLOCK)
    for first in range(0, cols, PARTS * BLOCK):
        c = first + tile
        v = tl.load(x + c, mask=c < cols, other=-float("inf"), eviction_policy="evict_last")
        total += tl.sum(exponential(v.to(tl.float32), base, LIFTED), 0)
        if SMOOTHED:
            of_x += tl.sum(tl.where(c < cols, v.to(tl.float32), 0.0), 0)
    return tl.sum(total, 0), tl.sum(of_x, 0)


@triton.jit
def maximum_of(x, cols, BLOCK: tl.constexpr):
    """The largest logit of a row, but no less than LEAST."""
    most = tl.full((BLOCK,), LEAST, tl.float32)
    for first in range(0, cols, BLOCK):
        c = first + tl.arange(0, BLOCK)  # (BLOCK,)
        v = tl.load(x + c, mask=c < cols, other=-float("inf"), eviction_policy="evict_last")
        most = tl.maximum(most, v.to(tl.float32))
    return tl.max(most, 0)


@triton.jit(**GENERAL)
def lazy_kernel(
    x, dx, target, losses, weight, rows, cols, ignore_index: tl.int64, smoothing,
    SMOOTHED: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row. The base is the maximum of the first chunk; should the sum become too
    large, it is computed again with that of the row."""
    row = tl.program_id(0).to(tl.int64)
    start = x + row * cols
    base = maximum_of(start, tl.minimum(cols, BLOCK), BLOCK)
    total, of_x = sums_of(start, cols, base, SMOOTHED, PARTS, BLOCK)
    if not (total < MOST_SUM):  # also NaN
        base = maximum_of(start, cols, BLOCK)
        total, of_x = sums_of(start, cols, base, SMOOTHED, PARTS, BLOCK)
    finish_row(
        start, dx + row * cols, target, losses, weight, row, cols, ignore_index, smoothing, base,
        total, of_x, SMOOTHED, PARTS, BLOCK,
    )  # fmt: skip


def cross_entropy(logits, target, ignore_index, label_smoothing, launch):
    """The mean loss, () in fp32, and its gradient. logits: (rows, classes), target: (rows,).
    launch: starts the kernel for the rows with its arguments. Raises TypeError or ValueError for
    what the kernels cannot take."""
    require(logits, "logits", dtypes=FLOATS, rank=2)
    rows, cols = logits.shape
    if cols == 0:
        raise ValueError("logits: expected at least one column (class)")
    require(target, "target", dtypes=(torch.int64,), shape=(rows,), device=logits.device)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing: expected 0 to 1, got {label_smoothing}")
    logits, target = aligned(logits, target)
    dx = torch.empty_like(logits)
    losses = logits.new_empty(rows, dtype=torch.float32)
    loss, weight = logits.new_empty(2, dtype=torch.float32)
    with torch.cuda.device_of(logits):
        count_kernel[(1,)](target, weight, rows, ignore_index, COUNTED, num_warps=16)
        if rows > 0:
            launch(
                logits, dx, target, losses, weight, rows, cols, ignore_index,
                float(label_smoothing), label_smoothing > 0,
            )  # fmt: skip
        mean_kernel[(1,)](losses, weight, loss, rows, COUNTED, num_warps=16)
    return loss, dx


def launch_online(logits, *rest):
    rows, cols = logits.shape
    block = min(CHUNK, max(SHORTEST, triton.next_power_of_2(cols)))
    online_kernel[(rows,)](
        logits, *rest, block, num_warps=max(4, block // 256), maxnreg=MOST_REGISTERS
    )


def launch_lazy(logits, *rest):
    """With two parts per tile, and for long rows twice the warps: one program per multiprocessor
    instead of two."""
    rows, cols = logits.shape
    long = cols * logits.element_size() > LONG_ROW
    most = 2 * CHUNK if long else CHUNK
    block = min(most, max(SHORTEST, triton.next_power_of_2(cols)))
    lazy_kernel[(rows,)](
        logits, *rest, 2 if cols > block else 1, block, num_warps=max(4, block // 256),
        maxnreg=MOST_REGISTERS,
    )  # fmt: skip


def chunked_ce_v4_triton(logits, target, ignore_index=-100, label_smoothing=0.0):
    """Each chunk is reduced, and the sum is rescaled."""
    return cross_entropy(logits, target, ignore_index, label_smoothing, launch_online)


def chunked_ce_v5_triton_lazy(logits, target, ignore_index=-100, label_smoothing=0.0):
    """One reduction per row, and loads that no barrier follows."""
    return cross_entropy(logits, target, ignore_index, label_smoothing, launch_lazy)
