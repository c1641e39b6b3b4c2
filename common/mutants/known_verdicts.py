"""Keep verdicts of earlier runs in the cache: an interrupted run continues where it stopped."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from common.base.cache import cache_directory
from common.base.verdict import Verdict
from common.report.files import write_atomically

KEPT = 4000  # verdicts per day


class KnownVerdicts:
    """The verdicts of one day's mutants, by a key of everything that they depend on.

    fresh: ignore the results of earlier runs.
    """

    def __init__(self, name: str, fresh: bool = False):
        self.path: Path = cache_directory() / "mutants" / f"{name}.jsonl"
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, object]] = {}
        if self.path.is_file():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            for line in lines[-KEPT:]:
                self._add(line)
            if len(lines) > 2 * KEPT:
                write_atomically(self.path, "\n".join(lines[-KEPT:]) + "\n")
        self._earlier = {} if fresh else dict(self._known)

    def _add(self, line: str) -> None:
        try:
            data = json.loads(line)
            self._known[data.pop("key")] = data
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # truncated by a crash: that mutant is tried again

    def get(self, key: str) -> dict[str, object] | None:
        """Return the data that an earlier run stored under this key."""
        return self._earlier.get(key)

    def verdict(self, key: str) -> Verdict | None:
        """Return the verdict that an earlier run stored under this key."""
        data = self.get(key)
        try:
            return Verdict(**data) if data else None  # type: ignore[arg-type]
        except TypeError:
            return None  # written by another version of this program

    def put(self, key: str, data: dict[str, object]) -> None:
        """Store one item immediately; other processes may do so at the same time."""
        line = json.dumps({"key": key, **data}) + "\n"
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line)
