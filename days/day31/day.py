"""Day 31: convolution in two dimensions."""

if __name__ == "__main__":  # python days/day31/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day31

import torch
import torch.nn.functional as F

from common.day import COMPILE, Case, Cost, Problem, Rung, Target, grid

TITLE = "Convolution in two dimensions"
TEACHES = "Halos in two dimensions, register blocking over channels, and Winograd's filtering"
TOPICS = (
    "convolution",
    "conv2d",
    "halo",
    "shared memory",
    "register tile",
    "NCHW",
    "cuDNN",
    "Winograd",
)
SOURCE = "conv2d_tiled.cu"
EXTRA_SOURCES = ("winograd.cu",)
INTRODUCES = ("dilation", "NCHW", "grouped convolution", "implicit GEMM", "minimal filtering")


def inputs(case, draw):
    """Case.shape: N, C, H, W, outputs, KH, KW, stride, padding, dilation, groups."""
    N, C, H, W, outputs, KH, KW, *options, groups = case.shape
    return draw(N, C, H, W), draw(outputs, C // groups, KH, KW, values="normal"), *options, groups


def reference(x, w, stride=1, padding=0, dilation=1, groups=1):
    return F.conv2d(x, w, None, stride, padding, dilation, groups)


def pytorch(*arguments):
    """cuDNN in fp32 without TF32, with the fastest of its algorithms, which it finds by trying."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
        return reference(*arguments)


def elements(case):
    """Of x, w and y for 3×3 filters with padding 1."""
    N, C, H, W, outputs = case.shape[:5]
    return N * C * H * W + outputs * C * 9 + N * outputs * H * W


def direct_cost(case):
    N, C, H, W, outputs = case.shape[:5]
    return Cost(bytes=4 * elements(case), flops=2 * N * outputs * H * W * C * 9)


def minimal_cost(case):
    """The products of v4: 8 operations per output and input channel, not 18."""
    N, C, H, W, outputs = case.shape[:5]
    tiles = N * -(-H // 2) * -(-W // 2)
    return Cost(bytes=4 * elements(case), flops=2 * 16 * C * outputs * tiles)


TARGET = Target(0.75, "pytorch")
V1 = Rung("conv2d_v1_naive", "one thread per output")
V2 = Rung("conv2d_v2_tiled", "tile with halo in shared memory")


def v3(target=None):
    return Rung("conv2d_v3_register_blocked", "56 or 64 sums per thread", target=target)


V4 = Rung("conv2d_v4_winograd", "4/9 of the multiplications", target=TARGET)
# Around tiles of 16 × 16, 8 × 16 and 4 × 28, 64 output and 16 input channels per step.
SHAPES = [
    (1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1),
    (2, 3, 17, 19, 8, 3, 3, 1, 1, 1, 1),
    (1, 17, 16, 16, 65, 3, 3, 1, 1, 1, 1),
    (1, 16, 9, 33, 64, 3, 3, 1, 0, 1, 1),
    (1, 18, 5, 55, 65, 3, 3, 1, 1, 1, 1),
    (1, 3, 3, 54, 8, 3, 3, 2, 1, 1, 1),
    (2, 5, 15, 14, 9, 3, 5, 2, 1, 1, 1),
    (1, 4, 23, 18, 8, 3, 2, 1, 3, 2, 1),
    (1, 6, 20, 13, 24, 3, 3, 3, 2, 3, 2),
    (1, 12, 9, 10, 12, 3, 3, 1, 1, 1, 12),
    (1, 2, 40, 41, 8, 11, 11, 4, 5, 1, 1),
    (1, 1, 70, 64, 8, 33, 31, 1, 2, 2, 1),
    (1, 1, 200, 150, 1, 3, 2, 1, 1, 90, 1),
    (1, 1, 3, 4, 1, 1, 1, 1024, 0, 1024, 1),
    (0, 3, 5, 5, 4, 3, 3, 1, 1, 1, 1),
]
NOT_DIVISIBLE = [(1, 5, 6, 7, 4, 3, 3, 1, 1, 1, 2), (1, 4, 6, 7, 5, 3, 3, 1, 1, 1, 2)]
# For v4: around 64 and 128 output channels, 128 tiles of 2 × 2 outputs and 8 input channels.
FILTERS_3X3 = [
    (40, 5, 1, 1, 3, 3, 3, 1, 1, 1, 1),
    (1, 3, 4, 3, 2, 3, 3, 1, 1, 1, 1),
    (1, 20, 2, 2, 30, 3, 3, 1, 1, 1, 1),
    (2, 9, 17, 19, 130, 3, 3, 1, 0, 1, 1),
    (3, 8, 7, 30, 200, 3, 3, 1, 3, 1, 1),
    (1, 25, 16, 32, 64, 3, 3, 1, 1, 1, 1),
    (0, 3, 5, 5, 4, 3, 3, 1, 1, 1, 1),
]
NOT_FOR_V4 = [
    (1, 4, 6, 7, 4, 3, 5, 1, 1, 1, 1),
    (1, 4, 6, 7, 4, 3, 3, 2, 1, 1, 1),
    (1, 4, 6, 7, 4, 3, 3, 1, 2, 2, 1),
    (1, 4, 6, 7, 4, 3, 3, 1, 1, 1, 2),
]


def timed(name, N, channels, size, cost, *rungs):
    return Problem(
        name=f"{name}, {channels} channels, {size}×{size}",
        inputs=inputs,
        reference=reference,
        rungs=rungs,
        cases=(Case((1, 16, 12, 20, 16, 3, 3, 1, 1, 1, 1)),),
        bench=Case((N, channels, size, size, channels, 3, 3, 1, 1, 1, 1)),
        bench_cpu=Case((1, 16, 14, 18, 16, 3, 3, 1, 1, 1, 1)),
        cost=cost,
        pytorch=pytorch,
        libraries=(COMPILE,),
    )


def direct(N, channels, size):
    return timed("3×3", N, channels, size, direct_cost, V1, V2, v3(TARGET))


def minimal(N, channels, size):
    return timed("3×3, minimal filtering", N, channels, size, minimal_cost, V4)


PROBLEMS = (
    Problem(
        name="any filter",
        inputs=inputs,
        reference=reference,
        rungs=(V1, V2, v3()),
        cases=(
            *grid(SHAPES, ["float32"]),
            *grid([(8, 3, 6, 7, 8, 3, 3, 1, 1, 1, 1)], ["float32"], values="nonfinite"),
            *grid([(1, 8, 9, 8, 8, 3, 3, 1, 1, 1, 1)], ["float32"], values="large"),
        ),
        refused=grid(NOT_DIVISIBLE, ["float32"]),
        timed=False,
    ),
    Problem(
        name="3×3, any size",
        inputs=inputs,
        reference=reference,
        rungs=(V4,),
        cases=grid(FILTERS_3X3, ["float32"]),
        refused=grid(NOT_FOR_V4, ["float32"]),
        timed=False,
    ),
    direct(16, 64, 112),
    direct(32, 256, 28),
    direct(32, 128, 56),
    minimal(16, 64, 112),
    minimal(32, 256, 28),
    minimal(32, 128, 56),
)
