"""D = α · op(A) · op(B) + β · C: cases, rungs, formulas."""

import torch

from common.day import Case, Cost, Problem, Rung, Target, grid

COLUMN = Rung("sgemm_v1_column", "8 × 1 elements per thread")
SQUARE = Rung("sgemm_v2_square", "8 × 8 elements per thread")
VECTORISED = Rung("sgemm_v3_vectorised", "packs of 16 bytes", target=Target(0.75, "pytorch"))
PAIRED = Rung("sgemm_v4_paired_lanes", "4 × 8 lanes per warp", target=Target(0.75, "pytorch"))
RUNGS = (COLUMN, SQUARE, VECTORISED, PAIRED)

# (M, N, K) around a tile of 64 or 128, its depth of 16, and packs of 4.
WHOLE = [(4, 4, 4), (64, 128, 16), (128, 64, 20), (132, 260, 36), (60, 124, 12)]
ODD = [(1, 1, 1), (65, 127, 17), (129, 63, 15), (5, 300, 33), (130, 3, 7), (2, 66, 1), (131, 1, 50)]
MIXED = [(9, 128, 32), (64, 9, 32), (64, 64, 9), (1, 128, 64), (128, 1, 64), (64, 64, 1)]
EMPTY = [(0, 4, 4), (4, 0, 4), (4, 4, 0), (129, 5, 0)]
FP32 = ["float32"]


def sgemm(a, b, c=None, a_transposed=False, b_transposed=False, alpha=1.0, beta=0.0):
    product = alpha * ((a.t() if a_transposed else a) @ (b.t() if b_transposed else b))
    return product if c is None or beta == 0 else product + beta * c


def by_cublas(a, b, c=None, a_transposed=False, b_transposed=False, alpha=1.0, beta=0.0):
    """cuBLAS in fp32. Raises RuntimeError where PyTorch is set to compute with TF32."""
    if torch.get_float32_matmul_precision() != "highest":
        raise RuntimeError("TF32 is on: torch.set_float32_matmul_precision('highest') is needed")
    a, b = a.t() if a_transposed else a, b.t() if b_transposed else b
    return torch.mm(a, b) if c is None else torch.addmm(c, a, b, beta=beta, alpha=alpha)


def cost(case):
    M, N, K = case.shape
    return Cost(bytes=4 * (M * K + K * N + M * N), flops=2 * M * N * K)


def product(name, cases, a_transposed=False, b_transposed=False, alpha=1.0, beta=0.0, c=None):
    """A problem that is only checked. c: makes C from its shape and `draw`, if there is one."""

    def inputs(case, draw):
        M, N, K = case.shape
        a = draw(K, M) if a_transposed else draw(M, K)
        b = draw(N, K) if b_transposed else draw(K, N)
        third = c(draw, M, N) if c else None
        return a, b, third, a_transposed, b_transposed, alpha, beta

    return Problem(name=name, inputs=inputs, reference=sgemm, rungs=RUNGS, cases=cases, timed=False)


def not_a_number(draw, M, N):
    return draw(M, N).fill_(float("nan"))


def matrix(draw, M, N):
    return draw(M, N)


timed = Problem(
    name="A · B",
    inputs=lambda case, draw: (draw(case.shape[0], case.shape[2]), draw(*case.shape[2:0:-1])),
    reference=sgemm,
    rungs=RUNGS,
    cases=(
        *grid([*WHOLE, *ODD, *MIXED, *EMPTY], FP32),
        *grid([(40, 36, 28), (17, 19, 23)], FP32, values="nonfinite"),
    ),
    bench=Case((4096, 4096, 4096)),
    bench_cpu=Case((256, 256, 64)),
    cost=cost,
    pytorch=by_cublas,
)

problems = (
    timed,
    product("Aᵀ · B", grid([*WHOLE[1:4], *ODD, *MIXED], FP32), a_transposed=True),
    product("A · Bᵀ", grid([*WHOLE[1:4], *ODD, *MIXED], FP32), b_transposed=True),
    product(
        "α · Aᵀ · Bᵀ + β · C",
        (
            *grid([*WHOLE, *ODD, *MIXED, *EMPTY], FP32),
            *grid([(40, 36, 28), (17, 19, 23)], FP32, values="nonfinite"),
        ),
        a_transposed=True,
        b_transposed=True,
        alpha=-0.5,
        beta=2.0,
        c=matrix,
    ),
    product("C unread where β = 0", grid([(8, 12, 4), (5, 7, 3)], FP32), c=not_a_number),
)
