"""Day 16: atomics: histograms, the maximum of floats, their sum."""

if __name__ == "__main__":  # python days/day16/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day16

from dataclasses import replace

import torch

from common.day import Case, Cost, Library, Problem, Rung, Target, grid
from common.references import rivals

from .floats import OF_FLOATS, SIZES

TITLE = "Atomics and histograms"
TEACHES = "Contention, private histograms, warp aggregation, compare-and-swap, determinism"
TOPICS = ("atomics", "histogram", "reduction", "compare-and-swap", "determinism")
SOURCE = "atomic_ops.cu"
EXTRA_SOURCES = ("float_atomics.cu",)
INTRODUCES = (
    "contention",
    "histogram",
    "privatisation",
    "compare-and-swap",
    "warp aggregation",
    "deterministic",
)

INTEGERS = ["int32", "uint8", "int64"]


def histogram_inputs(case, draw):
    """Shape (n, bins). All "normal" values lie in a bin; most "extreme" values lie in none, and of
    the 64-bit ones, a third would if their upper halves were dropped."""
    n, bins = case.shape
    if case.values == "extreme":
        x = draw(n)
        if x.dtype == torch.int64:
            x[::3] = x[::3] % bins + 2**32
        return x, bins
    return draw(n, low=bins - 1 if case.values == "constant" else 0, high=bins), bins


def histogram_reference(x, bins):
    x = x.long()  # in uint8, `bins` would wrap around at 256
    return torch.bincount(x[(x >= 0) & (x < bins)], minlength=bins)


def bincount(x, bins):
    return torch.bincount(x, minlength=bins)


def histc(x, bins):
    """bincount without its search for the largest value; its counts have the dtype of x."""
    return torch.histc(x, bins, min=0, max=bins)


V1 = Rung("histogram_v1_global", "one atomic per element in global memory")
V2 = Rung("histogram_v2_shared_private", "one histogram per block")
V3 = Rung("histogram_v3_warp_aggregated", "one lane adds for all with its bin")
V4 = Rung("histogram_v4_lane_copies", "one copy per lane, wide loads")


def histogram(bins, rungs=(V1, V2, V3, V4), cases=None, n=1 << 26, n_cpu=1 << 12):
    """The same on another number of bins: what does contention cost?"""
    return Problem(
        name=f"histogram, {bins} bin{'s' * (bins > 1)}",
        inputs=histogram_inputs,
        reference=histogram_reference,
        pytorch=bincount,
        pytorch_not_captured="it waits for the GPU to read the largest value",
        libraries=(Library("histc", histc),),
        rivals=(rivals.cub_histogram,),
        rungs=rungs,
        cases=cases or grid([(700, bins)], ["int32"]),
        bench=Case((n, bins), "int32"),
        bench_cpu=Case((n_cpu, bins), "int32"),
        cost=lambda case: Cost(bytes=case.shape[0] * case.itemsize + case.shape[1] * 8),
    )


PROBLEMS = (
    histogram(
        256,
        (V1, V2, V3, replace(V4, target=(Target(4.0, "pytorch"), Target(1.0, "CUB")))),
        (
            *grid([(n, 256) for (n,) in SIZES], ["int32"]),
            *grid([(1025, 256), (70_001, 256)], ["uint8"]),
            *grid([(1025, 31)], INTEGERS),
            *grid([(1023, 7001)], ["int32", "int64"]),
            *grid([(1025, 1)], INTEGERS, values="constant"),
            *grid([(1000, 100)], INTEGERS, values="extreme"),
            *grid([(300, 60_000)], ["int32"]),  # more bins than shared memory holds
        ),
        n=1 << 28,
        n_cpu=1 << 14,
    ),
    histogram(1),
    histogram(16),
    histogram(4096),
    histogram(65536, (V1,)),  # 256 KB: more than the shared memory of a block
    *OF_FLOATS,
)


def show(ops, device):
    """Prints how many different results repeated runs on the same numbers give."""
    n, runs = (1 << 26 if device.type == "cuda" else 1 << 17), 20
    generator = torch.Generator(device).manual_seed(16)
    x = torch.randn(n, generator=generator, device=device)
    bins = (x * 16).int() & 255
    sums = [ops.sum_v1_shared_then_global(x).item() for _ in range(runs)]
    counts = [tuple(ops.histogram_v4_lane_copies(bins, 256).tolist()) for _ in range(runs)]
    print(f"{runs} runs on the same {n:,} numbers, with atomics in any order:")
    print(f"fp32 sum    {len(set(sums))} different values, from {min(sums)} to {max(sums)}")
    print(f"histogram   {'the same' if len(set(counts)) == 1 else 'another'} in every run")
