"""Day 21: the transpose."""

from common.day import COMPILE, Case, Exercise, Problem, Rung, Target, grid, one_tensor, streamed

TITLE = "Transpose"
TEACHES = "Coalescing on both sides through a tile, bank conflicts, padding, and the swizzle"
TOPICS = ("transpose", "coalescing", "shared memory", "bank conflicts", "swizzle")
SOURCE = "transpose_matrix.cu"
INTRODUCES = ("swizzle",)

EQUIVALENT = {  # mutants that compute the same, and why
    "transpose_v3_padded_kernel: constant off by one: `SIDE + 1` -> `SIDE + 2`": (
        "another padding: other bank conflicts, the same values"
    ),
    "Swizzled::place: arithmetic operator: `r / N` -> `r * N`": (
        "another permutation of each row's packs"
    ),
}

EXERCISE = Exercise(
    function="through_tile",
    task=(
        "Transpose one tile through shared memory: read rows of x, write rows of y, both "
        "coalesced. PITCH is the distance between rows of the tile in shared memory."
    ),
    hints=(
        "threadIdx.x runs along a row of x when loading, and along a row of y when storing. What "
        "changes place in between?",
        "Load shared[i][lane] = x[row, col] with row = tile.row + i and col = tile.col + lane, "
        "for i = threadIdx.y, + BLOCK_ROWS, …, SIDE. Then wait.",
        "Store with row = tile.row + lane and col = tile.col + i: y[col * rows + row] = "
        "shared[lane][i]. Both bounds are checked in both loops. __shared__ T "
        "shared[SIDE][PITCH]; tile_of_block(cols, SIDE, SIDE) gives the tile.",
    ),
)

FLOATS = ["float32", "float16", "bfloat16"]
OTHERS = ["uint8", "bool", "int16", "int64", "float64"]
SHAPES = [(1, 1), (1, 33), (33, 1), (31, 33), (32, 32), (63, 65), (127, 257), (3, 1023)]
WIDE = [(16, 16), (64, 64), (128, 64), (48, 208), (80, 1040)]  # rows of whole packs


def reference(x):
    return x.t().contiguous()


PROBLEMS = (
    Problem(
        name="transpose",
        inputs=one_tensor,
        reference=reference,
        rungs=(
            Rung("transpose_v1_naive", "rows in, columns out"),
            Rung("transpose_v2_shared", "a tile in shared memory"),
            Rung("transpose_v3_padded", "rows of the tile 33 elements apart"),
            Rung("transpose_v4_vector_swizzle", "16 bytes per access, a swizzled tile"),
            Rung(
                "transpose_v5_streaming",
                "streaming stores, in the order of y",
                target=Target(0.93, "copy"),
            ),
        ),
        cases=(
            *grid([*SHAPES, *WIDE, (0, 5), (5, 0)], FLOATS),
            *grid([(37, 70), (144, 272)], OTHERS),
            *grid([(19, 101), (48, 80)], FLOATS, values="nonfinite"),
            *grid([(64, 96)], FLOATS, values="extreme"),
        ),
        bench=Case((16384, 16384)),
        bench_cpu=Case((512, 512)),
        cost=streamed(2, 0),
        pytorch=reference,  # a copy with other strides; PyTorch calls no library for it
        libraries=(COMPILE,),
        outputs_exact=True,
    ),
)
