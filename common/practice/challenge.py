"""An exercise of a day, as a file of the learner's and the day that is checked with it."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, replace
from pathlib import Path

from common.base.days import Day
from common.base.declaration import Exercise
from common.practice.definitions import definitions, rungs_that_use
from common.practice.exercise import (
    ExerciseError,
    changed_around,
    is_stub,
    line_of,
    solution,
    stub,
)


@dataclass(frozen=True)
class Challenge:
    """kind: a key of `common.practice.journal.KINDS`. file: what the learner edits. original: the
    day's source that it stands for. start: its text at the beginning. rungs: those that it
    matters to, () for all of the day."""

    day: Day
    kind: str
    file: Path
    original: Path
    start: str
    task: str
    hints: tuple[str, ...]
    rungs: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command line that checks it."""
        kind = "" if self.kind == "write" else f" {self.kind}"
        return f"python run_day.py {self.day.number} --practice{kind}"

    def begin(self) -> bool:
        """Writes the file where there is none; True where it did. Raises OSError."""
        if self.file.exists():
            return False
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_suffix(".partial")
        partial.write_text(self.start, encoding="utf-8")
        os.replace(partial, self.file)
        return True

    def reset(self) -> Path | None:
        """Begins anew; returns where the old file is kept, None where there was none."""
        kept = None
        if self.file.exists():
            names = (self.file.with_name(f"{self.file.stem}.{n}.cu") for n in itertools.count(1))
            kept = next(name for name in names if not name.exists())
            os.replace(self.file, kept)
        self.begin()
        return kept

    def day_to_run(self) -> Day:
        """The day with the learner's file in place of its source."""

        def theirs(source: Path) -> Path:
            return self.file if source == self.original else source

        extra = tuple(theirs(source) for source in self.day.extra_sources)
        return replace(self.day, source=theirs(self.day.source), extra_sources=extra)


def practice_folder(root: Path) -> Path:
    """Where the learner's files are, for the days in `root`."""
    return root.parent / "practice"


def write_challenge(day: Day, root: Path) -> Challenge:
    """The exercise to write a part of the day's kernel. Raises ExerciseError where there is none,
    OSError where the source cannot be read."""
    exercise = day.exercise
    if exercise is None:
        raise ExerciseError(f"day {day.number} has no exercise yet")
    original = source_of(day, exercise)
    text = original.read_text(encoding="utf-8")
    rungs = rungs_that_use(definitions(text), exercise.function)
    command = f"python run_day.py {day.number} --practice"
    return Challenge(
        day,
        "write",
        practice_folder(root) / day.name / "write.cu",
        original,
        stub(text, exercise, command),
        exercise.task,
        exercise.hints,
        tuple(rungs),
    )


def source_of(day: Day, exercise: Exercise) -> Path:
    """The file that the exercise's function stands in. Raises ExerciseError."""
    if not exercise.source:
        return day.source
    for source in day.library_sources:
        if source.name == exercise.source:
            return source
    names = ", ".join(source.name for source in day.library_sources)
    raise ExerciseError(f"EXERCISE names {exercise.source}, the day has {names}")


@dataclass(frozen=True)
class State:
    """Where the learner's file stands. line: where to go on. untouched: nothing is written yet.
    changed: numbers of lines that differ from the day's own outside the exercise."""

    line: int
    untouched: bool
    changed: tuple[int, ...] = ()


def state(challenge: Challenge) -> State:
    """Reads the learner's file. Raises ExerciseError where the exercise is not in it any more,
    OSError where it cannot be read."""
    exercise = challenge.day.exercise
    assert exercise
    text = challenge.file.read_text(encoding="utf-8")
    try:
        line = line_of(text, exercise)
    except ExerciseError as error:
        raise ExerciseError(
            f"{shown(challenge.file)}: {error}; {challenge.command} --reset begins anew "
            "and keeps this file beside the new one"
        ) from None
    original = challenge.original.read_text(encoding="utf-8")
    around = tuple(changed_around(original, text, exercise))
    return State(line, is_stub(text, challenge.start, exercise), around)


def solution_of(challenge: Challenge) -> str:
    """The lines that the day's own file has in the exercise's place."""
    exercise = challenge.day.exercise
    assert exercise
    return solution(challenge.original.read_text(encoding="utf-8"), exercise)


def shown(path: Path) -> str:
    """The path as the learner types it: relative to where they are, if it lies below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
