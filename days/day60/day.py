"""Day 60: convolution as a matrix product on tensor cores."""

if __name__ == "__main__":  # python days/day60/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day60

from functools import partial

import torch
import torch.nn.functional as F

from common.day import Case, Cost, Problem, Rung, Target, grid

TITLE = "Convolution as implicit GEMM"
TEACHES = "Implicit GEMM in NHWC: the im2col matrix is never stored, its indices are computed"
TOPICS = ("convolution", "conv2d", "implicit GEMM", "im2col", "NHWC", "cp.async", "mma", "cuDNN")
SOURCE = "conv2d_implicit_gemm.cu"
INTRODUCES = ("data gradient", "im2col")

# N, H, W, C, K, R, S, stride, padding, dilation
SHAPES = [
    *((1, 1, 1, 8, 8, 1, 1, 1, 0, 1), (2, 9, 7, 72, 136, 3, 3, 1, 1, 1)),
    *((1, 13, 11, 8, 264, 1, 1, 1, 0, 1), (3, 17, 6, 40, 64, 3, 3, 2, 1, 1)),
    *((1, 12, 10, 16, 24, 2, 5, 1, 2, 2), (1, 7, 20, 136, 8, 1, 1, 2, 0, 1)),
    *((2, 16, 3, 8, 16, 3, 2, 3, 2, 4), (1, 30, 29, 8, 72, 7, 7, 2, 3, 1)),
    (1, 19, 40, 8, 8, 2, 2, 9, 0, 1),
]
EMPTY = [(0, 5, 5, 8, 16, 3, 3, 1, 1, 1)]
UNUSUAL = Case((1, 6, 5, 8, 16, 1, 1, 1, 0, 1), "bfloat16", "nonfinite")  # 8 columns of 64


def by_torch(function, *tensors):
    """Call a function of (N, C, H, W) with the same memory as channels-last tensors."""
    return function(*(t.permute(0, 3, 1, 2) for t in tensors)).permute(0, 2, 3, 1)


def conv2d(x, w, stride=1, padding=0, dilation=1):
    return by_torch(lambda x, w: F.conv2d(x, w, None, stride, padding, dilation), x, w)


def sizes(case):
    """Return N, H, W, C, K, R, S, P, Q."""
    N, H, W, C, K, R, S, stride, padding, dilation = case.shape
    P = (H + 2 * padding - (R - 1) * dilation - 1) // stride + 1
    Q = (W + 2 * padding - (S - 1) * dilation - 1) // stride + 1
    return N, H, W, C, K, R, S, P, Q


def inputs(case, draw):
    N, H, W, C, K, R, S, *options = case.shape
    return draw(N, H, W, C), draw(K, R, S, C), *options


def cost(case):
    N, H, W, C, K, R, S, P, Q = sizes(case)
    filters, pixels = K * R * S * C, N * P * Q
    return Cost(2 * (N * H * W * C + filters + pixels * K), 2 * pixels * filters, "tensor")


def by_cudnn(function, *arguments):
    """Call cuDNN with the fastest of its algorithms, which it finds by trying."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        return function(*arguments)


def problem(name, inputs, function, rungs, shapes, *cases, **options):
    timed, pytorch = (32, 56, 56, 128, 128, 3, 3, 1, 1, 1), partial(by_cudnn, function)
    options = {"bench": Case(timed, "bfloat16"), "pytorch": pytorch, "cost": cost, **options}
    options["bench_cpu"] = Case((2, 8, 8, 64, *timed[4:]), "bfloat16")
    return Problem(name, inputs, function, rungs, (*grid(shapes, ["bfloat16"]), *cases), **options)


V1 = Rung("conv2d_v1_im2col", "the matrix is stored")
V2 = Rung("conv2d_v2_implicit", "an address per 16 bytes, divided at every step")
V3 = Rung("conv2d_v3_additions", "divided once, then added", target=Target(0.4, "pytorch"))
PROBLEMS = (problem("convolution", inputs, conv2d, (V1, V2, V3), [*SHAPES, *EMPTY], UNUSUAL),)
