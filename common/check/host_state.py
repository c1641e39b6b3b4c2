"""The state of the calling thread and process that a call must leave as it was."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

_LIBM = ctypes.CDLL("libm.so.6")
_ROUNDINGS = ("to nearest", "downward", "upward", "toward zero")  # of x86: 0x400 apart
_ROUNDING_STEP = 0x400


@dataclass(frozen=True)
class HostState:
    """rounding: the mode of floating-point arithmetic. flushed: denormals count as zero. directory:
    the working directory. device: the current one of CUDA, 0 without a GPU."""

    rounding: int
    flushed: bool
    directory: str
    device: int

    @classmethod
    def now(cls) -> HostState:
        smallest = sys.float_info.min
        on_gpu = torch.cuda.is_initialized()
        return cls(
            _LIBM.fegetround(),
            smallest / 2 == 0,
            os.getcwd(),
            torch.cuda.current_device() if on_gpu else 0,
        )

    def restore(self) -> None:
        _LIBM.fesetround(self.rounding)
        torch.set_flush_denormal(self.flushed)
        os.chdir(self.directory)
        if torch.cuda.is_initialized():
            torch.cuda.set_device(self.device)

    def changes(self, after: HostState) -> list[str]:
        """Return a line for each part that differs in `after`."""
        mine, theirs = self._words(), after._words()
        return [
            f"{name}: {mine[name]} before the call, {theirs[name]} after it"
            for name in mine
            if mine[name] != theirs[name]
        ]

    def _words(self) -> dict[str, str]:
        return {
            "rounding mode": _ROUNDINGS[self.rounding // _ROUNDING_STEP],
            "denormals": "flushed to zero" if self.flushed else "kept",
            "working directory": self.directory,
            "current device": str(self.device),
        }


@contextmanager
def unchanged(changes: list[str]) -> Iterator[None]:
    """Append to `changes` a line for each part of the state that the body leaves changed, and
    restore it."""
    before = HostState.now()
    try:
        yield
    finally:
        after = HostState.now()
        if after != before:
            changes += before.changes(after)
            before.restore()


def descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
