"""Cross-entropy and its gradient: inputs, formulas, rungs."""

import torch
import torch.nn.functional as F

from common.day import Rung, Target

from .rows import problem


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


def cross_entropy(x, target):
    return F.cross_entropy(x, target, reduction="none")


def gradient_inputs(case, draw):
    return draw(case.shape[0], dtype="float32", values="normal"), *logits(case, draw)


def gradient_reference(g, x, target):
    one_hot, counts = classes(x, target)
    y = torch.softmax(x, -1, dtype=torch.promote_types(x.dtype, torch.float32))
    one = one_hot.to(y.dtype)
    return torch.where(counts, (y - one) * g[:, None], 0).to(x.dtype)


def gradient(g, x, target):
    """Softmax, scaled in place, minus g at the targets. Autograd would also need the loss."""
    y = torch.softmax(x, -1).mul_(g[:, None])
    return y.scatter_add_(1, target[:, None], -g[:, None])


ENTROPY = Rung(
    "cross_entropy",
    "only the loss; backward is v3",
    backward=lambda saved, g: (torch.ops.day19.cross_entropy_backward_v3_fused(g, *saved), None),
    saves=lambda inputs, output: inputs,  # the logits and their targets; no softmax is stored
)


GRADIENT = (
    Rung("cross_entropy_backward_v2_buffer", "softmax stored in between"),
    Rung("cross_entropy_backward_v3_fused", "softmax never stored", target=Target(1.0, "compile")),
)


CROSS_ENTROPY = (
    problem(  # reads x; then reads x again and writes gx
        "cross-entropy with its gradient",
        logits,
        cross_entropy_reference,
        (ENTROPY,),
        (3, 12),
        pytorch=cross_entropy,
        gradients=True,
    ),
    problem(
        "gradient of cross-entropy",
        gradient_inputs,
        gradient_reference,
        GRADIENT,
        (2, 7),
        pytorch=gradient,
    ),
)
