"""Day 14: the sum of a vector, the whole ladder of parallel reduction."""

import torch

from common.day import Case, Cost, Problem, Rung, Target, Tolerance, grid

TITLE = "Parallel reduction, the whole ladder"
TEACHES = "Trees in a block, divergence, bank conflicts, stages, loads in flight, rounding of sums"
TOPICS = ("reduction", "sum", "shared memory", "bank conflicts", "warps", "numerics")
SOURCE = "reduce_sum.cu"
INTRODUCES = ("atomic", "divergence", "bank", "bank conflict")

FLOATS = ["float32", "float64"]
SMALL = [(1,), (31,), (255,), (256,), (257,), (0,)]
LARGE = [(1023,), (1024,), (1025,), (10007,)]

V1 = Rung(
    "sum_v1_atomics",
    "one atomicAdd per element",
    not_repeatable="floats are added in any order, and each addition rounds",
)
V6 = Rung("sum_v6_vectorised", "eight 16-byte loads in flight, two stages")


def inputs(case, draw):
    return (draw(*case.shape),)


def reference(x):
    return x.sum()


def cost(case):
    (n,) = case.shape
    return Cost(bytes=n * getattr(torch, case.dtype).itemsize, flops=n)


def large(name, dtype, n, target=None):
    """Sums of 4 GiB: v6, bound by memory, beside v5, the best with a tree per 256 elements."""
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=(
            Rung("sum_v5_warp", "the tree in registers"),
            Rung(V6.name, V6.idea, target=target),
        ),
        cases=grid([(70_001,)], [dtype]),  # more than one block of v6, and a tail
        bench=Case((n,), dtype),
        bench_cpu=Case((1 << 16,), dtype),
        cost=cost,
    )


PROBLEMS = (
    Problem(
        name="sum",
        inputs=inputs,
        reference=reference,
        rungs=(
            V1,
            Rung("sum_v2_interleaved", "one tree per block, every second thread"),
            Rung("sum_v3_strided", "adjacent threads, few banks"),
            Rung("sum_v4_sequential", "upper half added to lower half"),
            Rung("sum_v5_warp", "the tree in registers"),
            V6,
        ),
        cases=(
            *grid(SMALL, FLOATS),
            *grid(LARGE, FLOATS, values="uniform"),  # no cancellation: v1's rounding is in bounds
            *grid([(1,), (257,), (1025,), (0,)], ["int32", "int64"]),
            *grid([(1009,)], FLOATS, values="offset"),
            *grid([(1009,)], FLOATS, values="tiny"),
            *grid([(300,)], FLOATS, values="nonfinite"),
            *grid([(777,)], ["int32"], values="extreme"),
        ),
        bench=Case((1 << 26,)),
        bench_cpu=Case((1 << 16,)),
        cost=cost,
        tolerance=Tolerance(ulps=32, why="v1 adds one by one, and each addition rounds"),
    ),
    large("4 GiB of float32", "float32", 1 << 30, Target(0.97, "read")),
    large("4 GiB of float64", "float64", 1 << 29),
    large("4 GiB of int32", "int32", 1 << 30),
)


def show(ops, device):
    """Prints the relative error of each rung's sum of many numbers, against float64."""
    n = 1 << (30 if device.type == "cuda" else 18)
    generator = torch.Generator(device).manual_seed(14)
    x = torch.rand(n, generator=generator, device=device)
    expected = x.sum(dtype=torch.float64).item()
    print(f"sum of {n:,} fp32 numbers in [0, 1): {expected:.3f} in float64")
    sums = {rung.name: getattr(ops, rung.name) for rung in PROBLEMS[0].rungs}
    for name, function in {**sums, "torch.sum": torch.sum}.items():
        actual = function(x).item()
        print(
            f"{name:<20} {actual:>16.3f}   relative error {abs(actual - expected) / expected:.1e}"
        )
