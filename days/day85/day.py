"""Day 85: mixed precision: loss scaling and fp8 with delayed scaling, kernels and trainings."""

import math

from common.day import Case, Cost, Exercise, Library, Problem, Rung, Target, grid

from . import casting, unscaling
from .training import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Mixed precision"
TEACHES = "Training in fp16, bf16 and fp8: scales that keep gradients inside a narrow range"
TOPICS = ("mixed precision", "loss scaling", "fp8", "fp16", "training", "multi-tensor", "transpose")
SOURCE = "mixed_precision.cu"
EXTRA_SOURCES = ("fp8_cast.cu", "training.py", "casting.py", "unscaling.py")
INTRODUCES = ("mixed precision", "loss scaling", "delayed scaling", "amax history")

EXERCISE = Exercise(
    function="transpose4",
    source="fp8_cast.cu",
    task=(
        "Transpose 4 × 4 bytes with eight __byte_perm: byte r of columns[j] becomes byte j of "
        "rows[r]."
    ),
    hints=(
        "__byte_perm(a, b, s) picks four of the eight bytes of a (0 to 3) and b (4 to 7): digit i "
        "of s, in hexadecimal and from the right, says which becomes byte i.",
        "Two steps: first pairs of bytes from two neighbouring rows, then pairs of these pairs.",
        "0x5140 of rows 0 and 1 gives their bytes 0, then their bytes 1; 0x7362 their bytes 2 and "
        "3. The same of rows 2 and 3. Then 0x5410 joins the lower halves of two words, 0x7632 "
        "the upper ones.",
    ),
)

# (layers, channels, words, positions): around a pack, a chunk, and the tensors of one launch
SHAPES = [(1, 3, 5, 7), (0, 1, 1, 1), (1, 16, 129, 8), (0, 1024, 5, 8), (1, 20, 103, 11)]
SHAPES += [(0, 4100, 4, 2), (1, 4, 0, 3)]
MANY = (22, 1, 2, 3)  # 268 tensors: more than one launch has
FLOATS = ["float32", "float16", "bfloat16"]

# (M, N, bits of mantissa): around a pack, a tile of 128 × 64, a part of 8192
CASTS = [(1, 1, 3), (3, 5, 2), (17, 8, 3), (128, 64, 3), (256, 128, 2), (129, 65, 3), (130, 63, 2)]
CASTS += [(16, 72, 3), (144, 136, 2), (40, 410, 3), (0, 8, 3), (8, 0, 2)]
LARGE = (16384, 16384, 3)


def unscale_cost(case):
    count = sum(math.prod(shape) for shape in unscaling.shapes_of(case))
    return Cost(bytes=2 * case.itemsize * count, flops=count)


def unscale(name, dtype, **changes):
    return Problem(
        name=name,
        inputs=unscaling.inputs,
        reference=unscaling.unscale,
        rungs=(
            Rung("unscale_v1_scalar", "one launch per tensor"),
            Rung("unscale_v2_packs", "16 bytes per load, loads first"),
            Rung("unscale_v3_one_launch", "one for all tensors", target=Target(0.9, "copy")),
        ),
        bench=Case(unscaling.GPT2, dtype),
        bench_cpu=Case((1, 64, 96, 32), dtype),
        cost=unscale_cost,
        pytorch=unscaling.unscale_by_pytorch,
        **changes,
    )


def cast(name, reference, compiled, rungs, bytes_per_element):
    return Problem(
        name=name,
        inputs=casting.inputs,
        reference=reference,
        rungs=rungs,
        cases=(
            *grid(CASTS, ["bfloat16"]),
            *(
                case
                for values in ("nonfinite", "extreme", "tiny", "constant")
                for case in grid([(33, 72, 3), (128, 192, 2)], ["bfloat16"], values)
            ),
        ),
        refused=(Case((4, 8, 4), "bfloat16"), Case((4, 8, 1), "bfloat16")),
        bench=Case(LARGE, "bfloat16"),
        bench_cpu=Case((128, 128, 3), "bfloat16"),
        cost=lambda case: Cost(bytes=bytes_per_element * math.prod(case.shape[:2])),
        pytorch=reference,
        libraries=(Library("compile", compiled),),
        outputs_exact=True,
    )


PROBLEMS = (
    unscale(
        "unscale, fp32",
        "float32",
        cases=(
            *grid(SHAPES, FLOATS),
            Case(MANY, "bfloat16"),
            *grid([(1, 6, 40, 9)], FLOATS, "nonfinite"),
        ),
    ),
    unscale("unscale, fp16", "float16", cases=grid([(1, 6, 40, 9)], FLOATS, "extreme")),
    cast(
        "fp8 cast",
        casting.cast,
        casting.cast_compiled,
        (
            Rung("cast_v1_separate", "a pass for amax, one for y"),
            Rung("cast_v2_fused", "one pass", target=Target(0.85, "copy")),
        ),
        3,
    ),
    cast(
        "fp8 cast and transpose",
        casting.cast_transposed,
        casting.cast_transposed_compiled,
        (
            Rung("cast_transpose_v1_separate", "three passes"),
            Rung("cast_transpose_v2_fused", "cast and amax fused"),
            Rung("cast_transpose_v3_one_pass", "all fused", target=Target(0.85, "copy")),
        ),
        4,
    ),
    Problem(
        name="loss scale",
        inputs=unscaling.loss_scale_inputs,
        reference=unscaling.update_loss_scale,
        rungs=(Rung("update_loss_scale", "one thread"),),
        cases=grid(
            [(0, 0, 2, 150), (0, 1, 2, 150), (1, 1, 2, 150), (0, 6, 7, 267), (1, 0, 1, 0)],
            ["float32"],
        ),
        refused=(Case((0, 0, 0, 150)),),
        timed=False,
        outputs_exact=True,
    ),
    Problem(
        name="fp8 scales",
        inputs=unscaling.fp8_scale_inputs,
        reference=unscaling.update_fp8_scales,
        rungs=(Rung("update_fp8_scales", "a block per tensor"),),
        cases=(
            *grid([(1, 1), (2, 16), (5, 33), (3, 1024), (0, 4)], ["float32"]),
            *grid([(9, 5)], ["float32"], "nonfinite"),
            *grid([(9, 16)], ["float32"], "extreme"),
            *grid([(4, 7)], ["float32"], "tiny"),
        ),
        refused=(Case((2, 0)), Case((2, 1025))),
        timed=False,
        outputs_exact=True,
    ),
)
