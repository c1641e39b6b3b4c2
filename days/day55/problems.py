"""What day 55 checks and times: copies, sums by stores, a matrix several times, transposes."""

import torch

from common.day import (
    COMPILE,
    FLOATS,
    Case,
    Cost,
    Problem,
    Rung,
    Target,
    Tolerance,
    grid,
    one_tensor,
    streamed,
)

# Around 16 bytes, and around one piece of 4096 bytes and four of them.
LENGTHS = [(1,), (7,), (8,), (1024,), (1025,), (4096,), (4097,), (8200,), (61441,), (3, 5, 70)]
# Rows of a multiple of 16 bytes, around the boxes of 256 columns and of 4 or 8 rows.
WHOLE = [(1, 8), (4, 256), (8, 256), (9, 264), (33, 264), (7, 1032), (100, 72)]


def view_inputs(case, draw):
    """A matrix whose rows are 16 elements further apart than they are long."""
    rows, cols = case.shape
    return (draw(rows, cols + 16)[:, 8 : cols + 8],)


def add_inputs(case, draw):
    return draw(*case.shape[1:]), draw(*case.shape)


def add(y, x):
    y += x.sum(0)


def add_cost(case):
    slices, rows, cols = case.shape
    return Cost(bytes=(slices + 2) * rows * cols * case.itemsize, flops=slices * rows * cols)


def repeat_inputs(case, draw):
    return draw(*case.shape[1:]), case.shape[0]


def repeat(x, copies):
    return x.repeat(copies, 1, 1)


def repeat_cost(case):
    copies, rows, cols = case.shape
    return Cost(bytes=(1 + copies) * rows * cols * case.itemsize)


def transposed(x):
    return x.t().contiguous()


BULK = Rung("copy_v1_bulk", "a piece of 4 KB per block")
PIPELINE = Rung("copy_v2_pipeline", "a ring of pieces", target=Target(0.97, "copy"))
TENSOR = Rung("copy_v3_tensor", "boxes of a tensor map", target=Target(0.97, "copy"))
TRANSPOSE = (
    Rung("transpose_v1_tensor", "tiles by TMA, unswizzled"),
    Rung("transpose_v2_swizzle", "no bank conflicts"),
    Rung("transpose_v3_pipeline", "a ring of tiles", target=Target(0.96, "copy")),
)


def copy(name, rungs, cases):
    return Problem(
        name=name,
        inputs=one_tensor,
        reference=torch.clone,
        rungs=rungs,
        cases=(*cases, *grid([(0, 8), (5, 0)], FLOATS), Case((16, 72), "float32", "nonfinite")),
        bench=Case((16384, 16384)),
        bench_cpu=Case((512, 512)),
        cost=streamed(2, 0),
        pytorch=torch.clone,
        outputs_exact=True,
    )


def transpose(dtype):
    return Problem(
        name=f"transpose, {dtype}",
        inputs=one_tensor,
        reference=transposed,
        rungs=TRANSPOSE,
        cases=(
            *grid([(8, 8), (64, 64), (128, 136), (200, 24), (72, 392), (0, 8)], [dtype]),
            Case((96, 64), dtype, "nonfinite"),
        ),
        refused=(Case((9, 8), dtype), Case((8, 9), dtype)),
        bench=Case((16384 if dtype == "float32" else 32768, 16384), dtype),  # 1 GiB
        bench_cpu=Case((512, 512), dtype),
        cost=streamed(2, 0),
        pytorch=transposed,
        libraries=(COMPILE,),
        outputs_exact=True,
    )


problems = (
    copy("copy", (BULK, PIPELINE), (*grid(LENGTHS, FLOATS), Case((4096, 4096)))),
    copy("copy in boxes", (TENSOR,), (*grid(WHOLE, FLOATS), Case((4096, 4096)))),
    Problem(
        name="copy of a view",
        inputs=view_inputs,
        reference=torch.clone,
        rungs=(TENSOR,),
        cases=grid(WHOLE, FLOATS),
        refused=(Case((4, 9)), Case((4, 20), "bfloat16")),
        timed=False,
        outputs_exact=True,
    ),
    Problem(
        name="sum of slices",
        inputs=add_inputs,
        reference=add,
        rungs=(
            Rung(
                "add_slices",
                "stores that add",
                not_repeatable="slices are added in the order in which blocks reach them",
            ),
        ),
        cases=grid(
            [(3, 16, 256), (5, 33, 264), (1, 7, 1032), (40, 100, 72), (2, 0, 8)], ["float32"]
        ),
        refused=(Case((2, 8, 9)),),
        bench=Case((4, 8192, 8192)),
        bench_cpu=Case((4, 256, 256)),
        cost=add_cost,
        pytorch=add,
        libraries=(COMPILE,),
        tolerance=Tolerance(factor=8, why="each slice is added to y by itself, in any order"),
    ),
    Problem(
        name="one matrix, several times",
        inputs=repeat_inputs,
        reference=repeat,
        rungs=(
            Rung("repeat_v1_each", "each block loads the tile"),
            Rung("repeat_v2_multicast", "one load for the cluster"),
        ),
        cases=(
            *grid([(4, 16, 256), (2, 33, 264), (8, 7, 1032), (1, 20, 72), (2, 0, 8)], FLOATS),
            Case((4, 16, 72), "float32", "nonfinite"),
        ),
        refused=(Case((3, 16, 256)), Case((16, 16, 256)), Case((2, 8, 9))),
        bench=Case((4, 8192, 8192)),
        bench_cpu=Case((4, 256, 256)),
        cost=repeat_cost,
        pytorch=repeat,
        libraries=(COMPILE,),
        outputs_exact=True,
    ),
    Problem(
        name="transpose, many tiles",
        inputs=one_tensor,
        reference=transposed,
        rungs=TRANSPOSE[-1:],
        cases=(Case((4096, 4096)), Case((4096, 4096), "bfloat16")),  # stages three times, once
        timed=False,
        outputs_exact=True,
    ),
    transpose("float32"),
    transpose("bfloat16"),
    transpose("float16"),
)
