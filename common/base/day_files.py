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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXERCISES, MUTANTS, EXCUSED = "exercises.toml", "mutants.toml", "evidence.toml"

# The kinds of exercise. A day with one step to write names it "write"; with several, each has a
# distinct name, which is none of these.
WRITE, DEBUG, SPEED = KINDS = ("write", "debug", "speed")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class DayFileError(Exception):
    """A day's file is invalid; the message names it and, in a TOML file, table and key."""


def text_of(file: Path) -> str:
    """Return the text of a file. Raise DayFileError if it is not a file, or cannot be read."""
    if not file.is_file():  # a pipe would block
        raise DayFileError(f"{file}: is no file, nor a link to one")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DayFileError(f"{file}: cannot be read: {error}") from None


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
    why: str = ""
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
    replacement. says: regular expressions, each found in the run's output. run: how the day is run,
    one of RUNS. passes: "yes" or "no". rungs, source: as of a Step.
    """

    item: str
    change: tuple[str, ...]
    says: tuple[str, ...]
    passes: str
    run: str = "check"
    rungs: tuple[str, ...] = ()
    source: str = ""


RUNS = ("check", "sanitize", "profile")
YES_NO = ("yes", "no")


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
class _Key:
    """A key of a table. many: a list of texts, not one. prose: its line breaks are ignored. blank:
    a text may be empty."""

    many: bool = False
    blank: bool = False
    prose: bool = False
    required: bool = True


_STEP = {
    "function": _Key(),
    "task": _Key(prose=True),
    "hints": _Key(many=True, prose=True),
    "why": _Key(prose=True),
    "name": _Key(required=False),
    "first": _Key(required=False),
    "last": _Key(required=False),
    "instead": _Key(required=False),
    "source": _Key(required=False),
    "rungs": _Key(many=True, required=False),
}
_OUTCOME = {
    "item": _Key(),
    "change": _Key(many=True, blank=True),
    "says": _Key(many=True),
    "passes": _Key(),
    "run": _Key(required=False),
    "rungs": _Key(many=True, required=False),
    "source": _Key(required=False),
}
_EXERCISES = {"step": _STEP, "outcome": _OUTCOME}
_WHY = {"why": _Key(prose=True)}
_EQUIVALENT = {"mutants": _Key(many=True), **_WHY}
_HEURISTIC = {"functions": _Key(many=True), **_WHY}
_EXCUSED = {"kernels": _Key(many=True), **_WHY}


def read_outcomes(file: Path) -> tuple[Outcome, ...]:
    """Return the outcomes of an exercises.toml, () if it does not exist. Raise DayFileError."""
    outcomes = tuple(Outcome(**table) for table in _read(file, _EXERCISES)["outcome"])
    for each in outcomes:
        where = f"{file}: [[outcome]] of item {each.item}"
        if len(each.change) % 2:
            raise DayFileError(f"{where}: change must be pairs of texts, got {len(each.change)}")
        for key, value, allowed in (("run", each.run, RUNS), ("passes", each.passes, YES_NO)):
            if value not in allowed:
                raise DayFileError(f"{where}: {key} must be {' or '.join(allowed)}, got {value!r}")
    return outcomes


def read_steps(file: Path) -> tuple[Step, ...]:
    """Return the steps of an exercises.toml, () if it does not exist. Raise DayFileError."""
    tables = _read(file, _EXERCISES)
    steps = tuple(Step(**table) for table in tables["step"])
    if len(steps) > 1:
        _check_names(file, [table.get("name", "") for table in tables["step"]])
    elif tables["step"] and "name" in tables["step"][0]:
        raise DayFileError(f"{file}: name: the only step of a day is called {WRITE!r}")
    return steps


def _check_names(file: Path, names: list[str]) -> None:
    for number, name in enumerate(names, 1):
        where = f"{file}: [[step]] {number}: name"
        if not name:
            raise DayFileError(f"{where} is missing: the day has {len(names)} steps")
        if not _NAME.fullmatch(name):
            raise DayFileError(
                f"{where} must be lower-case letters, digits and _, begun by a letter, got {name!r}"
            )
        if name in KINDS:
            raise DayFileError(f"{where}: {name!r} is a kind of exercise; choose another name")
        if name in names[: number - 1]:
            raise DayFileError(f"{where}: {name!r} is another step's name")


def read_mutants(file: Path) -> KnownMutants:
    """Return the entries of a mutants.toml, none if it does not exist. Raise DayFileError."""
    tables = _read(file, {"equivalent": _EQUIVALENT, "heuristic": _HEURISTIC})
    return KnownMutants(
        _reasons(file, tables["equivalent"], "mutants"),
        _reasons(file, tables["heuristic"], "functions"),
    )


def read_excused(file: Path) -> dict[str, str]:
    """Return the entries of an evidence.toml, {} if it does not exist: by the name of a kernel
    without template arguments, the reason why its machine code spills registers or loads vectors of
    16 bytes in pieces. Raise DayFileError."""
    return _reasons(file, _read(file, {"excused": _EXCUSED})["excused"], "kernels")


def _reasons(file: Path, tables: list[dict[str, Any]], key: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for table in tables:
        for name in table[key]:
            if name in found:
                raise DayFileError(f"{file}: {key}: {name!r} is listed twice")
            found[name] = table["why"]
    return found


def _read(file: Path, known: dict[str, dict[str, _Key]]) -> dict[str, list[dict[str, Any]]]:
    """Return the file's tables by name. known: the allowed keys of each table."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in known}
    if not os.path.lexists(file):
        return found
    try:
        data = tomllib.loads(text_of(file))
    except tomllib.TOMLDecodeError as error:
        raise DayFileError(f"{file}: {error}") from None
    except RecursionError:
        raise DayFileError(f"{file}: nested too deeply") from None
    allowed = " and ".join(f"[[{name}]]" for name in known)
    for name, tables in data.items():
        if name not in known:
            raise DayFileError(f"{file}: {name!r} is unknown; the file holds tables {allowed}")
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise DayFileError(f"{file}: {name} must be tables, each begun by [[{name}]]")
        for number, table in enumerate(tables, 1):
            where = f"{file}: [[{name}]]" + (f" {number}" if len(tables) > 1 else "")
            found[name].append(_table(where, table, known[name]))
    return found


def _table(where: str, table: dict[str, Any], keys: dict[str, _Key]) -> dict[str, Any]:
    for name in table:
        if name not in keys:
            raise DayFileError(f"{where}: {name!r} is unknown; allowed are {', '.join(keys)}")
    for name, key in keys.items():
        if key.required and name not in table:
            raise DayFileError(f"{where}: {name} is missing")
    return {name: _value(f"{where}: {name}", table[name], keys[name]) for name in table}


def _value(where: str, value: Any, key: _Key) -> str | tuple[str, ...]:
    texts = value if key.many else [value]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        expected = "a list of texts" if key.many else "a text"
        raise DayFileError(f"{where} must be {expected}, got {value!r}")
    if not texts or not (key.blank or all(text.strip() for text in texts)):
        raise DayFileError(f"{where} {'has an empty text' if key.many and texts else 'is empty'}")
    found = tuple(" ".join(text.split()) if key.prose else text for text in texts)
    return found if key.many else found[0]
