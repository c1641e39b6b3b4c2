"""Day 73: fake quantisation, the gradient of its step size, and a net that is trained with it."""

if __name__ == "__main__":  # python days/day73/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day73

from dataclasses import replace
from functools import partial

from common.day import Case, Cost, Library, Problem, Rung, Target, Tolerance, grid

from . import quantising
from .training import load_function, show

__all__ = ["PROBLEMS", "show"]

TITLE = "Quantisation-aware training"
TEACHES = "Training through rounding: the straight-through estimator, and steps that are learnt"
TOPICS = ("quantisation", "quantization", "QAT", "LSQ", "straight-through estimator", "training")
SOURCE = "qat.cu"
EXTRA_SOURCES = ("training.py",)
INTRODUCES = ("fake quantisation", "straight-through estimator")

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
