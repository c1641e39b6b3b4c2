"""Day 10: fusing a chain of element-wise operations."""

if __name__ == "__main__":  # python days/day10/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day10

import torch

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Target, grid, streamed

TITLE = "Fusing element-wise chains"
TEACHES = "Why fusion pays, functors composed at compile time, fast functions, a fused gradient"
TOPICS = ("element-wise", "fusion", "functor", "bfloat16", "backward", "autograd")
SOURCE = "elementwise_ops.cu"
INTRODUCES = ("fusion", "bf16")

SHORT = ("float16", "bfloat16")
SHAPES = [(1,), (7,), (255,), (1023,), (1024,), (1025,), (10007,), (0,), (33, 65), (3, 5, 7)]
A, B = 1.5, -0.25


def inputs(case, draw):
    return draw(*case.shape), A, B


def reference(x, a=1.0, b=0.0):
    return torch.tanh(torch.sigmoid(torch.relu(a * x + b)))


def four_kernels(x, a, b):
    """b + a · x as one operator of PyTorch; as a * x + b it would be two."""
    return torch.tanh(torch.sigmoid(torch.relu(torch.add(torch.tensor(b), x, alpha=a))))


def backward_reference(gy, x, a=1.0, b=0.0):
    """What PyTorch's autograd runs for the gradient, after the forward operators."""
    r = torch.relu(a * x + b)
    s = torch.sigmoid(r)
    y = torch.tanh(s)
    g = torch.ops.aten.tanh_backward(gy, y)
    g = torch.ops.aten.sigmoid_backward(g, s)
    return torch.ops.aten.threshold_backward(g, r, 0) * a


def rung(name, idea, backward="chain_backward_v2_fused", **options):
    """A differentiable rung, whose gradient is another operator of the day: loss.backward() works.
    Of the inputs (x, a, b) only x has a gradient."""
    return Rung(
        name,
        idea,
        saves=lambda inputs, output: inputs,
        backward=lambda saved, gy: (getattr(torch.ops.day10, backward)(gy, *saved), None, None),
        **options,
    )


V1 = rung("chain_v1_unfused", "one launch per function", "chain_backward_v1_unfused")
V2 = rung("chain_v2_fused", "one launch, functors composed")
V3 = rung("chain_v3_vectorised", "16 bytes per load")
V4 = rung(
    "chain_v4_fast", "tanh by the special function unit", dtypes=SHORT, target=Target(0.95, "copy")
)


def timed(name, rungs, cases, dtype, of_case, **options):
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        pytorch=four_kernels,
        libraries=(COMPILE,),
        rungs=rungs,
        cases=cases,
        bench=Case((1 << 28,), dtype),
        bench_cpu=Case((1 << 18,), dtype),
        cost=of_case,
        **options,
    )


def all_cases(dtypes):
    odd = (*grid([(1003,)], dtypes, "extreme"), *grid([(1000,)], dtypes, "nonfinite"))
    return (*grid(SHAPES, dtypes), *odd)


PROBLEMS = (
    timed("chain, float32", (V1, V2, V3), all_cases(["float32"]), "float32", streamed(2, 16)),
    timed("chain, bfloat16", (V1, V2, V3, V4), all_cases(list(SHORT)), "bfloat16", streamed(2, 16)),
    timed(
        "training step, bfloat16",  # forward and backward: 2 + 3 passes
        (V1, V2, V3, V4),
        (*grid([(1025,), (33, 65), (0,)], FLOATS), *all_cases(["bfloat16"])),
        "bfloat16",
        streamed(5, 40),
        gradients=True,
    ),
    Problem(
        name="gradient alone",
        inputs=lambda case, draw: (draw(*case.shape, values="normal"), *inputs(case, draw)),
        reference=backward_reference,
        rungs=(
            Rung("chain_backward_v1_unfused", "one launch per factor"),
            Rung("chain_backward_v2_fused", "one launch"),
        ),
        cases=all_cases(FLOATS),
        timed=False,
    ),
)
