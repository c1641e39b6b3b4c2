"""Find and load days: the folder is the registry.

Listing a hundred days reads their metadata from the syntax tree of each `day.py`, without running
it and without importing torch, and from their TOML files; it takes milliseconds.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from common.base.day_files import (
    EXCUSED,
    EXERCISES,
    MUTANTS,
    WRITE,
    DayError,
    Step,
    read_excused,
    read_mutants,
    read_steps,
    text_of,
)
from common.base.declaration import Problem
from common.base.paths import DAYS


@dataclass(frozen=True)
class Further:
    """The part beyond a day's main line: the folder `further` in the day's folder, whose day.py
    declares SOURCE, EXTRA_SOURCES and PROBLEMS like the day's.

    sources: its .cu files for the day's library, and the files of custom builds.
    """

    folder: Path
    sources: tuple[Path, ...]


@dataclass(frozen=True)
class Day:
    """A day as `--list` needs it: read from its files without running day.py.

    number: from the folder's name. title, teaches (one line for progress.md), topics, source (the
    .cu file): the constants TITLE, TEACHES, TOPICS, SOURCE of day.py. extra_sources: the optional
    constant EXTRA_SOURCES. Its .cu files are built together with `source`, into the same library;
    rungs with a custom `load` build the others. introduces: the optional constant INTRODUCES, the
    terms of the glossary that the day explains. metrics: the optional constant METRICS, counters of
    Nsight Compute that --profile reads in addition to the usual ones. uses: the optional constant
    USES, numbers of days whose operators this day's rungs call; they are built and loaded with its
    own. steps: of exercises.toml, in order. equivalent, heuristics: of mutants.toml, see
    `common.base.day_files.KnownMutants`. excused: of evidence.toml, see
    `common.base.day_files.read_excused`. replaced: files of the day, each with its replacement,
    such as a learner's. only: rungs to build among those with a custom build, () for all. further:
    the part beyond the main line, None without a folder `further`. whole: the day is built and run
    with it.
    """

    number: int
    folder: Path
    title: str
    teaches: str
    topics: tuple[str, ...]
    source: Path
    extra_sources: tuple[Path, ...] = ()
    introduces: tuple[str, ...] = ()
    uses: tuple[int, ...] = ()
    metrics: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    equivalent: dict[str, str] = field(default_factory=dict, hash=False)
    heuristics: dict[str, str] = field(default_factory=dict, hash=False)
    excused: dict[str, str] = field(default_factory=dict, hash=False)
    replaced: tuple[tuple[Path, Path], ...] = ()
    only: tuple[str, ...] = ()
    further: Further | None = None
    whole: bool = False

    def with_further(self) -> Day:
        """Return the day including the part beyond its main line, if there is one."""
        return replace(self, whole=self.further is not None)

    @property
    def name(self) -> str:
        """Return the folder's name, which is also the operators' namespace: "day05", "day100"."""
        return self.folder.name

    @property
    def kind(self) -> str:
        """Return the name of its cache entries. A day outside of the course's folder has another
        name, so that its builds never displace the course's."""
        name = f"{self.name}-whole" if self.whole else self.name
        return name if self.folder.parent == DAYS else f"other-{name}"

    def with_source(self, original: Path, other: Path) -> Day:
        """Return the day with one of its sources replaced by another file."""
        extra = tuple(other if source == original else source for source in self.extra_sources)
        source = other if self.source == original else self.source
        replaced = (*self.replaced, (original, other))
        return replace(self, source=source, extra_sources=extra, replaced=replaced)

    def file(self, name: str) -> Path:
        """Return the file of this name in the day's folder, or its replacement."""
        original = self.folder / name
        return dict(self.replaced).get(original, original)

    def practice(self, exercise: str = WRITE) -> str:
        """Return the command line of an exercise of the day: a step's name, "debug" or "speed".
        Without a name, it continues with the first unsolved step."""
        name = "" if exercise == WRITE else f" {exercise}"
        return f"python run_day.py {self.number} --practice{name}"

    def step(self, name: str) -> Step | None:
        """Return the step of this name, or None."""
        return next((step for step in self.steps if step.name == name), None)

    @property
    def library_sources(self) -> tuple[Path, ...]:
        """Return the .cu files of the day's library, `source` first."""
        return (self.source, *(path for path in self._beside_source if path.suffix == ".cu"))

    @property
    def _beside_source(self) -> tuple[Path, ...]:
        further = self.further.sources if self.further and self.whole else ()
        return (*self.extra_sources, *further)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Return the folders with sources of the day: its own and, if it is whole, `further`."""
        return (self.folder, *((self.further.folder,) if self.further and self.whole else ()))

    @property
    def headers(self) -> tuple[Path, ...]:
        """Return the .cuh files of its folders."""
        return tuple(path for folder in self.folders for path in sorted(folder.glob("*.cuh")))

    @property
    def modules(self) -> tuple[Path, ...]:
        """Return the .py files of its folders."""
        return tuple(path for folder in self.folders for path in sorted(folder.glob("*.py")))

    @property
    def programs(self) -> tuple[Path, ...]:
        """Return further .cu files of its folders: programs with a main() function, which `show`
        runs (common/tools/watched_program.py)."""
        known = {*self.library_sources, *dict(self.replaced)}
        found = (path for folder in self.folders for path in sorted(folder.glob("*.cu")))
        return tuple(path for path in found if path not in known)

    @property
    def nvcc_sources(self) -> tuple[Path, ...]:
        """Return all .cu files that nvcc compiles: of the library, and the programs."""
        return (*self.library_sources, *self.programs)

    @property
    def other_sources(self) -> tuple[Path, ...]:
        """Return the files of custom builds."""
        return tuple(path for path in self._beside_source if path.suffix != ".cu")


METADATA = {"TITLE": str, "TEACHES": str, "TOPICS": tuple, "SOURCE": str}
OPTIONAL = dict.fromkeys(("EXTRA_SOURCES", "INTRODUCES", "USES", "METRICS"), tuple)
ITEMS = {"USES": int}  # types of a tuple's items, by default texts


SOURCES = (".cu", ".cuh", ".py")  # text files that are read anywhere in a day's folders


def read_day(folder: Path) -> Day:
    """Return the metadata of the day in `folder`. Raise DayError naming the missing or wrong
    part."""
    file = folder / "day.py"
    number = folder.name.removeprefix("day")
    if not number.isdigit() or folder.name != f"day{int(number):02d}":
        raise DayError(f"{folder}: a day's folder is named day01 to day100")
    if not file.is_file():
        raise DayError(f"{folder}: day.py is missing")
    _check_texts(folder)
    found = _constants(file, METADATA | OPTIONAL)
    for name, kind in (METADATA | OPTIONAL).items():
        if name in OPTIONAL and name not in found:
            continue
        if name not in found:
            raise DayError(f"{file}: {name} is missing")
        if not isinstance(found[name], kind) or not found[name]:
            raise DayError(f"{file}: {name} must be a non-empty {kind.__name__}")
        item = ITEMS.get(name, str)
        if wrong := [each for each in found[name] if not isinstance(each, item)]:
            raise DayError(f"{file}: {name} must hold {item.__name__}, got {wrong[0]!r}")
    sources = _sources(file, found)
    for used in found.get("USES", ()):
        if not any((days / f"day{used:02}").is_dir() for days in (folder.parent, DAYS)):
            raise DayError(f"{file}: USES names day {used!r}, which does not exist")
    mutants = read_mutants(folder / MUTANTS)
    return Day(
        number=int(number),
        folder=folder,
        title=found["TITLE"],
        teaches=found["TEACHES"],
        topics=tuple(found["TOPICS"]),
        source=sources[0],
        extra_sources=tuple(sources[1:]),
        introduces=tuple(found.get("INTRODUCES", ())),
        uses=tuple(found.get("USES", ())),
        metrics=tuple(found.get("METRICS", ())),
        steps=read_steps(folder / EXERCISES),
        equivalent=mutants.equivalent,
        heuristics=mutants.heuristics,
        excused=read_excused(folder / EXCUSED),
        further=_further(folder / "further"),
    )


def _check_texts(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.suffix in SOURCES:
            text_of(path)


def _constants(file: Path, names: Collection[str]) -> dict[str, Any]:
    """Return those of these constants that a day.py sets at its top level. Raise DayError."""
    try:
        tree = ast.parse(text_of(file), str(file))
    except SyntaxError as error:
        raise DayError(f"{file}:{error.lineno or 1}: {error.msg}") from None
    except (RecursionError, MemoryError):  # the second from the parser, which has a separate stack
        raise DayError(f"{file}: nested too deeply") from None
    found: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case ast.Assign([ast.Name(name), *_], value) if name in names:
                try:
                    found[name] = ast.literal_eval(value)
                except ValueError:
                    raise DayError(f"{file}:{node.lineno}: {name} must be a literal") from None
    return found


def _sources(file: Path, found: dict[str, Any]) -> list[Path]:
    """Return the files that SOURCE and EXTRA_SOURCES of a day.py name. Raise DayError."""
    names = (found["SOURCE"], *found.get("EXTRA_SOURCES", ()))
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise DayError(f"{file}: SOURCE and EXTRA_SOURCES name files, got {wrong[0]!r}")
    for name in names:
        if Path(name).name != name or not (file.parent / name).is_file():
            raise DayError(f"{file}: names {name}, which is not in the folder")
    return [file.parent / name for name in names]


def _further(folder: Path) -> Further | None:
    """Return the declarations of a day's folder `further`, None without one. Raise DayError."""
    if not folder.is_dir():
        return None
    file = folder / "day.py"
    for path in (file, folder / "README.md"):
        if not path.is_file():
            raise DayError(f"{folder}: {path.name} is missing")
    _check_texts(folder)
    found = _constants(file, ("SOURCE", "EXTRA_SOURCES"))
    if not found.get("SOURCE"):
        raise DayError(f"{file}: SOURCE is missing")
    return Further(folder, tuple(_sources(file, found)))


