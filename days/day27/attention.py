"""Attention and its backward pass: formulas, inputs, PyTorch's calls."""

import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel

from common.day import Case, Cost
from common.references.attention import by_head, is_large

aten = torch.ops.aten
BENCH_CPU = Case((1, 1, 128, 128, 64), "bfloat16")


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
    if is_large(q, k):
        return by_head(attention, (q, k, v), causal)
    wide = torch.promote_types(q.dtype, torch.float32)
    s = scores(q.to(wide), k.to(wide), causal)
    lse = s.logsumexp(-1)
    return (probabilities(s, lse) @ v.to(wide)).to(q.dtype), lse


def reference(go, glse, q, k, v, o, lse, causal=False):
    """The formulas with whole matrices. As in every kernel on tensor cores, p and gs are rounded
    to the dtype of q before they are multiplied."""
    if is_large(q, k):
        return by_head(reference, (go, glse, q, k, v, o, lse), causal)
    dtype = q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    go, q, k, v, o = (tensor.to(wide) for tensor in (go, q, k, v, o))
    p = probabilities(scores(q, k, causal), lse)
    gs = p * (go @ v.mT - ((o * go).sum(-1) - glse)[..., None])
    p, gs = (matrix.to(dtype).to(wide) for matrix in (p, gs))
    scale = q.shape[-1] ** -0.5
    return tuple(g.to(dtype) for g in (gs @ k * scale, gs.mT @ q * scale, p.mT @ go))


def plain(q, k, v, causal=False):
    """The forward pass in the dtype of q, as PyTorch differentiates it."""
    s = scores(q, k, causal)
    return torch.softmax(s, -1) @ v, s.to(torch.promote_types(s.dtype, torch.float32)).logsumexp(-1)


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
    if case == BENCH_CPU or case.shape[2] >= 4096:  # PyTorch's operator has no gradient of lse
        glse.zero_()
    return go, glse, q, k, v, o, lse, causal


def blind(case, draw):
    """Every third row sees no key, as the mask of a longer sequence may have it."""
    go, glse, q, k, v, o, lse, causal = inputs(False, case, draw)
    o[..., ::3, :], lse[..., ::3] = 0, -torch.inf
    return go, glse, q, k, v, o, lse, causal


def qkv(case, draw):
    B, H, Sq, Sk, D = case.shape
    return draw(B, H, Sq, D), draw(B, H, Sk, D), draw(B, H, Sk, D), False


def sdpa(backend, q, k, v, causal=False):
    """PyTorch's forward and, by autograd, backward pass. The CPU has none of these backends."""
    if q.is_cpu:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


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


def gradient(saved, go, glse):
    """The backward pass of the operator `attention`, as PyTorch's setting says."""
    *tensors, causal = saved
    operators = torch.ops.day27
    fast = operators.attention_backward_v3_one_pass
    same_bits = operators.attention_backward_v2_pipelined
    backward = same_bits if torch.are_deterministic_algorithms_enabled() else fast
    return *backward(go, glse, *tensors, causal), None
