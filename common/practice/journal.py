"""Record the exercises that a learner has solved, with the hints used: practice/progress.json.

Several terminals may be in use: saving merges, under a lock, the changes that others have saved.
The file is replaced as a whole, so an interrupted write leaves the old one.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.base.refusal import UsageError
from common.report.files import ResultsError, write_atomically

FORMAT = 1


def practice_folder(root: Path) -> Path:
    """Return the folder of the learner's files, for the days in `root`."""
    return root.parent / "practice"


class JournalError(UsageError):
    """The file cannot be read or written; the message names it and the remedy."""


@dataclass
class Entry:
    """One exercise of a day. solved: date, "YYYY-MM-DD", "" if unsolved. hints: number shown. For
    "debug": planted, the planted change; found, those found so far; passed_over, those that the
    checks accept or the learner skipped. set_aside: what this machine lacks for it, "" if
    nothing."""

    solved: str = ""
    hints: int = 0
    planted: str = ""
    found: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    set_aside: str = ""

    def merged(self, saved: Entry) -> Entry:
        """Return this entry merged with another process's saved entry of the same exercise."""
        return Entry(
            solved=min(filter(None, (self.solved, saved.solved)), default=""),
            hints=self.hints,
            planted=self.planted,
            found=list(dict.fromkeys([*saved.found, *self.found])),
            passed_over=list(dict.fromkeys([*saved.passed_over, *self.passed_over])),
            set_aside=self.set_aside,
        )


Entries = dict[tuple[int, str], Entry]  # by the day's number and the exercise's name


class Journal:
    """The exercises that were begun. folder: of the learner's files."""

    def __init__(self, folder: Path):
        self.path = folder / "progress.json"
        self._entries = self._read()
        self._known = deepcopy(self._entries)  # last read or saved state

    def entry(self, day: int, exercise: str) -> Entry:
        """Return the entry of an exercise; `save` stores changes to it."""
        return self._entries.setdefault((day, exercise), Entry())

    def solved(self, day: int, exercise: str) -> bool:
        """Return True if the exercise was solved once."""
        return bool(self._entries.get((day, exercise), Entry()).solved)

    def to_do(self, day: int, exercise: str) -> bool:
        """Return True if the exercise is unsolved, and possible here as far as known."""
        entry = self._entries.get((day, exercise), Entry())
        return not entry.solved and not entry.set_aside

    @property
    def begun(self) -> bool:
        """Return True if any exercise was begun."""
        return bool(self._entries)

    def save(self) -> None:
        """Write the changes, merged with those that others have saved since. Raise JournalError."""
        try:
            with self._alone():
                saved = self._read()
                for key, entry in self._entries.items():
                    if entry != self._known.get(key):
                        other = saved.get(key)
                        saved[key] = entry.merged(other) if other else deepcopy(entry)
                self._write(saved)
        except (OSError, ResultsError) as error:
            raise JournalError(f"{self.path} cannot be written: {error}") from None
        self._known = saved
        for key, entry in saved.items():  # update entries in use
            mine = self._entries.setdefault(key, Entry())
            mine.__dict__.update(deepcopy(entry).__dict__)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Prevent other processes from writing meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
            yield

    def _read(self) -> Entries:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            return _entries_of(data)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalError(
                f"{self.path} cannot be read: {error}; move it away to begin anew "
                "(the files beside it stay)"
            ) from None

    def _write(self, entries: Entries) -> None:
        days: dict[str, dict[str, Any]] = {}
        for (number, exercise), entry in sorted(entries.items()):
            days.setdefault(str(number), {})[exercise] = asdict(entry)
        write_atomically(self.path, json.dumps({"format": FORMAT, "days": days}, indent=1) + "\n")


def _entries_of(data: dict[str, Any]) -> Entries:
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']}, expected {FORMAT}")
    return {
        (int(number), exercise): Entry(**entry)
        for number, exercises in data["days"].items()
        for exercise, entry in exercises.items()
    }