def discover(root: Path = DAYS) -> tuple[list[Day], list[DayError]]:
    """Return all days under `root` in order, and an error for each folder that is not a valid
    day."""
    days: list[Day] = []
    errors: list[DayError] = []
    folders = [p for p in root.glob("day*") if p.is_dir()] if root.is_dir() else []
    for folder in sorted(folders, key=lambda p: (len(p.name), p.name)):
        try:
            days.append(read_day(folder))
        except DayError as error:
            error.folder = folder
            errors.append(error)
        except Exception as error:  # the other days are still read
            wrong = DayError(f"{folder}: cannot be read: {type(error).__name__}: {error}")
            wrong.folder = folder
            errors.append(wrong)
    return days, errors


Show = Callable[[Any, Any], dict[str, str] | None]
FURTHER_SHOWS = "further:"  # the line between the outputs of the main line and of `further`


@dataclass(frozen=True)
class Lesson:
    """The result of running a day's day.py: its PROBLEMS, and its functions `show` and
    `show_times`, if it has them.

    show: (operators, device) -> None, called after the checks; it prints the day's demonstration.
        Or it returns files, texts by name, which only --write stores in the day's folder. Other
        days may run on the device at the same time.
    show_times: the same for what must not be disturbed; called last, with the device for itself.
    """

    problems: tuple[Problem, ...]
    show: Show | None = None
    show_times: Show | None = None


