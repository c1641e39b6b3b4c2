"""Day 88: a feed-forward network whose weights are split over several GPUs."""

from common.day import COMPILE, Case, Cost, Exercise, Problem, Rung, Tolerance, grid

from . import network
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Tensor parallelism"
TEACHES = "A product that is split over several GPUs, and a reduction that its tiles hide"
TOPICS = ("tensor parallelism", "all-reduce", "NVLink", "overlap", "several GPUs", "MLP", "wgmma")
SOURCE = "tensor_parallel.cu"
EXTRA_SOURCES = ("network.py", "sharded.py", "proof.py", "ranks.py", "measure.py")
INTRODUCES = ("tensor parallelism", "all-gather")
EQUIVALENT = {  # mutants that compute the same, and why
    "products.cuh: launch_product: arithmetic operator: `multiprocessor_count(on) - spare` -> "
    "`multiprocessor_count(on) + spare`": ("how many blocks share out the tiles changes no result"),
    "shards.cuh: check_all: validation dropped: `STD_TORCH_CHECK(timeout_ms >= 1 && timeout_ms "
    "<= 1'000'000'000, \"timeout_ms: expected 1 to 1000000000, got \", timeout_ms)` -> ``": (
        "rungs play all ranks in one launch, whose timeout is a constant"
    ),
    "launch_sums: comparison: `played > 1` -> `played >= 1`": (
        "a cooperative launch of one rank's blocks computes the same"
    ),
    "ffn_v1_separate: constant off by one: `1` -> `2`": ("the next version computes the same sums"),
    "ffn_v2_chunks: constant off by one: `2` -> `3`": ("the next version computes the same sums"),
    "products.cuh: launch_product: constant off by one: `1` -> `2`": (
        "how many blocks share out the tiles changes no result"
    ),
    "products.cuh: launch_product: min for max: `max<int64_t>(1, multiprocessor_count(on) - "
    "spare)` -> `min<int64_t>(1, multiprocessor_count(on) - spare)`": (
        "how many blocks share out the tiles changes no result"
    ),
    "products.cuh: launch_product: min for max: `min<int64_t>(Tiles(M, N).count(), places)` "
    "-> `max<int64_t>(Tiles(M, N).count(), places)`": ("blocks without a tile do nothing"),
    "exchange.cuh: Exchange::landed: arithmetic operator: `ranks + source` -> `ranks - source`": (
        "the flags of tile 0 lie in words for day 87's ring then, which this day does not use"
    ),
    "exchange.cuh: signal_words: 64-bit index in 32 bits: `int64_t{e.share()} * e.ranks` -> "
    "`e.share() * e.ranks`": ("tiles_of refuses so many tiles"),
}

EXERCISE = Exercise(
    function="add_parts",
    task=(
        "Adds to sums[k], in fp32, what all ranks have computed of chunk k, for all MOVES chunks "
        "of this thread. With FROM_SLOTS, a tile is contiguous in this rank's slot for each "
        "source, and chunk k is its chunk k * PEER_BLOCK + threadIdx.x; else chunk k is at "
        "places[k] of each rank's output. Where places[k] is -1, there is nothing to load."
    ),
    hints=(
        "A load over NVLink takes long. How many of them can be in flight before the first sum?",
        "For each source: first load raw[0 … MOVES) by load_raw, then add_to(sums[k], "
        "widened(raw[k])). The part of rank `source` begins at e.slot<T>(e.rank(), source) + "
        "int64_t{mine} * TILE, or at e.buffer<T>(source).",
        "from = FROM_SLOTS ? slot + (k * PEER_BLOCK + threadIdx.x) * N : e.buffer<T>(source) + "
        "places[k]; if (places[k] >= 0) raw[k] = load_raw(reinterpret_cast<const Chunk<T, N>*>"
        "(from)); in a second loop over k, add_to(sums[k], widened(raw[k])).",
    ),
)

# (rows, C, H, ranks, blocks of the sums per rank): around the 128 × 192 of a tile, the 64 values of
# a step, and the chunks of v2
SHAPES = [(1, 8, 8, 1, 1), (5, 16, 144, 2, 1), (130, 200, 48, 3, 2), (300, 392, 64, 2, 3)]
MANY = [
    (1100, 200, 16, 2, 2),
    (200, 392, 64, 8, 1),
]  # more tiles than a group has rows; fewer than ranks
EMPTY = [(0, 8, 16, 2, 1), (4, 0, 16, 2, 1), (0, 3, 16, 2, 1)]
HALVES = ["float16", "bfloat16"]
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
