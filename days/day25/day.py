"""Day 25: cuBLAS from C++, beside our own kernels."""

if __name__ == "__main__":  # python days/day25/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day25

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
