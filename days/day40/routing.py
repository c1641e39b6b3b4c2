"""Gate and dispatch: cases, formulas, rungs."""

from itertools import pairwise

import torch

from common.day import FLOATS, Case, Cost, Problem, Rung, grid


def draw_logits(case, draw, tokens, experts, **options):
    """(tokens, experts) logits; case.values may name a distribution of tokens over experts."""
    shaped = case.values in ("ties", "one expert", "idle experts")
    logits = draw(tokens, experts, **{**options, **({"values": "normal"} if shaped else {})})
    if case.values == "ties":
        logits.round_()  # a few numbers for many experts; zeros of both signs among them
    if case.values == "one expert":
        logits[:, experts // 2] = 100
    if case.values == "idle experts":
        logits[:, ::2] = -100
    return logits


def gate_inputs(case, draw):
    tokens, experts, k = case.shape
    return draw_logits(case, draw, tokens, experts), min(k, experts)


def gate(logits, k):
    """The k largest logits in the order of torch.sort(descending=True, stable=True): of equal ones
    the lower expert first, NaN before all others. torch.topk leaves the order of equal ones open.
    """
    # torch.sort on a GPU puts a NaN with its sign bit set last; this one has no sign.
    logits = torch.where(logits.isnan(), float("nan"), logits)
    values, experts = logits.sort(dim=1, descending=True, stable=True)
    values = values[:, :k].to(torch.promote_types(logits.dtype, torch.float32))
    return values.softmax(1), experts[:, :k].int()


def gate_by_topk(logits, k):
    values, experts = logits.topk(k)
    return values.float().softmax(1), experts


def gate_cost(case):
    tokens, experts, k = case.shape
    return Cost(bytes=tokens * (experts * case.itemsize + 8 * k), flops=tokens * experts * k)


gating = Problem(
    name="gate",
    inputs=gate_inputs,
    reference=gate,
    rungs=(
        Rung("gate_v1_thread", "one thread per token"),
        Rung("gate_v2_warp", "one warp per token"),
        Rung("gate_v3_eight_lanes", "eight lanes per token"),
    ),
    cases=(
        *grid([(1, 1, 1), (33, 7, 2), (5, 64, 8), (3, 65, 65), (300, 9, 1), (0, 8, 2)], FLOATS),
        *(Case((40, 37, 9), dtype, values) for dtype in FLOATS for values in ("ties", "nonfinite")),
        *grid([(17, 40, 5)], FLOATS, values="constant"),
        *grid([(9, 300, 4)], ["float32"], values="extreme"),
    ),
    bench=Case((65536, 64, 8), "float32"),
    bench_cpu=Case((256, 64, 8), "float32"),
    cost=gate_cost,
    pytorch=gate_by_topk,
)


def drawn_experts(case, draw):
    """(tokens, k) numbers of experts; "masked": some of them are below or above all experts."""
    tokens, k, experts, *_ = case.shape
    beyond = case.values == "masked"
    chosen = draw(tokens, k, dtype="int32", values="normal", low=-beyond, high=experts + beyond)
    if case.values == "one expert":
        chosen.fill_(experts // 2)
    if case.values == "idle experts":
        chosen[chosen % 2 == 0] = experts - 1
    return chosen


def dispatch_inputs(case, draw):
    return drawn_experts(case, draw), case.shape[2]


def capacity_inputs(case, draw):
    return drawn_experts(case, draw), case.shape[2], case.shape[3]


def dispatch(experts, num_experts, capacity=None):
    """slots (S), rows (T, k), offsets (num_experts + 1): groups in the order of the slots."""
    flat = experts.flatten().long()
    slots, parts, offsets = torch.arange(len(flat), device=flat.device), [], [0]
    for expert in range(num_experts):
        parts.append(slots[flat == expert][:capacity])
        offsets.append(offsets[-1] + len(parts[-1]))
    kept = torch.cat(parts)
    rows = torch.full_like(flat, -1)
    rows[kept] = torch.arange(len(kept), device=flat.device)
    padded = torch.cat([kept, kept.new_full((len(flat) - len(kept),), -1)])
    ends = torch.tensor(offsets, dtype=torch.int32, device=flat.device)
    return padded.int(), rows.view(experts.shape).int(), ends


def dispatch_by_sort(experts, num_experts):
    """PyTorch's: a stable sort of all slots, its inverse, and a search for each expert's end."""
    flat = experts.flatten()
    ordered, slots = flat.sort(stable=True)
    rows = torch.empty_like(slots)
    rows[slots] = torch.arange(len(slots), device=slots.device)
    ends = torch.arange(num_experts + 1, device=slots.device, dtype=flat.dtype)
    return slots, rows.view(experts.shape), torch.searchsorted(ordered, ends)


def as_sets(builder):
    """Dispatch by atomics with each group sorted: which of its slots has which row is left open.

    Raises ValueError where `slots` and `rows` do not belong together.
    """
    operator = builder.operators().dispatch_v1_atomics

    def call(experts, num_experts):
        slots, rows, offsets = operator(experts, num_experts)
        used = slots[: int(offsets[-1])].long()
        numbers = torch.arange(len(used), device=rows.device)
        if not torch.equal(rows.flatten()[used].long(), numbers):
            raise ValueError("experts: the operator's slots and rows do not belong together")
        if int((rows >= 0).sum()) != len(used):
            raise ValueError("experts: the operator gives another slot the same row")
        ends = offsets.tolist()
        groups = [slots[a:b].sort()[0] for a, b in pairwise(ends)]
        kept = torch.cat([*groups, slots[ends[-1] :]])
        none = torch.full_like(rows.flatten(), -1)
        placed = none.scatter(0, kept[: ends[-1]].long(), numbers.int())
        return kept, placed.view(rows.shape), offsets

    return call


SHAPES = [(1, 1, 1), (33, 2, 7), (130, 8, 64), (1025, 1, 5), (700, 3, 33), (3, 2, 1024), (0, 2, 4)]
SKEWED = ("one expert", "idle experts", "masked")
DISPATCHED = (
    *grid(SHAPES, ["int32"]),
    *(Case((350, 3, 40), "int32", values) for values in SKEWED),
)


def dispatch_cost(case):
    tokens, k, experts, *_ = case.shape
    return Cost(bytes=tokens * k * 12 + 4 * (experts + 1))


dispatching = Problem(
    name="dispatch",
    inputs=dispatch_inputs,
    reference=dispatch,
    rungs=(
        Rung(
            "dispatch_v1_atomics",
            "groups in any order, compared as sets",
            load=as_sets,
            timed=False,
            not_captured="the comparison as sets reads how many slots have an expert",
        ),
        Rung("dispatch_v2_sorted", "counting sort, groups in the order of the slots"),
    ),
    cases=DISPATCHED,
    bench=Case((2048, 8, 64), "int32"),
    bench_cpu=Case((128, 8, 64), "int32"),
    cost=dispatch_cost,
    pytorch=dispatch_by_sort,
    outputs_exact=True,
)

with_capacity = Problem(
    name="dispatch with capacity",
    inputs=capacity_inputs,
    reference=dispatch,
    rungs=(Rung("dispatch_v2_capacity", "an expert keeps its first slots"),),
    cases=(
        *grid([(1, 1, 1, 1), (130, 8, 64, 15), (700, 3, 33, 0), (0, 2, 4, 3)], ["int32"]),
        *(Case((350, 3, 40, 20), "int32", values) for values in SKEWED),
        Case((2100, 1, 3, 1025), "int32", "one expert"),  # more than a tile of the sort keeps
    ),
    timed=False,
    outputs_exact=True,
)
