"""Residual and layer norm: cases, formula, rungs."""

import torch
from torch.nn.functional import layer_norm

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid

EPS = 1e-5


def inputs(case, draw):
    rows, cols = case.shape
    vectors = (draw(cols, values="normal") for _ in range(2))
    return draw(rows, cols), draw(rows, cols, values="normal"), *vectors, EPS


def add_norm(x, residual, weight, bias, eps=EPS):
    """The new residual stream, and what the next layer reads: one call of PyTorch each."""
    h = x + residual
    return h, layer_norm(h, weight.shape, weight, bias, eps)


def cost(case):
    rows, cols = case.shape  # forward 4 matrices, backward 4
    return Cost(bytes=8 * rows * cols * case.itemsize, flops=40 * rows * cols)


def rung(name, idea, target=None):
    def backward(saved, gh, gy):
        operator = getattr(torch.ops.day30, name.replace("add_norm", "add_norm_backward"))
        gx, of_parameters = operator(gh, gy, *saved)
        return gx, gx, of_parameters[0], of_parameters[1], None

    def saves(inputs, output):
        return output[0], inputs[2], inputs[4]  # h, weight, eps

    return Rung(name, idea, target=target, backward=backward, saves=saves)


problem = Problem(
    name="residual and layer norm, with gradients",
    inputs=inputs,
    reference=add_norm,
    rungs=(
        rung("add_norm_v1_separate", "one kernel per operation"),
        rung("add_norm_v2_fused", "row in one warp's registers"),
        rung("add_norm_v3_one_pass", "weight gradients in the same pass", Target(1.2, "pytorch")),
    ),
    cases=(
        *grid([(1, 1), (3, 255), (2, 256), (5, 264), (37, 768), (2, 1024), (3, 1032)], FLOATS),
        *grid([(0, 8), (9, 512)], FLOATS),
        *grid([(2100, 40)], ["bfloat16"]),  # more rows than warps of v3, more than chunks of v1
        *grid([(4, 768)], FLOATS, values="offset"),
        *grid([(8, 304)], FLOATS, values="nonfinite"),
    ),
    bench=Case((65536, 768), "bfloat16"),
    bench_cpu=Case((256, 768), "bfloat16"),
    cost=cost,
    pytorch=add_norm,
    libraries=(COMPILE,),
    gradients=True,
)


def backward_inputs(case, draw):
    rows, cols = case.shape
    gh, gy = (draw(rows, cols, values="normal") for _ in range(2))
    return gh, gy, draw(rows, cols), draw(cols, values="normal"), EPS


def add_norm_backward(gh, gy, h, weight, eps):
    """The gradient of x, which is that of residual too, and those of weight and bias as rows."""
    mean, rstd = torch.native_layer_norm(h, weight.shape, weight, None, eps)[1:]
    of_norm = torch.ops.aten.native_layer_norm_backward
    gx, *rows = of_norm(gy, h, weight.shape, mean, rstd, weight, weight, [True] * 3)
    return gh + gx, torch.stack(rows)


backward = Problem(
    name="the gradient of residual and layer norm, alone",
    inputs=backward_inputs,
    reference=add_norm_backward,
    rungs=(
        Rung("add_norm_backward_v1_separate", "one kernel per operation"),
        Rung("add_norm_backward_v2_fused", "row in one warp's registers"),
        Rung("add_norm_backward_v3_one_pass", "weight gradients in the same pass"),
    ),
    cases=grid([(3, 41), (5, 264), (9, 512)], ["float32", "bfloat16"]),
    timed=False,
)
