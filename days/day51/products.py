"""D = α · op(A) · op(B) + β · C: cases and rungs."""

from common.day import Case, Problem, Rung, Target, grid
from common.references.sgemm import sgemm, sgemm_by_cublas, sgemm_cost, sgemm_problems

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
CASES = (
    *grid([*WHOLE, *ODD, *MIXED, *EMPTY], FP32),
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

problems = (timed, *sgemm_problems(RUNGS, CASES, grid([*WHOLE[1:4], *ODD, *MIXED], FP32)))
