"""Define the speed exercises: the learner makes the first rung of a day's ladder faster."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.base.days import Day, load_lesson
from common.base.ladder import Ladder, ladder_of
from common.cpu.lexer import tokenize
from common.cpu.syntax import TokenError
from common.mutants.outline import Outline, outline, outlines_of
from common.practice.challenge import Challenge, State, shown
from common.practice.excerpt import excerpt
from common.practice.journal import practice_folder
from common.practice.steps import MARK, ExerciseError, commented, linked_for

_VERSION = re.compile(r"^//\s+(?:\w+ )*v\d")  # a line of a header about a rung
_LISTED = re.compile(r"^//   \w+  ")  # a line above it about a rung without a version


@dataclass(frozen=True)
class SpeedChallenge(Challenge):
    """An exercise to speed up the first rung, in any way, in the learner's file. goal: the last
    rung's part of its source."""

    ladder: Ladder
    goal: str

    def state(self) -> State:
        text = self.text
        name = self.ladder.first.name
        if not _binds(text, name):
            raise ExerciseError(
                f"{shown(self.file)} does not bind {name} any more: it needs its line RUNG(…, "
                f"{name}, …); {self.command} --reset begins anew and keeps this file"
            )
        marked = text.find(MARK)
        line = text.count("\n", 0, max(marked, 0)) + 1
        untouched = _code(text) == _code(self.start)
        return State(f"{shown(self.file)}:{line}", self.task if untouched else "")

    def explanation(self) -> list[str]:
        return []

    @property
    def answer(self) -> tuple[str, str]:
        return f"{shown(self.original)}, {self.ladder.last.name} alone", self.goal


def _binds(text: str, rung: str) -> bool:
    try:
        return rung in outline(text).operators
    except TokenError:
        return True  # a bracket is missing, which the compiler explains


def _code(text: str) -> list[str]:
    return [token.text for token in tokenize(text) if token.is_code]


def speed_challenge(day: Day, root: Path) -> SpeedChallenge:
    """Return the exercise to make the day's first rung as fast as its last one. Raise ExerciseError
    if the day has no ladder, and what `load_lesson` raises."""
    ladder = ladder_of(load_lesson(day).problems)
    if ladder is None:
        raise ExerciseError(
            f"day {day.number} has no speed exercise: it times no two versions of one kernel"
        )
    outlines = outlines_of(linked_for(day, [ladder.first.name]))
    original = _source_of(outlines, ladder.first.name)
    # The last rung may be in another file.
    others = outlines_of(linked_for(day, [ladder.last.name]))
    goal = excerpt(others, _source_of(others, ladder.last.name), [ladder.last.name])
    first, last = ladder.first.name, ladder.last.name
    task = (
        f"make {first} as fast as {last}, the last rung of the day. Everything may change but its "
        "name and its binding."
    )
    body = excerpt(outlines, original, [first])
    return SpeedChallenge(
        day,
        "speed",
        practice_folder(root) / day.name / "speed.cu",
        original,
        _with_note(body, [*commented(f"{MARK} {task}"), f"// Then: {day.practice('speed')}"]),
        task,
        hints(ladder),
        (first,),
        ladder,
        goal,
    )


def hints(ladder: Ladder) -> tuple[str, ...]:
    """Return the ideas of all further rungs, as declared by the day."""
    return tuple(f"{rung.name}: {rung.idea}." for rung in ladder.rungs[1:])


def _source_of(outlines: dict[Path, Outline], rung: str) -> Path:
    for path, read in outlines.items():
        if rung in read.operators:
            return path
    raise ExerciseError(f"no RUNG of the day's sources names {rung}")


def _with_note(text: str, note: Sequence[str]) -> str:
    """Return the file with a note in place of its header's lines about the rungs."""
    lines = text.split("\n")
    end = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    kept = next((i for i in range(end) if _VERSION.match(lines[i])), end)
    while kept < end and kept and _LISTED.match(lines[kept - 1]):
        kept -= 1
    return "\n".join([*lines[:kept], *note, *lines[end:]])
