"""The LM head, with weights of its own or tied to the embedding: cases, formulas, rungs."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from common.base.declaration import CUBLAS_UNWATCHED
from common.day import COMPILE, Case, Cost, Problem, Rung, grid
from common.references import rivals

from .embedding import FLOATS, embedding_backward, text, wide

IGNORED = -100


def ignore_some(target):
    target[2::3] = IGNORED


def ignore_all(target):
    target[:] = IGNORED


def mistake_some(target):
    """One target that names no word, and some ignored ones."""
    ignore_some(target)
    target[1] = 10**9


def mistake_below(target):
    target[-1] = -1


def inputs(change=ignore_some):
    """change: (target) -> None, changes some targets of what is checked. Where time is measured,
    every token counts: the kernel does not read the logits of an ignored one."""

    def of_case(case, draw):
        rows, C, words, together = case.shape
        target = draw(rows, dtype="int64", low=0, high=words)
        if not draw.fast:
            change(target)
        return draw(rows, C), draw(words, C), target, together

    return of_case


def loss_and_slopes(hidden, weight, target, ignore_index):
    """The mean loss, and the gradient of the logits in their dtype, by the formula."""
    words = len(weight)
    log_p = torch.log_softmax(wide(hidden @ weight.mT), -1)
    counts, valid = target != ignore_index, (target >= 0) & (target < words)
    hit = torch.arange(words, device=weight.device) == target[:, None]
    losses = torch.where(hit, -log_p, 0).sum(-1)
    losses = torch.where(counts, torch.where(valid, losses, torch.nan), 0)
    share = 1 / counts.sum().to(losses.dtype)
    slopes = torch.where(valid[:, None], (log_p.exp() - hit.to(log_p.dtype)) * share, torch.nan)
    return losses.sum() * share, torch.where(counts[:, None], slopes, 0).to(hidden.dtype)


def lm_head(hidden, weight, target, together=None, ignore_index=IGNORED):
    loss, slopes = loss_and_slopes(hidden, weight, target, ignore_index)
    return loss, slopes @ weight, slopes.mT @ hidden


def by_pytorch(hidden, weight, target, together=None, ignore_index=IGNORED):
    """Forward and backward, as a training step runs them."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in (hidden, weight)]
        loss = F.cross_entropy(F.linear(*leaves), target, ignore_index=ignore_index)
    return loss, *torch.autograd.grad(loss, leaves)


def cost(case):
    rows, C, words, _ = case.shape
    return Cost(
        bytes=2 * case.itemsize * (rows + words) * C, flops=6 * rows * C * words, unit="tensor"
    )


head = Problem(
    name="LM head and loss, forward and backward",
    inputs=inputs(),
    reference=lm_head,
    rungs=(
        Rung("lm_head_v1_plain", "all logits at once"),
        Rung("lm_head_v2_chunked", "1024 tokens at a time, dW by β = 1"),
    ),
    cases=(
        *grid([(1, 1, 1, 1), (7, 24, 40, 3), (12, 5, 127, 4), (5, 3, 1025, 9)], FLOATS),
        *grid([(0, 4, 8, 2)], ["float32", "bfloat16"]),
        *grid([(1100, 2, 3, 1030)], ["float32"]),  # more rows than a block has threads
        *grid([(400, 3, 5, 100)], ["bfloat16"]),  # too many rows for a sum of dW in bf16
        *grid([(2, 1, 8200, 1)], ["float32", "bfloat16"]),  # more than AHEAD chunks per thread
        # A row that shared memory has room for, but not for the statistics beside it.
        *grid([(2, 1, 58112, 1)], ["float32"]),
        *grid([(4, 24, 40, 3)], FLOATS, "large"),
        *grid([(2, 1, 8200, 1)], ["float32"], "large"),  # bases far apart in one thread
    ),
    bench=Case((8192, 768, 50304, 1024), "bfloat16"),
    bench_cpu=Case((64, 64, 256, 16)),
    cost=cost,
    pytorch=by_pytorch,
    libraries=(COMPILE,),
    rivals=(rivals.quack_head, rivals.liger_head),
    unwatched=CUBLAS_UNWATCHED,
)


def checked(name, change, cases):
    return replace(head, name=name, inputs=inputs(change), cases=cases, timed=False)


ignored = checked("no token that counts", ignore_all, grid([(3, 8, 40, 2)], FLOATS))
wrong_targets = checked(
    "targets that name no word", mistake_some, grid([(9, 8, 130, 4), (4, 3, 21, 4)], FLOATS)
)
wrong_below = checked("a target below 0", mistake_below, grid([(4, 3, 21, 4)], FLOATS))

# ---------------------------------------------------------------- tied weights


def tied_inputs(case, draw):
    rows, C, words, together = case.shape
    hidden, weight, target, together = inputs()(case, draw)
    grad = draw(words, C, dtype="float32", values="normal")
    tokens = text(draw, rows, words)
    return grad, hidden, weight, target, tokens, draw(rows, C), together


def tied_head(grad, hidden, weight, target, tokens, upstream, together=None, ignore_index=IGNORED):
    """Adds to grad the gradient of the weights as head and as embedding."""
    loss, to_hidden, to_weight = lm_head(hidden, weight, target, together, ignore_index)
    grad.add_(to_weight).add_(embedding_backward(upstream, tokens, len(weight)))
    return loss, to_hidden


def tied_by_pytorch(
    grad, hidden, weight, target, tokens, upstream, together=None, ignore_index=IGNORED
):
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in (hidden, weight)]
        loss = F.cross_entropy(F.linear(*leaves), target, ignore_index=ignore_index)
        embedded = F.embedding(tokens, leaves[1])
    to_hidden, to_weight = torch.autograd.grad(
        [loss, embedded], leaves, [torch.ones_like(loss), upstream]
    )
    grad.add_(to_weight)
    return loss, to_hidden


def tied_cost(case):
    rows, C, words, _ = case.shape
    return replace(cost(case), bytes=(3 * rows + words) * C * case.itemsize + 8 * words * C)


tied = replace(
    head,
    name="tied weights",
    inputs=tied_inputs,
    reference=tied_head,
    rungs=(
        Rung("tied_v2_separate", "two gradients, added"),
        Rung("tied_v3_one_gradient", "both add to one gradient"),
    ),
    cases=(
        *grid([(1, 1, 1, 1), (7, 24, 40, 3), (45, 5, 13, 20)], FLOATS),
        *grid([(0, 4, 8, 2)], ["float32", "bfloat16"]),
    ),
    cost=tied_cost,
    pytorch=tied_by_pytorch,
    rivals=(),
)
