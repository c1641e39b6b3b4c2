"""Day 20: the backward pass of FlashAttention-2, and cross-entropy with its gradient in place."""

if __name__ == "__main__":  # python days/day20/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day20

import torch

from common.day import peak_memory, print_table, seconds

from . import attention, linear, losses

TITLE = "FlashAttention-2 backward and fused cross-entropy"
TEACHES = "Two backward passes without their large matrices: recompute them, or overwrite the input"
TOPICS = ("attention", "FlashAttention", "cross-entropy", "backward", "autograd", "fusion")
SOURCE = "fa2_backward.cu"
EXTRA_SOURCES = ("naive_backward.cu", "fused_ce_loss.cu", "plain_ce_loss.cu", "linear_ce.cu")
INTRODUCES = ("recomputation", "delta", "in-place gradient", "cp.async")

PROBLEMS = (
    attention.with_gradient,
    attention.causal,
    attention.full,
    losses.smoothed,
    losses.row_by_row,
    losses.nothing,
    losses.scaling,
    losses.with_gradient,
    losses.rows_with_gradient,
    losses.loss,
    linear.with_gradient,
    linear.both_ways,
)


def megabytes(call, *arguments):
    return f"{peak_memory(lambda: call(*arguments)) / 1e6:.1f}"


def show_attention_memory(operators):
    def by_formula(q, k, v, go):
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        return torch.autograd.grad(attention.attention(*leaves)[0], leaves, go)

    def ours(backward):
        def both(q, k, v, go):
            o, lse = operators.attention(q, k, v)
            return backward(go, torch.zeros_like(lse), q, k, v, o, lse)

        return both

    rungs = [rung.name for rung in attention.full.rungs]
    contenders = [by_formula, *(ours(getattr(operators, name)) for name in rungs)]
    print("attention, forward and backward: peak memory for one head of 64 in fp32, MB")
    rows = []
    for S in (1024, 4096, 16384):
        tensors = [torch.randn(1, 1, S, 64, device="cuda") for _ in range(4)]
        rows.append([S, *(megabytes(call, *tensors) for call in contenders)])
    print_table(["S", "formula in PyTorch", "v1", "v2", "v3"], rows)


def show_attention_times(operators):
    print("attention backward alone, 1×16×4096×64, ms")
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v, go = (torch.randn(attention.LARGE, device="cuda", dtype=dtype) for _ in range(4))
        o, lse = operators.attention(q, k, v)
        given = (go, torch.zeros_like(lse), q, k, v, o, lse)
        leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
        graph = attention.sdpa(q, k, v)
        calls = (
            lambda given=given: operators.attention_backward_v2_two_walks(*given),
            lambda given=given: operators.attention_backward_v3_one_walk(*given),
            lambda graph=graph, leaves=leaves, go=go: torch.autograd.grad(
                graph, leaves, go, retain_graph=True
            ),
        )
        rows.append(
            [str(dtype).removeprefix("torch."), *(f"{seconds(c) * 1e3:.2f}" for c in calls)]
        )
    print_table(["", "v2", "v3", "SDPA"], rows)


def show_loss_memory(operators):
    rows, width, classes = 8192, 2048, 50304
    logits, hidden, weight = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((rows, classes), (rows, width), (classes, width))
    )
    target = torch.randint(classes, (rows,), device="cuda")
    loss, layer = (logits, target, losses.IGNORED, 0.0, "mean"), (hidden, weight, target, 2048)
    print(f"peak memory without the arguments, {rows}×{classes} bf16, MB")
    print_table(
        ["loss and gradient", "PyTorch", "in place", ""],
        [
            [
                "",
                megabytes(losses.both_by_pytorch, *loss),
                megabytes(operators.cross_entropy_v4_rows_ahead, *loss),
                "",
            ],
            [f"and a linear layer of {width}", "PyTorch", "whole", "chunks of 2048"],
            [
                "",
                megabytes(linear.both_by_pytorch, *layer),
                megabytes(operators.linear_v1_whole, *layer),
                megabytes(operators.linear_v2_chunked, *layer),
            ],
        ],
    )


def show(operators, device):
    """Prints peak memory."""
    if device.type == "cuda":
        show_attention_memory(operators)
        show_loss_memory(operators)


def show_times(operators, device):
    """Prints times of attention's backward pass in fp32 and bf16."""
    if device.type == "cuda":
        show_attention_times(operators)
