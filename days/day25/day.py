"""Day 25: cuBLAS from C++, beside our own kernels."""

from common.day import Exercise

from . import matrices, vectors

TITLE = "cuBLAS"
TEACHES = "Handles, streams, column-major matrices, epilogues: library calls beside own kernels"
TOPICS = ("cuBLAS", "cuBLASLt", "GEMM", "BLAS", "epilogue", "attention", "column-major")
SOURCE = "cublas_integration.cu"
EXTRA_SOURCES = ("cublas_vectors.cu",)
INTRODUCES = ("GEMM", "GEMV", "column-major", "epilogue", "workspace")

EQUIVALENT = {  # mutants that compute the same, and why
    "cublas_vectors.cu: gemv_v1_own_kernel: loop bound off by one: `k + 96 < K` "
    "-> `k + 96 < K - 1`": ("the second loop takes what the first leaves"),
    "cublas_vectors.cu: make_amax: validation dropped: `check(x, "
    '"x").on_gpu().dtype({ScalarType::Float}).rank(1)` -> '
    '`check(x, "x").on_gpu().dtype({ScalarType::Float})`': (
        "the elements of a matrix count in their order in memory"
    ),
    "cublas_vectors.cu: amax_v1_own: constant off by one: `2 * int64_t{grid}` "
    "-> `3 * int64_t{grid}`": ("more memory than is used"),
}

EXERCISE = Exercise(
    function="gemv_v1_own_kernel",
    source="cublas_vectors.cu",
    task=(
        "y = A · x with one warp per row: lanes read neighbouring elements of the row, each "
        "keeps sums of its own, and warp_sum adds them up."
    ),
    hints=(
        "The row is blockIdx.x * WARPS + the number of the warp in its block. The condition m >= "
        "M is the same for all lanes of a warp, so the whole warp returns or none of it.",
        "Lane l takes columns l, l + 32, l + 64, …. With four independent sums, four loads are "
        "in flight per lane.",
        "A loop over 128 columns at a time with sum[0] to sum[3], a second one for the rest, "
        "then total = warp_sum(…), which lane 0 writes.",
    ),
)

PROBLEMS = (
    matrices.gemm,
    vectors.gemv,
    vectors.dot,
    vectors.axpy_problem,
    vectors.amax,
    matrices.attention,
    matrices.activated,
)
