"""Compilations that tests wait for, begun when the session begins: compilers are what tests cost.

As many run at a time as there are cores, beside the tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common.build import nvcc

ARCHITECTURES = ["8.0", "9.0a"]


class Compilations:
    """Compilations in the background, each begun once."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)
        self._begun: dict[Hashable, Future[Any]] = {}

    def begin(self, name: Hashable, work: Callable[[], Any]) -> Future[Any]:
        """Begins `work`, unless something of this name was begun before; its future."""
        if name not in self._begun:
            self._begun[name] = self._pool.submit(work)
        return self._begun[name]

    def nvcc(self, name: str, source: Path) -> Future[Any]:
        """nvcc's compilation of a `.cu` for all ARCHITECTURES."""
        return self.begin(
            ("nvcc", source), lambda: nvcc.compile_source(name, source, ARCHITECTURES)
        )

    def close(self) -> None:
        """Gives up what has not begun."""
        self._pool.shutdown(cancel_futures=True)
