"""Day 15: FlashAttention-2 forward, first version."""

from dataclasses import replace
from functools import cache

import torch

from common.day import Case, Cost, Problem, Rung, Target, grid

TITLE = "FlashAttention-2 forward, first version"
TEACHES = "Attention by tiles and an online softmax, without the S×S matrix; register tiles"
TOPICS = ("attention", "FlashAttention", "softmax", "matmul", "tiling", "autograd")
SOURCE = "fa2_forward.cu"
INTRODUCES = ("attention", "FlashAttention", "log-sum-exp", "causal mask", "__launch_bounds__")

HALVES = ["float16", "bfloat16"]
FLOATS = ["float32", *HALVES]
# (B, H, S, D)
SHAPES = [
    (1, 1, 1, 1),
    (1, 2, 33, 32),
    (2, 1, 33, 64),
    (1, 1, 70, 80),
    (1, 1, 31, 128),
    (1, 1, 7, 5),
]
EMPTY = [(0, 2, 4, 8), (2, 2, 0, 8)]
LARGE = (1, 16, 4096, 64)


def inputs(causal):
    """q has the case's values, k and v normal ones: one NaN in a key makes every output NaN."""

    def of_case(case, draw):
        q = draw(*case.shape)
        k, v = (draw(*case.shape, values="normal") for _ in range(2))
        return q, k, v, causal

    return of_case


def scores(q, k, causal, first_key=0):
    """q · kᵀ / sqrt(D), and -inf where row i must not see key first_key + j."""
    s = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        i = torch.arange(s.shape[-2], device=q.device)
        j = torch.arange(s.shape[-1], device=q.device) + first_key
        s = s.masked_fill(j > i[:, None], -torch.inf)
    return s


def attention(q, k, v, causal=False):
    """The formula in PyTorch: s and p are stored as whole matrices."""
    return torch.softmax(scores(q, k, causal), -1) @ v


def reference(q, k, v, causal=False):
    s = scores(q, k, causal)
    wide = s.to(torch.promote_types(s.dtype, torch.float32))
    if s.numel() == 0:
        return torch.softmax(s, -1) @ v, wide.sum(-1)
    top = wide.amax(-1, keepdim=True).detach()
    return torch.softmax(s, -1) @ v, (wide - top).exp().sum(-1).log() + top.squeeze(-1)


def cost(case, share=1.0):
    """share: the part of the S×S matrix that the mask leaves."""
    B, H, S, D = case.shape
    element = getattr(torch, case.dtype).itemsize
    n = B * H * S
    return Cost(bytes=4 * n * D * element + 4 * n, flops=int(4 * n * S * D * share))


def causal_cost(case):
    return cost(case, share=0.5)


TILE = 256  # keys that the backward pass processes at once


@cache
def differentiable(name):
    """Registers the gradient in plain PyTorch, from o and lse; day 20 writes it as a kernel.

    It also processes one tile of keys at a time, so its memory grows with S, not with S².
    """

    def setup_context(ctx, inputs, output):
        q, k, v, ctx.causal = inputs
        ctx.save_for_backward(q, k, v, *output)

    def backward(ctx, go, glse):
        q, k, v, o, lse = (tensor.float() for tensor in ctx.saved_tensors)
        go = go.float()
        # The sum over a row of p · (gradient of p) equals the sum over D of o · go.
        delta = (o * go).sum(-1, keepdim=True)
        gq, gk, gv = torch.zeros_like(q), torch.empty_like(k), torch.empty_like(v)
        for j in range(0, k.shape[2], TILE):
            tile = slice(j, j + TILE)
            p = (scores(q, k[:, :, tile], ctx.causal, j) - lse[..., None]).exp()
            gs = p * (go @ v[:, :, tile].mT - delta + glse[..., None]) / q.shape[-1] ** 0.5
            gq += gs @ k[:, :, tile]
            gk[:, :, tile] = gs.mT @ q
            gv[:, :, tile] = p.mT @ go
        dtype = ctx.saved_tensors[0].dtype
        return gq.to(dtype), gk.to(dtype), gv.to(dtype), None

    torch.library.register_autograd(f"day15::{name}", backward, setup_context=setup_context)


def rung(name, idea, **options):
    def load(builder):
        differentiable(name)
        return getattr(torch.ops.day15, name)

    return Rung(name, idea, load=load, **options)


RUNGS = (
    rung("attention_v1_three_kernels", "product, softmax, product"),
    rung("attention_v2_tiled_online", "outer loop over keys, o in memory"),
    rung("attention_v3_fa2_order", "outer loop over rows, o in registers"),
    rung("attention_v4_register_tiles", "128 × 64 register tiles", target=Target(1.0, "pytorch")),
)


def problem(name, causal, rungs, cost):
    return Problem(
        name=name,
        inputs=inputs(causal),
        reference=reference,
        rungs=rungs,
        cases=(
            *grid(SHAPES, ["float32"]),
            *grid([(1, 2, 33, 32), (1, 1, 34, 72)], HALVES),
            *grid(EMPTY, ["float32"]),
            *grid([(1, 1, 130, 36)], ["float32"]),  # two tiles of rows, three of keys
        ),
        bench=Case(LARGE),
        bench_cpu=Case((1, 1, 128, 64)),
        cost=cost,
        pytorch=attention,
        gradients=True,
    )


# Without gradients: p = exp(s - lse) is only as exact as lse, which is in the hundreds here.
unusual = replace(
    problem("unusual numbers", False, tuple(replace(r, timed=False) for r in RUNGS), cost),
    cases=(
        *grid([(1, 1, 24, 16)], FLOATS, values="large"),
        *grid([(1, 1, 20, 8)], FLOATS, values="nonfinite"),
    ),
    gradients=False,
)

PROBLEMS = (
    unusual,
    problem("causal", True, RUNGS[2:], causal_cost),
    problem("attention", False, RUNGS, cost),
)


def show(operators, device):
    """Prints the memory that attention allocates, arguments excluded, for growing S."""
    if device.type != "cuda":
        return
    contenders = {
        "PyTorch": attention,
        "v1": operators.attention_v1_three_kernels,
        "v4": operators.attention_v4_register_tiles,
    }
    print("peak memory for one head with D = 64, MB, output included")
    print("      S" + "".join(f"{name:>10}" for name in contenders))
    for S in (1024, 2048, 4096, 8192, 16384):
        q, k, v = (torch.randn(1, 1, S, 64, device=device) for _ in range(3))
        line = f"{S:>7}"
        for call in contenders.values():
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call(q, k, v, False)
            torch.cuda.synchronize()
            line += f"{(torch.cuda.max_memory_allocated() - before) / 1e6:>10.1f}"
        print(line)
