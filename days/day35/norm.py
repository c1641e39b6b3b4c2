"""The backward pass of layer norm: cases, formula, rungs."""

import torch

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid


def inputs(case, draw):
    """The formulas hold for any mean and rstd, so these are drawn too."""
    rows, cols = case.shape
    mean = draw(rows, dtype="float32", values="normal")
    rstd = draw(rows, dtype="float32", low=0.5, high=2.0)
    return draw(rows, cols), draw(rows, cols), mean, rstd, draw(cols, values="normal")


def reference(gy, x, mean, rstd, weight):
    """In fp32 at least, which the operators of PyTorch compute 16-bit inputs in, too."""
    wide = torch.promote_types(x.dtype, torch.float32)
    upstream, mean, rstd = gy.to(wide), mean[:, None], rstd[:, None]
    n = (x.to(wide) - mean) * rstd
    g = upstream * weight
    gx = rstd * (g - g.mean(1, keepdim=True) - n * (g * n).mean(1, keepdim=True))
    return gx.to(x.dtype), (upstream * n).sum(0).to(x.dtype), upstream.sum(0).to(x.dtype)


def pytorch(gy, x, mean, rstd, weight):
    """What autograd calls for F.layer_norm. The bias only says that its gradient is computed."""
    shape, mask = [x.shape[1]], [True, True, True]
    mean, rstd = mean[:, None], rstd[:, None]
    return torch.ops.aten.native_layer_norm_backward(gy, x, shape, mean, rstd, weight, weight, mask)


def cost(case):
    rows, cols = case.shape  # reads gy and x, writes gx
    return Cost(bytes=3 * rows * cols * case.itemsize, flops=14 * rows * cols)


problem = Problem(
    name="layer norm backward",
    inputs=inputs,
    reference=reference,
    rungs=(
        Rung("layer_norm_backward_v1_two_kernels", "rows, then columns"),
        Rung("layer_norm_backward_v2_one_kernel", "column sums in registers"),
        Rung(
            "layer_norm_backward_v3_pipelined",
            "the next rows in flight",
            target=Target(1.0, "compile"),
        ),
    ),
    cases=(
        *grid([(1, 1), (3, 255), (2, 8), (37, 264), (5, 1032), (3, 2056), (2, 4096)], FLOATS),
        *grid([(0, 8), (4, 0), (2, 8200)], FLOATS),
        *grid([(300, 40), (9, 4104)], ["bfloat16"]),  # more rows than teams; 2 packs per thread
        *grid([(70, 1024)], ["float32"]),
        *grid([(8, 520)], FLOATS, values="offset"),
        *grid([(8, 304)], FLOATS, values="nonfinite"),
    ),
    bench=Case((65536, 4096), "bfloat16"),
    bench_cpu=Case((64, 1024), "float32"),
    cost=cost,
    pytorch=pytorch,
    libraries=(COMPILE,),
)
