"""Casts to fp8 with a given scale: in PyTorch, and as problems."""

import math
from functools import cache

import torch

from common.day import Case, Cost, Library, Problem, Rung, Target, grid

FP8 = {3: torch.float8_e4m3fn, 2: torch.float8_e5m2}  # by bits of mantissa
LARGEST = {mantissa: torch.finfo(dtype).max for mantissa, dtype in FP8.items()}


def inputs(case, draw):
    """case.shape: (M, N, bits of mantissa), or (M, N) for 3 bits. The scale brings some of x beyond
    the largest number; amax is that of x for some cases, for others an earlier one. 17 rows are 0,
    as their amax is."""
    M, N, mantissa = (*case.shape, 3)[:3]
    x = draw(M, N)
    scale = draw(1, dtype="float32", low=50, high=250)
    amax = draw(1, dtype="float32", low=0, high=6)
    if M == 17:
        x.zero_()
        amax.zero_()
    return x, scale if mantissa == 3 else 128 * scale, amax, mantissa


def codes(x, scale, mantissa):
    limit = LARGEST[mantissa]
    return (x.float() * scale.float()).clamp(-limit, limit).to(FP8[mantissa])


def cast(x, scale, amax, mantissa):
    """Writes amax."""
    if x.numel():
        amax.copy_(amax.maximum(x.abs().amax()))
    return codes(x, scale, mantissa)


def cast_transposed(x, scale, amax, mantissa):
    """Writes amax; (M, N) and (N, M)."""
    y = cast(x, scale, amax, mantissa)
    return y, y.T.contiguous()


@cache
def compiled(function):
    return torch.compile(function, dynamic=False)


def cast_compiled(x, scale, amax, mantissa):
    return compiled(cast)(x, scale, amax, mantissa)


def cast_transposed_compiled(x, scale, amax, mantissa):
    return compiled(cast_transposed)(x, scale, amax, mantissa)


# ---------------------------------------------------------------- problems

# (M, N, bits of mantissa): around a pack, a tile of 128 × 64, a part of 8192
SHAPES = [(1, 1, 3), (3, 5, 2), (17, 8, 3), (128, 64), (256, 128, 2), (129, 65, 3), (130, 63, 2)]
SHAPES += [(16, 72, 3), (144, 136, 2), (40, 410, 3), (0, 8, 3), (8, 0, 2)]


def problem(name, reference, library, bytes_per_element, *rungs):
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=rungs,
        cases=(
            *grid(SHAPES, ["bfloat16"]),
            *(
                case
                for values in ("nonfinite", "extreme", "tiny", "constant")
                for case in grid([(33, 72, 3), (128, 192, 2)], ["bfloat16"], values)
            ),
        ),
        refused=(Case((4, 8, 4), "bfloat16"), Case((4, 8, 1), "bfloat16")),
        bench=Case((16384, 16384, 3), "bfloat16"),
        bench_cpu=Case((128, 128, 3), "bfloat16"),
        cost=lambda case: Cost(bytes=bytes_per_element * math.prod(case.shape[:2])),
        pytorch=reference,
        libraries=(Library("compile", library),),
        outputs_exact=True,
    )


PROBLEMS = (
    problem(
        "fp8 cast",
        cast,
        cast_compiled,
        3,
        Rung("cast_v1_separate", "a pass for amax, one for y"),
        Rung("cast_v2_fused", "one pass", target=Target(0.85, "copy")),
    ),
    problem(
        "fp8 cast and transpose",
        cast_transposed,
        cast_transposed_compiled,
        4,
        Rung("cast_transpose_v1_separate", "three passes"),
        Rung("cast_transpose_v2_fused", "cast and amax fused"),
        Rung("cast_transpose_v3_one_pass", "all fused", target=Target(0.85, "copy")),
    ),
)
