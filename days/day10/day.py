"""Day 10: fusing a chain of element-wise operations."""

from functools import cache

import torch

from common.day import COMPILE, Case, Cost, Problem, Rung, Target, grid

TITLE = "Fusing element-wise chains"
TEACHES = "Why fusion pays, functors composed at compile time, fast functions, a fused gradient"
TOPICS = ("element-wise", "fusion", "functor", "bfloat16", "backward", "autograd")
SOURCE = "elementwise_ops.cu"
INTRODUCES = ("fusion", "bf16")

FLOATS = ["float32", "float16", "bfloat16"]
SHORT = ("float16", "bfloat16")
SHAPES = [(1,), (7,), (255,), (1023,), (1024,), (1025,), (10007,), (0,), (33, 65), (3, 5, 7)]
A, B = 1.5, -0.25


def inputs(case, draw):
    return draw(*case.shape), A, B


def reference(x, a=1.0, b=0.0):
    return torch.tanh(torch.sigmoid(torch.relu(a * x + b)))


def backward_inputs(case, draw):
    return draw(*case.shape, values="normal"), draw(*case.shape), A, B


def backward_reference(gy, x, a=1.0, b=0.0):
    """What PyTorch's autograd runs for the gradient, after the forward operators."""
    r = torch.relu(a * x + b)
    s = torch.sigmoid(r)
    y = torch.tanh(s)
    g = torch.ops.aten.tanh_backward(gy, y)
    g = torch.ops.aten.sigmoid_backward(g, s)
    return torch.ops.aten.threshold_backward(g, r, 0) * a


def cost(tensors, operations):
    def of_case(case):
        n = torch.Size(case.shape).numel()
        element = getattr(torch, case.dtype).itemsize
        return Cost(bytes=tensors * n * element, flops=operations * n)

    return of_case


@cache
def differentiable(name, backward_name):
    """Registers an operator's gradient, so that loss.backward() works through it."""
    backward_operator = getattr(torch.ops.day10, backward_name)

    def setup_context(ctx, inputs, output):
        x, ctx.a, ctx.b = inputs
        ctx.save_for_backward(x)

    def backward(ctx, gy):
        (x,) = ctx.saved_tensors
        return backward_operator(gy.contiguous(), x, ctx.a, ctx.b), None, None

    torch.library.register_autograd(f"day10::{name}", backward, setup_context=setup_context)


def chain(name, idea, backward="chain_backward_v2_fused", **options):
    def load(builder):
        differentiable(name, backward)
        return getattr(torch.ops.day10, name)

    return Rung(name, idea, load=load, **options)


V1 = chain("chain_v1_unfused", "one launch per function", "chain_backward_v1_unfused")
V2 = chain("chain_v2_fused", "one launch, functors composed")
V3 = chain("chain_v3_vectorised", "16 bytes per load")
V4 = chain(
    "chain_v4_fast", "tanh by the special function unit", dtypes=SHORT, target=Target(0.95, "copy")
)
LARGE = (1 << 28,)

PROBLEMS = (
    Problem(
        name="chain, float32",
        inputs=inputs,
        reference=reference,
        rungs=(V1, V2, V3),
        cases=(
            *grid(SHAPES, ["float32"]),
            *grid([(1003,)], ["float32"], values="extreme"),
            *grid([(1000,)], ["float32"], values="nonfinite"),
        ),
        bench=Case(LARGE),
        bench_cpu=Case((1 << 18,)),
        cost=cost(2, 16),
        libraries=(COMPILE,),
        gradients=True,
    ),
    Problem(
        name="chain, bfloat16",
        inputs=inputs,
        reference=reference,
        rungs=(V1, V2, V3, V4),
        cases=(
            *grid(SHAPES, list(SHORT)),
            *grid([(1003,)], list(SHORT), values="extreme"),
            *grid([(1000,)], list(SHORT), values="nonfinite"),
        ),
        bench=Case(LARGE, "bfloat16"),
        bench_cpu=Case((1 << 18,), "bfloat16"),
        cost=cost(2, 16),
        libraries=(COMPILE,),
        gradients=True,
    ),
    Problem(
        name="backward, bfloat16",
        inputs=backward_inputs,
        reference=backward_reference,
        rungs=(
            Rung("chain_backward_v1_unfused", "one launch per factor"),
            Rung("chain_backward_v2_fused", "one launch", target=Target(0.95, "copy")),
        ),
        cases=(
            *grid(SHAPES, FLOATS),
            *grid([(1003,)], FLOATS, values="extreme"),
            *grid([(1000,)], FLOATS, values="nonfinite"),
        ),
        bench=Case(LARGE, "bfloat16"),
        bench_cpu=Case((1 << 18,), "bfloat16"),
        cost=cost(3, 24),
        libraries=(COMPILE,),
    ),
)
