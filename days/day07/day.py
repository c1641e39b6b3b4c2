"""Day 7: matrix multiplication from global memory."""

if __name__ == "__main__":  # python days/day07/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day07

import torch

from common.day import FLOATS, Case, Cost, Problem, Rung, grid

TITLE = "Matrix multiplication from global memory"
TEACHES = "Roofline and counted loads; coalesced against scattered: which index is a thread's"
TOPICS = ("matmul", "GEMM", "coalescing")
SOURCE = "naive_matmul.cu"
INTRODUCES = ("FLOP", "arithmetic intensity", "roofline", "leading dimension")


def inputs(case, draw):
    M, N, K = case.shape
    return draw(M, K), draw(K, N)


def reference(a, b):
    return a @ b


def cost(case):
    M, N, K = case.shape
    return Cost(bytes=(M * K + K * N + M * N) * case.itemsize, flops=2 * M * N * K)


PROBLEMS = (
    Problem(
        name="matmul",
        inputs=inputs,
        reference=reference,
        rungs=(
            Rung("matmul_v1_row_major", "neighbouring threads, neighbouring rows"),
            Rung("matmul_v2_coalesced", "neighbouring threads, neighbouring columns"),
        ),
        cases=(
            *grid([(1, 1, 1), (33, 9, 7), (31, 67, 129), (64, 64, 64), (5, 3, 1025)], FLOATS),
            *grid([(0, 4, 4), (4, 0, 4), (4, 4, 0)], FLOATS),
            *grid([(17, 19, 23)], FLOATS, values="nonfinite"),
        ),
        bench=Case((2048, 2048, 2048)),
        bench_cpu=Case((256, 256, 256)),
        cost=cost,
        pytorch=torch.matmul,  # cuBLAS; in fp32 on the same fp32 units, without TF32
    ),
)
