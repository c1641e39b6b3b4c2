"""Day 15: FlashAttention-2 forward, first version."""

from functools import partial

import torch
import torch.nn.functional as F

from common.day import (
    Case,
    Cost,
    Exercise,
    Library,
    Problem,
    Rung,
    Target,
    grid,
    peak_memory,
    print_table,
)

TITLE = "FlashAttention-2 forward, first version"
TEACHES = "Attention by tiles and an online softmax, without the S×S matrix; register tiles"
TOPICS = ("attention", "FlashAttention", "softmax", "matmul", "tiling", "autograd")
SOURCE = "fa2_forward.cu"
EXTRA_SOURCES = ("naive_attention.cu", "register_tiles.cu")
INTRODUCES = ("attention", "FlashAttention", "log-sum-exp", "causal mask", "__launch_bounds__")

EXERCISE = Exercise(
    function="attend",
    first="// The first tile contains key 0",
    last="all lanes have read q and p before",
    task=(
        "The online softmax: from this lane's score s and the row's state, update row.max and "
        "row.sum, and rescale row.o before adding p · V of this tile, where p = exp(s - max)."
    ),
    hints=(
        "The maximum over this tile of keys and all tiles before. What was summed under the old "
        "maximum has to be expressed under the new one.",
        "exp(x - old) · exp(old - new) = exp(x - new). So row.sum and row.o are both multiplied "
        "by exp(old - new) before this tile's part is added. warp_max(s) and warp_sum(p) combine "
        "the 32 lanes, which have one key each.",
        "Lane l holds columns d = lane + 32 · c of row.o, c < COLUMNS and d < n.D. Put p into "
        "shared.p[lane], __syncwarp(), then add shared.p[k] * tile.v[k][d] for all KEYS keys. "
        "Another __syncwarp() at the end: the next row overwrites q and p.",
    ),
)

HALVES = ["float16", "bfloat16"]
# (B, H, S, D)
SHAPES = [
    (1, 1, 1, 1),
    (1, 2, 33, 32),
    (2, 1, 33, 64),
    (1, 1, 70, 80),
    (1, 1, 31, 128),
    (1, 1, 7, 5),
    (1, 1, 130, 36),  # two tiles of rows, three of keys
    (0, 2, 4, 8),
    (2, 2, 0, 8),
]
CASES = (*grid(SHAPES, ["float32"]), *grid([(1, 2, 33, 32), (1, 1, 34, 72)], HALVES))
UNUSUAL = (
    *grid([(1, 1, 24, 16)], ["float32", *HALVES], values="large"),
    *grid([(1, 1, 20, 8)], ["float32", *HALVES], values="nonfinite"),
)
STEPS = (
    *grid([(1, 2, 33, 32), (1, 1, 7, 5), (2, 2, 0, 8)], ["float32"]),
    *grid([(1, 1, 259, 4)], ["float32"]),  # two tiles of the backward pass
    *grid([(1, 1, 34, 72)], HALVES),
)
TILE = 256  # keys that the backward pass processes at once


def inputs(causal, case, draw):
    """q has the case's values, k and v normal ones: one NaN in a key makes every output NaN."""
    q = draw(*case.shape)
    k, v = (draw(*case.shape, values="normal") for _ in range(2))
    return q, k, v, causal


def scores(q, k, causal, first_key=0):
    """q · kᵀ / sqrt(D), and -inf where row i must not see key first_key + j."""
    s = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        i = torch.arange(s.shape[-2], device=q.device)
        j = torch.arange(s.shape[-1], device=q.device) + first_key
        s = s.masked_fill(j > i[:, None], -torch.inf)
    return s


def reference(q, k, v, causal=False):
    s = scores(q, k, causal)
    wide = s.to(torch.promote_types(s.dtype, torch.float32))
    if s.numel() == 0:
        return torch.softmax(s, -1) @ v, wide.sum(-1)
    top = wide.amax(-1, keepdim=True).detach()
    return torch.softmax(s, -1) @ v, (wide - top).exp().sum(-1).log() + top.squeeze(-1)


