"""Day 84: custom autograd functions, differentiated twice."""

if __name__ == "__main__":  # python days/day84/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day84

from functools import partial

from common.day import COMPILE, FLOATS, Case, Cost, Library, Problem, Rung, Target, grid, streamed

from .autograd import (
    RUNGS,
    backward_formula,
    by_compile,
    double_backward_formula,
    forward_formula,
    load,
    normalised,
    rms_normalised,
)
from .penalty import penalised, penalised_by_compile
from .proof import show, show_times

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "Custom autograd functions"
TEACHES = "An operator with a gradient, a gradient of that, and all that PyTorch asks of it"
TOPICS = ("autograd", "double backward", "gradcheck", "opcheck", "torch.compile", "vmap")
SOURCE = "custom_autograd.cu"
EXTRA_SOURCES = ("autograd.py", "penalty.py", "wrong.py", "proof.py")

INTRODUCES = ("autocast", "double backward", "gradcheck", "gradient penalty", "vmap")

EPS = 1e-6
IDEAS = ("backward: a formula", "backward: a kernel", "double backward: a kernel")

# Around the chunks of a warp and of a block, and what their registers hold.
SHAPES = [(1, 1), (5, 3), (37, 33), (3, 256), (9, 264), (2, 513), (4, 1000), (2, 2056), (3, 4100)]
CASES = (
    *grid([*SHAPES, (0, 8), (4, 0), (2, 3, 24)], FLOATS),
    *grid([(5, 3), (3, 130), (2, 1100)], ["float64"]),  # for gradcheck
    *grid([(8, 40)], FLOATS, values="nonfinite"),
    *grid([(8, 40)], FLOATS, values="large"),
    *grid([(8, 40)], ["float32", "bfloat16"], values="tiny"),
)
LARGE, SMALL = Case((65536, 2048)), Case((64, 512))


def inputs(case, draw):
    return draw(*case.shape), EPS


def backward_inputs(case, draw):
    return draw(*case.shape, values="normal"), *inputs(case, draw)


def double_inputs(case, draw):
    return draw(*case.shape, values="normal"), *backward_inputs(case, draw)


def penalty_inputs(case, draw):
    B, K, D = case.shape
    return draw(B, K), draw(K, D), draw(D), EPS


def penalty_cost(case):
    """Arguments read, gradients written; five products with a matrix of K · D elements. What lies
    between them may be stored or computed again: the rungs and the libraries differ in that."""
    B, K, D = case.shape
    return Cost(bytes=(B * K + 2 * K * D + 2 * D) * case.itemsize, flops=10 * B * K * D)


PROBLEMS = (
    Problem(
        name="unit rows, forward and backward",
        inputs=inputs,
        reference=forward_formula,
        rungs=(
            Rung("unit_rows_v1_formula", IDEAS[0], load=load("unit_rows_v1_formula")),
            Rung(
                "unit_rows_v2_kernel",
                IDEAS[1],
                load=load("unit_rows_v2_kernel"),
                target=Target(0.9, "copy"),
            ),
        ),
        cases=CASES,
        bench=LARGE,
        bench_cpu=SMALL,
        cost=streamed(5, 10),
        pytorch=rms_normalised,
        libraries=(Library("compile", by_compile), Library("F.normalize", normalised)),
        gradients=True,
    ),
    Problem(
        name="backward, alone",
        inputs=backward_inputs,
        reference=backward_formula,
        rungs=(
            Rung("unit_rows_backward", "two sums"),
            Rung("unit_rows_backward_twice", "the same"),
        ),
        cases=CASES,
        timed=False,
    ),
    Problem(
        name="double backward, alone",
        inputs=double_inputs,
        reference=double_backward_formula,
        rungs=(Rung("unit_rows_double_backward", "four sums", target=Target(0.9, "copy")),),
        cases=CASES,
        bench=LARGE,
        bench_cpu=SMALL,
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
                f"penalty_{rung}",
                idea,
                load=load(f"unit_rows_{rung}", lambda op: partial(penalised, op)),
                target=Target(2.5, "pytorch") if rung == "v3_twice" else None,
            )
            for rung, idea in zip(RUNGS, IDEAS, strict=True)
        ),
        cases=grid([(1, 1, 1), (17, 3, 33), (5, 8, 300)], ["float32", "float64"]),
        bench=Case((32768, 32, 2048)),
        bench_cpu=Case((32, 8, 512)),
        cost=penalty_cost,
        pytorch=partial(penalised, rms_normalised),
        libraries=(
            Library("compile", penalised_by_compile),
            Library("F.normalize", partial(penalised, normalised)),
        ),
    ),
)
