"""Day 87: all-reduce over the memory of other GPUs, and training with several of them."""

import torch

from common.day import COMPILE, Case, Cost, Exercise, Problem, Rung, grid

from .peers import SIGNAL_WORDS
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "All-reduce over several GPUs"
TEACHES = "Kernels of several GPUs that wait for each other, and gradients that they add up"
TOPICS = ("all-reduce", "NVLink", "NCCL", "ring", "torchrun", "training", "several GPUs")
SOURCE = "all_reduce.cu"
EXTRA_SOURCES = ("peer_memory.cu", "peers.py", "proof.py", "ranks.py", "measure.py", "train.py")
INTRODUCES = ("all-reduce", "peer memory", "NVLink", "bus bandwidth", "data-parallel training")

EQUIVALENT = {  # mutants that compute the same, and why
    "meeting.cuh: wait_for: other dimension: `blockIdx.x` -> `blockIdx.y`": (
        "a number in the message of a rank that does not come"
    ),
    "all_reduce.cu: all_reduce_v3_ring_kernel: constant off by one: `1` -> `2`": (
        "how many chunks are in flight changes no result"
    ),
}

EXERCISE = Exercise(
    function="meet",
    task=(
        "A barrier for the blocks of number blockIdx.x of all ranks. (p.signals[r]->*flags)"
        "[blockIdx.x][i] is the flag by which rank i tells rank r that its block is here. "
        "All flags are 0 before and after."
    ),
    hints=(
        "One thread per rank is enough, but it speaks for the whole block. What has to stand "
        "before it, and what behind it?",
        "Thread i stores 1 to rank i's memory, in the place of this rank, with release order and "
        "system scope (Flag). Then it waits for the flag of rank i in this rank's own memory.",
        "Between two __syncthreads(), for i < p.ranks: Flag((p.signals[i]->*flags)[blockIdx.x]"
        "[p.rank()]).store(1, cuda::memory_order_release); then wait_for(mine, 1, p, i) and "
        "Flag(mine).store(0, cuda::memory_order_relaxed) with mine = (p.signals[p.rank()]->*flags)"
        "[blockIdx.x][i].",
    ),
    source="meeting.cuh",
)

# (elements per rank, ranks, blocks per rank)
SHAPES = [(5, 1, 1), (1, 2, 1), (20_004, 2, 1), (4104, 3, 2), (999, 3, 2), (9000, 4, 1)]
SHAPES += [(2057, 5, 1), (72, 8, 3), (0, 2, 1)]
DTYPES = ["float32", "float16", "bfloat16"]


def inputs(case, draw):
    n, ranks, blocks = case.shape
    buffers = [draw(n) for _ in range(ranks)]
    signals = [draw(SIGNAL_WORDS, dtype="int32", low=0, high=1) for _ in range(ranks)]
    return buffers, signals, blocks


def all_reduce(buffers, signals, blocks):
    """Writes the buffers; the signals are 0 afterwards."""
    total = buffers[0].clone()
    for buffer in buffers[1:]:
        total += buffer
    for buffer in buffers:
        buffer.copy_(total)


def foreach(buffers, signals, blocks):
    total = buffers[0] + buffers[1] if len(buffers) > 1 else buffers[0].clone()
    for buffer in buffers[2:]:
        total += buffer
    torch._foreach_copy_(buffers, [total] * len(buffers))


def cost(case):
    n, ranks, _ = case.shape
    return Cost(bytes=2 * ranks * n * case.itemsize, flops=(ranks - 1) * n)


PROBLEMS = (
    Problem(
        name="all ranks on one GPU",
        inputs=inputs,
        reference=all_reduce,
        pytorch=foreach,
        libraries=(COMPILE,),
        rungs=(
            Rung("all_reduce_v1_one_shot", "all read all"),
            Rung("all_reduce_v2_two_shot", "a part per rank"),
            Rung("all_reduce_v3_ring", "from neighbour to neighbour"),
            Rung("all_reduce_v4_in_flight", "four loads in flight"),
        ),
        cases=(
            *grid(SHAPES, DTYPES),
            *(Case((410, 3, 1), "float32", each) for each in ("nonfinite", "tiny")),
        ),
        refused=(Case((8, 9, 1)), Case((8, 2, 129)), Case((8, 2, 0))),
        bench=Case((1 << 26, 2, 64)),
        bench_cpu=Case((1 << 14, 2, 2)),
        cost=cost,
    ),
)
