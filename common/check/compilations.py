"""Name the kernels that Triton compiles during a call because its cache does not have them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def triton_compilations() -> Iterator[list[str]]:
    """Yield a list that receives each kernel that Triton compiles meanwhile: its name and its
    arguments' types. It stays empty if Triton has not been imported."""
    compiled: list[str] = []
    triton = sys.modules.get("triton")
    if triton is None:
        yield compiled
        return

    def listen(*, src: Any, cache_hit: bool, **_: object) -> None:
        if not cache_hit:
            types = ", ".join(f"{name}: {kind}" for name, kind in src.signature.items())
            compiled.append(f"{src.name}({types})")

    knobs = triton.knobs.compilation
    before, knobs.listener = knobs.listener, listen
    try:
        yield compiled
    finally:
        knobs.listener = before
