"""Day 8: matrix multiplication through tiles in shared memory."""

if __name__ == "__main__":  # python days/day08/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day08

import torch

from common.day import FLOATS, Case, Cost, Problem, Rung, Target, grid

TITLE = "Tiled matrix multiplication"
TEACHES = "Reuse through tiles in shared memory and registers; edges; static and dynamic arrays"
TOPICS = ("matmul", "GEMM", "shared memory", "tiling")
SOURCE = "tiled_matmul.cu"
INTRODUCES = ("tile", "register tile")

SHAPES = [(1, 1, 1), (32, 32, 32), (33, 9, 35), (31, 67, 129), (64, 128, 32), (5, 3, 1025)]
EMPTY = [(0, 4, 4), (4, 0, 4), (4, 4, 0)]


def inputs(case, draw):
    M, N, K = case.shape
    return draw(M, K), draw(K, N)


def reference(a, b):
    return a @ b


def cost(case):
    M, N, K = case.shape
    return Cost(bytes=(M * K + K * N + M * N) * case.itemsize, flops=2 * M * N * K)


def dynamic_tile(tile, cases):
    """A problem for one tile size, for the rung that takes the size as an argument."""
    return Problem(
        name=f"tile {tile} at run time",
        inputs=lambda case, draw: (*inputs(case, draw), tile),
        reference=lambda a, b, tile: reference(a, b),
        rungs=(
            Rung("matmul_v2_dynamic_tile", f"{tile} × {tile}, shared memory sized by the launch"),
        ),
        cases=cases,
        bench=Case((2048, 2048, 2048)),
        bench_cpu=Case((256, 256, 256)),
        cost=cost,
        pytorch=lambda a, b, tile: torch.matmul(a, b),
    )


PROBLEMS = (
    Problem(
        name="matmul",
        inputs=inputs,
        reference=reference,
        rungs=(
            Rung("matmul_v0_naive", "day 7's first kernel, the baseline"),
            Rung("matmul_v1_static_tile", "32 × 32 tiles"),
            Rung(
                "matmul_v3_two_outputs",
                "two elements per thread",
                target=Target(4.0, "matmul_v0_naive"),
            ),
        ),
        cases=(
            *grid(SHAPES + EMPTY, FLOATS),
            *grid([(17, 19, 23)], FLOATS, values="nonfinite"),
        ),
        bench=Case((2048, 2048, 2048)),
        bench_cpu=Case((256, 256, 256)),
        cost=cost,
        pytorch=torch.matmul,  # cuBLAS; in fp32 on the same fp32 units, without TF32
    ),
    dynamic_tile(7, grid([(20, 9, 15), (4, 4, 0)], FLOATS)),
    dynamic_tile(8, grid([(33, 9, 65), (0, 4, 4)], FLOATS)),
    dynamic_tile(16, grid(SHAPES, FLOATS)),
    dynamic_tile(32, grid([(33, 9, 65), (4, 0, 4)], FLOATS)),
)
