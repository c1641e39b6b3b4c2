"""The state of the calling thread and process that a call must leave as it was."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

_LIBM = ctypes.CDLL("libm.so.6")


@dataclass(frozen=True)
class HostState:
    """rounding: the mode of floating-point arithmetic. mode: its number for fesetround. flushed:
    denormals count as zero. directory: the working directory. device: the current one of CUDA, 0
    without a GPU."""

    rounding: str
    mode: int
    flushed: bool
    directory: str
    device: int

    @classmethod
    def now(cls) -> HostState:
        smallest = sys.float_info.min
        on_gpu = torch.cuda.is_initialized()
        return cls(
            rounding_mode(),
            _LIBM.fegetround(),
            smallest / 2 == 0,
            os.getcwd(),
            torch.cuda.current_device() if on_gpu else 0,
        )

    def restore(self) -> None:
        _LIBM.fesetround(self.mode)
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
            "rounding mode": self.rounding,
            "denormals": "flushed to zero" if self.flushed else "kept",
            "working directory": self.directory,
            "current device": str(self.device),
        }


def rounding_mode() -> str:
    """Return the mode in which this thread rounds, as its arithmetic shows: on x86-64, `fegetround`
    reads the mode of the x87, which no tensor's arithmetic uses."""
    one, eps = 1.0, sys.float_info.epsilon
    if one + eps / 4 > one:
        return "upward"
    if -one - eps / 4 < -one:
        return "downward"
    return "toward zero" if one + 0.75 * eps == one else "to nearest"


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


class _Allocated(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def host_memory() -> int:
    """Return the bytes that the C library's malloc has given out; 0 before glibc 2.33, and with
    another malloc."""
    mallinfo = _mallinfo()
    if mallinfo is None:
        return 0
    allocated = mallinfo()
    return int(allocated.uordblks + allocated.hblkhd)


@cache
def _mallinfo() -> Callable[[], _Allocated] | None:
    """Return the C library's mallinfo2, None if it has none."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _Allocated
    return function


def threads() -> int:
    """Return the number of threads of this process."""
    return len(os.listdir("/proc/self/task"))


def descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
