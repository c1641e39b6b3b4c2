"""Day 40: mixture of experts."""

if __name__ == "__main__":  # python days/day40/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day40

import torch

from common.day import print_table, seconds

from . import experts, routing

TITLE = "Mixture of experts"
TEACHES = "Top-k gates, dispatch by atomics and by counting sort, one GEMM over groups of any size"
TOPICS = ("mixture of experts", "MoE", "top-k", "counting sort", "grouped GEMM", "tensor cores")
SOURCE = "moe.cu"
EXTRA_SOURCES = ("atomic_scatter.cu", "gate.cu", "dispatch.cu")
INTRODUCES = ("mixture of experts", "top-k gate", "counting sort", "grouped GEMM")

PROBLEMS = (
    routing.gating,
    routing.dispatching,
    routing.with_capacity,
    experts.layer,
    experts.with_capacity,
)


def timed_row(operators, name, x, logits, w1, w2, k):
    """One row of a table: the largest group, then ms of both dispatches and of the layer."""
    chosen = operators.gate_v3_eight_lanes(logits, k)[1]
    count = logits.shape[1]
    calls = (
        lambda: operators.dispatch_v1_atomics(chosen, count),
        lambda: operators.dispatch_v2_sorted(chosen, count),
        lambda: operators.moe_v3_grouped_gemm(x, logits, w1, w2, k),
        lambda: experts.grouped_mm(x, logits, w1, w2, k),
        lambda: experts.expert_loop(x, logits, w1, w2, k),
    )
    largest = int(chosen.flatten().bincount(minlength=count).max())
    return [name, largest, *(f"{seconds(call) * 1e3:.4f}" for call in calls)]


def show_times(operators, device):
    """Prints both dispatches and the layer for 64 to 16,384 tokens, then for groups less even."""
    if device.type != "cuda":
        return
    tokens, width, hidden, count, k = experts.layer.bench.shape
    w1 = torch.randn(count, width, hidden, device=device).bfloat16() / width**0.5
    w2 = torch.randn(count, hidden, width, device=device).bfloat16() / hidden**0.5
    favour = torch.linspace(3, 0, count, device=device)
    names = ["largest group", "dispatch v1", "dispatch v2", "layer v3", "grouped_mm", "loop"]

    def row(name, tokens, spread, scale):
        x = torch.randn(tokens, width, device=device).bfloat16()
        logits = spread * torch.randn(tokens, count, device=device) + scale * favour
        return timed_row(operators, name, x, logits, w1, w2, k)

    print(f"{count} experts, {k} per token, {width} and {hidden} columns, ms")
    print_table(["tokens", *names], [row(n, n, 1, 0) for n in (64, 256, 1024, 4096, 16384)])
    kinds = {"even": (1, 0), "skewed": (1, 1), "more skewed": (1, 4), "the same for all": (0, 1)}
    print(f"{tokens} tokens")
    print_table(["choices", *names], [row(name, tokens, *two) for name, two in kinds.items()])
