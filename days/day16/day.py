"""Day 16: atomics: histograms, the maximum of floats, their sum."""

import torch

from common.day import Case, Cost, Problem, Rung, Target, Tolerance, grid

TITLE = "Atomics and histograms"
TEACHES = "Contention, private histograms, warp aggregation, compare-and-swap, determinism"
TOPICS = ("atomics", "histogram", "reduction", "compare-and-swap", "determinism")
SOURCE = "atomic_ops.cu"
INTRODUCES = ("contention", "histogram", "privatisation", "compare-and-swap", "warp aggregation")

INTEGERS = ["int32", "uint8", "int64"]
SIZES = [(1,), (255,), (256,), (257,), (1023,), (1025,), (2503,), (0,)]


# ------------------------------------------------------------------ histograms


def histogram_inputs(case, draw):
    """Shape (n, bins). All "normal" values lie in a bin; most "extreme" values lie in none."""
    n, bins = case.shape
    if case.values == "extreme":
        return draw(n), bins
    if case.values == "constant":
        return draw(n, low=bins - 1, high=bins), bins
    return draw(n, low=0, high=bins), bins


def histogram_reference(x, bins):
    x = x.long()  # in uint8, `bins` would wrap around at 256
    return torch.bincount(x[(x >= 0) & (x < bins)], minlength=bins)


def bincount(x, bins):
    return torch.bincount(x, minlength=bins)


def histogram_cost(case):
    n, bins = case.shape
    return Cost(bytes=n * getattr(torch, case.dtype).itemsize + bins * 8)


def histogram(name, cases, bench, bench_cpu, target=None):
    return Problem(
        name=name,
        inputs=histogram_inputs,
        reference=histogram_reference,
        pytorch=bincount,
        pytorch_not_captured="it waits for the GPU to read the largest value",
        rungs=(
            Rung("histogram_v1_global", "one atomic per element in global memory"),
            Rung("histogram_v2_shared_private", "one histogram per block"),
            Rung("histogram_v3_warp_aggregated", "one lane adds for all with its bin"),
            Rung("histogram_v4_lane_copies", "one copy per lane, wide loads", target=target),
        ),
        cases=cases,
        bench=bench,
        bench_cpu=bench_cpu,
        cost=histogram_cost,
    )


def contention(bins):
    """The same on a given number of bins: what does contention cost?"""
    return histogram(
        f"histogram, {bins} bin{'s' * (bins > 1)}",
        grid([(700, bins)], ["int32"]),
        Case((1 << 26, bins), "int32"),
        Case((1 << 12, bins), "int32"),
    )


# ------------------------------------------------------------------ maximum and sum


def inputs(case, draw):
    return (draw(*case.shape),)


def cost(case):
    (n,) = case.shape
    return Cost(bytes=4 * n, flops=n)


PROBLEMS = (
    histogram(
        "histogram, 256 bins",
        (
            *grid([(n, 256) for (n,) in SIZES], ["int32"]),
            *grid([(1025, 256), (70_001, 256)], ["uint8"]),
            *grid([(1025, 31)], INTEGERS),
            *grid([(1023, 7001)], ["int32", "int64"]),
            *grid([(1025, 1)], INTEGERS, values="constant"),
            *grid([(1000, 100)], INTEGERS, values="extreme"),
            *grid([(300, 60_000)], ["int32"]),  # more bins than shared memory holds
        ),
        Case((1 << 28, 256), "int32"),
        Case((1 << 14, 256), "int32"),
        Target(4.0, "pytorch"),
    ),
    contention(1),
    contention(16),
    contention(4096),
    contention(65536),
    Problem(
        name="maximum",
        inputs=inputs,
        reference=torch.amax,
        rungs=(
            Rung("max_v1_compare_and_swap", "a loop around atomicCAS"),
            Rung("max_v2_ordered_bits", "atomicMax on integers in the same order"),
        ),
        cases=(
            *grid(SIZES[:-1], ["float32"]),
            *grid([(1009,)], ["float32"], values="extreme"),
            *grid([(1009,), (8,)], ["float32"], values="nonfinite"),
            *grid([(1009,)], ["float32"], values="constant"),
        ),
        bench=Case((1 << 28,)),
        bench_cpu=Case((1 << 16,)),
        cost=cost,
        outputs_exact=True,
    ),
    Problem(
        name="sum",
        inputs=inputs,
        reference=torch.sum,
        rungs=(
            Rung(
                "sum_v1_shared_then_global",
                "register, then block, then grid",
                not_repeatable="floats are added in any order, and each addition rounds",
            ),
        ),
        cases=grid(SIZES, ["float32"], values="uniform"),
        bench=Case((1 << 28,), values="uniform"),
        bench_cpu=Case((1 << 16,), values="uniform"),
        cost=cost,
        tolerance=Tolerance(ulps=64, why="512 threads, then all blocks, add to one fp32 number"),
    ),
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
    print(f"fp32 sum    {len(set(sums))} different results, from {min(sums)} to {max(sums)}")
    print(f"histogram   {len(set(counts))} different results")
