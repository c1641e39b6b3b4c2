"""Register the backward of a rung, as `Rung.backward` and `Rung.saves` declare it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from common.base.declaration import Rung


@cache
def differentiable(namespace: str, rung: Rung) -> None:
    """Make torch.ops.<namespace>.<rung> differentiable; once per process.

    Source: torch.library.register_autograd.
    """
    backward, saves = rung.backward, rung.saves
    assert backward and saves

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        saved = saves(inputs, output)
        ctx.save_for_backward(*(item for item in saved if isinstance(item, torch.Tensor)))
        # None replaces each tensor, which autograd itself has to hold.
        ctx.plain = [None if isinstance(item, torch.Tensor) else item for item in saved]
        ctx.places = [i for i, item in enumerate(saved) if isinstance(item, torch.Tensor)]

    def run(ctx: Any, *upstream: Any) -> Any:
        saved = list(ctx.plain)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            saved[place] = tensor
        dense = [g.contiguous() if isinstance(g, torch.Tensor) else g for g in upstream]
        return backward(tuple(saved), *dense)

    torch.library.register_autograd(f"{namespace}::{rung.name}", run, setup_context=setup_context)
