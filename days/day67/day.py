"""Day 67: cross-entropy and its gradient by chunks of the vocabulary, in CUDA and in Triton."""

if __name__ == "__main__":  # python days/day67/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day67

from dataclasses import replace

import torch
import torch.nn.functional as F

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid
from common.references import rivals

from .compiled import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Chunked cross-entropy"
TEACHES = "Loss and gradient from one read and one write: each thread keeps its chunks of a row"
TOPICS = ("cross-entropy", "online softmax", "Triton", "cp.async", "cluster")
SOURCE = "chunked_ce.cu"
EXTRA_SOURCES = ("chunked_ce_triton.py", "compiled.py")

IGNORED = -100
TRITON = "chunked_ce_triton"


def ignore_some(target, classes):
    target[2::3] = IGNORED


def ignore_all(target, classes):
    target[:] = IGNORED


def mistake_some(target, classes):
    """Some targets that name no class, and some ignored ones."""
    ignore_some(target, classes)
    target[1::4] = 10**9
    target[3::4] = -1


def mistake_first(target, classes):
    target[0] = classes  # one too many


def inputs(label_smoothing=0.0, change=ignore_some):
    """change: (target, classes) -> None, changes some targets of what is checked. Where time is
    measured, every row counts: an ignored one is less work."""

    def of_case(case, draw):
        rows, classes = case.shape
        logits, target = draw(rows, classes), draw(rows, dtype="int64", low=0, high=classes)
        if not draw.fast:
            change(target, classes)
        return logits, target, IGNORED, label_smoothing

    return of_case


def with_a_late_peak(case, draw):
    """The last logit of each row is so far above the others that a sum relative to them is
    infinite."""
    logits, *rest = inputs()(case, draw)
    logits[:, -1] += 300
    return logits, *rest


def loss_and_gradient(logits, target, ignore_index=IGNORED, label_smoothing=0.0):
    """The mean loss, and its gradient by the formula."""
    classes = logits.shape[1]
    log_p = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    counts, valid = target != ignore_index, (target >= 0) & (target < classes)
    hit = torch.arange(classes, device=logits.device) == target[:, None]
    losses = (1 - label_smoothing) * torch.where(hit, -log_p, 0).sum(-1)
    if label_smoothing:
        losses = losses - label_smoothing * log_p.mean(-1)
    slopes = log_p.exp() - (1 - label_smoothing) * hit.to(log_p.dtype) - label_smoothing / classes
    losses = torch.where(counts, torch.where(valid, losses, torch.nan), 0)
    weight = 1 / counts.sum().to(losses.dtype)
    slopes = torch.where(valid[:, None], slopes * weight, torch.nan)
    return losses.sum() * weight, torch.where(counts[:, None], slopes, 0).to(logits.dtype)


def loss_alone(*arguments):
    return loss_and_gradient(*arguments)[0]


def by_pytorch(logits, target, ignore_index, label_smoothing):
    return F.cross_entropy(
        logits, target, ignore_index=ignore_index, label_smoothing=label_smoothing
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


class CrossEntropy(torch.autograd.Function):
    """The gradient is computed in the forward pass; the backward pass scales it where it lies."""

    @staticmethod
    def forward(ctx, *arguments):
        loss, gradient = torch.ops.day67.chunked_ce(*arguments)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx, upstream):
        (gradient,) = ctx.saved_tensors
        torch.ops.day67.scale(gradient, upstream)
        # A second backward pass would scale it again; now PyTorch raises an error instead.
        torch.autograd.graph.increment_version(gradient)
        return gradient, None, None, None


def load_with_gradient(builder):
    def call(logits, target, ignore_index=IGNORED, label_smoothing=0.0):
        return CrossEntropy.apply(logits, target, ignore_index, label_smoothing)

    return call


V1 = Rung("chunked_ce_v1_two_reads", "CUDA, the row read twice")
V2 = Rung("chunked_ce_v2_shared", "CUDA, row in shared memory")
V3 = Rung("chunked_ce_v3_cluster", "CUDA, row in a cluster's shared memory")
CHOSEN = Rung("chunked_ce", "CUDA, v2, v3 or v1")
V4 = Rung("chunked_ce_v4_triton", "Triton, online softmax, row read twice", triton=TRITON)
V5 = Rung("chunked_ce_v5_triton_lazy", "Triton, one reduction per row", triton=TRITON)
ALL = (V1, V2, V3, CHOSEN, V4, V5)

