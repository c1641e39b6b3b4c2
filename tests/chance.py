"""What a session of tests draws: its seed, and the days and modules whose turn it is.

Costly tests take a few days of each date in turn, or a share of them and those that were changed
lately: the check of a day on the CPU backend a quarter, others a fifth. Of the modules in
tests/backend, a third is taken, and all where what they test was changed lately.
HUNDRED_DAYS_SEED=20260131 repeats what that date drew, and takes every day.
"""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from common.base import compiling
from common.base.days import Day
from common.base.paths import ROOT
from common.check.random_case import SEED_VARIABLE
from common.cpu.lexer import tokenize
from common.run.mutate import today_as_seed

GIVEN = SEED_VARIABLE in os.environ
RECENT = 20  # commits; a merge is one
SEED = int(os.environ.get(SEED_VARIABLE) or today_as_seed())
BACKEND = ROOT / "tests/backend"
T = TypeVar("T", bound=Hashable)
# What the modules of tests/backend are about, below common/: all of them the CPU backend, and those
# that name the builds or the runner these as well. The rest of common/ is seen by the tests of the
# days.
CPU_PARTS = (
    *("base/cache.py", "base/compiling.py", "base/paths.py", "base/toolchain.py"),
    *("cpu", "cuda/ptx", "tools"),
)
RUN_PARTS = ("base/days.py", "base/outcome.py", "build", "process", "run")
_NAMES_RUNS = re.compile(r"\bcommon\.(build|process|run)\b|\btests\.(command_line|compilations)\b")


def in_turn(items: Sequence[T], how_many: int, purpose: str) -> list[T]:
    """Every item where the seed was given, else so many of them, for each purpose others."""
    if GIVEN or len(items) <= how_many:
        return list(items)
    taken = set(random.Random(f"{purpose} {SEED}").sample(items, how_many))
    return [item for item in items if item in taken]


def is_due(
    day: Day, days: Sequence[Day], purpose: str, headers: bool = False, one_in: int = 5
) -> bool:
    """Whether the day is among the `one_in`-th part of `days` whose turn it is, or recent commits
    touched its sources; with `headers`, also if they touched a header that it includes."""
    recent = recently_touched()
    if recent is None or day in in_turn(days, len(days) // one_in, purpose):
        return True
    if any(path.is_relative_to(day.folder) for path in recent):
        return True
    return headers and not recent.isdisjoint(_sources(day))


def is_module_due(module: Path, modules: Sequence[Path]) -> bool:
    """Whether a module of tests/backend is in the third of `modules` whose turn it is, or recent
    commits touched what it is about, or what these modules share."""
    recent = recently_touched()
    if recent is None or module in in_turn(modules, len(modules) // 3, "backend"):
        return True
    runs = RUN_PARTS if names_runs(module) else ()
    parts = [ROOT / "common" / part for part in (*CPU_PARTS, *runs)]
    return any(
        path == module
        or any(path.is_relative_to(part) for part in parts)
        or (path.is_relative_to(ROOT / "tests") and _NOT_SHARED.isdisjoint((path, path.parent)))
        for path in recent
    )


@cache
def names_runs(module: Path) -> bool:
    """Whether a module of tests/backend has to do with the builds or the runner."""
    return _NAMES_RUNS.search(module.read_text(encoding="utf-8")) is not None


# Nothing here is used by a module of tests/backend. This file says what is taken: no outcome
# depends on it.
_NOT_SHARED = {BACKEND, ROOT / "tests/days", ROOT / "tests/unit", ROOT / "tests/chance.py"}


@cache
def _sources(day: Day) -> set[Path]:
    return {path for source in day.library_sources for path in compiling.sources_of(source)}


@cache
def recently_touched() -> set[Path] | None:
    """The files that the last RECENT commits changed, and what is not committed yet; None without
    git's history, where nothing is known to be old. Left out are texts and pictures, which no test
    that takes turns reads, and sources of which only comments or docstrings are others."""
    try:
        commits = _git("log", f"-{RECENT + 1}", "--first-parent", "--format=%H").split()
        before = commits[RECENT] if len(commits) > RECENT else _EMPTY_TREE
        changed = _git("diff", "--name-only", "--no-renames", "-z", before).split("\0")
        new = _git("ls-files", "--others", "--exclude-standard", "-z").split("\0")
    except (OSError, subprocess.CalledProcessError):
        return None
    names = [name for name in changed + new if name and not name.endswith((".md", ".svg"))]
    return {ROOT / name for name in names if _code_differs(name, before)}


_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # of git, which every repository knows


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def _code_differs(name: str, before: str) -> bool:
    """Whether a file has other code than at that commit."""
    try:
        then, now = _git("show", f"{before}:{name}"), (ROOT / name).read_text(encoding="utf-8")
        return _code(name, then) != _code(name, now)
    except (OSError, ValueError, SyntaxError, subprocess.CalledProcessError):
        return True  # new, gone, no text, or not of its language


def _code(name: str, text: str) -> object:
    """A source without comments and docstrings, to compare; another file as it is."""
    if name.endswith((".cu", ".cuh", ".h", ".cpp")):
        return [token.text for token in tokenize(text) if token.is_code]
    if not name.endswith(".py"):
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            del node.body[0]
    return ast.dump(tree)


def hand_down() -> None:
    """Gives the seed to all that tests start, so that a date's run can be repeated."""
    os.environ.setdefault(SEED_VARIABLE, str(SEED))
