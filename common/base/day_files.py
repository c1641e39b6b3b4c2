"""Read a day's TOML files strictly: unknown or missing keys, empty texts, other types are errors.

    exercises.toml  [[step]]        function, task, hints, why; optional: name, first, last,
                                    instead, source, rungs
                    [[outcome]]     item, change, says; optional: run, rungs, source
    mutants.toml    [[equivalent]]  mutants, why
                    [[heuristic]]   functions, why
    evidence.toml   [[excused]]     kernels, why

Line breaks and indentation in a task, a hint or a reason stand for one blank, so that they can be
written as multi-line strings.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from common.base.decoding import PlainError, decode

EXERCISES, MUTANTS, EXCUSED = "exercises.toml", "mutants.toml", "evidence.toml"

# The kinds of exercise. A day with one step to write names it "write"; with several, each has a
# distinct name, which is none of these.
WRITE, DEBUG, SPEED = KINDS = ("write", "debug", "speed")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class DayError(Exception):
    """A day's folder or one of its files is invalid; the message names it and, in a TOML file,
    table and key.

    folder: the day's folder, if `discover` found the error.
    """

    folder: Path | None = None


def text_of(file: Path) -> str:
    """Return the text of a file. Raise DayError if it is not a file, or cannot be read."""
    if not file.is_file():  # a pipe would block
        raise DayError(f"{file}: is no file, nor a link to one")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DayError(f"{file}: cannot be read: {error}") from None


@dataclass(frozen=True)
class Step:
    """A step of practice mode, in which the learner writes the body of a function, or part of it.

    function: a function that occurs once in the day's source.
    task: the learner's task, in one or two sentences; it replaces the code in the file.
    hints: a nudge, the idea, nearly the code.
    why: the reason for the solution, in one or two sentences, shown once it is solved.
    name: the step's name on the command line, and of its file; required if a day has several.
    first, last: to leave out part of the body: text of its first and of its last line, which
        occurs in no other line of the body.
    instead: code that fills the gap at first, so that the rest of the file compiles.
    source: the file of the function, "" for the day's SOURCE: a .cu file of its library, a header
        of its folder, or a Python file, such as that of its kernels in Triton or Numba.
    rungs: those that the step is checked with, () for all that use the function. Needed if the
        sources do not show it: for Python, and on a day with custom builds of rungs.
    """

    function: str
    task: str
    hints: tuple[str, ...]
    why: str
    name: str = WRITE
    first: str = ""
    last: str = ""
    instead: str = ""
    source: str = ""
    rungs: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Return True if it is the whole body of the function."""
        return not self.first


