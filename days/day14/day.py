"""Day 14: the sum of a vector, the whole ladder of parallel reduction."""

if __name__ == "__main__":  # python days/day14/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day14

from dataclasses import replace

import torch

from common.day import COMPILE, Case, Problem, Rung, Target, Tolerance, grid, print_table, streamed
from common.references import rivals

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
V5 = Rung("sum_v5_warp", "the tree in registers")
V6 = Rung("sum_v6_vectorised", "eight 16-byte loads in flight, two stages")


def inputs(case, draw):
    """Of int64, numbers that are small enough for a sum that does not overflow."""
    limits = {"low": -(2**48), "high": 2**48} if case.dtype == "int64" else {}
    return (draw(*case.shape, **limits),)


def problem(name, rungs, cases, bench, **options):
    return Problem(
        name=name,
        inputs=inputs,
        reference=torch.sum,
        pytorch=torch.sum,
        libraries=(COMPILE,),
        rivals=(rivals.cub_sum,),
        rungs=rungs,
        cases=cases,
        bench=bench,
        bench_cpu=Case((1 << 16,), bench.dtype),
        cost=streamed(1),
        **options,
    )


def large(dtype, n, **target):
    """Sums of 4 GiB: v6, bound by memory, beside v5, the best with a tree per 256 elements."""
    cases = grid([(70_001,)], [dtype])  # more than one block of v6, and a tail
    rungs = (V5, replace(V6, **target))
    return problem(f"4 GiB of {dtype}", rungs, cases, Case((n,), dtype))


PROBLEMS = (
    problem(
        "sum",
        (
            V1,
            Rung("sum_v2_interleaved", "one tree per block, every second thread"),
            Rung("sum_v3_strided", "adjacent threads, few banks"),
            Rung("sum_v4_sequential", "upper half added to lower half"),
            V5,
            V6,
        ),
        (
            *grid(SMALL, FLOATS),
            *grid(LARGE, FLOATS, values="uniform"),  # no cancellation: v1's rounding is in bounds
            *grid([(1,), (257,), (1025,), (0,)], ["int32", "int64"]),
            *grid([(1009,)], FLOATS, values="offset"),
            *grid([(1009,)], FLOATS, values="tiny"),
            *grid([(300,)], FLOATS, values="nonfinite"),
        ),
        Case((1 << 26,)),
        tolerance=Tolerance(ulps=32, why="v1 adds one by one, and each addition rounds"),
    ),
    large("float32", 1 << 30, target=Target(0.97, "read")),
    large("float64", 1 << 29),
    large("int32", 1 << 30),
)


def show(ops, device):
    """Prints the relative error of each rung's sum of many numbers, against float64."""
    n = 1 << (30 if device.type == "cuda" else 18)
    generator = torch.Generator(device).manual_seed(14)
    x = torch.rand(n, generator=generator, device=device)
    expected = x.sum(dtype=torch.float64).item()
    print(f"sum of {n:,} fp32 numbers in [0, 1): {expected:.3f} in float64")
    calls = {rung.name: getattr(ops, rung.name) for rung in PROBLEMS[0].rungs}
    sums = {name: call(x).item() for name, call in {**calls, "torch.sum": torch.sum}.items()}
    print_table(
        ("rung", "sum", "relative error"),
        [(name, f"{y:.3f}", f"{abs(y - expected) / expected:.1e}") for name, y in sums.items()],
    )
