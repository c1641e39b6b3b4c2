"""Compute attention in PyTorch: the reference of several days, and calls of a single backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from common.base.outcome import Skip
from common.check.draw import Draw

# For all heads. More are computed head by head: in float64 they would fill a GPU, of which other
# processes have a part.
SCORES_AT_ONCE = 1 << 29

# FlashAttention's exp2(score · scale - maximum) rounds once, the maximum was rounded before: the
# exponent is off by that rounding error, which is far from 0 for larger scores.
LARGEST_SCORE = 1e9


def is_large(q: Tensor, k: Tensor) -> bool:
    """Return True if q (B, H, S, D) and k (B, H, T, D) have too many scores for all heads."""
    return q.shape[1] > 1 and q.shape[:3].numel() * k.shape[2] > SCORES_AT_ONCE


def by_head(
    function: Callable[..., tuple[Tensor, ...]], tensors: tuple[Tensor, ...], causal: bool
) -> tuple[Tensor, ...]:
    """Return function(*tensors, causal), called for one head of the tensors (B, H, …) at a time."""
    heads = zip(*(tensor.split(1, 1) for tensor in tensors), strict=True)
    parts = [function(*head, causal) for head in heads]
    return tuple(torch.cat(part, 1) for part in zip(*parts, strict=True))


def refuse_large_scores(scores: Tensor) -> None:
    """Raise ValueError for finite scores beyond LARGEST_SCORE."""
    largest = torch.where(scores.isinf(), 0, scores).abs().amax() if scores.numel() else 0
    if largest > LARGEST_SCORE:
        raise ValueError(f"scores beyond {LARGEST_SCORE:g} are not computed, got {largest:g}")


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Return o (B, H, S, D) and the log-sum-exp (B, H, S), in fp32 at least, of q (B, H, S, D) and
    k, v (B, H, T, D). With a causal mask, row i uses the keys j <= i + T - S, so that the last row
    uses all. A row without keys has o = 0 and the log-sum-exp -inf. Raise ValueError for scores
    beyond LARGEST_SCORE."""
    if is_large(q, k):
        o, lse = by_head(attention, (q, k, v), causal)
        return o, lse
    s = q @ k.mT / q.shape[-1] ** 0.5
    refuse_large_scores(s)
    S, T = s.shape[2:]
    hidden = torch.full((S, T), causal, dtype=torch.bool, device=q.device).triu(T - S + 1)
    s = s.masked_fill(hidden, -torch.inf)
    wide = s.to(torch.promote_types(s.dtype, torch.float32))
    p = torch.softmax(s, -1).masked_fill(hidden.all(-1, keepdim=True), 0)  # rows without a key
    # A score of +inf makes the output NaN. In the kernels, whose exponentials are of differences to
    # the maximum, it makes the log-sum-exp NaN too.
    lse = wide.logsumexp(-1)
    return p @ v, lse.masked_fill(lse == torch.inf, torch.nan)


# The functions that query and set each backend's switch. torch.nn.attention.sdpa_kernel
# sets the switches too, but takes the host 10 µs, which would count as PyTorch's.
_SWITCHES = {
    SDPBackend.FLASH_ATTENTION: (torch._C._get_flash_sdp_enabled, torch._C._set_sdp_use_flash),
    SDPBackend.CUDNN_ATTENTION: (torch._C._get_cudnn_sdp_enabled, torch._C._set_sdp_use_cudnn),
    SDPBackend.MATH: (torch._C._get_math_sdp_enabled, torch._C._set_sdp_use_math),
    SDPBackend.EFFICIENT_ATTENTION: (
        torch._C._get_mem_efficient_sdp_enabled,
        torch._C._set_sdp_use_mem_efficient,
    ),
}


def attention_by(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Return F.scaled_dot_product_attention by one backend; by any on the CPU, which lacks FLASH
    and cuDNN. options: of that function. Raise Skip if the backend refuses."""
    if q.is_cpu:
        return F.scaled_dot_product_attention(q, k, v, **options)
    before = [is_on() for is_on, _ in _SWITCHES.values()]
    for each, (_, switch) in _SWITCHES.items():
        switch(each is backend)
    try:
        return F.scaled_dot_product_attention(q, k, v, **options)
    except RuntimeError as error:
        raise Skip(f"no {backend.name} here: {error}") from error
    finally:
        for (_, switch), on in zip(_SWITCHES.values(), before, strict=True):
            switch(on)


def ragged_lengths(draw: Draw, B: int, T: int) -> Tensor:
    """Return tokens per sequence of a cache for T tokens, (B) in int32. The first sequence fills
    it. Some others have a length below 0 or beyond T, which counts as 0 or as T. For timing, all
    fill it."""
    lengths = draw(B, dtype="int32", low=0, high=T + 1)
    lengths[:1] = T
    if B > 2:
        lengths[0], lengths[-1] = T + 5, 0
    if B > 3:
        lengths[-2] = -3
    return lengths.fill_(T) if draw.fast else lengths


def unused(lengths: Tensor, T: int) -> Tensor:
    """Return a bool mask (B, T) of the tokens beyond the length (B) of their sequence."""
    return torch.arange(T, device=lengths.device) >= lengths[:, None]
