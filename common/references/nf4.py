"""Round blocks to NF4's or other levels, for the references of kernels that do so."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

_LARGEST = torch.finfo(torch.float32).max


def nf4_levels() -> Tensor:
    """Return the 16 levels, ascending, (16) fp32: 8 quantiles of the normal distribution above 0,
    0, and 7 below. Dettmers, Pagnoni, Holtzman, Zettlemoyer, "QLoRA: efficient finetuning of
    quantized LLMs", 2023."""
    quantile, most = NormalDist().inv_cdf, 0.9677083
    above = [quantile(p) for p in torch.linspace(most, 0.5, 9)[:-1].tolist()]
    below = [-quantile(p) for p in torch.linspace(most, 0.5, 8)[:-1].tolist()]
    values = torch.tensor(sorted([*above, 0.0, *below]), dtype=torch.float32)
    return values / values.max()


def in_blocks(x: Tensor, size: int) -> Tensor:
    """Return x, (n), as (⌈n / size⌉, size), padded with zeros."""
    return torch.nn.functional.pad(x, (0, -len(x) % size)).reshape(-1, size)


def block_codes(blocks: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of thresholds below each number over its block's absmax, and the absmaxes.

    blocks: (blocks, size) fp32. thresholds: ascending, fp32. Returns (blocks, size) int64 and
    (blocks) fp32. All steps are in fp32, so that a kernel's codes can be equal. A block that is not
    finite has the absmax NaN, and the codes of zeros, or 0 for the infinities and NaNs.
    """
    absmax = blocks.abs().amax(1)
    finite = absmax.isfinite()
    inverse = torch.where(finite, (1 / absmax).clamp(max=_LARGEST), 0)
    scaled = blocks * inverse[:, None]
    codes = torch.bucketize(scaled, thresholds).where(~scaled.isnan(), 0)
    return codes, absmax.where(finite, torch.nan)
