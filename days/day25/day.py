"""Day 25: cuBLAS from C++, beside our own kernels."""

from . import matrices, vectors

TITLE = "cuBLAS"
TEACHES = "Handles, streams, column-major matrices, epilogues: library calls beside own kernels"
TOPICS = ("cuBLAS", "cuBLASLt", "GEMM", "BLAS", "epilogue", "attention", "column-major")
SOURCE = "cublas_integration.cu"
EXTRA_SOURCES = ("cublas_vectors.cu",)
INTRODUCES = ("GEMM", "GEMV", "column-major", "epilogue", "workspace")

PROBLEMS = (
    matrices.gemm,
    vectors.gemv,
    vectors.dot,
    vectors.axpy_problem,
    vectors.amax,
    matrices.attention,
    matrices.activated,
)
