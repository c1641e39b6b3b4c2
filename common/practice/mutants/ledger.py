"""Verdicts of earlier runs, kept in the cache: a run that was ended goes on where it stopped."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from common.base.cache import cache_directory
from common.base.verdict import Verdict
from common.report.files import write_atomically

KEPT = 4000  # verdicts per day


class Ledger:
    """The verdicts of one day's mutants, by a key of all that they depend on.

    fresh: what earlier runs have found is not looked at.
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
            return  # cut short by a crash: that mutant is tried again

    def get(self, key: str) -> dict[str, object] | None:
        """Return what was stored under this key by an earlier run."""
        return self._earlier.get(key)

    def verdict(self, key: str) -> Verdict | None:
        """Return the same as a verdict."""
        data = self.get(key)
        try:
            return Verdict(**data) if data else None  # type: ignore[arg-type]
        except TypeError:
            return None  # of another version of this program

    def put(self, key: str, data: dict[str, object]) -> None:
        """Store one thing at once; other processes may be doing the same."""
        line = json.dumps({"key": key, **data}) + "\n"
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line)
