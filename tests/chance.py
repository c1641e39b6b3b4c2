"""What a session of tests draws: its seed, and the days and modules whose turn it is.

Costly tests take a few days of each date in turn, or a fifth of them and those that were changed
lately. Of the modules in tests/backend, a third is taken, and all where what they test was changed
lately.
HUNDRED_DAYS_SEED=20260131 repeats what that date drew, and takes every day.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from common.base import compiling
from common.base.days import Day
from common.base.paths import ROOT
from common.check.random_case import SEED_VARIABLE
from common.run.mutate import today_as_seed

GIVEN = SEED_VARIABLE in os.environ
RECENT = 20  # commits; a merge is one
SEED = int(os.environ.get(SEED_VARIABLE) or today_as_seed())
BACKEND = ROOT / "tests/backend"
T = TypeVar("T", bound=Hashable)
# What tests/backend is about, below common/. The rest of common/ is seen by the tests of the days.
BACKEND_PARTS = ("base", "build", "cpu", "cuda/ptx", "process", "run", "tools")


def in_turn(items: Sequence[T], how_many: int, purpose: str) -> list[T]:
    """Every item where the seed was given, else so many of them, for each purpose others."""
    if GIVEN or len(items) <= how_many:
        return list(items)
    taken = set(random.Random(f"{purpose} {SEED}").sample(items, how_many))
    return [item for item in items if item in taken]


def is_due(day: Day, days: Sequence[Day], purpose: str, headers: bool = False) -> bool:
    """Whether the day is in the fifth of `days` whose turn it is, or recent commits touched its
    sources; with `headers`, also if they touched a header that it includes."""
    recent = recently_touched()
    if recent is None or day in in_turn(days, len(days) // 5, purpose):
        return True
    if any(path.is_relative_to(day.folder) for path in recent):
        return True
    return headers and not recent.isdisjoint(_sources(day))


def is_module_due(module: Path, modules: Sequence[Path]) -> bool:
    """Whether a module of tests/backend is in the third of `modules` whose turn it is, or recent
    commits touched the CPU backend, the builds or the runner, or what these modules share."""
    recent = recently_touched()
    if recent is None or module in in_turn(modules, len(modules) // 3, "backend"):
        return True
    parts = [ROOT / "common" / part for part in BACKEND_PARTS]
    return any(
        path == module
        or any(path.is_relative_to(part) for part in parts)
        or (path.is_relative_to(ROOT / "tests") and path.parent not in _MODULES_ONLY)
        for path in recent
    )


_MODULES_ONLY = (BACKEND, ROOT / "tests/days", ROOT / "tests/unit")  # nothing that others use


@cache
def _sources(day: Day) -> set[Path]:
    return {path for source in day.library_sources for path in compiling.sources_of(source)}


@cache
def recently_touched() -> set[Path] | None:
    """The files that the last RECENT commits touched, and what is not committed yet; None without
    git's history, where nothing is known to be old. Texts and pictures, which no test that takes
    turns reads, are left out."""
    log = ["git", "log", f"-{RECENT}", "--first-parent", "-m", "--format=", "--name-only"]
    status = ["git", "status", "--porcelain", "--no-renames", "--untracked-files=all"]
    paths: set[Path] = set()
    for command in (log, status):
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        paths |= {ROOT / line.split()[-1] for line in done.stdout.splitlines() if line}
    return {path for path in paths if path.suffix not in (".md", ".svg")}


def hand_down() -> None:
    """Gives the seed to all that tests start, so that a date's run can be repeated."""
    os.environ.setdefault(SEED_VARIABLE, str(SEED))
