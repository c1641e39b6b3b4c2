"""An exercise of a day, as a file of the learner's and the day that is checked with it."""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.base.days import Day
from common.base.declaration import Exercise
from common.practice.exercise import (
    ExerciseError,
    changed_around,
    is_stub,
    line_of,
    linked_for,
    rungs_that_use,
    stub,
    with_backward,
)
from common.practice.journal import practice_folder
from common.practice.mutants.outline import outlines_of, reached_together
from common.practice.repeated import repetitions, without
from common.report.files import write_atomically


@dataclass(frozen=True)
class State:
    """Where the learner's file stands. place: where to go on, "file:line". open: what keeps it from
    being solved whatever the checks say, "" if nothing does. notes: what else is to be said."""

    place: str
    open: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Challenge(abc.ABC):
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

    @abc.abstractmethod
    def state(self) -> State:
        """Reads the learner's file. Raises ExerciseError where the exercise is not in it any more,
        OSError where it cannot be read."""

    @abc.abstractmethod
    def explanation(self) -> list[str]:
        """What there is to say once it is solved."""

    @property
    def command(self) -> str:
        """The command line that checks it."""
        return self.day.practice(self.kind)

    @property
    def answer(self) -> tuple[str, str]:
        """The file that `--solution` compares with: what it is called, and its text."""
        return shown(self.original), self.original.read_text(encoding="utf-8")

    def begin(self) -> bool:
        """Writes the file where there is none; True where it did. Raises ResultsError."""
        if self.file.exists():
            return False
        write_atomically(self.file, self.start)
        return True

    def reset(self) -> Path | None:
        """Begins anew; returns where the old file is kept, None where there was none."""
        kept = self.keep()
        self.begin()
        return kept

    def keep(self) -> Path | None:
        """Moves the learner's file aside; returns where to, None where there is none."""
        if not self.file.exists():
            return None
        names = (self.file.with_name(f"{self.file.stem}.{n}.cu") for n in itertools.count(1))
        kept = next(name for name in names if not name.exists())
        os.replace(self.file, kept)
        return kept

    def day_to_run(self) -> Day:
        """The day with the learner's file in place of its source, as far as its rungs need it."""
        return linked_for(self.day.with_source(self.original, self.file), self.rungs)


@dataclass(frozen=True)
class WriteChallenge(Challenge):
    """A part of the day's kernel is taken out, for the learner to write. solved: the file with it
    filled in as the day does."""

    solved: str

    def state(self) -> State:
        exercise = self.day.exercise
        assert exercise
        text = self.file.read_text(encoding="utf-8")
        try:
            line = line_of(text, exercise)
        except ExerciseError as error:
            raise ExerciseError(
                f"{shown(self.file)}: {error}; {self.command} --reset begins anew "
                "and keeps this file beside the new one"
            ) from None
        notes: tuple[str, ...] = ()
        if around := changed_around(self.start, text, exercise):
            notes = (
                f"{_differing(around)} from {shown(self.original)}, outside the exercise; "
                "the file is checked as it stands",
            )
        untouched = is_stub(text, self.start, exercise)
        return State(f"{shown(self.file)}:{line}", self.task if untouched else "", notes)

    def explanation(self) -> list[str]:
        return []

    @property
    def answer(self) -> tuple[str, str]:
        return shown(self.original), self.solved


def write_challenge(day: Day, root: Path) -> WriteChallenge:
    """The exercise to write a part of the day's kernel. Raises ExerciseError where there is none,
    OSError where the source cannot be read."""
    exercise = day.exercise
    if exercise is None:
        raise ExerciseError(f"day {day.number} has no exercise yet")
    original = source_of(day, exercise)
    text = original.read_text(encoding="utf-8")
    rungs = rungs_to_check(day, original, exercise.function)
    if rungs and not day.other_sources:  # what is not checked may be left out
        text = without(
            text, repetitions(text, exercise, _needed(day, original, rungs)), shown(original)
        )
    return WriteChallenge(
        day,
        "write",
        practice_folder(root) / day.name / "write.cu",
        original,
        stub(text, exercise, day.practice()),
        exercise.task,
        exercise.hints,
        rungs,
        text,
    )


def _needed(day: Day, source: Path, rungs: Sequence[str]) -> set[str]:
    """The functions of a source that these rungs use, for their gradients too."""
    outlines = outlines_of(day)
    reached = reached_together(outlines, with_backward(outlines, rungs))
    return {function.name for d in reached.get(source, ()) for function in d.functions}


def rungs_to_check(day: Day, source: Path, function: str) -> tuple[str, ...]:
    """The rungs that a function of this source matters to; () for all. On a day whose rungs are
    built in ways of their own, those that its exercise names."""
    if day.other_sources:
        return day.exercise.rungs if day.exercise else ()
    return tuple(rungs_that_use(outlines_of(day), source, function))


def source_of(day: Day, exercise: Exercise) -> Path:
    """The file that the exercise's function stands in. Raises ExerciseError."""
    if not exercise.source:
        return day.source
    for source in day.library_sources:
        if source.name == exercise.source:
            return source
    names = ", ".join(source.name for source in day.library_sources)
    raise ExerciseError(f"EXERCISE names {exercise.source}, the day has {names}")


def _differing(numbers: Sequence[int]) -> str:
    """ "line 5 differs", "lines 3 to 9 differ"."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"line {first} differs"
    return f"lines {first} to {last} differ"


def shown(path: Path) -> str:
    """The path as the learner types it: relative to where they are, if it lies below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
