"""Day 23: warp shuffles: lanes that read each other's registers."""

if __name__ == "__main__":  # python days/day23/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day23

from common.day import COMPILE, Case, Problem, Rung, Target, grid, one_tensor, streamed

from .lanes import EMPTY, HALVES, LANES, SHAPES

TITLE = "Warp shuffles"
TEACHES = "Shuffles down, up, xor and broadcast, votes, masks; reductions without shared memory"
TOPICS = ("warps", "shuffles", "reduction", "scan", "votes", "broadcast")
SOURCE = "warp_shuffle.cu"
INTRODUCES = ("butterfly", "ballot", "vote")


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
