"""An exercise of a day, as a file of the learner's and the day that is checked with it."""

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
from common.practice.excerpt import excerpt
from common.practice.exercise import (
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
from common.practice.journal import practice_folder
from common.practice.mutants.inlined import inlined, own_headers
from common.practice.mutants.outline import outline, outlines_of
from common.practice.python_code import excerpt_of, imported_from
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
    """name: of the step, "debug" or "speed". file: what the learner edits. original: the day's
    source that it stands for. start: its text at the beginning. rungs: those that it matters to, ()
    for all of the day."""

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
        """Read the learner's file. Raises ExerciseError where the exercise is not in it any more,
        OSError where it cannot be read."""

    @abc.abstractmethod
    def explanation(self) -> list[str]:
        """Return what there is to say once it is solved."""

    @property
    def text(self) -> str:
        """Return the text of the learner's file. Raises OSError, or ExerciseError where it is no
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
        """Return the file that `--solution` compares with: what it is called, and its text."""
        return shown(self.original), self.original.read_text(encoding="utf-8")

    def begin(self) -> bool:
        """Write the file where there is none; True where it did. Raises ResultsError."""
        if self.file.exists():
            return False
        write_atomically(self.file, self.start)
        return True

    def reset(self) -> Path | None:
        """Begin anew; returns where the old file is kept, None where there was none."""
        kept = self.keep()
        self.begin()
        return kept

    def keep(self) -> Path | None:
        """Move the learner's file aside; returns where to, None where there is none."""
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
        """Return the day with the learner's file in place of its source, as far as its rungs need
        it."""
        return linked_for(self.day.with_source(self.original, self.file), self.rungs)


@dataclass(frozen=True)
class WriteChallenge(Challenge):
    """Some lines of the day's source are taken out, for the learner to write. solved: the file with
    them filled in as the day does."""

    step: Step
    solved: str

    def state(self) -> State:
        text = self.text
        try:
            line = line_of(text, self.step)
            untouched = same_code(text, self.start, self.step)
            around = changed_around(self.start, text, self.step)
        except UnreadableError:
            return State(shown(self.file))  # the compiler explains it
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
    """Return the exercise to write a step. Raises ExerciseError where its lines cannot be found,
    OSError where the source cannot be read."""
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
    """Return the file that a step's file stands in for, and its text without what is not checked.
    source: of the step. One in a header gets the .cu file that includes it, with it in it."""
    if source.suffix == ".py":
        text = source.read_text(encoding="utf-8")
        return source, excerpt_of(text, {*rungs, *imported_from(day, source)})
    outlines = outlines_of(day)
    if source not in outlines:  # of another build, as a .cpp
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
        return original, text  # it is not known what is built of it
    return original, excerpt(outlines, original, rungs)


def including(day: Day, header: Path) -> tuple[Path, list[Path]]:
    """Return the first .cu file of the day that includes a header of its folder, and with it all
    headers there through which it does. Raises ExerciseError where none does."""
    for source in day.library_sources:
        if header.resolve() in sources_of(source):
            through = [h for h in own_headers(source) if header.resolve() in sources_of(h)]
            return source, [source, *through]
    raise ExerciseError(f"{header.name} is included by no .cu file of day {day.number}")


def rungs_to_check(day: Day, source: Path, step: Step) -> tuple[str, ...]:
    """Return the rungs that a step matters to: those that it names, or that use its function; ()
    for all. On a day whose rungs are built in ways of their own, it has to name them."""
    if step.rungs or day.other_sources:
        return step.rungs
    return tuple(rungs_that_use(outlines_of(day), source, step.function))


def rungs_that_reach(day: Day, source: Path, function: str) -> tuple[str, ...]:
    """Return the rungs that use a function of this .cu file; on a day whose rungs are built in ways
    of their own, those that its steps in CUDA name, () for all where one names none."""
    if day.other_sources:
        named = [step.rungs for step in day.steps if not in_python(step)]
        return tuple(dict.fromkeys(rung for rungs in named for rung in rungs if all(named)))
    return tuple(rungs_that_use(outlines_of(day), source, function))


def source_of(day: Day, step: Step) -> Path:
    """Return the file that the step's function stands in. Raises ExerciseError."""
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
    """Return "line 5 differs", "lines 3 to 9 differ"."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"line {first} differs"
    return f"lines {first} to {last} differ"


def shown(path: Path) -> str:
    """Return the path as the learner types it: relative to where they are, if it lies below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
