"""gemv, dot, axpy, amax: cases, formulas, rungs."""

import torch

from common.day import COMPILE, Case, Cost, Problem, Rung, grid, one_tensor

from .rungs import library

SIZES = [(1,), (255,), (1024,), (1025,), (10007,)]
LARGE = Case((1 << 28,))
SMALL = Case((1 << 18,))


def vectors(case, draw):
    return draw(*case.shape), draw(*case.shape)


def axpy(x, y, a):
    if x.shape != y.shape:
        raise ValueError(f"y: expected the shape of x, {tuple(x.shape)}, got {tuple(y.shape)}")
    return a * x + y


def by_add(x, y, a):
    """One kernel."""
    return torch.add(y, x, alpha=a)


def index_of_largest(x):
    return x.abs().argmax() + 1


def cost(bytes_per_element):
    return lambda case: Cost(bytes=bytes_per_element * case.shape[0], flops=2 * case.shape[0])


gemv = Problem(
    name="gemv",
    inputs=lambda case, draw: (draw(*case.shape), draw(case.shape[1])),
    reference=torch.mv,
    rungs=(Rung("gemv_v1_own", "one warp per row"), library("gemv_v2_cublas", "cublasSgemv")),
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
    pytorch=torch.mv,  # cuBLAS
    libraries=(COMPILE,),
)

dot = Problem(
    name="dot",
    inputs=vectors,
    reference=torch.dot,
    rungs=(
        Rung("dot_v1_own", "two stages"),
        library("dot_v2_cublas", "cublasSdot, result in device memory"),
    ),
    cases=(
        *grid([*SIZES, (0,)], ["float32"]),
        *grid([(1000,)], ["float32"], values="nonfinite"),
    ),
    bench=LARGE,
    bench_cpu=SMALL,
    cost=cost(8),
    pytorch=torch.dot,  # cuBLAS
    libraries=(COMPILE,),
)

axpy_problem = Problem(
    name="axpy",
    inputs=lambda case, draw: (*vectors(case, draw), 1.5),
    reference=axpy,
    rungs=(
        Rung("axpy_v1_own", "into a new vector"),
        library("axpy_v2_cublas", "copy, then cublasSaxpy over the copy"),
    ),
    cases=(
        *grid([*SIZES, (0,)], ["float32"]),
        *grid([(1000,)], ["float32"], values="nonfinite"),
    ),
    bench=LARGE,
    bench_cpu=SMALL,
    cost=cost(12),
    pytorch=by_add,
    libraries=(COMPILE,),
)

amax = Problem(
    name="amax",
    inputs=one_tensor,
    reference=index_of_largest,
    rungs=(
        Rung("amax_v1_own", "two stages of (size, index)"),
        library("amax_v2_cublas", "cublasIsamax"),
    ),
    cases=(
        *grid(SIZES, ["float32"]),
        *grid([(1000,)], ["float32"], values="constant"),
        Case((530_001,)),  # 518 blocks: more partial results than the second stage has threads
    ),
    bench=LARGE,
    bench_cpu=SMALL,
    cost=cost(4),
    pytorch=index_of_largest,  # three kernels; compiled, they are fused
    libraries=(COMPILE,),
)
