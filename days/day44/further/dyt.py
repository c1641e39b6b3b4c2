"""Dynamic tanh, forward and backward: cases, rungs, sizes."""

import torch

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid, streamed

SHAPES = [(1, 1), (5, 31), (9, 136), (300, 8), (37, 264), (3, 1000)]


def inputs(case, draw):
    rows, cols = case.shape
    return draw(rows, cols), draw(1, low=0.5, high=1.0), draw(cols, values="normal"), draw(cols)


def dyt(x, alpha, weight, bias):
    """As the layer's authors write it: in 16 bits it rounds tanh, so its error is more than that
    of tanh.approx."""
    return torch.addcmul(bias, weight, torch.tanh(alpha * x))


def backward_inputs(case, draw):
    return draw(*case.shape), *inputs(case, draw)[:3]


def dyt_backward(gy, x, alpha, weight):
    wide = torch.promote_types(x.dtype, torch.float32)
    g, v, a = gy.to(wide), x.to(wide), alpha.to(wide)
    t = torch.tanh(a * v)
    u = g * weight.to(wide) * (1 - t * t)
    sums = (u * v).sum().reshape(1), (g * t).sum(0), g.sum(0)
    return ((a * u).to(x.dtype), *(s.to(x.dtype) for s in sums))


def by_operators(gy, x, alpha, weight):
    """As one writes it for an autograd.Function, in the dtype of x."""
    t = torch.tanh(alpha * x)
    u = torch.ops.aten.tanh_backward(gy * weight, t)
    return alpha * u, (u * x).sum().reshape(1), (gy * t).sum(0), gy.sum(0)


def cost(case):
    rows, cols = case.shape
    return Cost(bytes=3 * rows * cols * case.itemsize, flops=18 * rows * cols)


problems = (
    Problem(
        name="DyT",
        inputs=inputs,
        reference=dyt,
        rungs=(
            Rung("dyt_v1_naive", "one element per thread"),
            Rung("dyt_v2_vectorised", "16 bytes per load"),
            Rung("dyt_v3_approximate", "tanh in one instruction", target=Target(0.96, "copy")),
        ),
        cases=(
            *grid([*SHAPES, (0, 8), (4, 0)], FLOATS),
            *grid([(8, 304)], FLOATS, values="nonfinite"),
            *grid([(8, 304)], FLOATS, values="large"),
        ),
        bench=Case((1 << 17, 1 << 12), "bfloat16"),
        bench_cpu=Case((4, 4096), "bfloat16"),
        cost=streamed(2, 15),
        pytorch=dyt,
        libraries=(COMPILE,),
    ),
    Problem(
        name="DyT backward",
        inputs=backward_inputs,
        reference=dyt_backward,
        rungs=(Rung("dyt_backward", "all sums in registers", target=Target(1.0, "compile")),),
        cases=(
            *grid([*SHAPES, (0, 8), (4, 0)], FLOATS),
            *grid([(8, 304)], FLOATS, values="nonfinite"),
        ),
        bench=Case((1 << 16, 1 << 12), "bfloat16"),
        bench_cpu=Case((4, 4096), "bfloat16"),
        cost=cost,
        pytorch=by_operators,
        libraries=(COMPILE,),
    ),
)