def load_lesson(day: Day) -> Lesson:
    """Run the day's day.py. Raise DayError if its declarations are invalid.

    day.py is loaded as a package, so that it can import other .py files of its folder, by `from
    .name import …`. Like day.py, they run again each time. Imports of a replaced module
    (`Day.replaced`) get the replacement.
    """
    _stand_in(day)
    lesson = _load(f"days.{day.name}", day.folder)
    if not (day.further and day.whole):
        return lesson
    further = _load(f"days.{day.name}.further", day.further.folder)
    beyond = (replace(problem, further=True) for problem in further.problems)
    problems = (*lesson.problems, *beyond)
    beside, alone = _marked(further)
    if lesson.show_times is None:
        return Lesson(problems, _in_turn(lesson.show, beside), alone)
    return Lesson(problems, lesson.show, _in_turn(lesson.show_times, beside, alone))


def _marked(further: Lesson) -> tuple[Show | None, Show | None]:
    """Return both shows of `further`, the first of which prints the line that begins its output;
    names of their files begin with "further/"."""

    def marked(show: Show | None, line: str) -> Show | None:
        if show is None:
            return None

        def beyond(operators: Any, device: Any) -> dict[str, str]:
            print(line, end="")
            files = show(operators, device) or {}
            return {f"further/{name}": text for name, text in files.items()}

        return beyond

    line = f"{FURTHER_SHOWS}\n"
    return marked(further.show, line), marked(further.show_times, "" if further.show else line)


def _in_turn(*shows: Show | None) -> Show | None:
    """Return one function that calls those that are not None, and returns all files."""
    present = [show for show in shows if show is not None]
    if len(present) < 2:
        return present[0] if present else None

    def together(operators: Any, device: Any) -> dict[str, str]:
        files: dict[str, str] = {}
        for show in present:
            files |= show(operators, device) or {}
        return files

    return together


class _ReadAnew(SourceFileLoader):
    """Load a module without the bytecode cache, which cannot distinguish two versions of equal size
    that were saved within one second."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


class _StandIns(MetaPathFinder):
    """Find the replacements of days' modules. files: by the module's name."""

    def __init__(self) -> None:
        self.files: dict[str, Path] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.files.get(fullname)
        if file is None:
            return None
        loader = _ReadAnew(fullname, str(file))
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


_STAND_INS = _StandIns()


def _stand_in(day: Day) -> None:
    """Make imports of the day's modules find their replacements, and none of other runs."""
    if _STAND_INS not in sys.meta_path:
        sys.meta_path.insert(0, _STAND_INS)
    packages = (f"days.{day.name}", f"days.{day.name}.further")
    _STAND_INS.files = {
        f"{package}.{original.stem}": other
        for folder, package in zip(day.folders, packages, strict=False)
        for original, other in day.replaced
        if original.parent == folder and original.suffix == ".py"
    }


def _load(module_name: str, folder: Path) -> Lesson:
    """Run a folder's day.py as the package `module_name`. Raise DayError."""
    file = folder / "day.py"
    spec = importlib.util.spec_from_file_location(
        module_name, file, submodule_search_locations=[str(folder)]
    )
    assert spec and spec.loader
    for name in sys.modules.copy():  # other threads may import meanwhile
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
    shows = {name: getattr(module, name, None) for name in ("show", "show_times")}
    for name, show in shows.items():
        if show is not None and not callable(show):
            raise DayError(f"{file}: {name} must be a function, got a {type(show).__name__}")
    return Lesson(problems, **shows)
