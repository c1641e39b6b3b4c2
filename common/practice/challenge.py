"""Represent an exercise of a day: the learner's file, and the day that is checked with it."""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.base.compiling import sources_of
from common.base.day_files import Step
from common.base.days import Day
from common.mutants.inlined import inlined, own_headers
from common.mutants.outline import outline, outlines_of
from common.practice.excerpt import excerpt
from common.practice.journal import practice_folder
from common.practice.python_code import excerpt_of, imported_from
from common.practice.steps import (
    ExerciseError,
    UnreadableError,
    changed_around,
    in_python,
    line_of,
    linked_for,
    rungs_that_use,
    same_code,
    stub,
)
from common.report.files import write_atomically


@dataclass(frozen=True)
class State:
    """The state of the learner's file. place: where to continue, "file:line". open: why it is
    unsolved regardless of the checks, "" if nothing is open. notes: further messages."""

    place: str
    open: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Challenge(abc.ABC):
    """An exercise. name: of the step, "debug" or "speed". file: the learner's file. original: the
    day's source that it replaces. start: its initial text. rungs: those that it affects, () for all
    of the day."""

    day: Day
    name: str
    file: Path
    original: Path
    start: str
    task: str
    hints: tuple[str, ...]
    rungs: tuple[str, ...]

    @abc.abstractmethod
    def state(self) -> State:
        """Read the learner's file. Raise ExerciseError if it no longer contains the exercise,
        OSError if it cannot be read."""

    @abc.abstractmethod
    def explanation(self) -> list[str]:
        """Return the explanation that is shown once it is solved."""

    @property
    def text(self) -> str:
        """Return the text of the learner's file. Raise OSError, or ExerciseError if it is not
        text."""
        try:
            return self.file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ExerciseError(f"{shown(self.file)}: save it as UTF-8: {error}") from None

    @property
    def command(self) -> str:
        """Return the command line that checks it."""
        return self.day.practice(self.name)

    @property
    def answer(self) -> tuple[str, str]:
        """Return the name and the text of the file that `--solution` compares with."""
        return shown(self.original), self.original.read_text(encoding="utf-8")

    def begin(self) -> bool:
        """Write the file if it is missing; return True if it was. Raise ResultsError."""
        if self.file.exists():
            return False
        write_atomically(self.file, self.start)
        return True

    def reset(self) -> Path | None:
        """Restart the exercise; return the path of the kept old file, None if there was none."""
        kept = self.keep()
        self.begin()
        return kept

    def keep(self) -> Path | None:
        """Rename the learner's file; return the new path, None if there is no file."""
        if not self.file.exists():
            return None
        names = (
            self.file.with_name(f"{self.file.stem}.{n}{self.file.suffix}")
            for n in itertools.count(1)
        )
        kept = next(name for name in names if not name.exists())
        os.replace(self.file, kept)
        return kept

    def day_to_run(self) -> Day:
        """Return the day with the learner's file in place of its source, reduced to the rungs'
        needs."""
        return linked_for(self.day.with_source(self.original, self.file), self.rungs)


@dataclass(frozen=True)
class WriteChallenge(Challenge):
    """An exercise to write some lines, which are missing from the day's source. solved: the file
    with the day's lines."""

    step: Step
    solved: str

    def state(self) -> State:
        text = self.text
        try:
            line = line_of(text, self.step)
            untouched = same_code(text, self.start, self.step)
            around = changed_around(self.start, text, self.step)
        except UnreadableError:
            return State(shown(self.file))  # the compiler reports it
        except ExerciseError as error:
            raise ExerciseError(
                f"{shown(self.file)}: {error}; {self.command} --reset begins anew "
                "and keeps this file beside the new one"
            ) from None
        notes: tuple[str, ...] = ()
        if around:
            notes = (
                f"{_differing(around)} from {shown(self.original)}, outside the exercise; "
                "the file is checked as it stands",
            )
        return State(f"{shown(self.file)}:{line}", self.task if untouched else "", notes)

    def explanation(self) -> list[str]:
        return [self.step.why] if self.step.why else []

    @property
    def answer(self) -> tuple[str, str]:
        return shown(self.original), self.solved


