"""Day 19: the gradients of softmax and of cross-entropy."""

from functools import cache

import torch

from common.day import COMPILE, Case, Cost, Problem, Rung, Target, grid

TITLE = "Softmax backward and cross-entropy"
TEACHES = "Two gradients that need a whole row, computed from registers; autograd by torch.library"
TOPICS = ("softmax", "cross-entropy", "backward", "autograd", "fusion")
SOURCE = "softmax_backward.cu"
INTRODUCES = ("upstream gradient", "cross-entropy")

FLOATS = ["float32", "float16", "bfloat16"]
SHAPES = [(1, 1), (3, 127), (2, 128), (3, 1023), (2, 1024), (3, 1025), (7, 40), (2, 4096)]
LONG = [(1, 8200), (2, 6000)]  # do not fit into registers, in some or all dtypes
LARGE = (32768, 4096)


def softmax_inputs(case, draw):
    return (draw(*case.shape),)


def softmax_reference(x):
    return torch.softmax(x, -1)


def backward_inputs(case, draw):
    return draw(*case.shape), torch.softmax(draw(*case.shape, values="normal"), -1)


def backward_reference(gy, y):
    return torch.ops.aten._softmax_backward_data(gy, y, -1, y.dtype)


def logits(case, draw):
    rows, cols = case.shape
    return draw(rows, cols), draw(rows, dtype="int64", low=0, high=cols)


def classes(x, target):
    """Whether each column is the row's target, and whether the row's target is a class."""
    one_hot = torch.arange(x.shape[1], device=x.device) == target[:, None]
    return one_hot, ((target >= 0) & (target < x.shape[1]))[:, None]


def cross_entropy_reference(x, target):
    log_y = torch.log_softmax(x, -1, dtype=torch.promote_types(x.dtype, torch.float32))
    return torch.where(classes(x, target)[0], -log_y, 0).sum(-1)


def gradient_inputs(case, draw):
    return draw(case.shape[0], dtype="float32", values="normal"), *logits(case, draw)


def gradient_reference(g, x, target):
    one_hot, counts = classes(x, target)
    y = torch.softmax(x, -1, dtype=torch.promote_types(x.dtype, torch.float32))
    one = one_hot.to(y.dtype)
    return torch.where(counts, (y - one) * g[:, None], 0).to(x.dtype)


def gradient_by_autograd(g, x, target):
    """Forward and backward, as a training step runs them."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(leaf, target, reduction="none")
    return torch.autograd.grad(loss, leaf, g.to(loss.dtype))


def cost(tensors, operations):
    def of_case(case):
        n = case.shape[0] * case.shape[1]
        element = getattr(torch, case.dtype).itemsize
        return Cost(bytes=tensors * n * element, flops=operations * n)

    return of_case


@cache
def differentiable():
    """Registers both backwards, so that loss.backward() works through the forward operators."""

    def softmax_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    def softmax_backward(ctx, gy):
        (y,) = ctx.saved_tensors
        return torch.ops.day19.softmax_backward_v2_one_pass(gy.contiguous(), y)

    def entropy_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)  # the logits and their targets; no softmax is stored

    def entropy_backward(ctx, g):
        gx = torch.ops.day19.cross_entropy_backward_v3_fused(g.contiguous(), *ctx.saved_tensors)
        return gx, None

    register = torch.library.register_autograd
    register("day19::softmax", softmax_backward, setup_context=softmax_context)
    register("day19::cross_entropy", entropy_backward, setup_context=entropy_context)


def forward(name, idea):
    def load(builder):
        differentiable()
        return getattr(torch.ops.day19, name)

    return Rung(name, idea, load=load)


PROBLEMS = (
    Problem(
        name="softmax with its gradient",
        inputs=softmax_inputs,
        reference=softmax_reference,
        rungs=(forward("softmax", "row in registers; backward is v2"),),
        cases=(
            *grid(SHAPES + LONG + [(0, 8), (4, 0)], FLOATS),
            *grid([(4, 1000)], FLOATS, values="large"),
            *grid([(8, 300)], FLOATS, values="nonfinite"),
        ),
        bench=Case(LARGE),
        bench_cpu=Case((256, 1024)),
        cost=cost(2, 5),
        libraries=(COMPILE,),
        gradients=True,
    ),
    Problem(
        name="softmax backward",
        inputs=backward_inputs,
        reference=backward_reference,
        rungs=(
            Rung("softmax_backward_v1_two_passes", "sum, then gy and y again"),
            Rung(
                "softmax_backward_v2_one_pass",
                "both rows in registers",
                target=Target(1.0, "compile"),
            ),
        ),
        cases=(
            *grid(SHAPES + LONG + [(0, 8), (4, 0)], FLOATS),
            *grid([(4, 1000)], FLOATS, values="large"),
            *grid([(8, 300)], FLOATS, values="nonfinite"),
            *grid([(4, 513)], FLOATS, values="offset"),
        ),
        bench=Case(LARGE),
        bench_cpu=Case((256, 1024)),
        cost=cost(3, 4),
        libraries=(COMPILE,),
    ),
    Problem(
        name="cross-entropy with its gradient",
        inputs=logits,
        reference=cross_entropy_reference,
        rungs=(forward("cross_entropy", "only the loss; backward is v3"),),
        cases=(
            *grid(SHAPES + LONG + [(0, 8)], FLOATS),
            *grid([(4, 1000)], FLOATS, values="large"),
            *grid([(8, 300)], FLOATS, values="nonfinite"),
        ),
        bench=Case(LARGE),
        bench_cpu=Case((256, 1024)),
        cost=cost(1, 5),
        libraries=(COMPILE,),
        gradients=True,
    ),
    Problem(
        name="gradient of cross-entropy",
        inputs=gradient_inputs,
        reference=gradient_reference,
        rungs=(
            Rung("cross_entropy_backward_v2_buffer", "softmax stored in between"),
            Rung(
                "cross_entropy_backward_v3_fused",
                "softmax never stored",
                target=Target(1.0, "compile"),
            ),
        ),
        cases=(
            *grid(SHAPES + LONG + [(0, 8)], FLOATS),
            *grid([(4, 1000)], FLOATS, values="large"),
            *grid([(8, 300)], FLOATS, values="nonfinite"),
        ),
        bench=Case(LARGE),
        bench_cpu=Case((256, 1024)),
        cost=cost(2, 7),
        pytorch=gradient_by_autograd,
        libraries=(COMPILE,),
    ),
)
