"""Day 40: mixture of experts."""

import torch

from common.day import Exercise, print_table, seconds

from . import experts, routing

TITLE = "Mixture of experts"
TEACHES = "Top-k gates, dispatch by atomics and by counting sort, one GEMM over groups of any size"
TOPICS = ("mixture of experts", "MoE", "top-k", "counting sort", "grouped GEMM", "tensor cores")
SOURCE = "moe.cu"
EXTRA_SOURCES = ("atomic_scatter.cu", "gate.cu", "dispatch.cu")
INTRODUCES = ("mixture of experts", "top-k gate", "counting sort", "grouped GEMM")

EXERCISE = Exercise(
    function="find_tile",
    task=(
        "Find the expert and the rows of tile number `tile`. Groups are cut into tiles of M rows, "
        "and each group begins a new tile. All lanes of the warp return the same; count is 0 "
        "where there is no such tile."
    ),
    hints=(
        "A group of r rows has how many tiles, if the last one may be partly filled? Which expert "
        "is the first whose tiles, together with those of all experts before it, are more than "
        "`tile`?",
        "Let lane l look at expert e0 + l. warp_inclusive_scan (day 23) adds up the tiles, a "
        "ballot of end > tile says which experts reach the tile, and the lowest such lane has it. "
        "If none does, go on with the next 32 experts and the tiles before them.",
        "found = __ffs(ballot) - 1. Get that lane's first row, its rows and its (end - tiles) by "
        "__shfl_sync. skipped = (tile - (end - tiles)) * M rows of the group are in tiles before: "
        "return expert e0 + found, first + skipped, and min(M, rows - skipped).",
    ),
)

PROBLEMS = (
    routing.gating,
    routing.dispatching,
    routing.with_capacity,
    experts.layer,
    experts.with_capacity,
)


def show(operators, device):
    """Prints both dispatches and the whole layer, from even groups to all tokens on one expert."""
    if device.type != "cuda":
        return
    tokens, width, hidden, count, k = experts.layer.bench.shape
    x = torch.randn(tokens, width, device=device).bfloat16()
    w1 = torch.randn(count, width, hidden, device=device).bfloat16() / width**0.5
    w2 = torch.randn(count, hidden, width, device=device).bfloat16() / hidden**0.5
    noise = torch.randn(tokens, count, device=device)
    favour = torch.linspace(2, 0, count, device=device)
    kinds = {
        "even": noise,
        "skewed": noise + favour,
        "more skewed": noise + 3 * favour,
        "same 8 experts": noise * 0 + favour,
    }
    rows = []
    for name, logits in kinds.items():
        chosen = operators.gate_v3_eight_lanes(logits, k)[1]
        largest = int(chosen.flatten().bincount(minlength=count).max())
        calls = [
            lambda c=chosen: operators.dispatch_v1_atomics(c, count),
            lambda c=chosen: operators.dispatch_v2_sorted(c, count),
            lambda a=logits: operators.moe_v3_grouped_gemm(x, a, w1, w2, k),
            lambda a=logits: experts.grouped_mm(x, a, w1, w2, k),
            lambda a=logits: experts.expert_loop(x, a, w1, w2, k),
        ]
        rows.append([name, largest, *(f"{seconds(call) * 1e3:.4f}" for call in calls)])
    names = ["dispatch v1", "dispatch v2", "layer v3", "grouped_mm", "loop"]
    print(f"{tokens} tokens, {count} experts, {k} per token, ms")
    print_table(["tokens over experts", "largest group", *names], rows)
