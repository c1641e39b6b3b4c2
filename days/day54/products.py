"""C = A · B: cases, rungs, cost."""

import torch

from common.day import Case, Cost, Problem, Rung, Target, grid

RUNGS = (
    Rung("gemm_v1_one_stage", "ldmatrix and mma.sync, swizzled tiles"),
    Rung("gemm_v2_pipelined", "cp.async, four stages, fragments one ahead"),
    Rung("gemm_v3_persistent", "a block per multiprocessor"),
    Rung("gemm_v4_stream_k", "the last tiles in equal shares"),
    Rung("gemm_v5_tma", "TMA fills the tiles", target=Target(0.6, "pytorch")),
)
TYPES = ["bfloat16", "float16"]
# (M, N, K): a whole tile; less than one; parts of tiles; 36 steps of two tiles, which v4 splits,
# and 18 of one, which v5 does.
SHAPES = [(128, 256, 64), (8, 8, 8), (1, 8, 16), (200, 264, 392), (130, 16, 1100)]
# Rows of A, or of B, or of both, that are not multiples of 16 bytes; columns that are odd.
ODD = [(1, 1, 1), (129, 257, 65), (33, 40, 7), (64, 31, 136)]
EMPTY = [(0, 16, 8), (16, 0, 8), (5, 8, 0)]
# M, N, K, and a variant: columns of a tile, depth of a step, stages, blocks, stream-K. Ranges that
# end within, with and several times within a tile; more tiles than blocks, and fewer.
VARIANTS = [
    *((300, 520, 200, 256, 64, 4, blocks, True) for blocks in (1, 2, 4, 7, 9, 40)),
    *((300, 520, 200, 256, 64, 3, 4, False), (140, 300, 130, 256, 32, 3, 3, True)),
    *((140, 300, 130, 256, 32, 4, 0, False), (300, 140, 333, 256, 32, 5, 2, True)),
    *((300, 264, 200, 128, 64, 3, 5, True), (130, 16, 1, 256, 64, 4, 4, True)),
    *((2100, 264, 64, 256, 64, 4, 3, False), (130, 40, 1100, 128, 64, 3, 0, True)),
]
# M, N, K, blocks, stream-K, B stored as (N, K): the same for v5, whose tiles are 256 × 192.
TMA_VARIANTS = [
    *((300, 400, 200, blocks, True, False) for blocks in (1, 2, 4, 7, 9, 40)),
    *((300, 400, 200, blocks, True, True) for blocks in (2, 4, 7, 40)),
    *((520, 200, 130, 4, False, False), (520, 200, 130, 4, False, True)),
    *((2100, 200, 64, 5, False, False), (130, 16, 1, 4, True, True)),
]
TMA_REFUSED = [(8, 8, 8, 0, False, False), (8, 8, 8, 1 << 32, True, True)]
REFUSED: list[tuple[int, ...]]
REFUSED = [(8, 8, 8, 256, 64, 5, 0, False), (8, 8, 8, 64, 64, 4, 0, False)]
REFUSED += [(8, 8, 8, 256, 64, 4, -1, False), (8, 8, 8, 256, 64, 4, 1 << 32, True)]
REFUSED += [(8, 8, 8, 256, 64, 4, 0, False, True)]  # one more: B is stored as (N, K)


def cost(case):
    M, N, K = case.shape
    return Cost(bytes=2 * (M * K + K * N + M * N), flops=2 * M * N * K, unit="tensor")


def product(name, transposed):
    """transposed: B is the transpose of a contiguous (N, K)."""

    def inputs(case, draw):
        M, N, K = case.shape
        return draw(M, K), draw(N, K).t() if transposed else draw(K, N)

    return Problem(
        name=name,
        inputs=inputs,
        reference=torch.mm,
        rungs=RUNGS,
        cases=(
            *grid([*SHAPES, *ODD, *EMPTY], TYPES),
            *grid([(9, 24, 40)], TYPES, values="nonfinite"),
        ),
        bench=Case((8192, 8192, 8192), dtype="bfloat16"),
        bench_cpu=Case((256, 256, 128), dtype="bfloat16"),
        cost=cost,
        pytorch=torch.mm,
    )


def variant_inputs(case, draw):
    M, N, K, *variant = case.shape
    b = draw(N, K).t() if variant[5:] else draw(K, N)
    return draw(M, K), b, *variant[:5]


def variant_reference(a, b, columns, depth, stages, blocks, stream):
    return a @ b


def tma_inputs(case, draw):
    M, N, K, blocks, stream, transposed = case.shape
    return draw(M, K), draw(N, K).t() if transposed else draw(K, N), blocks, bool(stream)


def tma_reference(a, b, blocks, stream):
    return a @ b


def checked(name, rung, inputs, reference, cases, refused):
    """A problem of one rung that is not timed."""
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=(rung,),
        cases=grid(cases, TYPES[:1]),
        refused=grid(refused, TYPES[:1]),
        timed=False,
    )


problems = (
    product("A · B", False),
    product("A · B, B stored as (N, K)", True),
    checked(
        "A · B, other tiles, stages and schedules",
        Rung("gemm_variant", "for the tables"),
        variant_inputs,
        variant_reference,
        VARIANTS,
        REFUSED,
    ),
    checked(
        "A · B by TMA, other schedules",
        Rung("gemm_tma_variant", "for the checks"),
        tma_inputs,
        tma_reference,
        TMA_VARIANTS,
        TMA_REFUSED,
    ),
)
