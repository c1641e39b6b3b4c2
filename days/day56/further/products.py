"""C = f(A · B + bias): cases, rungs, formulas."""

import torch
import torch.nn.functional as F

from common.day import Case, Cost, Problem, Rung, Target, grid
from common.references import rivals

RUNGS = (
    # v8 is timed instead: at 8192³ it is this kernel
    Rung("every_layout_v5_ping_pong", "the main line's v5 for every layout", timed=False),
    Rung("gemm_v6_wide_tiles", "128 × 256, consumers share a tile"),
    Rung("gemm_v7_clusters", "clusters of two, B by multicast"),
    Rung(
        "gemm_v8_chosen",
        "tile by the shape, split-K",
        target=(Target(1.1, "pytorch"), Target(1.0, "quack")),
    ),
)
ALONE = (  # v6 without one of its parts
    Rung("gemm_v6_column_order", "tiles in the order of columns"),
    Rung("gemm_v6_direct_stores", "C from registers, without TMA"),
)
TYPES = ["bfloat16", "float16"]
# (M, N, K): whole tiles; less than one; several tiles of odd sizes; more tiles than blocks.
SHAPES = [(128, 256, 64), (256, 512, 128), (8, 8, 8), (1, 8, 16), (200, 264, 72), (333, 520, 200)]
SPLIT = [(70, 200, 1600), (300, 8, 2056)]  # long sums of few tiles
WIDE = [(40, 480, 704)]  # for which v8 takes tiles of 128 × 256 on two multiprocessors
ODD_COLUMNS = [(64, 1, 64), (130, 259, 40), (257, 3, 8), (35, 3, 2056)]
EMPTY = [(0, 16, 8), (16, 0, 8)]
ACTIVATIONS = (lambda x: x, F.relu, lambda x: F.gelu(x, approximate="tanh"))


def formula(a, b, bias=None, activation=0):
    product = a @ b
    return ACTIVATIONS[activation](product if bias is None else product + bias)


def cublas(a, b, bias=None, activation=0):
    if bias is None:
        return ACTIVATIONS[activation](torch.mm(a, b))
    if activation:
        return torch._addmm_activation(bias, a, b, use_gelu=activation == 2)
    return torch.addmm(bias, a, b)


def cost(case):
    M, N, K = case.shape
    return Cost(bytes=2 * (M * K + K * N + M * N), flops=2 * M * N * K, unit="tensor")


def product(name, cases, transposed, activation=None, timed=False, rungs=RUNGS):
    """transposed: B is the transpose of a contiguous (N, K). activation: None means no bias."""

    def inputs(case, draw):
        M, N, K = case.shape
        a, b = draw(M, K), draw(N, K).t() if transposed else draw(K, N)
        return (a, b) if activation is None else (a, b, draw(N), activation)

    return Problem(
        name=name,
        inputs=inputs,
        reference=formula,
        rungs=rungs,
        cases=cases,
        bench=Case((8192, 8192, 8192), dtype="bfloat16"),
        bench_cpu=Case((256, 256, 128), dtype="bfloat16"),
        cost=cost,
        pytorch=cublas,
        rivals=(rivals.quack_matmul,) if timed else (),
        timed=timed,
    )


PROBLEMS = (
    product(
        "A · B",
        grid([*SHAPES, *SPLIT, *WIDE, *EMPTY], TYPES),
        transposed=False,
        timed=True,
        rungs=(*RUNGS[:2], *ALONE, *RUNGS[2:]),
    ),
    product(
        "A · B, B stored as (N, K)", grid([*SHAPES, *ODD_COLUMNS, *EMPTY], TYPES), True, timed=True
    ),
    product("relu(A · B + bias)", grid(SHAPES[2:], TYPES), False, activation=1),
    product(
        "gelu(A · B + bias), B stored as (N, K)",
        grid([*SHAPES[2:], *SPLIT, *ODD_COLUMNS], TYPES),
        True,
        2,
    ),
)
