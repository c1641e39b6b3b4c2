"""The operators of a day outside of a run: for a day that is also a command of its own."""

from __future__ import annotations

from typing import Any

import torch

from common.base.days import read_day
from common.base.paths import DAYS
from common.base.toolchain import detect
from common.build.library import build_library, load, plan
from common.check.device import make


def operators_of(number: int, device: str = "auto") -> tuple[Any, torch.device]:
    """torch.ops.dayNN, built if need be, and where their tensors have to be.

    device: "auto", "cuda" or "cpu", the CPU backend. Raises ToolchainError where that is not there,
    BuildError with the compiler's message.
    """
    platform = detect(device)
    todo = plan(read_day(DAYS / f"day{number:02d}"), platform)
    build_library(todo)
    make(platform)
    return load(todo), torch.device(platform.device)
