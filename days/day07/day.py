"""Day 7: matrix multiplication from global memory."""

import torch

from common.day import Case, Cost, Exercise, Problem, Rung, grid

TITLE = "Matrix multiplication from global memory"
TEACHES = "Roofline and counted loads; coalesced against scattered: which index is a thread's"
TOPICS = ("matmul", "GEMM", "coalescing")
SOURCE = "naive_matmul.cu"
INTRODUCES = ("FLOP", "arithmetic intensity", "roofline", "leading dimension")

EXERCISE = Exercise(
    function="matmul_v2_coalesced_kernel",
    task=(
        "Compute one element of C per thread, so that the lanes of a warp write neighbouring "
        "elements and read neighbouring elements of B."
    ),
    hints=(
        "The lanes of a warp differ in threadIdx.x. Which of row m and column n should change "
        "from lane to lane?",
        "Elements that are neighbours in memory lie in one row. So threadIdx.x belongs to the "
        "column n, and threadIdx.y to the row m.",
        "n from blockIdx.x, BLOCK_X and threadIdx.x; m from blockIdx.y, BLOCK_Y and threadIdx.y; "
        "only where m < M and n < N. Sum a[m, k] · b[k, n] over k in fp32; row-major, a[m, k] is "
        "a[m * K + k].",
    ),
)

FLOATS = ["float32", "float16", "bfloat16"]


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
            *grid([(1, 1, 1), (33, 9, 65), (31, 67, 129), (64, 64, 64), (5, 3, 1025)], FLOATS),
            *grid([(0, 4, 4), (4, 0, 4), (4, 4, 0)], FLOATS),
            *grid([(17, 19, 23)], FLOATS, values="nonfinite"),
        ),
        bench=Case((2048, 2048, 2048)),
        bench_cpu=Case((256, 256, 256)),
        cost=cost,
        pytorch=torch.matmul,  # cuBLAS; in fp32 on the same fp32 units, without TF32
    ),
)
