"""gemm, linear_gelu, attention: cases, formulas, rungs."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import gelu, scaled_dot_product_attention

from common.day import (
    COMPILE,
    FLOATS,
    Case,
    Cost,
    Library,
    Problem,
    Rung,
    Skip,
    Target,
    Tolerance,
    grid,
)

from .rungs import library

SHAPES = [(1, 1, 1), (32, 32, 32), (33, 9, 65), (64, 48, 32), (5, 3, 257)]
EMPTY = [(0, 4, 4), (4, 0, 4), (4, 4, 0)]


def matrices(case, draw):
    M, N, K = case.shape
    return draw(M, K), draw(K, N)


def layer(case, draw):
    M, N, K = case.shape
    return draw(M, K), draw(K, N).mul_(max(K, 1) ** -0.5), draw(N)


def linear_gelu(x, w, bias):
    if bias.shape != w.shape[1:]:
        raise ValueError(f"bias: expected {w.shape[1]} elements, got {tuple(bias.shape)}")
    return gelu(x @ w + bias, approximate="tanh")


def by_addmm(x, w, bias):
    return gelu(torch.addmm(bias, x, w), approximate="tanh")


def by_epilogue(x, w, bias):
    """cuBLASLt with bias and GELU in its epilogue, by a function that PyTorch does not document."""
    return torch._addmm_activation(bias, x, w, use_gelu=True)


def gemm_cost(case):
    M, N, K = case.shape
    return Cost(
        bytes=(M * K + K * N + M * N) * case.itemsize,
        flops=2 * M * N * K,
        unit="fp32" if case.dtype == "float32" else "tensor",
    )


def heads(case, draw):
    number, S, T, D = case.shape
    return draw(number, S, D), draw(number, T, D), draw(number, T, D)


def by_formula(q, k, v):
    return torch.softmax(q @ k.transpose(1, 2) / max(q.shape[2], 1) ** 0.5, dim=-1) @ v


def by_sdpa(q, k, v):
    """FlashAttention's kernel for the 16-bit types; it expects four dimensions."""
    return scaled_dot_product_attention(q[None], k[None], v[None])[0]


def by_cudnn(q, k, v):
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return by_sdpa(q, k, v)
    except RuntimeError as error:
        raise Skip(f"no cuDNN attention here: {error}") from error


def attention_cost(case):
    number, S, T, D = case.shape
    return Cost(
        bytes=number * (2 * S + 2 * T) * D * case.itemsize,
        flops=4 * number * S * T * D,
        unit="tensor",
    )


gemm = Problem(
    name="gemm",
    inputs=matrices,
    reference=torch.matmul,
    rungs=(
        Rung("gemm_v1_own", "tiles in shared memory"),
        library("gemm_v2_cublas", "cublasGemmEx", Target(0.97, "pytorch")),
    ),
    cases=(*grid(SHAPES + EMPTY, FLOATS), *grid([(17, 19, 23)], FLOATS, values="nonfinite")),
    bench=Case((4096, 4096, 4096), "bfloat16"),
    bench_cpu=Case((128, 128, 128)),
    cost=gemm_cost,
    pytorch=torch.matmul,  # cuBLAS
)

attention = Problem(
    name="attention",
    inputs=heads,
    reference=by_formula,
    rungs=(
        Rung("attention_v1_own", "our own products and softmax"),
        library("attention_v2_cublas", "batched cuBLAS calls, the same softmax"),
    ),
    cases=(
        *grid([(1, 1, 1, 1), (2, 33, 40, 9), (3, 17, 65, 32), (5, 8, 31, 64)], FLOATS),
        *grid([(1, 3, 300, 8)], ["float32"]),  # more keys than a block has threads
        *grid([(4, 5, 1, 8)], ["float32"], values="large"),  # scores far below 0
        *grid([(0, 4, 4, 4), (2, 0, 4, 4), (2, 4, 0, 4), (2, 4, 4, 0)], ["float32"]),
    ),
    bench=Case((32, 2048, 2048, 128), "bfloat16"),
    bench_cpu=Case((2, 64, 64, 32)),
    cost=attention_cost,
    pytorch=by_sdpa,
    libraries=(Library("cuDNN", by_cudnn),),
)

activated = Problem(
    name="linear_gelu",
    inputs=layer,
    reference=linear_gelu,
    rungs=(
        Rung("linear_gelu_v1_own", "bias and GELU in the tile kernel"),
        library("linear_gelu_v2_cublas", "cublasGemmEx, then a kernel"),
        library(
            "linear_gelu_v3_cublaslt",
            "bias and GELU in the library's epilogue",
            Target(0.97, "cuBLASLt"),
        ),
    ),
    cases=(
        *grid([*SHAPES, (40, 24, 16), (128, 64, 256)], FLOATS),
        *grid(EMPTY, ["float32", "bfloat16"]),
    ),
    bench=Case((8192, 4096, 4096), "bfloat16"),
    bench_cpu=Case((128, 128, 128)),
    cost=gemm_cost,
    pytorch=by_addmm,
    libraries=(COMPILE, Library("cuBLASLt", by_epilogue)),
    tolerance=Tolerance(
        factor=8, why="sums of 4096 terms in fp32, some of which cancel to almost 0"
    ),
)
