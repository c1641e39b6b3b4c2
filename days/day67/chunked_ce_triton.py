"""The cross-entropy of chunked_ce.cu in Triton: kernels, and their launchers below them."""

import torch
import triton
import triton.language as tl

from common.day import require

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LOG2_E = tl.constexpr(1.4426950408889634)
LEAST = tl.constexpr(-3.4028234663852886e38)  # the least number of fp32
LIFT = tl.constexpr(64.0)  # of 16-bit logits, exponentials have a factor of 2^LIFT, which cancels
SLACK = tl.constexpr(8.0)  # how far a logit may be above the base of its sum
STAGES = tl.constexpr(4)  # chunks in flight or in use
CHUNK = 4096  # elements, at most
PROGRAMS = 2  # per multiprocessor: the rows of more would not stay in L2 until they are read again
MOST_REGISTERS = 64  # per thread, or two programs of 16 warps would not be resident
COUNTED = 4096  # targets or losses at a time


@triton.jit
def exponential(x, base, LIFTED: tl.constexpr):
    """exp(x - base), and 2^LIFT as much where LIFTED: 64 more in the exponent cost fp32 digits."""
    return tl.exp2((x - base) * LOG2_E + LIFT) if LIFTED else tl.exp(x - base)


@triton.jit
def count_kernel(target, weight, rows, ignore_index, BLOCK: tl.constexpr):
    count = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, rows, BLOCK):
        r = first + tl.arange(0, BLOCK)  # (BLOCK,)
        t = tl.load(target + r, mask=r < rows, other=ignore_index)
        count += (t != ignore_index).to(tl.int32)
    # If no row counts it is 1 / 0, and the mean becomes NaN, as in PyTorch.
    tl.store(weight, 1.0 / tl.sum(count, 0).to(tl.float32))


@triton.jit
def mean_kernel(losses, weight, loss, rows, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, rows, BLOCK):
        r = first + tl.arange(0, BLOCK)  # (BLOCK,)
        total += tl.load(losses + r, mask=r < rows, other=0.0)
    tl.store(loss, tl.sum(total, 0) * tl.load(weight))


@triton.jit
def finish_row(
    x, dx, target, losses, weight, row, cols, ignore_index, smoothing, base, total, of_x,
    SMOOTHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores the loss of a row and, in a second pass, its gradient. x, dx: the row. total: the sum
    of its exponentials, of_x: that of its logits."""
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
    for first in tl.range(0, cols, BLOCK, num_stages=STAGES):
        c = first + tl.arange(0, BLOCK)  # (BLOCK,)
        v = tl.load(x + c, mask=c < cols, other=0.0, eviction_policy="evict_first")
        g = exponential(v.to(tl.float32), base, LIFTED) * scale - everywhere
        g = tl.where(c == place, g - at_target, g)
        g = tl.where(ignored, 0.0, g).to(dx.dtype.element_ty)
        tl.store(dx + c, g, mask=c < cols, cache_modifier=".cs")


@triton.jit
def online_kernel(
    x, dx, target, losses, weight, rows, cols, ignore_index, smoothing,
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
        smoothing, base, total, of_x, SMOOTHED, BLOCK,
    )  # fmt: skip


@triton.jit
def sums_of(x, cols, base, SMOOTHED: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr):
    """The maximum of a row, the sum of its exponentials and that of its logits. Each place of the
    chunk keeps its own until the end: no thread waits for another one within the loop."""
    LIFTED: tl.constexpr = x.dtype.element_ty.primitive_bitwidth == 16
    most = tl.full((BLOCK,), LEAST, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    of_x = tl.zeros((BLOCK,), tl.float32)
    for first in tl.range(0, cols, BLOCK, num_stages=AHEAD):  # by cp.async
        c = first + tl.arange(0, BLOCK)  # (BLOCK,)
        v = tl.load(x + c, mask=c < cols, other=-float("inf")).to(tl.float32)
        most = tl.maximum(most, v)
        total += exponential(v, base, LIFTED)
        if SMOOTHED:
            of_x += tl.where(c < cols, v, 0.0)
    return tl.max(most, 0), tl.sum(total, 0), tl.sum(of_x, 0)


@triton.jit
def lazy_kernel(
    x, dx, target, losses, weight, rows, cols, ignore_index, smoothing,
    SMOOTHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs that stay. The base is the maximum of the first chunk; should the row have a logit
    far above it, its sum is computed again."""
    for i in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = i + tl.full((), 0, tl.int64)
        start = x + row * cols
        c = tl.arange(0, BLOCK)  # (BLOCK,)
        v = tl.load(start + c, mask=c < cols, other=-float("inf")).to(tl.float32)
        base = tl.maximum(tl.max(v, 0), LEAST)
        most, total, of_x = sums_of(start, cols, base, SMOOTHED, BLOCK, STAGES)
        if most > base + SLACK:
            base = most
            most, total, of_x = sums_of(start, cols, base, SMOOTHED, BLOCK, 1)
        finish_row(
            start, dx + row * cols, target, losses, weight, row, cols, ignore_index, smoothing,
            base, total, of_x, SMOOTHED, BLOCK,
        )  # fmt: skip


def cross_entropy(logits, target, ignore_index, label_smoothing, kernel, programs):
    """The mean loss, () in fp32, and its gradient. logits: (rows, classes), target: (rows,). Raises
    TypeError or ValueError for what the kernels cannot take."""
    require(logits, "logits", dtypes=FLOATS, rank=2)
    rows, cols = logits.shape
    if cols == 0:
        raise ValueError("logits: expected at least one column (class)")
    require(target, "target", dtypes=(torch.int64,), shape=(rows,), device=logits.device)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing: expected 0 to 1, got {label_smoothing}")
    dx = torch.empty_like(logits)
    losses = logits.new_empty(rows, dtype=torch.float32)
    loss, weight = logits.new_empty(2, dtype=torch.float32)
    block = min(CHUNK, triton.next_power_of_2(cols))
    with torch.cuda.device_of(logits):
        count_kernel[(1,)](target, weight, rows, ignore_index, COUNTED, num_warps=16)
        if rows > 0:
            kernel[(programs(rows, logits.device),)](
                logits, dx, target, losses, weight, rows, cols, ignore_index,
                float(label_smoothing), label_smoothing > 0, block, num_warps=max(4, block // 256),
                maxnreg=MOST_REGISTERS,
            )  # fmt: skip
        mean_kernel[(1,)](losses, weight, loss, rows, COUNTED, num_warps=16)
    return loss, dx


def one_each(rows, device):
    """One program per row."""
    return rows


def resident(rows, device):
    """PROGRAMS per multiprocessor, but no more than rows."""
    if device.type != "cuda":
        return min(rows, 2)  # the interpreter: several rows per program
    return min(rows, PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count)


def chunked_ce_v6_triton(logits, target, ignore_index=-100, label_smoothing=0.0):
    """One program per row, which reduces each chunk."""
    return cross_entropy(logits, target, ignore_index, label_smoothing, online_kernel, one_each)


def chunked_ce_v7_triton_lazy(logits, target, ignore_index=-100, label_smoothing=0.0):
    """Programs that stay and reduce once per row."""
    return cross_entropy(logits, target, ignore_index, label_smoothing, lazy_kernel, resident)