cross_entropy = Problem(
    name="cross-entropy, forward and backward",
    inputs=inputs(),
    reference=loss_and_gradient,
    rungs=(
        V1,
        replace(V2, target=Target(0.93, "copy")),
        V4,
        replace(V5, target=Target(2.0, "compile")),
    ),
    cases=grid([(2, 1024)], FLOATS),
    bench=Case((8192, 50304), "bfloat16"),
    bench_cpu=Case((16, 4096), "bfloat16"),
    cost=cost,
    pytorch=both_by_pytorch,
    libraries=(COMPILE,),
    rivals=(rivals.quack_cross_entropy, rivals.liger_cross_entropy),
)
long_rows = replace(
    cross_entropy,
    name="cross-entropy, 128256 classes",
    rungs=(V1, V3, V5),
    bench=Case((4096, 128256), "bfloat16"),
    bench_cpu=Case((4, 16384), "bfloat16"),
    cases=grid([(2, 8200)], FLOATS),
)


def checked(name, inputs, cases):
    return replace(cross_entropy, name=name, inputs=inputs, cases=cases, rungs=ALL, timed=False)


with_gradient = replace(
    cross_entropy,
    name="cross-entropy with its gradient",
    inputs=inputs(0.1),
    reference=loss_alone,
    rungs=(Rung("cross_entropy", "gradient kept for backward", load=load_with_gradient),),
    cases=(*grid([(1, 1), (4, 1023), (5, 40)], FLOATS), *grid([(4, 1000)], FLOATS, "large")),
    pytorch=by_pytorch,
    rivals=(),
    gradients=True,
)


def scaled(dx, g):
    """What the backward pass does: writes the gradient, times g."""
    dx.copy_(dx.to(torch.promote_types(dx.dtype, torch.float32)) * g)


def to_scale(case, draw):
    return draw(*case.shape), draw(dtype="float32", values="normal")


scaling = Problem(
    name="a gradient, scaled where it lies",
    inputs=to_scale,
    reference=scaled,
    rungs=(Rung("scale", "the backward pass alone"),),
    cases=grid([(3, 300), (5, 127), (0, 8)], FLOATS),
    timed=False,
)

PROBLEMS = (
    checked(
        "any shape",
        inputs(),
        (
            *grid([(1, 1), (3, 127), (2, 128), (4, 1023), (5, 40), (0, 8)], FLOATS),
            # The most chunks of a small block, of a large one and of two in a cluster; one more.
            *grid(
                [(2, 6912), (2, 6916), (2, 25344), (1, 25348), (1, 32768), (1, 32772)], ["float32"]
            ),
            *grid([(2, 13832)], ["bfloat16"]),
        ),
    ),
    replace(
        checked("more rows than are counted at a time", inputs(), [Case((1060, 8), "bfloat16")]),
        rungs=(V1,),
    ),
    replace(
        checked(
            "the longest row of a cluster, and a longer one",
            inputs(),
            grid([(1, 262_144), (1, 262_148)], ["float32"]),
        ),
        rungs=(V3,),
    ),
    checked(
        "smoothed labels",
        inputs(0.1),
        (
            *grid([(4, 127), (3, 1024)], FLOATS),
            *grid([(4, 1000)], ["float32", "bfloat16"], "large"),
        ),
    ),
    checked(
        "unusual numbers",
        inputs(),
        (
            *grid([(4, 1000), (2, 8200)], FLOATS, "large"),
            *grid([(8, 304), (9, 127)], ["float32", "bfloat16"], "nonfinite"),
        ),
    ),
    checked("a peak behind the first chunk", with_a_late_peak, grid([(2, 8200)], FLOATS)),
    checked("wrong targets", inputs(change=mistake_some), grid([(9, 130), (6, 1024)], FLOATS)),
    checked("one wrong target", inputs(change=mistake_first), [Case((2, 1024), "float32")]),
    checked("no row that counts", inputs(change=ignore_all), grid([(3, 40)], FLOATS)),
    scaling,
    with_gradient,
    cross_entropy,
    long_rows,
)
