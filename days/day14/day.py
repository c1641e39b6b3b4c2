"""Day 14: the sum of a vector, the whole ladder of parallel reduction."""

from dataclasses import replace

import torch

from common.day import (
    COMPILE,
    Case,
    Exercise,
    Problem,
    Rung,
    Target,
    Tolerance,
    grid,
    one_tensor,
    print_table,
    streamed,
)

TITLE = "Parallel reduction, the whole ladder"
TEACHES = "Trees in a block, divergence, bank conflicts, stages, loads in flight, rounding of sums"
TOPICS = ("reduction", "sum", "shared memory", "bank conflicts", "warps", "numerics")
SOURCE = "reduce_sum.cu"
INTRODUCES = ("atomic", "divergence", "bank", "bank conflict")

EQUIVALENT = {  # mutants that compute the same, and why
    'make_sum: validation dropped: `check(x, "x").on_gpu().rank(1)` -> `check(x, "x").on_gpu()`': (
        "the elements of a matrix are summed"
    ),
}

EXERCISE = Exercise(
    function="sum_v4_sequential_kernel",
    task=(
        "Sum one element per thread in a tree in which the active threads are always the first "
        "ones, and write the block's sum to y[blockIdx.x]."
    ),
    hints=(
        "Half of the threads add in each level. If these are threads 0 to half - 1, whole warps "
        "fall idle and no warp diverges until the last 32.",
        "Thread t < half adds partial[t + half] to partial[t]; neighbouring threads access "
        "neighbouring words, so no bank conflicts. A thread beyond n puts 0.",
        "for (half = BLOCK / 2; half > 0; half /= 2) with a __syncthreads() at the start of each "
        "level, outside the if. Thread 0 wrote partial[0] itself, so it may write y without "
        "another barrier.",
    ),
)

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


def problem(name, rungs, cases, bench, **options):
    return Problem(
        name=name,
        inputs=one_tensor,
        reference=torch.sum,
        pytorch=torch.sum,
        libraries=(COMPILE,),
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
            *grid([(777,)], ["int32"], values="extreme"),
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
