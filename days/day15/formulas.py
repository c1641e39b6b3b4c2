"""Attention by its formula and by PyTorch: inputs, results, gradients."""

import torch
import torch.nn.functional as F

from common.day import Cost
from common.references.attention import refuse_large_scores

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
    refuse_large_scores(s)
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
