"""Day 88: a feed-forward network whose weights are split over several GPUs."""

if __name__ == "__main__":  # python days/day88/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day88

from common.day import COMPILE, HALVES, Case, Cost, Problem, Rung, Tolerance, grid

from . import network
from .proof import show, show_times

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "Tensor parallelism"
TEACHES = "A product that is split over several GPUs, and a reduction that its tiles hide"
TOPICS = ("tensor parallelism", "all-reduce", "NVLink", "overlap", "several GPUs", "MLP", "wgmma")
SOURCE = "tensor_parallel.cu"
EXTRA_SOURCES = ("network.py", "sharded.py", "proof.py", "ranks.py", "measure.py")
INTRODUCES = ("tensor parallelism", "all-gather")

# (rows, C, H, ranks, blocks of the sums per rank): around the 128 × 192 of a tile, the 64 values of
# a step, and the chunks of v2
SHAPES = [(1, 8, 8, 1, 1), (5, 16, 144, 2, 1), (130, 200, 48, 3, 2), (300, 392, 64, 2, 3)]
MANY = [
    (1100, 200, 16, 2, 2),
    (200, 392, 64, 8, 1),
]  # more tiles than a group has rows; fewer than ranks
EMPTY = [(0, 8, 16, 2, 1), (4, 0, 16, 2, 1), (0, 3, 16, 2, 1)]
WHY = "two products, with the rounding of the first and of each rank's part"


def cost(case):
    rows, C, H, ranks, _ = case.shape
    moved = (1 + ranks) * rows * C + 2 * C * H
    return Cost(bytes=moved * case.itemsize, flops=4 * rows * C * H, unit="tensor")


PROBLEMS = (
    Problem(
        name="all ranks on one GPU",
        inputs=network.inputs,
        reference=network.split,
        pytorch=network.eager,
        libraries=(COMPILE,),
        rungs=(
            Rung("ffn_v1_separate", "products, then the sums"),
            Rung("ffn_v2_chunks", "sums beside the next chunk's product"),
            Rung("ffn_v3_fused", "tiles stored where they are added"),
        ),
        cases=(
            *grid(SHAPES, HALVES),
            *grid([*MANY, *EMPTY], ["bfloat16"]),
            Case((130, 24, 80, 2, 1), "bfloat16", "nonfinite"),
            Case((9, 24, 80, 2, 1), "float16", "large"),
        ),
        refused=(
            Case((8, 12, 16, 2, 1), "bfloat16"),
            Case((8, 16, 24, 2, 1), "bfloat16"),
            Case((8, 16, 72, 9, 1), "bfloat16"),
            Case((8, 16, 16, 2, 0), "bfloat16"),
            Case((8, 16, 16, 2, 100), "bfloat16"),  # more than half of any GPU's multiprocessors
            Case((8, 16, 16, 2, 129), "bfloat16"),
            Case((8, 16, 16, 2, 2**32 + 1), "bfloat16"),
            Case((8, 16, 16, 2, 1), "float32"),
            Case((2**31 - 257, 0, 16, 2, 1), "bfloat16"),
            Case((0, 2**31 - 257, 0, 2, 1), "bfloat16"),
        ),
        bench=Case((8192, 4096, 16384, 2, 4), "bfloat16"),
        bench_cpu=Case((256, 64, 128, 2, 2), "bfloat16"),
        cost=cost,
        several_streams=True,
        tolerance=Tolerance(factor=8, why=WHY),
    ),
)