def write_challenge(day: Day, root: Path, step: Step) -> WriteChallenge:
    """Return the exercise to write a step. Raise ExerciseError if its lines cannot be found,
    OSError if the source cannot be read."""
    source = source_of(day, step)
    rungs = rungs_to_check(day, source, step)
    original, text = _reduced(day, source, rungs)
    return WriteChallenge(
        day,
        step.name,
        practice_folder(root) / day.name / f"{step.name}{original.suffix}",
        original,
        stub(text, step, day.practice(step.name)),
        step.task,
        step.hints,
        rungs,
        step,
        text,
    )


def _reduced(day: Day, source: Path, rungs: Sequence[str]) -> tuple[Path, str]:
    """Return the file that a step's file replaces, and its text without unchecked parts. source: of
    the step. A header is inlined into the .cu file that includes it, which is then replaced."""
    if source.suffix == ".py":
        text = source.read_text(encoding="utf-8")
        return source, excerpt_of(text, {*rungs, *imported_from(day, source)})
    outlines = outlines_of(day)
    if source not in outlines:  # of another build, such as a .cpp
        return source, source.read_text(encoding="utf-8")
    original, text, inside = source, outlines[source].code.source, [source]
    if source.suffix == ".cuh":
        original, inside = including(day, source)
        text = inlined(original, {path: outlines[path].code.source for path in inside}, False)
        outlines = {path: read for path, read in outlines.items() if path not in inside}
        outlines[original] = outline(text)
    in_modules = all(path.suffix == ".py" for path in day.other_sources)
    bound = {name for read in outlines.values() for name in read.operators}
    if not in_modules or not rungs or not bound.issuperset(rungs):
        return original, text  # it is unknown which parts are built
    return original, excerpt(outlines, original, rungs)


def including(day: Day, header: Path) -> tuple[Path, list[Path]]:
    """Return the first .cu file of the day that includes a header of its folder, and all headers on
    the way, with that file first. Raise ExerciseError if none does."""
    for source in day.library_sources:
        if header.resolve() in sources_of(source):
            through = [h for h in own_headers(source) if header.resolve() in sources_of(h)]
            return source, [source, *through]
    raise ExerciseError(f"{header.name} is included by no .cu file of day {day.number}")


def rungs_to_check(day: Day, source: Path, step: Step) -> tuple[str, ...]:
    """Return the rungs that a step affects: those that it names, or that use its function; () for
    all. A day with custom builds has to name them."""
    if step.rungs or day.other_sources:
        return step.rungs
    return tuple(rungs_that_use(outlines_of(day), source, step.function))


def rungs_that_reach(day: Day, source: Path, function: str) -> tuple[str, ...]:
    """Return the rungs that use a function of this .cu file; on a day with custom builds, those
    that its steps in CUDA name, () for all if one names none."""
    if day.other_sources:
        named = [step.rungs for step in day.steps if not in_python(step)]
        return tuple(dict.fromkeys(rung for rungs in named for rung in rungs if all(named)))
    return tuple(rungs_that_use(outlines_of(day), source, function))


def source_of(day: Day, step: Step) -> Path:
    """Return the file that contains the step's function. Raise ExerciseError."""
    if not step.source:
        return day.source
    modules = [path for path in day.modules if path.name != "day.py"]
    files = [*day.library_sources, *day.other_sources, *day.headers, *modules]
    for source in files:
        if source.name == step.source:
            return source
    names = ", ".join(source.name for source in files)
    raise ExerciseError(f"exercises.toml: source: {step.source!r}, but the day has {names}")


def _differing(numbers: Sequence[int]) -> str:
    """Return "line 5 differs" or "lines 3 to 9 differ"."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"line {first} differs"
    return f"lines {first} to {last} differ"


def shown(path: Path) -> str:
    """Return the path as the learner types it: relative to the working directory if inside."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
