"""Day 25: cuBLAS from C++, beside our own kernels."""

import torch

from common.day import Case, Cost, Problem, Rung, Skip, Target, Tolerance, grid

TITLE = "cuBLAS"
TEACHES = "Handles, streams, column-major matrices, epilogues: library calls beside own kernels"
TOPICS = ("cuBLAS", "cuBLASLt", "GEMM", "BLAS", "epilogue", "attention", "column-major")
SOURCE = "cublas_integration.cu"
INTRODUCES = ("GEMM", "GEMV", "column-major", "epilogue", "workspace")

FLOATS = ["float32", "float16", "bfloat16"]
VECTORS = [(1,), (255,), (1024,), (1025,), (10007,)]


def library(name, idea, target=None):
    """A rung that calls cuBLAS; skipped where there is none."""

    def load(builder):
        if builder.device == "cpu":
            raise Skip("cuBLAS needs an NVIDIA GPU; our own kernel runs here")
        operators = builder.operators()
        if not hasattr(operators, name):
            raise Skip(
                "cuBLAS's headers are missing: python -m pip install nvidia-cublas, and remove "
                "the cached build"
            )
        return getattr(operators, name)

    return Rung(name, idea, target=target, load=load)


# ------------------------------------------------------------------ matrices


def matrices(case, draw):
    M, N, K = case.shape
    return draw(M, K), draw(K, N)


def gemm(a, b):
    return a @ b


def layer(case, draw):
    M, N, K = case.shape
    return draw(M, K), draw(K, N).mul_(max(K, 1) ** -0.5), draw(N)


def linear_gelu(x, w, bias):
    if bias.shape != w.shape[1:]:
        raise ValueError(f"bias: expected {w.shape[1]} elements, got {tuple(bias.shape)}")
    return torch.nn.functional.gelu(x @ w + bias, approximate="tanh")


def fused_by_pytorch(x, w, bias):
    return torch._addmm_activation(bias, x, w, use_gelu=True)


def gemm_cost(case):
    M, N, K = case.shape
    element = getattr(torch, case.dtype).itemsize
    unit = "fp32" if case.dtype == "float32" else "tensor"
    return Cost(bytes=(M * K + K * N + M * N) * element, flops=2 * M * N * K, unit=unit)


def gemv(a, x):
    return a @ x


# ------------------------------------------------------------------ vectors


def vectors(case, draw):
    return draw(*case.shape), draw(*case.shape)


def axpy(x, y, a):
    if x.shape != y.shape:
        raise ValueError(f"y: expected the shape of x, {tuple(x.shape)}, got {tuple(y.shape)}")
    return a * x + y


def amax(x):
    return x.abs().argmax() + 1


def streamed(bytes_per_element):
    return lambda case: Cost(bytes=bytes_per_element * case.shape[0], flops=2 * case.shape[0])


# ------------------------------------------------------------------ attention


def heads(case, draw):
    number, S, T, D = case.shape
    return draw(number, S, D), draw(number, T, D), draw(number, T, D)


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(1, 2) / max(q.shape[2], 1) ** 0.5, dim=-1) @ v


def attention_cost(case):
    number, S, T, D = case.shape
    element = getattr(torch, case.dtype).itemsize
    return Cost(
        bytes=number * (2 * S + 2 * T) * D * element, flops=4 * number * S * T * D, unit="tensor"
    )


SHAPES = [(1, 1, 1), (32, 32, 32), (33, 9, 65), (64, 48, 32), (5, 3, 257)]
EMPTY = [(0, 4, 4), (4, 0, 4), (4, 4, 0)]

