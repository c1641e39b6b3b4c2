"""Day 84: custom autograd functions, differentiated twice."""

from functools import cache, partial

import torch
import torch.nn.functional as F

from common.day import (
    COMPILE,
    Case,
    Cost,
    Exercise,
    Library,
    Problem,
    Rung,
    Target,
    grid,
    streamed,
)

from .autograd import RUNGS, backward_formula, double_backward_formula, forward_formula, load
from .penalty import by_compile, penalised
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Custom autograd functions"
TEACHES = "An operator with a gradient, a gradient of that, and all that PyTorch asks of it"
TOPICS = ("autograd", "double backward", "gradcheck", "opcheck", "torch.compile", "vmap")
SOURCE = "custom_autograd.cu"
EXTRA_SOURCES = ("autograd.py", "penalty.py", "wrong.py", "proof.py")

EXERCISE = Exercise(
    function="second_gradients",
    task="x",
    hints=("a", "b", "c"),
)

FLOATS = ["float32", "float16", "bfloat16", "float64"]
EPS = 1e-6
SHAPES = [(1, 1), (5, 3), (37, 33), (3, 256), (9, 264), (2, 513), (4, 1000), (2, 2056), (3, 4100)]
EMPTY = [(0, 8), (4, 0)]
IDEAS = ("backward: a formula", "backward: a kernel", "double backward: a kernel")


def inputs(case, draw):
    return draw(*case.shape), EPS


def backward_inputs(case, draw):
    return draw(*case.shape, values="normal"), *inputs(case, draw)


def double_inputs(case, draw):
    return draw(*case.shape, values="normal"), *backward_inputs(case, draw)


def normalised(x, eps):
    """Differs by ε, which it adds nowhere: it takes the larger of |x| and its root."""
    return F.normalize(x, dim=-1, eps=eps**0.5)


def rms_normalised(x, eps):
    D = x.shape[-1]
    return F.rms_norm(x, (D,), root_of(D, x.dtype, x.device), eps / D)


@cache
def root_of(D, dtype, device):
    return torch.full((D,), D**-0.5, dtype=dtype, device=device)


def training_cost(case):
    return streamed(5, 10)(case)


def penalty_inputs(case, draw):
    B, K, D = case.shape
    return draw(B, K), draw(K, D), draw(D, values="normal"), EPS


def penalty_cost(case):
    """The least: five products with a matrix of K · D, in fp32."""
    B, K, D = case.shape
    return Cost(bytes=case.itemsize * 2 * (B * K + K * D), flops=10 * B * K * D)


STEP = ("mm", "mv")

PROBLEMS = (
    Problem(
        name="unit rows",
        inputs=inputs,
        reference=forward_formula,
        rungs=tuple(
            Rung(f"unit_rows_{v}", idea, load=load(lambda ops, v=v: getattr(ops, f"unit_rows_{v}")))
            for v, idea in zip(RUNGS[:2], IDEAS, strict=False)
        ),
        cases=(*grid(SHAPES + EMPTY, FLOATS), *grid([(8, 40)], FLOATS, values="nonfinite")),
        bench=Case((65536, 2048)),
        bench_cpu=Case((64, 512)),
        cost=training_cost,
        pytorch=rms_normalised,
        libraries=(COMPILE, Library("F.normalize", normalised)),
        gradients=True,
    ),
    Problem(
        name="double backward",
        inputs=double_inputs,
        reference=double_backward_formula,
        rungs=(
            Rung(
                "double_backward_v3_twice",
                "four sums, one pass",
                target=Target(0.9, "copy"),
            ),
        ),
        cases=(*grid(SHAPES + EMPTY, FLOATS), *grid([(8, 40)], FLOATS, values="nonfinite")),
        bench=Case((65536, 2048)),
        bench_cpu=Case((64, 512)),
        cost=streamed(5, 21),
        pytorch=double_backward_formula,
        libraries=(COMPILE,),
    ),
    Problem(
        name="gradient penalty",
        inputs=penalty_inputs,
        reference=partial(penalised, forward_formula),
        rungs=tuple(
            Rung(
                f"penalty_{v}",
                idea,
                load=load(lambda ops, v=v: partial(penalised, getattr(ops, f"unit_rows_{v}"))),
                calls=STEP,
            )
            for v, idea in zip(RUNGS, IDEAS, strict=False)
        ),
        cases=grid([(1, 1, 1), (17, 3, 33), (5, 8, 300)], ["float32", "float64"]),
        bench=Case((32768, 32, 2048)),
        bench_cpu=Case((32, 8, 512)),
        cost=penalty_cost,
        pytorch=partial(penalised, normalised),
        libraries=(Library("compile", by_compile),),
    ),
)
