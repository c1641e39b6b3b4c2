"""Summarise a learner's progress: solved exercises, and the next one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from common.base.course_parts import part_of
from common.base.day_files import DEBUG, SPEED
from common.base.days import Day
from common.base.figures import counted
from common.base.ladder import has_ladder
from common.practice.journal import Journal
from common.practice.steps import ExerciseError

_BAR = 12  # characters
_SOLVED, _OPEN = "■", "□"
MARKS = f"{_SOLVED} solved  {_OPEN} open: the steps to write, {DEBUG}, {SPEED}"


def exercises_of(day: Day) -> list[str]:
    """Return the names of the day's exercises in the recommended order: the steps, "debug", and
    "speed" if the day has a ladder."""
    if not day.steps:
        return []
    return [*(step.name for step in day.steps), DEBUG, *([SPEED] if has_ladder(day) else [])]


def exercises(days: Iterable[Day]) -> list[tuple[Day, str]]:
    """Return every exercise in the recommended order."""
    return [(day, name) for day in days for name in exercises_of(day)]


def next_step(day: Day, journal: Journal) -> str:
    """Return the name of the day's first unsolved exercise, or of its first step if all are solved.
    Raise ExerciseError if it has none."""
    if not day.steps:
        raise ExerciseError(f"day {day.number} has no exercise yet")
    left = (name for name in exercises_of(day) if journal.to_do(day.number, name))
    return next(left, day.steps[0].name)


def next_exercise(
    days: Sequence[Day], journal: Journal, after: tuple[Day, str] | Day | None = None
) -> tuple[Day, str] | None:
    """Return the first exercise to do; None if there is none.

    after: an exercise, after which the search starts, or a day, whose exercises come first.
    """
    every = exercises(days)
    begin = every.index(after) + 1 if after in every else 0
    if isinstance(after, Day):
        begin = next((i for i, (day, _) in enumerate(every) if day == after), 0)
    todo = [(d, k) for d, k in every[begin:] + every[:begin] if journal.to_do(d.number, k)]
    return next((each for each in todo if each != after), None)


def next_line(days: Sequence[Day], journal: Journal, after: tuple[Day, str] | None = None) -> str:
    """Return "next: day 6, debug: python run_day.py 6 --practice debug": see `next_exercise`."""
    found = next_exercise(days, journal, after)
    if found is None:
        return "every exercise is solved"
    day, name = found
    line = f"next: day {day.number}, {name}: {day.practice(name)}"
    if after and after[0].number != day.number:
        line += f" (read days/{day.name}/README.md first)"
    return line


def progress_lines(days: Sequence[Day], journal: Journal) -> list[str]:
    """Return a line for each part with its solved exercises, and one with the next exercise; [] if
    there are no exercises."""
    lines = []
    with_steps = [day for day in days if day.steps]
    if not with_steps:
        return []
    parts = sorted({part_of(day.number) for day in with_steps}, key=lambda part: part.number)
    width = max((len(str(part)) for part in parts), default=0)
    for part in parts:
        all_ = exercises(day for day in days if part_of(day.number) == part)
        done = sum(journal.solved(day.number, name) for day, name in all_)
        filled = max(_BAR * done // len(all_), min(done, 1))  # one is visible, and full means all
        bar = _SOLVED * filled + _OPEN * (_BAR - filled)
        lines.append(f"{part!s:<{width}}  {bar}  {done} of {counted(len(all_), 'exercise')}")
    return [*lines, next_line(days, journal)]


def marks(day: Day, journal: Journal) -> str:
    """Return one character for each exercise of the day: solved or unsolved."""
    return "".join(
        _SOLVED if journal.solved(day.number, name) else _OPEN for name in exercises_of(day)
    )