PROBLEMS = (
    Problem(
        name="gemm",
        inputs=matrices,
        reference=gemm,
        rungs=(
            Rung("gemm_v1_own", "tiles in shared memory"),
            library("gemm_v2_cublas", "cublasGemmEx", Target(0.97, "pytorch")),
        ),
        cases=(
            *grid(SHAPES + EMPTY, FLOATS),
            *grid([(17, 19, 23)], FLOATS, values="nonfinite"),
        ),
        bench=Case((4096, 4096, 4096), "bfloat16"),
        bench_cpu=Case((128, 128, 128)),
        cost=gemm_cost,
    ),
    Problem(
        name="gemv",
        inputs=lambda case, draw: (draw(*case.shape), draw(case.shape[1])),
        reference=gemv,
        rungs=(
            Rung("gemv_v1_own", "one warp per row"),
            library("gemv_v2_cublas", "cublasSgemv"),
        ),
        cases=(
            *grid([(1, 1), (9, 31), (8, 127), (7, 128), (33, 129), (3, 1025)], ["float32"]),
            *grid([(0, 5), (5, 0)], ["float32"]),
            *grid([(12, 60)], ["float32"], values="nonfinite"),
        ),
        bench=Case((16384, 16384)),
        bench_cpu=Case((256, 1024)),
        cost=lambda case: Cost(
            bytes=4 * (case.shape[0] * case.shape[1] + sum(case.shape)),
            flops=2 * case.shape[0] * case.shape[1],
        ),
    ),
    Problem(
        name="dot",
        inputs=vectors,
        reference=torch.dot,
        rungs=(
            Rung("dot_v1_own", "two stages"),
            library("dot_v2_cublas", "cublasSdot, result in device memory"),
        ),
        cases=(
            *grid([*VECTORS, (0,)], ["float32"]),
            *grid([(1000,)], ["float32"], values="nonfinite"),
        ),
        bench=Case((1 << 28,)),
        bench_cpu=Case((1 << 18,)),
        cost=streamed(8),
    ),
    Problem(
        name="axpy",
        inputs=lambda case, draw: (*vectors(case, draw), 1.5),
        reference=axpy,
        rungs=(
            Rung("axpy_v1_own", "into a new vector"),
            library("axpy_v2_cublas", "copy, then cublasSaxpy over the copy"),
        ),
        cases=(
            *grid([*VECTORS, (0,)], ["float32"]),
            *grid([(1000,)], ["float32"], values="nonfinite"),
        ),
        bench=Case((1 << 28,)),
        bench_cpu=Case((1 << 18,)),
        cost=streamed(12),
    ),
    Problem(
        name="amax",
        inputs=lambda case, draw: (draw(*case.shape),),
        reference=amax,
        rungs=(
            Rung("amax_v1_own", "two stages of (size, index)"),
            library("amax_v2_cublas", "cublasIsamax"),
        ),
        cases=(
            *grid(VECTORS, ["float32"]),
            *grid([(1000,)], ["float32"], values="constant"),
        ),
        bench=Case((1 << 28,)),
        bench_cpu=Case((1 << 18,)),
        cost=streamed(4),
    ),
    Problem(
        name="attention",
        inputs=heads,
        reference=attention,
        rungs=(
            Rung("attention_v1_own", "our own products and softmax"),
            library("attention_v2_cublas", "batched cuBLAS calls, the same softmax"),
        ),
        cases=(
            *grid([(1, 1, 1, 1), (2, 33, 40, 9), (3, 17, 65, 32), (5, 8, 31, 64)], FLOATS),
            *grid([(0, 4, 4, 4), (2, 0, 4, 4), (2, 4, 0, 4), (2, 4, 4, 0)], ["float32"]),
        ),
        bench=Case((32, 2048, 2048, 128), "bfloat16"),
        bench_cpu=Case((2, 64, 64, 32)),
        cost=attention_cost,
    ),
    Problem(
        name="linear_gelu",
        inputs=layer,
        reference=linear_gelu,
        pytorch=fused_by_pytorch,
        rungs=(
            Rung("linear_gelu_v1_own", "bias and GELU in the tile kernel"),
            library("linear_gelu_v2_cublas", "cublasGemmEx, then a kernel"),
            library(
                "linear_gelu_v3_cublaslt",
                "bias and GELU in the library's epilogue",
                Target(0.97, "pytorch"),
            ),
        ),
        cases=(
            *grid([*SHAPES, (40, 24, 16), (128, 64, 256)], FLOATS),
            *grid(EMPTY, ["float32", "bfloat16"]),
        ),
        bench=Case((8192, 4096, 4096), "bfloat16"),
        bench_cpu=Case((128, 128, 128)),
        cost=gemm_cost,
        tolerance=Tolerance(
            factor=8, why="sums of 4096 terms in fp32, some of which cancel to almost 0"
        ),
    ),
)
