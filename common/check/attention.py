"""Attention in PyTorch: the reference of the days that compute it, and calls of one backend."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.base.outcome import Skip
from common.check.draw import Draw


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """o (B, H, S, D) and the log-sum-exp (B, H, S), in fp32 at least, of q (B, H, S, D) and k, v
    (B, H, T, D). With a causal mask, row i sees the keys j <= i + T - S, so that the last row sees
    all. A row that sees no key has o = 0 and the log-sum-exp -inf."""
    s = q @ k.mT / q.shape[-1] ** 0.5
    S, T = s.shape[2:]
    hidden = torch.full((S, T), causal, dtype=torch.bool, device=q.device).triu(T - S + 1)
    s = s.masked_fill(hidden, -torch.inf)
    wide = s.to(torch.promote_types(s.dtype, torch.float32))
    p = torch.softmax(s, -1).masked_fill(hidden.all(-1, keepdim=True), 0)  # rows without a key
    # A score of +inf makes the output NaN. In the kernels, whose exponentials are of differences to
    # the maximum, it makes the log-sum-exp NaN too.
    lse = wide.logsumexp(-1)
    return p @ v, lse.masked_fill(lse == torch.inf, torch.nan)


def attention_by(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """F.scaled_dot_product_attention by one backend; by any on the CPU, which has none of FLASH and
    cuDNN. options: as that function has them. Raises Skip where the backend refuses."""
    if q.is_cpu:
        return F.scaled_dot_product_attention(q, k, v, **options)
    try:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, **options)
    except RuntimeError as error:
        raise Skip(f"no {backend.name} here: {error}") from error


def ragged_lengths(draw: Draw, B: int, T: int) -> Tensor:
    """Tokens per sequence of a cache with room for T, (B) in int32. The first sequence fills it. Of
    several, some have a length below 0 or beyond T, which counts as 0 or as T. Where time is
    measured, all fill it."""
    lengths = draw(B, dtype="int32", low=0, high=T + 1)
    lengths[:1] = T
    if B > 2:
        lengths[0], lengths[-1] = T + 5, 0
    if B > 3:
        lengths[-2] = -3
    return lengths.fill_(T) if draw.fast else lengths


def unused(lengths: Tensor, T: int) -> Tensor:
    """(B, T): which tokens are beyond the length (B) of their sequence."""
    return torch.arange(T, device=lengths.device) >= lengths[:, None]
