"""The same kernels in Triton, to be timed beside those in CUDA.

Triton programs hold a row of up to MOST elements, padded to a power of two. The forward pass has
one program per row. In the backward pass a program takes many rows and keeps gw and gb of all
columns, as v2 does.
"""

from functools import cache

import torch

from common.day import Skip

MOST = 65536  # elements per row, forward
MOST_BACKWARD = 8192  # two fp32 sums per column have to stay in registers


@cache
def kernels():
    """The compiled functions. Raises Skip where there is no Triton, or no GPU for it."""
    try:
        import triton
        import triton.language as tl
    except ImportError as error:
        raise Skip(f"Triton is missing: python -m pip install triton ({error})") from error

    @triton.jit
    def forward_kernel(x, weight, bias, y, mean, rstd, cols, eps, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        c = tl.arange(0, BLOCK)
        inside = c < cols
        v = tl.load(x + row * cols + c, mask=inside, other=0).to(tl.float32)
        m = tl.sum(v, 0) / cols
        d = tl.where(inside, v - m, 0)
        s = tl.rsqrt(tl.sum(d * d, 0) / cols + eps)
        w = tl.load(weight + c, mask=inside).to(tl.float32)
        b = tl.load(bias + c, mask=inside).to(tl.float32)
        tl.store(y + row * cols + c, d * s * w + b, mask=inside)
        tl.store(mean + row, m)
        tl.store(rstd + row, s)

    @triton.jit
    def backward_kernel(
        gy, h, mean, rstd, weight, gx, partial, rows, cols, steps, BLOCK: tl.constexpr
    ):
        program = tl.program_id(0)
        programs = tl.num_programs(0)
        c = tl.arange(0, BLOCK)
        inside = c < cols
        w = tl.load(weight + c, mask=inside, other=0).to(tl.float32)
        gw = tl.zeros([BLOCK], tl.float32)
        gb = tl.zeros([BLOCK], tl.float32)
        for step in range(steps):
            row = (program + step * programs).to(tl.int64)
            mask = inside & (row < rows)
            upstream = tl.load(gy + row * cols + c, mask=mask, other=0).to(tl.float32)
            v = tl.load(h + row * cols + c, mask=mask, other=0).to(tl.float32)
            m = tl.load(mean + row, mask=row < rows, other=0)
            s = tl.load(rstd + row, mask=row < rows, other=0)
            n = (v - m) * s
            g = upstream * w
            g_mean = tl.sum(g, 0) / cols
            gn_mean = tl.sum(g * n, 0) / cols
            tl.store(gx + row * cols + c, s * (g - g_mean - n * gn_mean), mask=mask)
            gw += upstream * n
            gb += upstream
        tl.store(partial + program * 2 * cols + c, gw, mask=inside)
        tl.store(partial + (program * 2 + 1) * cols + c, gb, mask=inside)

    return triton, forward_kernel, backward_kernel


def shape_of(cols, most):
    """The padded row, and how many warps take it. Raises Skip for rows that are too long."""
    if cols > most:
        raise Skip(f"{cols} columns are more than the {most} of a Triton program")
    block = 1 << (cols - 1).bit_length()
    return {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


def forward(x, weight, bias, eps):
    """y, mean and rstd, as layer_norm_v1_reread and the rungs after it."""
    _, kernel, _ = kernels()
    rows, cols = x.shape
    y = torch.empty_like(x)
    mean, rstd = (x.new_empty(rows, dtype=torch.float32) for _ in range(2))
    kernel[(rows,)](x, weight, bias, y, mean, rstd, cols, eps, **shape_of(cols, MOST))
    return y, mean, rstd


def backward(gy, h, mean, rstd, weight, gh=None):
    """gx, gw and gb, as layer_norm_backward_v2_fused without gh."""
    triton, _, kernel = kernels()
    if gh is not None:
        raise ValueError("gh: the twin has no kernel that adds it")
    rows, cols = gy.shape
    options = shape_of(cols, MOST_BACKWARD)
    programs = 4 * multiprocessors(gy)
    gx = torch.empty_like(gy)
    partial = gy.new_empty(programs, 2, cols, dtype=torch.float32)
    steps = triton.cdiv(rows, programs)
    kernel[(programs,)](gy, h, mean, rstd, weight, gx, partial, rows, cols, steps, **options)
    gw, gb = partial.sum(0).to(weight.dtype)
    return gx, gw, gb


def multiprocessors(on):
    """1 where Triton's interpreter runs the kernels on the CPU."""
    if not on.is_cuda:
        return 1
    return torch.cuda.get_device_properties(on.device).multi_processor_count