@dataclass(frozen=True)
class Outcome:
    """An outcome announced in "Try it yourself" of the README, which a test verifies.

    item: its number there. change: pairs of a text that occurs once in the day's source, and its
    replacement. says: regular expressions, each found in the run's output. run: how the day is run.
    passes: whether it passes then. rungs, source: as of a Step.
    """

    item: str
    change: tuple[str, ...]
    says: tuple[str, ...]
    passes: Literal["yes", "no"]
    run: Literal["check", "sanitize", "profile"] = "check"
    rungs: tuple[str, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class KnownMutants:
    """Mutants that compute the same as the original, with the reasons.

    equivalent: reason by the mutant's identity, as `--mutants` prints it. heuristics: reason by
    function, named as identities begin ("boxes.cuh: split_time"), for functions that only choose
    among ways to compute the same (common/mutants/heuristics.py).
    """

    equivalent: dict[str, str] = field(default_factory=dict)
    heuristics: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Equivalent:
    mutants: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class _Heuristic:
    functions: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class _Excused:
    kernels: tuple[str, ...]
    why: str


_EXERCISES = {"step": Step, "outcome": Outcome}
_PROSE = ("task", "hints", "why")  # keys whose line breaks and indentation are ignored
_BLANK = "change"  # the key whose texts may be empty


def read_outcomes(file: Path) -> tuple[Outcome, ...]:
    """Return the outcomes of an exercises.toml, () if it does not exist. Raise DayError."""
    outcomes: tuple[Outcome, ...] = tuple(_read(file, _EXERCISES)["outcome"])
    for each in outcomes:
        if len(each.change) % 2:
            raise DayError(
                f"{file}: [[outcome]] of item {each.item}: change must be pairs of texts, "
                f"got {len(each.change)}"
            )
    return outcomes


def read_steps(file: Path) -> tuple[Step, ...]:
    """Return the steps of an exercises.toml, () if it does not exist. Raise DayError."""
    steps: tuple[Step, ...] = tuple(_read(file, _EXERCISES)["step"])
    if len(steps) > 1:
        _check_names(file, [step.name for step in steps])
    elif steps and steps[0].name != WRITE:
        raise DayError(f"{file}: name: the only step of a day is called {WRITE!r}")
    return steps


def _check_names(file: Path, names: list[str]) -> None:
    for number, name in enumerate(names, 1):
        where = f"{file}: [[step]] {number}: name"
        if name == WRITE:
            raise DayError(f"{where} is missing: the day has {len(names)} steps")
        if not _NAME.fullmatch(name):
            raise DayError(
                f"{where} must be lower-case letters, digits and _, begun by a letter, got {name!r}"
            )
        if name in KINDS:
            raise DayError(f"{where}: {name!r} is a kind of exercise; choose another name")
        if name in names[: number - 1]:
            raise DayError(f"{where}: {name!r} is another step's name")


def read_mutants(file: Path) -> KnownMutants:
    """Return the entries of a mutants.toml, none if it does not exist. Raise DayError."""
    tables = _read(file, {"equivalent": _Equivalent, "heuristic": _Heuristic})
    return KnownMutants(
        _reasons(file, tables["equivalent"], "mutants"),
        _reasons(file, tables["heuristic"], "functions"),
    )


def read_excused(file: Path) -> dict[str, str]:
    """Return the entries of an evidence.toml, {} if it does not exist: by the name of a kernel
    without template arguments, the reason why its machine code spills registers or loads vectors of
    16 bytes in pieces. Raise DayError."""
    return _reasons(file, _read(file, {"excused": _Excused})["excused"], "kernels")


def _reasons(file: Path, tables: list[Any], key: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for table in tables:
        for name in getattr(table, key):
            if name in found:
                raise DayError(f"{file}: {key}: {name!r} is listed twice")
            found[name] = table.why
    return found


def _read(file: Path, known: dict[str, type]) -> dict[str, list[Any]]:
    """Return the file's tables by name, as these dataclasses."""
    found: dict[str, list[Any]] = {name: [] for name in known}
    if not os.path.lexists(file):
        return found
    try:
        data = tomllib.loads(text_of(file))
    except tomllib.TOMLDecodeError as error:
        raise DayError(f"{file}: {error}") from None
    except RecursionError:
        raise DayError(f"{file}: nested too deeply") from None
    allowed = " and ".join(f"[[{name}]]" for name in known)
    for name, tables in data.items():
        if name not in known:
            raise DayError(f"{file}: {name!r} is unknown; the file holds tables {allowed}")
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise DayError(f"{file}: {name} must be tables, each begun by [[{name}]]")
        for number, table in enumerate(tables, 1):
            where = f"{file}: [[{name}]]" + (f" {number}" if len(tables) > 1 else "")
            found[name].append(_table(where, table, known[name]))
    return found


def _table(where: str, table: dict[str, Any], kind: type) -> Any:
    try:
        found = decode(kind, table, where)
    except PlainError as error:
        raise DayError(str(error)) from None
    tidy: dict[str, str | tuple[str, ...]] = {}
    for name in table:
        value: str | tuple[str, ...] = getattr(found, name)
        texts = (value,) if isinstance(value, str) else value
        if not texts or (name != _BLANK and not all(text.strip() for text in texts)):
            raise DayError(f"{where}.{name}: is empty, or has an empty text")
        if name in _PROSE:
            prose = tuple(" ".join(text.split()) for text in texts)
            tidy[name] = prose[0] if isinstance(value, str) else prose
    return replace(found, **tidy)