def formula(q, k, v, causal=False):
    """Naive attention: s and p are stored as whole matrices."""
    return torch.softmax(scores(q, k, causal), -1) @ v


def attention(q, k, v, causal=False):
    """PyTorch's own, which returns no log-sum-exp here. Its fp32 kernel runs on tensor cores."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def cost(share, case):
    """share: the part of the S×S matrix that the mask leaves."""
    B, H, S, D = case.shape
    n = B * H * S
    return Cost(bytes=4 * n * D * case.itemsize + 4 * n, flops=int(4 * n * S * D * share))


def saves(inputs, output):
    return *inputs, *output


def backward(saved, go, glse):
    """The gradient in plain PyTorch, from o and lse; day 20 writes it as a kernel.

    It also processes one tile of keys at a time, so its memory grows with S, not with S².
    """
    dtype, causal = saved[0].dtype, saved[3]
    q, k, v, o, lse, go = (t.float() for t in (*saved[:3], *saved[4:], go))
    # The sum over a row of p · (gradient of p) equals the sum over D of o · go.
    delta = (o * go).sum(-1, keepdim=True)
    gq, gk, gv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
    for j in range(0, k.shape[2], TILE):
        tile = slice(j, j + TILE)
        p = (scores(q, k[:, :, tile], causal, j) - lse[..., None]).exp()
        gs = p * (go @ v[:, :, tile].mT - delta + glse[..., None]) / q.shape[-1] ** 0.5
        gq += gs @ k[:, :, tile]
        gk[:, :, tile] = gs.mT @ q
        gv[:, :, tile] = p.mT @ go
    return gq.to(dtype), gk.to(dtype), gv.to(dtype), None


rung = partial(Rung, backward=backward, saves=saves)
RUNGS = (
    rung("attention_v1_three_kernels", "product, softmax, product"),
    rung("attention_v2_tiled_online", "outer loop over keys, o in memory"),
    rung("attention_v3_fa2_order", "outer loop over rows, o in registers"),
    rung("attention_v4_register_tiles", "128 × 64 register tiles", target=Target(1.0, "formula")),
)


def timed(name, causal, rungs):
    """The forward pass alone: the backward pass is not the kernels' own."""
    return Problem(
        name,
        partial(inputs, causal),
        reference,
        rungs,
        CASES,
        bench=Case((1, 16, 4096, 64)),
        bench_cpu=Case((1, 1, 128, 64)),
        cost=partial(cost, 0.5 if causal else 1.0),
        pytorch=attention,
        libraries=(Library("formula", formula),),
    )


checked = partial(Problem, reference=reference, timed=False)

PROBLEMS = (
    # Without gradients: p = exp(s - lse) is only as exact as lse, which is in the hundreds here.
    checked("unusual numbers", partial(inputs, False), rungs=RUNGS, cases=UNUSUAL),
    checked("gradients", partial(inputs, False), rungs=RUNGS, cases=STEPS, gradients=True),
    checked(
        "causal, gradients", partial(inputs, True), rungs=RUNGS[2:], cases=STEPS, gradients=True
    ),
    timed("causal", True, RUNGS[2:]),
    timed("attention", False, RUNGS),
)


def show(operators, device):
    """Prints the memory that attention allocates, arguments excluded, for growing S."""
    if device.type != "cuda":
        return
    contenders = {
        "formula": formula,
        "PyTorch": attention,
        "v1": operators.attention_v1_three_kernels,
        "v4": operators.attention_v4_register_tiles,
    }
    rows = []
    for S in (1024, 2048, 4096, 8192, 16384):
        qkv = [torch.randn(1, 1, S, 64, device=device) for _ in range(3)]
        peaks = [peak_memory(partial(call, *qkv, False)) for call in contenders.values()]
        rows.append((S, *(f"{peak / 1e6:.1f}" for peak in peaks)))
    print("peak memory for one head with D = 64, MB, output included")
    print_table(("S", *contenders), rows)
