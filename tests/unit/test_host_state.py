"""The state of the process that a call must leave as it was."""

from __future__ import annotations

import ctypes
import platform

from common.check.host_state import host_memory, rounding_mode, unchanged


def test_rounding_modes_are_named_and_restored() -> None:
    """The numbers are those of fenv.h."""
    modes = {
        "x86_64": {0x400: "downward", 0x800: "upward", 0xC00: "toward zero"},
        "aarch64": {0x400000: "upward", 0x800000: "downward", 0xC00000: "toward zero"},
    }[platform.machine()]
    libm = ctypes.CDLL("libm.so.6")
    for number, name in modes.items():
        changes: list[str] = []
        with unchanged(changes):
            libm.fesetround(number)
        assert changes == [f"rounding mode: to nearest before the call, {name} after it"]
        assert rounding_mode() == "to nearest"


def test_host_memory_is_counted_small_and_large() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]

    def counted(size: int) -> bool:
        before = host_memory()
        memory = libc.malloc(size)
        grown = host_memory() - before
        libc.free(memory)
        return size <= grown and host_memory() < before + size

    for size in (1 << 16, 1 << 26):  # within the heap, and by mmap
        # Another thread may free memory meanwhile.
        assert any(counted(size) for _ in range(10)), size
