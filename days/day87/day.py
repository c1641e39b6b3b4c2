"""Day 87: all-reduce over the memory of other GPUs, and training with several of them."""

if __name__ == "__main__":  # python days/day87/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day87

import torch

from common.day import COMPILE, Case, Cost, Problem, Rung, grid

from .peers import SIGNAL_WORDS
from .proof import show, show_times

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "All-reduce over several GPUs"
TEACHES = "Kernels of several GPUs that wait for each other, and gradients that they add up"
TOPICS = ("all-reduce", "NVLink", "NCCL", "ring", "torchrun", "training", "several GPUs")
SOURCE = "all_reduce.cu"
EXTRA_SOURCES = ("peer_memory.cu", "peers.py", "proof.py", "ranks.py", "measure.py", "train.py")
INTRODUCES = ("all-reduce", "peer memory", "NVLink", "bus bandwidth", "data-parallel training")

# (elements per rank, ranks, blocks per rank)
SHAPES = [(7, 1, 1), (3, 2, 1), (1, 2, 1), (20_004, 2, 2), (4104, 3, 2), (999, 3, 2)]
SHAPES += [(9000, 4, 1), (2057, 5, 1), (72, 8, 3), (0, 2, 1)]
SHAPES += [(1999, 2, 2)]  # the largest that is traced: two blocks per rank have chunks of a part
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
        refused=tuple(Case(s) for s in ((8, 9, 1), (8, 2, 129), (8, 2, 0), (8, 2, 2**32 + 1))),
        bench=Case((1 << 26, 2, 64)),
        bench_cpu=Case((1 << 14, 2, 2)),
        cost=cost,
    ),
)
