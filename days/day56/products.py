"""C = f(A · B + bias): cases, rungs, formulas."""

import torch
import torch.nn.functional as F

from common.day import Case, Cost, Problem, Rung, Target, grid

RUNGS = (
    Rung("gemm_v1_one_warpgroup", "threads copy, one warpgroup multiplies"),
    Rung("gemm_v2_pipeline", "TMA, three stages"),
    Rung("gemm_v3_warp_roles", "a producer, two consumers"),
    Rung("gemm_v4_wide_tiles", "128 × 256 per block"),
    Rung("gemm_v5_persistent", "persistent, grouped tiles, C by TMA"),
    Rung("gemm_v6_ping_pong", "128 × 192, consumers take turns"),
    Rung("gemm_v7_clusters", "clusters of two, B by multicast"),
    Rung("gemm_v8_chosen", "tile by the shape, split-K", target=Target(1.08, "pytorch")),
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


def product(name, cases, transposed, activation=None, timed=False):
    """transposed: B is the transpose of a contiguous (N, K). activation: None means no bias."""

    def inputs(case, draw):
        M, N, K = case.shape
        a, b = draw(M, K), draw(N, K).t() if transposed else draw(K, N)
        return (a, b) if activation is None else (a, b, draw(N), activation)

    return Problem(
        name=name,
        inputs=inputs,
        reference=formula,
        rungs=RUNGS,
        cases=cases,
        bench=Case((8192, 8192, 8192), dtype="bfloat16"),
        bench_cpu=Case((256, 256, 128), dtype="bfloat16"),
        cost=cost,
        pytorch=cublas,
        timed=timed,
    )


problems = (
    product("A · B", grid([*SHAPES, *SPLIT, *WIDE, *EMPTY], TYPES), transposed=False, timed=True),
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
