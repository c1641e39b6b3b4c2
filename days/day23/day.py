"""Day 23: warp shuffles: lanes that read each other's registers."""

from common.day import COMPILE, Case, Exercise, Problem, Rung, Target, grid, one_tensor, streamed

from .lanes import EMPTY, HALVES, LANES, SHAPES

TITLE = "Warp shuffles"
TEACHES = "Shuffles down, up, xor and broadcast, votes, masks; reductions without shared memory"
TOPICS = ("warps", "shuffles", "reduction", "scan", "votes", "broadcast")
SOURCE = "warp_shuffle.cu"
INTRODUCES = ("butterfly", "ballot", "vote")

EXERCISE = Exercise(
    function="segment_scan_kernel",
    task=(
        "An inclusive scan within segments of `width` lanes, by __shfl_up_sync. Lanes beyond n "
        "must not be named in the mask."
    ),
    hints=(
        "In step d, each lane adds the value of the lane d below it, for d = 1, 2, 4 … Which "
        "lanes have none in their segment?",
        "The mask must name exactly the lanes that take part. Find it with "
        "__ballot_sync(FULL_WARP, i < n) while all 32 lanes are still there, then let the others "
        "return.",
        "below = __shfl_up_sync(mask, sum, distance, width); only where threadIdx.x % width >= "
        "distance it is added, on the left. All lanes of the mask reach every shuffle.",
    ),
)


def row_sum(x):
    return x.sum(dim=1)


def row_sums(name, cases, bench):
    return Problem(
        name=name,
        inputs=one_tensor,
        reference=row_sum,
        rungs=(
            Rung("row_sum_v1_shared", "one block per row, a tree in shared memory"),
            Rung("row_sum_v2_shuffle_down", "one warp per row, the tree in registers"),
            Rung("row_sum_v3_butterfly", "every lane gets the sum"),
            Rung("row_sum_v4_vectorised", "four 16-byte loads", target=Target(0.95, "read")),
        ),
        cases=cases,
        bench=bench,
        bench_cpu=Case((128, 1024), bench.dtype),
        cost=streamed(1),
        pytorch=row_sum,
        libraries=(COMPILE,),
    )


PROBLEMS = (
    row_sums(
        "row_sum",
        (
            *grid(SHAPES + EMPTY, ["float32"]),
            *grid([(3, 5003)], ["float32"]),
            *grid([(40, 300)], ["float32"], values="nonfinite"),
            *grid([(9, 129)], ["float32"], values="offset"),
        ),
        Case((262144, 1024)),
    ),
    row_sums(
        "row_sum of halves",
        (
            *grid(SHAPES + EMPTY, HALVES),
            *grid([(40, 300)], HALVES, values="nonfinite"),
            *grid([(9, 129)], HALVES, values="offset"),
        ),
        Case((262144, 2048), "bfloat16"),
    ),
    *LANES,
)
