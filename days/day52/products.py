"""D = α · op(A) · op(B) + β · C: cases and rungs."""

from common.day import Case, Problem, Rung, Target, grid
from common.references.sgemm import sgemm, sgemm_by_cublas, sgemm_cost, sgemm_inputs, sgemm_problems

from .tuning import load_tuned

RUNGS = (
    Rung("sgemm_v1_warp_tiles", "64 × 64 per warp, 8 × 16 per thread"),
    Rung("sgemm_v2_double_buffered", "tiles and fragments loaded ahead"),
    Rung("sgemm_v3_swizzled", "an XOR in the place of the padding"),
    Rung(
        "sgemm_v4_tuned",
        "tiling and split-K by shape and GPU",
        target=Target(0.97, "pytorch"),
        load=load_tuned,
    ),
)

# (M, N, K) around tiles of 128 × 256, their depth of 16, packs of 4, and two stages.
WHOLE = [(4, 4, 4), (64, 128, 16), (132, 260, 36), (128, 256, 48), (60, 124, 12), (260, 8, 80)]
ODD = [(1, 1, 1), (65, 127, 17), (129, 63, 15), (5, 300, 33), (131, 257, 50), (2, 66, 1)]
MIXED = [(9, 128, 32), (64, 9, 32), (64, 64, 9), (1, 128, 64), (128, 1, 64), (64, 64, 1)]
EMPTY = [(0, 4, 4), (4, 0, 4), (4, 4, 0), (129, 5, 0)]
FP32 = ["float32"]
CASES = (
    *grid([*WHOLE, *ODD, *MIXED, *EMPTY], FP32),
    *grid([(1200, 300, 20)], FP32),  # two groups of blocks, the second one of less than 8 rows
    *grid([(40, 36, 28), (17, 19, 23)], FP32, values="nonfinite"),
)

timed = Problem(
    name="A · B",
    inputs=lambda case, draw: (draw(case.shape[0], case.shape[2]), draw(*case.shape[2:0:-1])),
    reference=sgemm,
    rungs=RUNGS,
    cases=CASES,
    bench=Case((4096, 4096, 4096)),
    bench_cpu=Case((256, 256, 64)),
    cost=sgemm_cost,
    pytorch=sgemm_by_cublas,
)

# (M, N, K, tiling, splits)
SHAPES = [(*shape, tiling, 1) for tiling in range(7) for shape in ((132, 260, 36), (65, 129, 50))]
SHAPES += [
    *((68, 36, 100, 4, 2), (33, 35, 77, 4, 5), (20, 140, 64, 5, 4), (140, 20, 63, 6, 3)),
    *(
        (130, 140, 40, 3, 2),
        (5, 6, 16, 4, 7),
        (5, 6, 0, 4, 2),
        (0, 6, 16, 4, 2),
        (9, 4, 33, 2, 256),
    ),
]
SHAPES += [(64, 1024, 260, 3, 1), (1024, 68, 256, 4, 2)]  # an operand is transposed first
NOT_SHAPES = [(9, 9, 9, 7, 1), (9, 9, 9, -1, 1), (9, 9, 9, 4, 0), (9, 9, 9, 4, -1)]
NOT_SHAPES += [(9, 9, 9, 4, 257), (9, 9, 9, (1 << 32) + 4, 1), (9, 9, 9, 4, (1 << 32) + 1)]


def whatever_the_tiling(a, b, c, a_transposed, b_transposed, alpha, beta, tiling, splits):
    return sgemm(a, b, c, a_transposed, b_transposed, alpha, beta)


def any_tiling(name, **layout):
    """A problem that names the tiling and the splits of v4, which tuning.py chooses otherwise."""
    inputs = sgemm_inputs(**layout)
    return Problem(
        name=name,
        inputs=lambda case, draw: (
            *inputs(Case(case.shape[:3], case.dtype, case.values), draw),
            *case.shape[3:],
        ),
        reference=whatever_the_tiling,
        rungs=(Rung("sgemm_v4_tuned", "any tiling"),),
        cases=grid(SHAPES, FP32),
        refused=grid(NOT_SHAPES, FP32),
        timed=False,
    )


problems = (
    timed,
    *sgemm_problems(RUNGS, CASES, grid([*WHOLE[1:4], *ODD, *MIXED], FP32)),
    any_tiling("any tiling, A · B"),
    any_tiling(
        "any tiling, α · Aᵀ · Bᵀ + β · C",
        a_transposed=True,
        b_transposed=True,
        alpha=-0.5,
        beta=2.0,
        c=lambda draw, M, N: draw(M, N),
    ),
)
