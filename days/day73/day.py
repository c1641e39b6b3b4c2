"""Day 73: fake quantisation, the gradient of its step size, and a net that is trained with it."""

from dataclasses import replace
from functools import partial

from common.day import Case, Cost, Exercise, Library, Problem, Rung, Target, Tolerance, grid

from . import quantising
from .training import load_function, show

__all__ = ["PROBLEMS", "show"]

TITLE = "Quantisation-aware training"
TEACHES = "Training through rounding: the straight-through estimator, and steps that are learnt"
TOPICS = ("quantisation", "quantization", "QAT", "LSQ", "straight-through estimator", "training")
SOURCE = "qat.cu"
EXTRA_SOURCES = ("training.py",)
INTRODUCES = ("fake quantisation", "straight-through estimator")

EQUIVALENT = {  # mutants that compute the same, and why
    "teams.cuh: dispatch_team: comparison: `chunks <= WARP_CHUNKS` -> `chunks < WARP_CHUNKS`": (
        "a block computes such a row as well as a warp"
    ),
    "teams.cuh: dispatch_team: constant off by one: `Segments{n.rows, chunks, 1}` -> "
    "`Segments{n.rows, chunks, 2}`": "a warp takes whole rows, and reads no number of segments",
    "level_of: comparison: `q < levels.low` -> `q <= levels.low`": "then q is this level",
    "level_of: comparison: `q > levels.high` -> `q >= levels.high`": "then q is this level",
    "fake_quantize_v2_chunks_kernel: comparison: `c < team.count` -> `c <= team.count`": (
        "one more round, in which no chunk is below the count"
    ),
    "backward_v3_chunks_kernel: comparison: `c < team.count` -> `c <= team.count`": (
        "one more round, in which no chunk is below the count"
    ),
}

EXERCISE = Exercise(
    function="differentiate",
    task=(
        "Return gx of an element with quotient v = x / s and upstream gradient g, and add its term "
        "of the step's gradient to `sum`. levels.low is qmin, levels.high is qmax. A v that is NaN "
        "gives gx = 0 and a term that is NaN."
    ),
    hints=(
        "y = s · clamp(round(v)). Which of the two factors does s change, if the clamp cuts the "
        "level off? And which if not?",
        "The straight-through estimator says that round has the derivative 1. Then dy/ds is "
        "round(v) - v inside the levels, and qmin or qmax outside; dy/dx is 1 or 0.",
        "q = rintf(v). slope is q - v, or low if q < low, or high if q > high; sum += g * slope; "
        "return q >= low && q <= high ? g : 0. A NaN fails every comparison.",
    ),
)

FLOATS = ["float32", "bfloat16", "float16"]
# Around the elements of a chunk, the chunks of a warp, of a warp's row, of a segment
SHAPES = [(1, 1, 1), (3, 7, 2), (9, 33, 3), (17, 64, 1), (5, 1032, 4), (2, 513, 5), (3, 4104, 1)]
LONG = [(1, 3001, 3), (2, 4097, 1), (3, 6145, 5), (2, 16392, 1)]  # several segments per row
EMPTY = [(0, 8, 1), (4, 0, 1)]
WEIGHTS, SHORT = Case((16384, 16384, 1), "bfloat16"), Case((1 << 19, 512, 1), "bfloat16")
SMALL = Case((16, 1024, 1), "bfloat16")
WHY = "g · (q - v) has both signs; where the terms of a sum cancel, rounding is left"


V1 = Rung("fake_quantize_backward_v1_terms", "terms of the sums in memory")
V2 = Rung("fake_quantize_backward_v2_one_pass", "terms in registers")
V3 = Rung("fake_quantize_backward_v3_chunks", "16 bytes per load", target=Target(0.9, "copy"))


def cost(per_element, case):
    rows, cols, _ = case.shape
    return Cost(bytes=per_element * rows * cols * case.itemsize, flops=8 * rows * cols)


def forward(name, whole, **changes):
    """For a step per row, or one for the whole tensor."""
    problem = Problem(
        name=name,
        inputs=partial(quantising.inputs, whole, False),
        reference=quantising.fake_quantized,
        rungs=(
            Rung("fake_quantize_v1_elements", "one element per thread"),
            Rung("fake_quantize_v2_chunks", "16 bytes per load", target=Target(0.9, "copy")),
        ),
        cases=(
            *grid([*SHAPES, *EMPTY], FLOATS),
            *grid(LONG, ["float32", "bfloat16"]),
            *grid([(9, 130, 1), (8, 1032, 6)], FLOATS, values="nonfinite"),
            *grid([(9, 136, 1)], FLOATS, values="extreme"),
            *grid([(9, 136, 7)], FLOATS, values="tiny"),
        ),
        refused=tuple(Case((4, 40, 100 + i)) for i in range(len(quantising.REFUSED))),
        bench=WEIGHTS,
        bench_cpu=SMALL,
        cost=partial(cost, 2),
        pytorch=quantising.forward_by_pytorch,
        libraries=(Library("compile", quantising.forward_compiled),),
    )
    return replace(problem, **changes)


def backward(name, whole, *, rungs=(V1, V2, V3), **changes):
    common = forward(name, whole)
    return replace(
        common,
        inputs=partial(quantising.inputs, whole, True),
        reference=quantising.gradients,
        rungs=rungs,
        # In fp32 and bf16 sums of extreme numbers overflow, sooner or later by their order.
        cases=tuple(c for c in common.cases if c.values != "extreme" or c.dtype == "float16"),
        cost=partial(cost, 3),
        pytorch=quantising.backward_by_pytorch,
        pytorch_not_captured="the host reads steps or zero points",
        libraries=(Library("compile", quantising.backward_compiled),),
        tolerance=Tolerance(factor=16, why=WHY),
        **changes,
    )


def trained(name, whole):
    return forward(
        name,
        whole,
        rungs=(Rung("fake_quantize", "forward v2, backward v3", load=load_function),),
        cases=grid([*SHAPES, *EMPTY], FLOATS),
        timed=False,
        gradients=True,
        tolerance=Tolerance(factor=16, why=WHY),
    )


PROBLEMS = (
    forward("fake quantisation, step per row", False),
    forward("fake quantisation, one step", True),
    backward("backward, step per row", False),
    # v1 has one block per step: of the timed size, a thread would add up a million terms in turn.
    backward("backward, one step", True, rungs=(replace(V1, timed=False), V3)),
    backward("backward, short rows", False, rungs=(V2, V3), bench=SHORT),
    trained("with autograd, step per row", False),
    trained("with autograd, one step", True),
)
