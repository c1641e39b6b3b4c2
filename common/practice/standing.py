"""How far a learner has come: what is solved, and what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from common.base.days import Day
from common.base.figures import counted
from common.base.ladder import has_ladder
from common.base.parts import part_of
from common.practice.journal import KINDS, Journal

_BAR = 12  # characters
_SOLVED, _OPEN, _NONE = "■", "□", "·"
MARKS = f"{_SOLVED} solved  {_OPEN} open  {_NONE} there is none: {', '.join(KINDS)}"


def kinds_of(day: Day) -> list[str]:
    """The kinds of exercise that the day has."""
    if not day.exercise:
        return []
    return [kind for kind in KINDS if kind != "speed" or has_ladder(day)]


def exercises(days: Iterable[Day]) -> list[tuple[Day, str]]:
    """Every exercise, in the order in which they are best done."""
    return [(day, kind) for day in days for kind in kinds_of(day)]


def next_exercise(
    days: Sequence[Day], journal: Journal, after: tuple[Day, str] | None = None
) -> tuple[Day, str] | None:
    """The first exercise that is to do, behind `after` if there is one; None if none is."""
    every = exercises(days)
    begin = every.index(after) + 1 if after in every else 0
    todo = [(d, k) for d, k in every[begin:] + every[:begin] if journal.to_do(d.number, k)]
    return next((each for each in todo if each != after), None)


def next_line(days: Sequence[Day], journal: Journal, after: tuple[Day, str] | None = None) -> str:
    """ "next: day 6, write: python run_day.py 6 --practice": see `next_exercise`."""
    found = next_exercise(days, journal, after)
    if found is None:
        return "every exercise is solved"
    day, kind = found
    return f"next: day {day.number}, {kind}: {day.practice(kind)}"


def standing(days: Sequence[Day], journal: Journal) -> list[str]:
    """A line for each part with what is solved of it, and one with what comes next; nothing where
    there are no exercises."""
    lines = []
    with_exercise = [day for day in days if day.exercise]
    if not with_exercise:
        return []
    parts = sorted({part_of(day.number) for day in with_exercise}, key=lambda part: part.number)
    width = max((len(str(part)) for part in parts), default=0)
    for part in parts:
        all_ = exercises(day for day in days if part_of(day.number) == part)
        done = sum(journal.solved(day.number, kind) for day, kind in all_)
        filled = max(_BAR * done // len(all_), min(done, 1))  # one is seen, and full is all
        bar = _SOLVED * filled + _OPEN * (_BAR - filled)
        lines.append(f"{part!s:<{width}}  {bar}  {done} of {counted(len(all_), 'exercise')}")
    return [*lines, next_line(days, journal)]


def marks(day: Day, journal: Journal) -> str:
    """One character for each kind of exercise of the day: solved, not solved, or none."""
    here = kinds_of(day)
    states = {kind: _SOLVED if journal.solved(day.number, kind) else _OPEN for kind in here}
    return "".join(states.get(kind, _NONE) for kind in KINDS)
