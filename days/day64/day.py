"""Day 64: the matrix products of a linear layer, in CUDA and in Triton."""

if __name__ == "__main__":  # python days/day64/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day64

import torch.nn.functional as F

from common.day import Case, Cost, Problem, Rung, Target, grid

from .compiled import show, show_times
from .tuning import CONFIGS

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "Corner turning"
TEACHES = (
    "Tiles of column-major operands; tl.dot, an order of programs for L2, autotuning in Triton"
)
TOPICS = ("GEMM", "Triton", "tiling", "coalescing", "mma", "TMA", "autotuner", "L2")
SOURCE = "corner_turning_matmul.cu"
EXTRA_SOURCES = ("corner_turning_triton.py", "tuning.py", "compiled.py", "rates.py")
INTRODUCES = ("corner turning",)

TYPES = ["bfloat16", "float16"]
# (M, N, K): a whole tile; parts of tiles and of chunks; more steps than stages; more than a group
# of rows of tiles; odd sizes, without TMA and cp.async; nothing to do.
SHAPES = [(128, 128, 64), (8, 16, 24), (200, 136, 264), (64, 72, 320), (1104, 264, 8)]
ODD = [(1, 1, 1), (129, 131, 67), (33, 40, 7), (66, 31, 136), (1, 24, 200)]
CONFIGURED = [(264, 520, 72, which) for which in range(len(CONFIGS))]
EMPTY = [(0, 16, 8), (16, 0, 8), (5, 8, 0)]
CASES = (
    *grid([*SHAPES, *ODD, *EMPTY], TYPES),
    *grid([(9, 24, 40)], TYPES, values="nonfinite"),
)
TRITON = "corner_turning_triton"
NEAR_CUBLAS = Target(0.8, "pytorch")
BENCH = Case((8192, 8192, 8192), "bfloat16")
BENCH_CPU = Case((256, 128, 64), "float16")


def cost(case):
    M, N, K = case.shape
    return Cost(bytes=2 * (M * K + K * N + M * N), flops=2 * M * N * K, unit="tensor")


def linear_inputs(case, draw):
    M, N, K = case.shape
    return draw(M, K), draw(N, K)


def linear(x, w):
    return F.linear(x, w)


def configured_inputs(case, draw):
    M, N, K, which = case.shape
    return draw(M, K), draw(N, K), which


def configured(x, w, which):
    return F.linear(x, w)


def gradient_inputs(case, draw):
    M, N, K = case.shape
    return draw(K, M), draw(K, N)


def weight_gradient(g, x):
    return g.t() @ x


PROBLEMS = (
    Problem(
        name="x · Wᵀ",
        inputs=linear_inputs,
        reference=linear,
        rungs=(
            Rung("linear_v1_strided", "CUDA, W loaded across its rows"),
            Rung("linear_v2_corner_turning", "CUDA, W loaded along its rows"),
            Rung("linear_v3_tensor_cores", "CUDA, mma.sync and cp.async"),
            Rung("linear_v4_triton", "Triton, tl.dot, tiles row by row", triton=TRITON),
            Rung("linear_v5_triton_grouped", "Triton, groups of 8 rows of tiles", triton=TRITON),
            Rung(
                "linear_v6_triton_tuned",
                "Triton, tile and pipeline chosen by timing",
                target=NEAR_CUBLAS,
                triton=TRITON,
            ),
        ),
        cases=CASES,
        bench=BENCH,
        bench_cpu=BENCH_CPU,
        cost=cost,
        pytorch=linear,
    ),
    Problem(
        name="x · Wᵀ, each configuration",
        inputs=configured_inputs,
        reference=configured,
        rungs=(Rung("linear_configured", "Triton, for the autotuner", triton=TRITON),),
        cases=(
            *grid(CONFIGURED, ["float16"]),
            Case((264, 520, 72, 2), "bfloat16"),
            Case((1664, 2600, 8, 4), "float16"),
        ),  # more than a wave
        refused=(Case((8, 8, 8, len(CONFIGS)), "float16"), Case((8, 8, 8, -1), "float16")),
        timed=False,
    ),
    Problem(
        name="gᵀ · x",
        inputs=gradient_inputs,
        reference=weight_gradient,
        rungs=(
            Rung("weight_gradient_v1_tensor_cores", "CUDA, ldmatrix transposes"),
            Rung(
                "weight_gradient_v2_triton_tuned",
                "Triton, tile and pipeline chosen by timing",
                target=NEAR_CUBLAS,
                triton=TRITON,
            ),
        ),
        cases=CASES,
        bench=BENCH,
        bench_cpu=BENCH_CPU,
        cost=cost,
        pytorch=weight_gradient,
    ),
)
