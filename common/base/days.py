"""How days are found and loaded: the folder is the registry.

Listing a hundred days reads their metadata from the syntax tree of each `day.py`, without running
it and without importing torch, and takes milliseconds.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.base.declaration import Exercise, Problem
from common.base.paths import DAYS


class DayError(Exception):
    """A day's folder or its day.py is not what the runner needs; the message names the file.

    folder: the day's folder, where `discover` met the error.
    """

    folder: Path | None = None


@dataclass(frozen=True)
class Day:
    """A day as `--list` needs it: read from day.py without running it.

    number: from the folder's name. title, teaches (one line for progress.md), topics, source
    (the .cu file): the constants TITLE, TEACHES, TOPICS, SOURCE of day.py. extra_sources: the
    optional constant EXTRA_SOURCES. Its .cu files are built together with `source`, into the same
    library; the others are what rungs with a `load` of their own build. introduces: the optional
    constant INTRODUCES, the terms of the glossary that the day explains. exercise: the optional
    constant EXERCISE, what the learner writes. metrics: the optional constant METRICS, counters of
    Nsight Compute that --profile reads beside those that it always does. uses: the optional
    constant USES, numbers of days whose operators this day's rungs call; they are built and loaded
    with its own. replaced: files of the day, each with the one that stands in its place, as a
    learner's does. only: the rungs that are built, of those with a way of their own, () for all.
    """

    number: int
    folder: Path
    title: str
    teaches: str
    topics: tuple[str, ...]
    source: Path
    extra_sources: tuple[Path, ...] = ()
    introduces: tuple[str, ...] = ()
    exercise: Exercise | None = None
    equivalent: dict[str, str] = field(default_factory=dict, hash=False)
    uses: tuple[int, ...] = ()
    metrics: tuple[str, ...] = ()
    replaced: tuple[tuple[Path, Path], ...] = ()
    only: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The folder's name, which is also the operators' namespace: "day05", "day100"."""
        return self.folder.name

    @property
    def kind(self) -> str:
        """What its entries in the cache are called. A day of another folder than the course's has
        another kind, so that its builds never push out the course's."""
        return self.name if self.folder.parent == DAYS else f"other-{self.name}"

    def with_source(self, original: Path, other: Path) -> Day:
        """The day with another file in the place of one of its sources."""
        extra = tuple(other if source == original else source for source in self.extra_sources)
        source = other if self.source == original else self.source
        replaced = (*self.replaced, (original, other))
        return replace(self, source=source, extra_sources=extra, replaced=replaced)

    def file(self, name: str) -> Path:
        """The file of this name in the day's folder, or the one that stands in its place."""
        original = self.folder / name
        return dict(self.replaced).get(original, original)

    def practice(self, kind: str = "write") -> str:
        """The command line of the day's exercise of this kind; "write" is the default there too."""
        return f"python run_day.py {self.number} --practice{'' if kind == 'write' else f' {kind}'}"

    @property
    def library_sources(self) -> tuple[Path, ...]:
        """The .cu files that the day's library is made of, `source` first."""
        return (self.source, *(path for path in self.extra_sources if path.suffix == ".cu"))

    @property
    def programs(self) -> tuple[Path, ...]:
        """Further .cu files of its folder: programs with a main() of their own, which `show` runs
        (common/tools/watched_program.py)."""
        known = {*self.library_sources, *dict(self.replaced)}
        return tuple(path for path in sorted(self.folder.glob("*.cu")) if path not in known)

    @property
    def nvcc_sources(self) -> tuple[Path, ...]:
        """All .cu files that nvcc compiles: of the library, and the programs."""
        return (*self.library_sources, *self.programs)

    @property
    def other_sources(self) -> tuple[Path, ...]:
        """The files that rungs build in a way of their own."""
        return tuple(path for path in self.extra_sources if path.suffix != ".cu")


METADATA = {"TITLE": str, "TEACHES": str, "TOPICS": tuple, "SOURCE": str}
OPTIONAL = {
    **dict.fromkeys(("EXTRA_SOURCES", "INTRODUCES", "USES", "METRICS"), tuple),
    "EQUIVALENT": dict,
}


