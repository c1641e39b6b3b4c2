"""Day 38: merge sort, from one block to merge path."""

if __name__ == "__main__":  # python days/day38/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day38

import torch

from common.day import Case, Cost, Problem, Rung, grid
from common.references import rivals

TITLE = "Merge sort by co-ranks"
TEACHES = "Co-ranks cut a merge into equal parts: for the threads of a block, and for the blocks"
TOPICS = ("sorting", "merge path", "co-rank", "stability")
SOURCE = "merge_sort.cu"
INTRODUCES = ("stable sort", "odd-even transposition", "co-rank", "radix sort")

# (n,): keys of the whole range; (n, distinct): so many different ones, whose order is tested
SIZES = [(1,), (2,), (7,), (1023,), (1025,), (2049, 3), (4096,), (5001, 40), (0,)]
LARGE = (12_289, 1000)


def inputs(case, draw):
    """Among few different keys are the least and the greatest integer."""
    n, *distinct = case.shape
    x = draw(n)
    if distinct:
        few, which = draw(*distinct), draw(n, dtype="int64", low=0, high=distinct[0])
        limits = torch.iinfo(x.dtype)
        few[0], few[-1] = limits.min, limits.max
        x.copy_(few[which])
    return (x,)


def reference(x):
    return torch.sort(x, stable=True)


def cost(case):
    """Keys read once, keys and indices written once, as if that were enough."""
    return Cost(bytes=case.shape[0] * (2 * case.itemsize + 8))


def sort(name, dtype, rungs, cases, timed=True, inputs=inputs):
    return Problem(
        name,
        inputs,
        reference,
        rungs,
        cases,
        timed=timed,
        bench=Case((1 << 26,), dtype),
        bench_cpu=Case((1 << 13,), dtype),
        cost=cost,
        rivals=(rivals.cub_sort,),
        pytorch=reference,  # stable, as the rungs are: else the indices of equal keys may differ
        outputs_exact=True,
    )


V1 = Rung("sort_v1_odd_even", "tiles by neighbours, merges by rank")
V2 = Rung("sort_v2_co_rank", "tiles by merges, cut by co-ranks")
V3 = Rung("sort_v3_merge_path", "all merges cut by co-ranks")
TILE_EDGES = [(9,), (2303, 5), (2304,), (2305, 2), (4608,), (4609,)]
PROBLEMS = (
    sort("sort", "int32", (V1, V2, V3), grid([*SIZES, *TILE_EDGES, LARGE], ["int32"])),
    # more tiles than one block of v3 finds the cuts of
    sort("sort of many tiles", "int32", (V3,), grid([(300_001, 1000)], ["int32"]), timed=False),
)
