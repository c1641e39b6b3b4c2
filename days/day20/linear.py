"""A linear layer and cross-entropy by chunks of rows: cases, formulas, rungs."""

from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy, linear

from common.base.declaration import CUBLAS_UNWATCHED
from common.day import COMPILE, Case, Cost, Problem, Rung, grid

from .losses import ignore_some, loss_and_gradient

PRODUCT = ("matmul",)  # the library's, for the linear layer; the loss is this day's


def inputs(case, draw):
    rows, width, classes, together = case.shape
    target = draw(rows, dtype="int64", low=0, high=classes)
    if not draw.fast:
        ignore_some(target)
    return draw(rows, width), draw(classes, width), target, together


def loss_and_gradients(hidden, weight, target, together=None):
    """The mean loss and the gradients of hidden and weight, by the formulas."""
    logits = hidden @ weight.mT
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss, slopes = loss_and_gradient(wide, target)
    slopes = slopes.to(hidden.dtype)
    return loss, slopes @ weight, slopes.mT @ hidden


def loss_alone(*arguments):
    return loss_and_gradients(*arguments)[0]


def both_by_pytorch(hidden, weight, target, together=None):
    """Forward and backward, as a training step runs them."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in (hidden, weight)]
        loss = cross_entropy(linear(*leaves), target)
    return loss, *torch.autograd.grad(loss, leaves)


def cost(case):
    rows, width, classes, _ = case.shape
    return Cost(
        bytes=2 * case.itemsize * (rows + classes) * width,
        flops=6 * rows * width * classes,
        unit="tensor",
    )


both_ways = Problem(
    name="linear layer and cross-entropy, both ways",
    inputs=inputs,
    reference=loss_and_gradients,
    rungs=(
        Rung("linear_v1_whole", "all logits at once", calls=PRODUCT),
        Rung("linear_v2_chunked", "2048 rows at a time", calls=PRODUCT),
    ),
    cases=(
        *grid([(1, 1, 1, 1), (7, 24, 40, 3), (0, 4, 8, 2)], ["float32"]),
        *grid([(260, 4, 8, 200)], ["float32"]),  # more rows than threads of the block that counts
        *grid([(9, 40, 56, 4)], ["float16", "bfloat16"]),
    ),
    bench=Case((8192, 2048, 50304, 2048), "bfloat16"),
    bench_cpu=Case((64, 64, 256, 16)),
    cost=cost,
    pytorch=both_by_pytorch,
    libraries=(COMPILE,),
    unwatched=f"{CUBLAS_UNWATCHED}; other problems of this day call its loss kernel",
)


class LinearCrossEntropy(torch.autograd.Function):
    """Both gradients are computed in the forward pass; the backward pass scales them."""

    @staticmethod
    def forward(ctx, *arguments):
        loss, *gradients = torch.ops.day20.linear_v2_chunked(*arguments)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx, upstream):
        return *(upstream.to(g.dtype) * g for g in ctx.saved_tensors), None, None


def load_linear(builder):
    def call(hidden, weight, target, together):
        return LinearCrossEntropy.apply(hidden, weight, target, together)

    return call


with_gradient = replace(
    both_ways,
    name="linear layer and cross-entropy with gradients",
    reference=loss_alone,
    rungs=(
        Rung(
            "linear_cross_entropy",
            "v2; gradients kept for backward",
            calls=PRODUCT,
            load=load_linear,
        ),
    ),
    timed=False,
    gradients=True,
)
