"""Attention and its backward pass: cases, formulas, rungs."""

import torch

from common.day import HALVES, Case, Cost, Problem, Rung, grid

LARGE = (1, 16, 4096, 64)  # B, H, S, D
LARGE_CPU = (1, 1, 128, 64)
HEADS = [(1, 1, 1, 1), (2, 1, 70, 64), (1, 1, 66, 65), (1, 1, 31, 128), (1, 1, 7, 5)]
EMPTY = [(0, 2, 4, 8), (2, 2, 0, 8)]
SMALL = (*grid([(1, 2, 33, 32)], ["float32"]), *grid([(1, 1, 34, 72)], HALVES))
TILES = grid([(1, 1, 130, 36)], ["float32"])  # three tiles of rows and of keys


def scores(q, k, causal):
    """q · kᵀ / sqrt(D), and -inf where the mask hides a key."""
    s = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        s = s.masked_fill(hidden, -torch.inf)
    return s


def attention(q, k, v, causal=False):
    """o, and lse in fp32 or wider, with whole matrices."""
    s = scores(q, k, causal)
    wide = s.to(torch.promote_types(s.dtype, torch.float32))
    lse = wide.logsumexp(-1) if s.numel() else wide.sum(-1)
    return torch.softmax(s, -1) @ v, lse


def sdpa(q, k, v, causal=False):
    """PyTorch's fused kernels, forward and, by autograd, backward. They do not return lse."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def attention_gradients(go, glse, q, k, v, o, lse, causal=False):
    """The gradients of q, k and v by the formulas, with p and gs as whole matrices."""
    dtype = q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    go, q, k, v, o = (tensor.to(wide) for tensor in (go, q, k, v, o))
    p = (scores(q, k, causal) - lse[..., None]).exp()
    delta = (o * go).sum(-1)
    gs = p * (go @ v.mT - delta[..., None] + glse[..., None]) / q.shape[-1] ** 0.5
    return tuple(g.to(dtype) for g in (gs @ k, gs.mT @ q, p.mT @ go))


def sdpa_backward(go, glse, q, k, v, o, lse, causal=False):
    """The backward kernel of `sdpa` alone, from the same o and lse. It takes glse as 0."""
    aten = torch.ops.aten
    if q.is_cpu:
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return backward(go, q, k, v, o, lse, 0.0, causal)
    unused = torch.empty((), dtype=torch.int64, device=q.device)  # the seed of dropout
    backward = aten._scaled_dot_product_efficient_attention_backward
    of_qkv = [True, True, True, False]
    return backward(go, q, k, v, None, o, lse, unused, unused, 0.0, of_qkv, causal)[:3]


def inputs(causal):
    def of_case(case, draw):
        q = draw(*case.shape)
        k, v = (draw(*case.shape, values="normal") for _ in range(2))
        return q, k, v, causal

    return of_case


def backward_inputs(causal):
    """o and lse of q, k and v, and a gradient of each."""

    def of_case(case, draw):
        q, k, v, _ = inputs(causal)(case, draw)
        o, lse = (tensor.contiguous() for tensor in attention(q, k, v, causal))
        go = draw(*case.shape, values="normal")
        glse = draw(*case.shape[:3], dtype="float32", values="normal")
        if case.shape in (LARGE, LARGE_CPU):  # timed beside SDPA, which adds no glse
            glse.zero_()
        return go, glse, q, k, v, o, lse, causal

    return of_case


def cost(products, tensors, share=1.0):
    """products: of an S×S matrix with one (S, D). share: of that matrix that the mask leaves."""

    def of_case(case):
        B, H, S, D = case.shape
        n = B * H * S
        moved = tensors * n * D * case.itemsize + 8 * n
        return Cost(bytes=moved, flops=int(2 * products * n * S * D * share))

    return of_case


def two_walks(saved, go, glse):
    *tensors, causal = saved
    backward = torch.ops.day20.attention_backward_v2_two_walks
    return *backward(go, glse, *tensors, causal=causal), None


with_gradient = Problem(
    name="attention with its gradient",
    inputs=inputs(False),
    reference=attention,
    rungs=(
        Rung(
            "attention",
            "forward; backward is v2",
            backward=two_walks,
            saves=lambda inputs, output: (*inputs[:3], *output, inputs[3]),
        ),
    ),
    cases=(*grid([*HEADS, *EMPTY], ["float32"]), *grid([(1, 1, 34, 72)], HALVES)),
    bench=Case(LARGE),
    bench_cpu=Case(LARGE_CPU),
    cost=cost(products=7, tensors=12),  # forward 2 and 4, backward 5 and 8
    pytorch=sdpa,
    gradients=True,
)


def backward_problem(name, causal, share, cases):
    return Problem(
        name=name,
        inputs=backward_inputs(causal),
        reference=attention_gradients,
        rungs=(
            Rung("attention_backward_v1_naive", "p and gs whole in memory"),
            Rung("attention_backward_v2_two_walks", "tiles; p computed twice"),
            Rung(
                "attention_backward_v3_one_walk",
                "tiles; gq by atomicAdd",
                not_repeatable="the order in which blocks add to gq varies",
            ),
        ),
        cases=cases,
        bench=Case(LARGE),
        bench_cpu=Case(LARGE_CPU),
        cost=cost(products=5, tensors=8, share=share),
        pytorch=sdpa_backward,
    )


causal = backward_problem("causal backward", True, 0.5, (*SMALL, *TILES))
full = backward_problem(
    "attention backward",
    False,
    1.0,
    (
        *grid([*HEADS, *EMPTY], ["float32"]),
        *SMALL,
        *TILES,
        *grid([(1, 1, 20, 8)], ["float32", "bfloat16"], values="nonfinite"),
    ),
)
