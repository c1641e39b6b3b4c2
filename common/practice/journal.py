"""What a learner has solved, and how many hints it took: practice/progress.json.

The file is replaced as a whole, so an interrupted write leaves the old one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.report.files import ResultsError, write_atomically

KINDS = ("write", "debug", "speed")
FORMAT = 1


def practice_folder(root: Path) -> Path:
    """Where the learner's files are, for the days in `root`."""
    return root.parent / "practice"


class JournalError(Exception):
    """The file cannot be read or written; the message names it and says what to do."""


@dataclass
class Entry:
    """One exercise of a day. solved: when, "YYYY-MM-DD", "" if not yet. hints: how many were shown.
    Of kind "debug": planted, the change that is there to be found; found, those found so far;
    passed_over, those that the checks do not reject or the learner did not want.
    set_aside: what it needs that this machine lacks, "" if nothing."""

    solved: str = ""
    hints: int = 0
    planted: str = ""
    found: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    set_aside: str = ""


class Journal:
    """The exercises that were begun. folder: where the learner's files are."""

    def __init__(self, folder: Path):
        self.path = folder / "progress.json"
        self._entries: dict[tuple[int, str], Entry] = {}
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            self._take(data)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalError(
                f"{self.path} cannot be read: {error}; move it away to begin anew "
                "(the files beside it stay)"
            ) from None

    def _take(self, data: dict[str, Any]) -> None:
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, expected {FORMAT}")
        for number, kinds in data["days"].items():
            for kind, entry in kinds.items():
                self._entries[int(number), kind] = Entry(**entry)

    def entry(self, day: int, kind: str) -> Entry:
        """What is known of an exercise; changes to it are kept by `save`."""
        return self._entries.setdefault((day, kind), Entry())

    def solved(self, day: int, kind: str) -> bool:
        """Whether the exercise was solved once."""
        return bool(self._entries.get((day, kind), Entry()).solved)

    def to_do(self, day: int, kind: str) -> bool:
        """Whether the exercise is not solved, and can be here as far as known."""
        entry = self._entries.get((day, kind), Entry())
        return not entry.solved and not entry.set_aside

    @property
    def begun(self) -> bool:
        """Whether any exercise was begun."""
        return bool(self._entries)

    def save(self) -> None:
        """Writes the file. Raises JournalError."""
        days: dict[str, dict[str, Any]] = {}
        for (number, kind), entry in sorted(self._entries.items()):
            days.setdefault(str(number), {})[kind] = asdict(entry)
        text = json.dumps({"format": FORMAT, "days": days}, indent=1) + "\n"
        try:
            write_atomically(self.path, text)
        except ResultsError as error:
            raise JournalError(str(error)) from None
