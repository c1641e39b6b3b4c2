"""Day 47: activation functions, forward and backward, alone and gated."""

if __name__ == "__main__":  # python days/day47/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day47

from functools import partial

import torch

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Target, Tolerance, grid, streamed

from .functions import FUNCTIONS, GATES, gated, gated_gradients, gradient, print_errors, value

TITLE = "Activation functions"
TEACHES = "One template for all of them, digits that survive, and arithmetic at the rate of a copy"
TOPICS = ("activation", "GELU", "SiLU", "SwiGLU", "element-wise", "precision", "autograd")
SOURCE = "activations.cu"
EXTRA_SOURCES = ("formulas.cu",)
INTRODUCES = ("gated linear unit", "catastrophic cancellation", "Horner's scheme")

BF16 = ["bfloat16"]
LENGTHS = [(1,), (7,), (1025,), (33, 65), (0,)]
SPECIAL = ("large", "extreme", "tiny", "nonfinite")


def unary(function, case, draw):
    return draw(*case.shape), function


def pair(function, case, draw):
    return draw(*case.shape), draw(*case.shape), function


def chosen(inputs, upstream, functions):
    """Inputs of cases whose shape begins with the number of a function."""

    def drawn(case, draw):
        number, *shape = case.shape
        tensors = inputs(functions[number % len(functions)], Case(tuple(shape)), draw)
        return (draw(*shape, values="normal"), *tensors) if upstream else tensors

    return drawn


def cases(dtypes, *values, lengths=LENGTHS, before=((),)):
    """Lengths of ordinary numbers, and a shape of each kind of values; `before`: sizes that stand
    in front of each shape."""

    def shaped(shapes):
        return [(*first, *shape) for first in before for shape in shapes]

    odd = [case for kind in values for case in grid(shaped([(9, 40)]), dtypes, kind)]
    return (*grid(shaped(lengths), dtypes), *odd)


def activation(name, idea, backward="activation_backward_v2", **options):
    """A differentiable rung. Of the inputs (x, function) only x has a gradient."""
    return Rung(
        name,
        idea,
        saves=lambda inputs, output: inputs,
        backward=lambda saved, gy: (getattr(torch.ops.day47, backward)(gy, *saved), None),
        **options,
    )


def gated_rung(name, idea, backward="gated_backward_v2", **options):
    return Rung(
        name,
        idea,
        saves=lambda inputs, output: inputs,
        backward=lambda saved, gy: (*getattr(torch.ops.day47, backward)(gy, *saved), None),
        **options,
    )


COPY = {"target": Target(0.95, "copy")}
ACTIVATIONS = (
    activation("activation_v1_scalar", "one element per thread"),
    activation("activation_v2_vectorised", "16 bytes per load"),
    activation(
        "activation_v3_fast",
        "fast functions",
        "activation_backward_v3",
        dtypes=("bfloat16",),
        **COPY,
    ),
)
GATED = (
    gated_rung("gated_v1_separate", "the function, then the product"),
    gated_rung("gated_v2_fused", "one launch"),
    gated_rung(
        "gated_v3_fast", "fast functions", "gated_backward_v3", dtypes=("bfloat16",), **COPY
    ),
)
BENCH, BENCH_CPU = Case((1 << 28,), "bfloat16"), Case((1 << 14,), "bfloat16")


def forward(function):
    """f(x) alone. The whole ladder is timed for GELU, the last rung for the others."""
    whole = function == "gelu"
    return Problem(
        name=function,
        inputs=partial(unary, function),
        reference=value,
        pytorch=value,
        libraries=(COMPILE,) if whole else (),
        rungs=ACTIVATIONS if whole else ACTIVATIONS[2:],
        cases=cases(
            BF16,
            *SPECIAL,
            lengths=[*LENGTHS, (255,), (1024,), (10007,), (3, 5, 7)] if whole else LENGTHS,
        ),
        cost=streamed(2, 20),
        bench=BENCH,
        bench_cpu=BENCH_CPU,
    )


def training(function):
    """f(x) and its gradient: 2 + 3 passes. The two that models use most are timed."""
    return Problem(
        name=f"{function}, training step",
        inputs=partial(unary, function),
        reference=value,
        pytorch=value,
        rungs=ACTIVATIONS[1:] if function == "gelu" else ACTIVATIONS[2:],
        cases=cases(BF16, lengths=[(1025,), (33, 65), (0,)]),
        timed=function in GATES,
        cost=streamed(5, 50),
        gradients=True,
        bench=BENCH,
        bench_cpu=BENCH_CPU,
    )