def read_day(folder: Path) -> Day:
    """The metadata of the day in `folder`. Raises DayError naming what is missing or wrong."""
    file = folder / "day.py"
    number = folder.name.removeprefix("day")
    if not number.isdigit() or folder.name != f"day{int(number):02d}":
        raise DayError(f"{folder}: a day's folder is named day01 to day100")
    if not file.is_file():
        raise DayError(f"{folder}: day.py is missing")
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    except SyntaxError as error:
        raise DayError(f"{file}:{error.lineno}: {error.msg}") from None
    found: dict[str, Any] = {}
    exercise = None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name == "EXERCISE":
                exercise = _exercise(file, node.value)
            if name in METADATA or name in OPTIONAL:
                try:
                    found[name] = ast.literal_eval(node.value)
                except ValueError:
                    raise DayError(f"{file}:{node.lineno}: {name} must be a literal") from None
    for name, kind in (METADATA | OPTIONAL).items():
        if name in OPTIONAL and name not in found:
            continue
        if name not in found:
            raise DayError(f"{file}: {name} is missing")
        if not isinstance(found[name], kind) or not found[name]:
            raise DayError(f"{file}: {name} must be a non-empty {kind.__name__}")
    sources = [folder / name for name in (found["SOURCE"], *found.get("EXTRA_SOURCES", ()))]
    for source in sources:
        if not source.is_file():
            raise DayError(f"{file}: names {source.name}, which is not in the folder")
    for used in found.get("USES", ()):
        if not any((days / f"day{used:02}").is_dir() for days in (folder.parent, DAYS)):
            raise DayError(f"{file}: USES names day {used!r}, which does not exist")
    return Day(
        int(number),
        folder,
        found["TITLE"],
        found["TEACHES"],
        tuple(found["TOPICS"]),
        sources[0],
        tuple(sources[1:]),
        tuple(found.get("INTRODUCES", ())),
        exercise,
        found.get("EQUIVALENT", {}),
        tuple(found.get("USES", ())),
        tuple(found.get("METRICS", ())),
    )


def _exercise(file: Path, node: ast.expr) -> Exercise:
    """EXERCISE = Exercise(function="…", …), read without running it."""
    place = f"{file}:{node.lineno}: EXERCISE"
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "Exercise") or node.args:
        raise DayError(f"{place} must be Exercise(function=…, task=…, hints=…)")
    try:
        given = {word.arg or "**": ast.literal_eval(word.value) for word in node.keywords}
        return Exercise(**given)
    except ValueError:
        raise DayError(f"{place} must be made of literals") from None
    except TypeError as error:
        raise DayError(f"{place}: {error}") from None


def discover(root: Path = DAYS) -> tuple[list[Day], list[DayError]]:
    """All days under `root` in order, and an error for each folder that is not a proper day."""
    days: list[Day] = []
    errors: list[DayError] = []
    folders = [p for p in root.glob("day*") if p.is_dir()] if root.is_dir() else []
    for folder in sorted(folders, key=lambda p: (len(p.name), p.name)):
        try:
            days.append(read_day(folder))
        except DayError as error:
            error.folder = folder
            errors.append(error)
    return days, errors


@dataclass(frozen=True)
class Lesson:
    """What running a day's day.py gives: its PROBLEMS, and its function `show`, if it has one.

    show: (operators, device) -> None, called after the checks; it prints what the day has to show.
        Or it returns the files that it makes, texts by name: --write puts them into the day's
        folder, and nothing else does.
    """

    problems: tuple[Problem, ...]
    show: Callable[[Any, Any], dict[str, str] | None] | None = None


def load_lesson(day: Day) -> Lesson:
    """Runs the day's day.py. Raises DayError where what it declares is not what is needed.

    day.py is loaded as a package, so that it can import other .py files of its folder, by
    `from .name import …`. They are run anew each time, as it is.
    """
    file = day.folder / "day.py"
    spec = importlib.util.spec_from_file_location(
        f"days.{day.name}", file, submodule_search_locations=[str(day.folder)]
    )
    assert spec and spec.loader
    for name in sys.modules.copy():  # other threads import meanwhile
        if name.startswith(f"{spec.name}."):
            del sys.modules[name]
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    problems = getattr(module, "PROBLEMS", None)
    if not isinstance(problems, tuple) or not problems:
        raise DayError(f"{file}: PROBLEMS must be a non-empty tuple of Problem")
    for problem in problems:
        if not isinstance(problem, Problem):
            raise DayError(f"{file}: PROBLEMS holds a {type(problem).__name__}, not a Problem")
        timed = problem.timed and any(rung.timed for rung in problem.rungs)
        if timed and problem.pytorch is None:
            raise DayError(
                f"{file}: problem {problem.name!r} is timed, so it needs pytorch=: how somebody "
                "who knows PyTorch would call it"
            )
        if timed and not (problem.bench.shape and problem.bench_cpu.shape):
            raise DayError(
                f"{file}: problem {problem.name!r} is timed: it needs bench and bench_cpu"
            )
        for rung in problem.rungs:
            if (rung.backward is None) != (rung.saves is None):
                raise DayError(f"{file}: rung {rung.name!r}: backward and saves go together")
        if not problem.rungs or not problem.cases:
            raise DayError(f"{file}: problem {problem.name!r} has no rungs or no cases")
    show = getattr(module, "show", None)
    if show is not None and not callable(show):
        raise DayError(f"{file}: show must be a function, got a {type(show).__name__}")
    return Lesson(problems, show)
