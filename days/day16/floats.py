"""The maximum and the sum of floats: cases, rungs."""

import torch

from common.day import COMPILE, Case, Problem, Rung, Tolerance, grid, one_tensor, streamed

SIZES = [(1,), (255,), (256,), (257,), (1023,), (1025,), (2503,), (0,)]


def negative_too(case, draw):
    """Of the smallest special case all signs are set: as bits, such a NaN lies beyond -inf."""
    (x,) = one_tensor(case, draw)
    return (-x.abs() if case.values == "nonfinite" and case.shape == (8,) else x,)


def of_floats(name, function, rungs, cases, values="normal", inputs=one_tensor, **options):
    return Problem(
        name=name,
        inputs=inputs,
        reference=function,
        pytorch=function,
        libraries=(COMPILE,),
        rungs=rungs,
        cases=cases,
        bench=Case((1 << 28,), values=values),
        bench_cpu=Case((1 << 16,), values=values),
        cost=streamed(1),
        **options,
    )


OF_FLOATS = (
    of_floats(
        "maximum",
        torch.amax,
        (
            Rung("max_v1_compare_and_swap", "a loop around atomicCAS"),
            Rung("max_v2_ordered_bits", "atomicMax on integers in the same order"),
        ),
        (
            *grid(SIZES[:-1], ["float32"]),
            *grid([(1009,)], ["float32"], values="extreme"),
            *grid([(1009,), (8,)], ["float32"], values="nonfinite"),
            *grid([(1009,)], ["float32"], values="constant"),
        ),
        inputs=negative_too,
        outputs_exact=True,
    ),
    of_floats(
        "sum",
        torch.sum,
        (
            Rung(
                "sum_v1_shared_then_global",
                "register, then block, then grid",
                not_repeatable="floats are added in any order, and each addition rounds",
            ),
        ),
        grid(SIZES, ["float32"], values="uniform"),
        values="uniform",
        tolerance=Tolerance(ulps=64, why="512 threads, then all blocks, add to one fp32 number"),
    ),
)
