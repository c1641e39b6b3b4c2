"""Apply the changes of "Try it yourself" to a copy of a day's source."""

from __future__ import annotations

from pathlib import Path

from common.base.day_files import Outcome
from common.base.days import Day


def changed_by(outcome: Outcome, day: Day) -> tuple[Path, str]:
    """Return the source that an outcome is about, and its text with the change. Raise
    AssertionError if a text does not occur in it exactly once."""
    source = day.folder / outcome.source if outcome.source else day.source
    text = source.read_text(encoding="utf-8")
    for old, new in zip(outcome.change[::2], outcome.change[1::2], strict=True):
        assert text.count(old) == 1, f"{text.count(old)} times in {source.name}: {old!r}"
        text = text.replace(old, new)
    return source, text
