"""Day 27: the backward pass of attention on tensor cores."""

from functools import partial

import torch

from common.day import (
    Case,
    Cost,
    Library,
    Problem,
    Rung,
    Target,
    grid,
    peak_memory,
    print_table,
    seconds,
)

TITLE = "Attention backward on tensor cores"
TEACHES = "Five products per tile on tensor cores; equal bits in every run, and what they cost"
TOPICS = ("attention", "FlashAttention", "tensor cores", "backward", "autograd", "determinism")
SOURCE = "flash_attention_backward.cu"
INTRODUCES = ("deterministic", "transposed product")

HALVES = ["float16", "bfloat16"]
aten = torch.ops.aten
# (B, H, Sq, Sk, D): one row, several tiles, tails of 1 and 63, fewer and more keys than rows.
SHAPES = [
    (1, 1, 1, 1, 64),
    (1, 2, 33, 130, 64),
    (2, 1, 65, 127, 128),
    (1, 1, 193, 7, 128),
    (1, 2, 64, 64, 64),
]
EMPTY = [(0, 2, 4, 4, 64), (2, 2, 0, 3, 64), (2, 2, 3, 0, 128)]
CASES = (*grid(SHAPES, HALVES), *grid(EMPTY, ["bfloat16"]))
BENCH_CPU = Case((1, 1, 128, 128, 64), "bfloat16")
BENCH = Case((4, 16, 4096, 4096, 128), "bfloat16")


def scores(q, k, causal):
    """q · kᵀ / sqrt(D), and -inf where row i must not see key j > i + Sk - Sq."""
    s = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        ones = torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device)
        hidden = ones.triu(1 + k.shape[2] - q.shape[2])
        s = s.masked_fill(hidden, -torch.inf)
    return s


def probabilities(s, lse):
    """exp(s - lse), and 0 in a row that sees no key: its lse is -inf."""
    return (s - lse[..., None]).exp().masked_fill((lse == -torch.inf)[..., None], 0)


def attention(q, k, v, causal=False):
    """o, and lse in fp32 or wider, with whole matrices."""
    wide = torch.promote_types(q.dtype, torch.float32)
    s = scores(q.to(wide), k.to(wide), causal)
    lse = s.logsumexp(-1)
    return (probabilities(s, lse) @ v.to(wide)).to(q.dtype), lse


def reference(go, glse, q, k, v, o, lse, causal=False):
    """The formulas with whole matrices. As in every kernel on tensor cores, p and gs are rounded
    to the dtype of q before they are multiplied."""
    dtype = q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    go, q, k, v, o = (tensor.to(wide) for tensor in (go, q, k, v, o))
    p = probabilities(scores(q, k, causal), lse)
    gs = p * (go @ v.mT - ((o * go).sum(-1) - glse)[..., None])
    p, gs = (matrix.to(dtype).to(wide) for matrix in (p, gs))
    scale = q.shape[-1] ** -0.5
    return tuple(g.to(dtype) for g in (gs @ k * scale, gs.mT @ q * scale, p.mT @ go))


def drawn(case, draw):
    """go, q, k, v; of a case of "nonfinite" values, in about one row of q in eight."""
    B, H, Sq, Sk, D = case.shape
    go, q, k, v = (draw(B, H, S, D, values="normal") for S in (Sq, Sq, Sk, Sk))
    if case.values == "nonfinite":
        q[..., 0] = draw(B, H, Sq)
    return go, q, k, v


def inputs(causal, case, draw):
    go, q, k, v = drawn(case, draw)
    o, lse = attention(q, k, v, causal)
    glse = draw(*case.shape[:3], dtype="float32", values="normal")
    if case in (BENCH, BENCH_CPU):  # PyTorch's operator has no gradient of lse
        glse.zero_()
    return go, glse, q, k, v, o, lse, causal


def blind(case, draw):
    """Every third row sees no key, as the mask of a longer sequence may have it."""
    go, glse, q, k, v, o, lse, causal = inputs(False, case, draw)
    o[..., ::3, :], lse[..., ::3] = 0, -torch.inf
    return go, glse, q, k, v, o, lse, causal


def by_flash(go, glse, q, k, v, o, lse, causal=False):
    """PyTorch's FLASH backend, its backward pass alone. It has no glse to add."""
    if q.is_cpu:
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            go, q, k, v, o, lse, 0.0, causal
        )
    seed = torch.empty(2, dtype=torch.uint64, device=q.device)  # of dropout; unused
    return aten._scaled_dot_product_flash_attention_backward(
        go, q, k, v, o, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, seed, seed[0]
    )


def by_cudnn(go, glse, q, k, v, o, lse, causal=False):
    """The same of cuDNN."""
    seed = torch.empty((), dtype=torch.int64, device=q.device)
    return aten._scaled_dot_product_cudnn_attention_backward(
        *(go, q, k, v, o, lse[..., None], seed, seed, None, None, None),
        *(q.shape[2], k.shape[2], 0.0, causal),
    )


def cost(share, case):
    """share: the part of the Sq×Sk matrix that the mask leaves."""
    B, H, Sq, Sk, D = case.shape
    moved = (4 * Sq + 4 * Sk) * D * case.itemsize + 8 * Sq
    return Cost(B * H * moved, int(10 * B * H * Sq * Sk * D * share), "tensor")


RUNGS = (
    Rung("attention_backward_v1_two_passes", "two passes, seven products"),
    Rung("attention_backward_v2_pipelined", "loads in flight"),
    Rung(
        "attention_backward_v3_one_pass",
        "five products, gq by atomicAdd",
        not_repeatable="the order in which blocks add to gq varies",
        target=Target(0.8, "pytorch"),
    ),
)


def timed(name, causal, cases):
    return Problem(
        name,
        partial(inputs, causal),
        reference,
        RUNGS,
        cases,
        bench=BENCH,
        bench_cpu=BENCH_CPU,
        cost=partial(cost, 0.5 if causal else 1.0),
        pytorch=by_flash,
        libraries=(Library("cuDNN", by_cudnn),),
    )


PROBLEMS = (
    Problem("rows that see no key", blind, reference, RUNGS, CASES, timed=False),
    timed("causal backward", True, CASES),
    timed(
        "backward",
        False,
        (*CASES, *grid([(1, 1, 70, 66, 64)], HALVES, values="nonfinite")),
    ),
)
