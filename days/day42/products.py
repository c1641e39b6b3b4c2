"""y = A · x and y = Aᵀ · x: cases, rungs, sizes."""

import torch

from common.day import COMPILE, FLOATS, Case, Cost, Library, Problem, Rung, Target, Tolerance, grid

# Around the chunks of a lane, the lanes and rows of a group, the rows of a block, the splits.
SHAPES = [(1, 1), (5, 31), (9, 64), (300, 8), (131, 128), (70, 136), (37, 256), (7, 520), (33, 264)]
LONG = [(6, 4104), (1, 16400), (3, 33000), (2, 16391)]
EMPTY = [(0, 8), (5, 0)]
CANCELLING = Tolerance(factor=16, why="sums of both signs; a few of many cancel to almost 0")

THREAD = Rung("matvec_v1_thread", "one thread per row")
WARP = Rung("matvec_v2_warp", "one warp per row")
BLOCK = Rung("matvec_v3_block", "one block per row")
SPLIT = Rung("matvec_v4_split_k", "several blocks per row, two launches")
ROWS = Rung("matvec_v5_rows", "4 or 8 rows per group of lanes")
CLUSTER = Rung("matvec_v6_cluster", "a cluster per 4 rows")
CHOSEN = Rung("matvec_v7_chosen", "the best for the shape", target=Target(1.0, "pytorch"))

T_THREAD = Rung("matvec_t_v1_thread", "one thread per column")
T_BLOCK = Rung("matvec_t_v2_block", "one block per tile of columns")
T_SPLIT = Rung("matvec_t_v3_split_m", "several blocks per tile, two launches")
T_CHOSEN = Rung("matvec_t_v4_chosen", "the best for the shape", target=Target(1.0, "pytorch"))


def inputs(case, draw):
    return draw(*case.shape), draw(case.shape[1])


def inputs_transposed(case, draw):
    return draw(*case.shape), draw(case.shape[0])


def transposed(a, x):
    return torch.mv(a.t(), x)


def by_matmul(a, x):
    """cuBLAS's matrix product, with a matrix of one column."""
    return torch.matmul(a, x[:, None])[:, 0]


def by_matmul_transposed(a, x):
    return torch.matmul(a.t(), x[:, None])[:, 0]


def cost(case):
    rows, columns = case.shape
    return Cost(bytes=(rows * columns + rows + columns) * case.itemsize, flops=2 * rows * columns)


def any_shape(name, inputs, reference, rungs):
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=rungs,
        cases=(
            *grid([*SHAPES, *EMPTY], FLOATS),
            *grid(LONG, ["float32", "bfloat16"]),
            *grid([(12, 60), (8, 264)], FLOATS, values="nonfinite"),
        ),
        timed=False,
        tolerance=CANCELLING,
    )


def timed(shape, dtype, *rungs, of="A · x"):
    plain = of == "A · x"
    matmul = Library("mm", by_matmul if plain else by_matmul_transposed)
    return Problem(
        name=f"{of}, {shape[0]} × {shape[1]}" + (", fp32" if dtype == "float32" else ""),
        inputs=inputs if plain else inputs_transposed,
        reference=torch.mv if plain else transposed,
        rungs=rungs,
        cases=(Case((9, 264), dtype),),  # the timed size is compared after it was timed
        bench=Case(shape, dtype),
        bench_cpu=Case((min(shape[0], 64), min(shape[1], 240)), dtype),
        cost=cost,
        pytorch=torch.mv if plain else transposed,  # cuBLAS
        libraries=(matmul, COMPILE) if dtype == "bfloat16" else (matmul,),
        tolerance=CANCELLING,
    )


SQUARE, WIDE, TALL = (16384, 16384), (128, 65536), (65536, 128)

problems = (
    any_shape(
        "A · x, any shape", inputs, torch.mv, (THREAD, WARP, BLOCK, SPLIT, ROWS, CLUSTER, CHOSEN)
    ),
    timed(SQUARE, "bfloat16", THREAD, WARP, BLOCK, ROWS, CHOSEN),
    timed(WIDE, "bfloat16", WARP, BLOCK, SPLIT, CLUSTER, CHOSEN),
    timed(TALL, "bfloat16", THREAD, WARP, BLOCK, ROWS, CHOSEN),
    timed(SQUARE, "float32", WARP, ROWS, CHOSEN),
    timed(WIDE, "float32", SPLIT, CLUSTER, CHOSEN),
    timed(TALL, "float32", WARP, ROWS, CHOSEN),
    any_shape(
        "Aᵀ · x, any shape",
        inputs_transposed,
        transposed,
        (T_THREAD, T_BLOCK, T_SPLIT, T_CHOSEN),
    ),
    timed(SQUARE, "bfloat16", T_THREAD, T_BLOCK, T_SPLIT, T_CHOSEN, of="Aᵀ · x"),
    timed(WIDE, "bfloat16", T_THREAD, T_BLOCK, T_SPLIT, T_CHOSEN, of="Aᵀ · x"),
    timed(TALL, "bfloat16", T_BLOCK, T_SPLIT, T_CHOSEN, of="Aᵀ · x"),
    timed(SQUARE, "float32", T_THREAD, T_BLOCK, T_SPLIT, T_CHOSEN, of="Aᵀ · x"),
)
