"""The reference of attention."""

from __future__ import annotations

import pytest
import torch

from common.references import attention


@pytest.mark.parametrize("causal", [False, True])
def test_heads_may_be_computed_one_by_one(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(2, 3, n, 8, dtype=torch.float64) for n in (5, 7, 7))
    together = attention.attention(q, k, v, causal)
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", 10)
    for one, other in zip(together, attention.attention(q, k, v, causal), strict=True):
        torch.testing.assert_close(one, other)
