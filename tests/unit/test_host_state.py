"""The state of the process that a call must leave as it was."""

from __future__ import annotations

import ctypes

from common.check.host_state import host_memory, rounding_mode


def test_rounding_modes_are_named_on_each_processor() -> None:
    """The numbers are those of fenv.h; upward and downward change places between the two."""
    names = ["to nearest", "downward", "upward", "toward zero"]
    assert [rounding_mode(0x400 * i, "x86_64") for i in range(4)] == names
    names = ["to nearest", "upward", "downward", "toward zero"]
    assert [rounding_mode(0x400000 * i, "aarch64") for i in range(4)] == names
    assert rounding_mode(0x20, "riscv64") == "0x20"


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
