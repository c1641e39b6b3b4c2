"""The whole layer: cases, formulas, PyTorch's loop and its grouped GEMM, rungs."""

from itertools import pairwise

import torch
from torch.nn.functional import silu

from common.day import Case, Cost, Library, Problem, Rung, Skip, Target, Tolerance, grid

from .routing import dispatch, draw_logits, gate


def mixture_inputs(case, draw):
    """x (T, C), logits (T, E), fp32, w1 (E, C, H), w2 (E, H, C), k, and a capacity if the shape
    ends with one."""
    tokens, width, hidden, experts, k, *capacity = case.shape
    values = case.values if case.values in ("nonfinite", "large") else "normal"
    x = draw(tokens, width, values=values)
    if values == "large":
        x.mul_(1e5)  # sums beyond the range of fp16
    return (
        x,
        draw_logits(case, draw, tokens, experts, dtype="float32"),
        draw(experts, width, hidden, values="normal").mul_(max(width, 1) ** -0.5),
        draw(experts, hidden, width, values="normal").mul_(max(hidden, 1) ** -0.5),
        min(k, experts),
        *capacity,
    )


def mixture(x, logits, w1, w2, k, capacity=None):
    """Expert by expert: its slots' tokens, two products, and their weighted sum."""
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k: expected 1 to {logits.shape[1]}, got {k}")
    gates, experts = gate(logits, k)
    slots, _, offsets = dispatch(experts, len(w1), capacity)
    y = torch.zeros(x.shape, dtype=gates.dtype, device=x.device)
    for expert, (start, end) in enumerate(pairwise(offsets.tolist())):
        chosen = slots[start:end].long()
        results = silu(x[chosen // k] @ w1[expert]) @ w2[expert]
        y.index_add_(0, chosen // k, results * gates.flatten()[chosen, None])
    return y.to(x.dtype)


def sorted_slots(logits, k):
    """Gates (T, k), the slots in the order of their experts, and those experts."""
    values, experts = logits.topk(k)
    ordered, slots = experts.flatten().sort(stable=True)
    return values.softmax(1), slots, ordered


def combine(results, gates, slots):
    """The weighted sum per token of rows that belong to these slots."""
    in_order = torch.empty_like(results).index_copy_(0, slots, results)
    tokens, k = gates.shape
    rows = in_order.view(tokens, k, results.shape[1])
    return torch.bmm(gates.to(rows.dtype).unsqueeze(1), rows).squeeze(1)


def expert_loop(x, logits, w1, w2, k):
    """PyTorch's: rows grouped once, then a loop over the experts, each with two cuBLAS products."""
    gates, slots, ordered = sorted_slots(logits, k)
    counts = ordered.bincount(minlength=len(w1)).tolist()  # the host waits for these numbers
    rows = x[slots // k].split(counts)
    results = [silu(row @ a) @ b for row, a, b in zip(rows, w1, w2, strict=True)]
    return combine(torch.cat(results), gates, slots)


def grouped_mm(x, logits, w1, w2, k):
    """The same with PyTorch's grouped GEMM, which takes the ends of the groups as a tensor."""
    if not hasattr(torch, "_grouped_mm"):
        raise Skip(f"PyTorch {torch.__version__} has no torch._grouped_mm")
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < (8, 0):
        raise Skip("torch._grouped_mm needs compute capability 8.0")
    if x.shape[1] % 8 or w1.shape[2] % 8:
        raise Skip("torch._grouped_mm needs rows that are a multiple of 16 bytes long")
    gates, slots, ordered = sorted_slots(logits, k)
    experts = torch.arange(len(w1), device=x.device)
    ends = torch.searchsorted(ordered, experts, right=True, out_int32=True)
    hidden = silu(torch._grouped_mm(x[slots // k], w1, offs=ends))
    return combine(torch._grouped_mm(hidden, w2, offs=ends), gates, slots)


def cost(case):
    """Weights and x read once, y written once; four operations per slot and weight."""
    tokens, width, hidden, experts, k = case.shape
    weights = 2 * experts * width * hidden
    moved = (2 * tokens * width + weights) * case.itemsize + 4 * tokens * experts
    return Cost(bytes=moved, flops=4 * tokens * k * width * hidden, unit="tensor")


ROUNDED = Tolerance(factor=8, why="two products, with the rounding of the first in the second")
ANY_ORDER = "atomics add the slots of a token in any order, and each addition rounds"
# tokens, width, hidden, experts, k
SHAPES = [(1, 1, 1, 1, 1), (19, 72, 40, 5, 2), (37, 72, 136, 3, 3), (70, 15, 33, 40, 4)]
EMPTY = [(0, 8, 8, 2, 1), (5, 0, 8, 3, 2), (5, 8, 0, 3, 2)]
CASES = (
    *grid([*SHAPES, *EMPTY], ["bfloat16"]),
    *(Case((40, 16, 24, 6, 2), "bfloat16", v) for v in ("ties", "idle experts", "large")),
    *(Case((9, 72, 40, 4, 2), "bfloat16", v) for v in ("nonfinite", "large")),
    Case((300, 72, 40, 2, 1), "bfloat16", "one expert"),  # rows of three tiles
)

layer = Problem(
    name="mixture of experts",
    inputs=mixture_inputs,
    reference=mixture,
    rungs=(
        Rung("moe_v1_atomic_scatter", "slot by slot, added by atomics", not_repeatable=ANY_ORDER),
        Rung("moe_v2_sorted", "rows grouped by expert"),
        Rung("moe_v3_grouped_gemm", "tensor cores", target=Target(1.0, "grouped_mm")),
        Rung("moe_v3_any_order", "the same after a dispatch by atomics"),
    ),
    cases=CASES,
    bench=Case((2048, 2048, 1024, 64, 8), "bfloat16"),
    bench_cpu=Case((32, 64, 64, 4, 2), "bfloat16"),
    cost=cost,
    pytorch=expert_loop,
    pytorch_not_captured="the host waits for the number of rows of each expert",
    libraries=(Library("grouped_mm", grouped_mm),),
    tolerance=ROUNDED,
)

with_capacity = Problem(
    name="mixture of experts with capacity",
    inputs=mixture_inputs,
    reference=mixture,
    rungs=(Rung("moe_v3_capacity", "further slots of an expert are dropped"),),
    cases=(
        *grid([(19, 24, 40, 5, 2, 4), (37, 72, 136, 3, 3, 37), (9, 15, 33, 4, 2, 3)], ["bfloat16"]),
        *grid([(5, 8, 8, 3, 2, 0), (0, 8, 8, 2, 1, 1)], ["bfloat16"]),
        Case((300, 24, 40, 2, 1, 130), "bfloat16", "one expert"),
    ),
    timed=False,
    tolerance=ROUNDED,
)