def glu(name, function):
    """f(gate) · up: 3 passes; with the gradients 3 + 5. The whole ladder is timed for SwiGLU."""
    rungs = GATED if function == "silu" else GATED[2:]
    problem = partial(
        Problem,
        inputs=partial(pair, function),
        reference=gated,
        pytorch=gated,
        libraries=(COMPILE,) if function == "silu" else (),
        bench=BENCH,
        bench_cpu=BENCH_CPU,
    )
    return (
        problem(name, rungs=rungs, cases=cases(BF16, *SPECIAL), cost=streamed(3, 22)),
        problem(
            f"{name}, training step",
            rungs=GATED[2:],
            cases=cases(BF16),
            cost=streamed(8, 60),
            gradients=True,
        ),
    )


def checked(name, inputs, reference, rungs, functions, dtypes, upstream=False, ulps=4):
    """What is not timed: fp32, and gradients alone, where numbers of all sizes can be checked."""
    numbers = [(number,) for number in range(len(functions))]
    return Problem(
        name,
        chosen(inputs, upstream, functions),
        reference,
        rungs=rungs,
        cases=cases(dtypes, *SPECIAL, lengths=[(7,), (33, 65), (0,)], before=numbers),
        timed=False,
        tolerance=Tolerance(ulps, why="derivatives cross zero, where the error of a sum remains"),
    )


def gradients_of(name, dtype):
    accurate, fast = Rung(f"{name}_v2", "16 bytes per load"), Rung(f"{name}_v3", "fast functions")
    return (accurate, fast) if dtype == "bfloat16" else (accurate,)


def gradients_in(dtype, ulps):
    one, two = (gradients_of(name, dtype) for name in ("activation_backward", "gated_backward"))
    return (
        checked(f"gradients, {dtype}", unary, gradient, one, FUNCTIONS, [dtype], True, ulps),
        checked(
            f"gated gradients, {dtype}", pair, gated_gradients, two, GATES, [dtype], True, ulps
        ),
    )


SHORT = "tanh.approx.bf16"
FORMULAS = {
    "tanh.approx": "tanh",
    SHORT: "tanh",
    "tanh_by_exp": "tanh",
    "sigmoid_by_tanh": "sigmoid",
    "gelu_by_erf": "gelu",
    "gelu_by_normcdf": "gelu",
    "gelu_by_hastings": "gelu",
    "gelu_tanh_approx": "gelu_tanh",
}


def formula_reference(x, name):
    if name not in FORMULAS:
        raise ValueError(f"name: expected one of {', '.join(FORMULAS)}, got {name!r}")
    return value(x, FORMULAS[name])


def around_zero(name, case, draw):
    """Numbers of [-1, 1), where no formula has lost its digits yet."""
    return draw(*case.shape, values="uniform") * 2 - 1, name


def other_formulas(name, formulas, **options):
    return Problem(
        name,
        chosen(around_zero, False, formulas),
        formula_reference,
        rungs=(Rung("formula", "measured below"),),
        # Two numbers alone may have results that are nearly equal: no case of one element.
        cases=cases(
            BF16, lengths=LENGTHS[1:], before=[(number,) for number in range(len(formulas))]
        ),
        timed=False,
        **options,
    )


PROBLEMS = (
    *(forward(function) for function in FUNCTIONS),
    *(training(function) for function in FUNCTIONS),
    *glu("GeGLU", "gelu"),
    *glu("SwiGLU", "silu"),
    checked("other dtypes", unary, value, ACTIVATIONS[:2], FUNCTIONS, FLOATS[:2]),
    checked("gated, other dtypes", pair, gated, GATED[:2], GATES, FLOATS[:2]),
    *(
        problem
        for dtype, ulps in (("float32", 256), ("float16", 16), ("bfloat16", 4))
        for problem in gradients_in(dtype, ulps)
    ),
    other_formulas("other formulas", tuple(name for name in FORMULAS if name != SHORT)),
    other_formulas(
        "tanh in bf16 throughout",
        (SHORT,),
        tolerance=Tolerance(16, why="tanh.approx.bf16 leans to zero by 0.3 % on an H200"),
    ),
)


def show(operators, device):
    """Prints the error of each formula on every number of bf16."""
    print_errors(operators, device)
