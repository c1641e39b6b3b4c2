"""Cross-entropy with its gradient: cases, formulas, rungs."""

from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid
from common.references import rivals

LOGITS = [(1, 1), (3, 127), (2, 128), (4, 1023), (2, 1024), (5, 40)]
# Two, one or no row fits into shared memory; the last would, without the kernels' own arrays.
LONG = [(3, 9000), (2, 30000), (1, 58112)]
MANY = [(1030, 8)]  # more rows than threads of the block that counts them, or blocks of v4
IGNORED = -100


def ignore_some(target):
    target[2::3] = IGNORED


def ignore_all(target):
    target[:] = IGNORED


def mistake_some(target):
    """Some targets that name no class, and some ignored ones."""
    ignore_some(target)
    target[1::4] = 10**9
    target[3::4] = -1


def inputs(label_smoothing=0.0, reduction="mean", change=ignore_some):
    """change: (target) -> None, changes some targets of what is checked. Where time is measured,
    every row counts, as when a language model is trained: an ignored one is less work."""

    def of_case(case, draw):
        rows, classes = case.shape
        logits, target = draw(rows, classes), draw(rows, dtype="int64", low=0, high=classes)
        if not draw.fast:
            change(target)
        return logits, target, IGNORED, label_smoothing, reduction

    return of_case


def loss_and_gradient(logits, target, ignore_index=IGNORED, label_smoothing=0.0, reduction="mean"):
    """The reduced loss, and its gradient by the formula."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction: none, mean or sum, not {reduction!r}")
    classes = logits.shape[1]
    log_p = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    counts, valid = target != ignore_index, (target >= 0) & (target < classes)
    hit = torch.arange(classes, device=logits.device) == target[:, None]
    losses = (1 - label_smoothing) * torch.where(hit, -log_p, 0).sum(-1)
    if label_smoothing:
        losses = losses - label_smoothing * log_p.mean(-1)
    slopes = log_p.exp() - (1 - label_smoothing) * hit.to(log_p.dtype) - label_smoothing / classes
    losses = torch.where(counts, torch.where(valid, losses, torch.nan), 0)
    weight = 1 / counts.sum().to(losses.dtype) if reduction == "mean" else 1
    slopes = torch.where(valid[:, None], slopes * weight, torch.nan)
    loss = losses if reduction == "none" else losses.sum() * weight
    return loss, torch.where(counts[:, None], slopes, 0).to(logits.dtype)


def loss_alone(*arguments):
    return loss_and_gradient(*arguments)[0]


def by_pytorch(logits, target, ignore_index, label_smoothing, reduction):
    return cross_entropy(
        logits,
        target,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


def both_by_pytorch(logits, *rest):
    """Forward and backward, as a training step runs them."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        loss = by_pytorch(leaf, *rest)
    return loss, *torch.autograd.grad(loss, leaf)


def cost(case):
    n = case.shape[0] * case.shape[1]
    return Cost(bytes=2 * n * case.itemsize, flops=10 * n)


loss = Problem(
    name="cross-entropy, forward and backward",
    inputs=inputs(),
    reference=loss_and_gradient,
    rungs=(
        Rung("cross_entropy_v1_plain", "log p in memory, in fp32"),
        Rung("cross_entropy_v2_in_place", "gradient over the logits, read twice"),
        Rung("cross_entropy_v3_row_in_shared", "the row stays in shared memory"),
        Rung(
            "cross_entropy_v4_rows_ahead",
            "cp.async, two rows ahead",
            target=(Target(0.93, "copy"), Target(1.0, "quack")),
        ),
    ),
    cases=(*grid([*LOGITS, (0, 8)], FLOATS), *grid(LONG, ["float32"]), *grid(MANY, ["bfloat16"])),
    bench=Case((8192, 50304), "bfloat16"),
    bench_cpu=Case((64, 4096), "bfloat16"),
    cost=cost,
    pytorch=both_by_pytorch,
    libraries=(COMPILE,),
    rivals=(rivals.quack_cross_entropy, rivals.liger_cross_entropy),
)


def checked(name, inputs, cases):
    rungs = tuple(replace(rung, target=None) for rung in loss.rungs)
    return replace(loss, name=name, inputs=inputs, cases=cases, rungs=rungs, timed=False)


smoothed = checked(
    "smoothed labels, summed",
    inputs(0.1, "sum"),
    (*grid([(4, 127), (3, 1024)], FLOATS), *grid([(4, 1000)], ["float32", "bfloat16"], "large")),
)
row_by_row = checked(
    "a loss for each row, unusual numbers and targets",
    inputs(0.0, "none", mistake_some),
    (
        *grid([(9, 130), (6, 1024)], ["float32", "float16"]),
        *grid([(4, 1000)], FLOATS, "large"),
        *grid([(8, 304), (9, 127)], ["float32", "bfloat16"], "nonfinite"),
    ),
)
nothing = checked(
    "no row that counts", inputs(change=ignore_all), grid([(3, 40)], ["float32", "bfloat16"])
)


class CrossEntropy(torch.autograd.Function):
    """The gradient is computed in the forward pass; the backward pass scales it where it lies."""

    @staticmethod
    def forward(ctx, *arguments):
        loss, gradient = torch.ops.day20.cross_entropy(*arguments)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx, upstream):
        (gradient,) = ctx.saved_tensors
        torch.ops.day20.scale(gradient, upstream.contiguous())
        # A second backward pass would scale it again; now PyTorch raises an error instead.
        torch.autograd.graph.increment_version(gradient)
        return gradient, None, None, None, None


def load_cross_entropy(builder):
    def call(logits, target, ignore_index=IGNORED, label_smoothing=0.0, reduction="mean"):
        return CrossEntropy.apply(logits, target, ignore_index, label_smoothing, reduction)

    return call


with_gradient = replace(
    loss,
    name="cross-entropy with its gradient",
    inputs=inputs(0.1),
    reference=loss_alone,
    rungs=(Rung("cross_entropy", "v4; gradient kept for backward", load=load_cross_entropy),),
    cases=(*grid([(1, 1), (4, 1023), (5, 40)], FLOATS), *grid([(4, 1000)], FLOATS, "large")),
    pytorch=by_pytorch,
    rivals=(),
    gradients=True,
)
rows_with_gradient = replace(
    with_gradient,
    name="losses of rows with their gradient",
    inputs=inputs(0.0, "none"),
    cases=grid([(4, 127), (5, 1024)], ["float32", "bfloat16"]),
    timed=False,
)


def scaled(dx, g):
    """What the backward pass does: writes the gradient, times g, one number or one per row."""
    wide = dx.to(torch.promote_types(dx.dtype, torch.float32))
    dx.copy_(wide * (g[:, None] if g.dim() else g))


def to_scale(case, draw):
    return draw(*case.shape), draw(case.shape[0], dtype="float32", values="normal")


scaling = Problem(
    name="a gradient for each row, scaled where it lies",
    inputs=to_scale,
    reference=scaled,
    rungs=(Rung("scale", "the backward pass alone"),),
    cases=grid([(3, 300), (0, 8)], ["float32", "bfloat16"]),
    timed=False,
)
