"""Dropout in Triton: the kernel, its launcher, and the gradient, which is the kernel again."""

import torch
import triton
import triton.language as tl

from common.day import aligned, require

BLOCK = 1024  # elements per program
STEPS = 65536  # values of 16 random bits, and steps of p
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit(do_not_specialize=("below",))  # it follows from p, which is any number
def dropout_kernel(x, state, y, n, below, scale, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    group = program * (BLOCK // 8) + tl.arange(0, BLOCK // 8)  # eight elements each
    step = tl.load(state + 1) + tl.zeros_like(group)
    counter = (group.to(tl.uint32), (group >> 32).to(tl.uint32))
    a, b, c, d = tl.philox(
        tl.load(state), counter[0], counter[1], step.to(tl.uint32), (step >> 32).to(tl.uint32)
    )
    words = tl.join(tl.join(a, c), tl.join(b, d))  # (BLOCK / 8, 2, 2), in the order a, b, c, d
    halves = tl.join(words & 0xFFFF, words >> 16).reshape(BLOCK)
    i = program * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,)
    mask = i < n  # the last program reaches beyond the end
    v = tl.load(x + i, mask=mask).to(tl.float32)
    tl.store(y + i, tl.where(halves >= below, v * scale, 0.0), mask=mask)


def launch(x, p, state):
    """x: any shape, a floating dtype; p: in [0, 1]; state: (2,), seed and step, int64. Raises
    TypeError or ValueError for others."""
    require(x, "x", dtypes=FLOATS)
    require(state, "state", dtypes=(torch.int64,), shape=(2,), device=x.device)
    if not 0 <= p <= 1:
        raise ValueError(f"p: expected a probability in [0, 1], got {p:g}")
    x, state = aligned(x, state)
    below = round(p * STEPS)
    scale = STEPS / (STEPS - below) if below < STEPS else 0.0
    y = torch.empty_like(x)
    n = x.numel()
    if n > 0:
        with torch.cuda.device_of(x):
            dropout_kernel[(triton.cdiv(n, BLOCK),)](x, state, y, n, below, scale, BLOCK)
    return y


class Dropout(torch.autograd.Function):
    """Keeps the state for the backward pass instead of a mask."""

    @staticmethod
    def forward(ctx, x, p, state):
        ctx.p = p
        ctx.save_for_backward(state)
        return launch(x, p, state)

    @staticmethod
    def backward(ctx, gy):
        (state,) = ctx.saved_tensors
        return Dropout.apply(gy.contiguous(), ctx.p, state), None, None


def dropout_v4_triton(x, p, state):
    """What `launch` computes, differentiable in x."""
    return Dropout.apply(x, p, state)
