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
EQUIVALENT = {  # mutants that compute the same, and why
    "moe.cu: find_tile: comparison: `e0 < num_experts` -> `e0 <= num_experts`": (
        "a further round finds no experts, so no tiles"
    ),
    "moe.cu: on_tensor_cores: validation dropped: "
    '`require_capability(8, 0, "mma of bf16 and cp.async")` -> ``': (
        "cards before 8.0 that the days support have too little shared memory as well"
    ),
    "atomic_scatter.cu: check_mixture: contiguity check dropped: "
    '`check(logits, "logits").on_gpu().dtype({ScalarType::Float}).rank(2).contiguous()` -> '
    '`check(logits, "logits").on_gpu().dtype({ScalarType::Float}).rank(2)`': (
        "the gate checks it again, and where y is empty, nothing reads the logits"
    ),
    "gate.cu: gate_kernel: initial value: `float largest = 0` -> `float largest = 1`": (
        "the first round sets it before it is read"
    ),
    'dispatch.cu: new_groups: device check dropped: `check(experts, "experts").on_gpu()` -> '
    '`check(experts, "experts")`': (
        "the only tensor of a dispatch is on the GPU, and the layers pass on what the gate made"
    ),
    'gate.cu: gate: device check dropped: `check(logits, "logits").on_gpu()` -> '
    '`check(logits, "logits")`': (
        "the only tensor of the gates is on the GPU, and the layers check theirs before"
    ),
}

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


def timed_row(operators, name, tensors, k):
    """One row of a table: the largest group, then ms of both dispatches and of the layer."""
    logits = tensors[1]
    chosen = operators.gate_v3_eight_lanes(logits, k)[1]
    count = logits.shape[1]
    calls = (
        lambda: operators.dispatch_v1_atomics(chosen, count),
        lambda: operators.dispatch_v2_sorted(chosen, count),
        lambda: operators.moe_v3_grouped_gemm(*tensors, k),
        lambda: experts.grouped_mm(*tensors, k),
        lambda: experts.expert_loop(*tensors, k),
    )
    largest = int(chosen.flatten().bincount(minlength=count).max())
    return [name, largest, *(f"{seconds(call) * 1e3:.4f}" for call in calls)]


def show(operators, device):
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
        return timed_row(operators, name, (x, logits, w1, w2), k)

    print(f"{count} experts, {k} per token, {width} and {hidden} columns, ms")
    print_table(["tokens", *names], [row(n, n, 1, 0) for n in (64, 256, 1024, 4096, 16384)])
    kinds = {"even": (1, 0), "skewed": (1, 1), "more skewed": (1, 4), "the same for all": (0, 1)}
    print(f"{tokens} tokens")
    print_table(["choices", *names], [row(name, tokens, *two) for name, two in kinds.items()])
