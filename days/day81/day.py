"""Day 81: AdamW for a list of tensors; bf16 weights, rounded stochastically or by a master copy."""

if __name__ == "__main__":  # python days/day81/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day81

import math

from common.day import Case, Cost, Library, Problem, Rung, Target, Tolerance, grid
from common.references.gpt2 import gpt2_shapes

from . import stepping
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "AdamW"
TEACHES = "An optimiser as one launch for all tensors; bf16 weights that small updates still reach"
TOPICS = ("AdamW", "optimiser", "optimizer", "training", "multi-tensor", "bf16", "Philox")
SOURCE = "adamw.cu"
EXTRA_SOURCES = ("proof.py", "stepping.py")
INTRODUCES = ("AdamW", "stochastic rounding", "master copy")

# (layers, channels, words, positions): around a group, a chunk, and the tensors of one launch
SHAPES = [(1, 3, 5, 7), (0, 1, 1, 1), (1, 16, 129, 8), (1, 20, 103, 11), (0, 2048, 1, 3)]
SHAPES += [(0, 1023, 4, 2), (1, 4, 0, 3), (0, 0, 3, 2)]
MANY = (22, 1, 2, 3)  # 268 tensors: more than one launch has
GPT2 = (12, 768, 50257, 1024)  # 148 tensors, 124.4 million parameters
SMALL = (1, 64, 96, 32)


WHY = "p and its step may cancel; PyTorch rounds at other places, no fewer"


def cost(bytes_per_parameter):
    def of(case):
        count = sum(math.prod(shape) for shape in gpt2_shapes(*case.shape))
        return Cost(bytes=bytes_per_parameter * count, flops=20 * count)

    return of


def problem(name, dtype, rungs, bytes_per_parameter, *more, **options):
    return Problem(
        name=name,
        rungs=rungs,
        cases=(
            *grid(SHAPES, [dtype]),
            *(Case((1, 6, 40, 9), dtype, each) for each in ("nonfinite", "tiny")),
            *more,
        ),
        bench=Case(GPT2, dtype),
        bench_cpu=Case(SMALL, dtype),
        cost=cost(bytes_per_parameter),
        tolerance=Tolerance(ulps=8, factor=16, why=WHY),
        **options,
    )


PROBLEMS = (
    problem(
        "fp32",
        "float32",
        (
            Rung("adamw_v1_scalar", "one launch per tensor"),
            Rung("adamw_v2_packs", "16 bytes per load, loads first"),
            Rung("adamw_v3_one_launch", "one for all tensors", target=Target(1.15, "pytorch")),
        ),
        28,
        Case(MANY),
        inputs=stepping.inputs,
        reference=stepping.adamw,
        pytorch=stepping.fused,
        libraries=(Library("compile", stepping.compiled),),
    ),
    problem(
        "bf16, rounded stochastically",
        "bfloat16",
        (Rung("adamw_v4_rounded", "16 random bits", target=Target(0.9, "copy")),),
        22,
        Case((1, 6, 40, 9), "bfloat16", "extreme"),
        inputs=stepping.inputs_rounded,
        reference=stepping.adamw_rounded,
        pytorch=stepping.fused_rounded,
        libraries=(Library("compile", stepping.compiled_rounded),),
        own_numbers=True,
        outputs_exact=True,
    ),
    problem(
        "bf16, fp32 master copy",
        "bfloat16",
        (Rung("adamw_v4_master", "both in one pass", target=Target(1.4, "pytorch")),),
        28,
        inputs=stepping.inputs_master,
        reference=stepping.adamw_master,
        pytorch=stepping.fused_master,
        libraries=(Library("compile", stepping.compiled_master),),
    ),
)
