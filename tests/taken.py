"""Choose the days and the modules of tests/backend for a run, the same ones for the same commit.

Tests that build run on some of the days, in one order: of each three, two are those that the last
commits touched, latest first, and one is drawn by a seed, the hash of the commit's tree.
Uncommitted changes count as touched last. A test takes the first days of this order, as many as
`DAYS_TAKEN` has for it; modules of tests/backend are taken alike. `--all` takes everything.

So the cost of a run has a bound, even if a change of `common/` touches every day. A shallow clone
has fewer commits, and may take others.
"""

from __future__ import annotations

import ast
import os
import random
import subprocess
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from common.base import compiling
from common.base.cache import digest
from common.base.days import Day
from common.base.paths import DAYS, ROOT
from common.check.random_case import SEED_VARIABLE

# How many days a test takes, and what one costs: seconds of a core from an empty cache, measured
# with g++ 12 on a day of middling size. All of the tests together are to take 15 minutes at most on
# two cores, for any choice of days and modules: about 1,300 seconds of a core, where tests/unit
# and what reads every day (180) are counted too.
DAYS_TAKEN = {
    "cpu": 10,  # 40
    "wrong kernels": 30,  # 1
    "stubs": 3,  # 9
    "models": 3,  # 14, two cards
    "drivers": 3,  # 5, of builds that the check has made
    "nvcc": 6,  # 10
    "editor": 2,  # 15, with a clangd
    "narrowing": 6,  # 2
    "random cases": 6,  # 3
    "mutants": 1,  # 20
    "debug": 1,  # 30 to 150
    "write": 1,  # 60, per step
    "outcomes": 4,  # 20
}
MODULES_TAKEN = 8  # 25 each, from 3 to 130

COMMITS = 40  # examined ones: about as many as one issue takes; a merge counts once
BACKEND = ROOT / "tests/backend"
# Further subjects of tests that import the module `tests.command_line`.
_OF_COMMAND_LINE = [ROOT / name for name in ("run_day.py", "common/run", "common/process")]
# No test that takes a part of the days reads these.
_TEXTS = (".md", ".svg")

T = TypeVar("T", bound=Hashable)
Age = tuple[int, int]  # 1 if only what is included was touched, and how many commits ago


@cache
def tree() -> str:
    """Return the hash of the commit's tree, or of the files where git does not know them."""
    try:
        return _git("rev-parse", "HEAD:./").strip()
    except (OSError, subprocess.CalledProcessError):
        files = (p for name in ("common", "days", "tests") for p in (ROOT / name).rglob("*"))
        kept = sorted(p for p in files if p.is_file() and "__pycache__" not in p.parts)
        return digest([str(path.relative_to(ROOT)) for path in kept], kept)


@cache
def seed() -> int:
    """Return the seed of all that the tests draw: HUNDRED_DAYS_SEED, else one of the tree."""
    given = os.environ.get(SEED_VARIABLE)
    return int(given) if given else int(tree()[:12], 16) % 10**6


def hand_down() -> None:
    """Pass the seed to all processes that tests start."""
    os.environ.setdefault(SEED_VARIABLE, str(seed()))


@cache
def touched() -> dict[Path, int]:
    """Return the files that the last COMMITS commits changed, and their folders, with the number of
    commits since: 0 for uncommitted changes. Empty without git's history."""
    try:
        new = _git("ls-files", "--others", "--exclude-standard", "-z").split("\0")
        now = [*new, *_git("diff", "HEAD", "--name-only", "--relative", "-z").split("\0")]
        # A commit without a parent, as the last one of a shallow clone, would show all its files.
        words = ["log", f"-{COMMITS}", "--first-parent", "-m", "--min-parents=1", "--format=%x01"]
        before = _git(*words, "--name-only", "--no-renames", "--relative", "-z").split("\1")[1:]
    except (OSError, subprocess.CalledProcessError):
        return {}
    found: dict[Path, int] = {}
    for ago, names in enumerate([now, *(text.split("\0") for text in before)]):
        for name in (each.strip() for each in names):
            if name and not name.endswith(_TEXTS) and "results" not in Path(name).parts:
                for path in (ROOT / name, *(ROOT / name).parents):
                    found.setdefault(path, ago)
    return found


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@dataclass(frozen=True)
class Order(Generic[T]):
    """Items, of which a test takes the first ones. ages: of the touched ones."""

    items: list[T]
    ages: Mapping[T, Age]

    def first(self, count: int, of: Container[T]) -> list[T]:
        """Return the first `count` items among those in `of`."""
        return [item for item in self.items if item in of][:count]

    def touched(self, count: int) -> str:
        """Return how many of the first ones were touched, out of all touched ones: "8 of 14"."""
        return f"{sum(item in self.ages for item in self.items[:count])} of {len(self.ages)}"


def in_order(items: Sequence[T], ages: Mapping[T, Age]) -> Order[T]:
    """Return all of the items: of each three, two of those that have an age, the least first, and
    one of the others. The seed decides among equal ones."""
    drawn = random.Random(seed()).sample(items, len(items))
    recent = sorted((item for item in drawn if item in ages), key=lambda item: ages[item])
    others = [item for item in drawn if item not in ages]
    ordered: list[T] = []
    while recent and others:
        ordered += [*recent[:2], others.pop(0)]
        del recent[:2]
    return Order([*ordered, *recent, *others], ages)


def order_of_days(days: Sequence[Day]) -> Order[Day]:
    """Return the days in their order. A day counts as touched if its files, the files that they
    include, or a day that it uses were."""
    return in_order(days, _ages({day: ([day.folder], _used_by(day)) for day in days}))


def order_of_modules() -> Order[Path]:
    """Return the modules of tests/backend in their order. A module counts as touched if it, its
    kernels, or its imports were."""
    modules = sorted(BACKEND.glob("test_*.py"))
    parts = {each: ([each, *_kernels_of(each)], _imported(each)) for each in modules}
    return in_order(modules, _ages(parts))


def in_words(days: Order[Day], modules: Order[Path]) -> str:
    """Return the selection of a run with the reasons, for the report."""
    count = DAYS_TAKEN["cpu"]
    return (
        f"taken: {count} of {len(days.items)} days ({days.touched(count)} that the last {COMMITS} "
        f"commits touched), {MODULES_TAKEN} of {len(modules.items)} modules of tests/backend "
        f"({modules.touched(MODULES_TAKEN)}); --all takes everything"
    )


def drawn_by() -> str:
    """Return the seed and where it comes from, for the report."""
    return f"seed {seed()}, of tree {tree()[:12]}; {SEED_VARIABLE}=<a number> sets another"


def numbers_of(session: pytest.Session, test: object) -> list[int]:
    """Return the numbers of the days for which this session has the test, a function."""
    items = (item for item in session.items if isinstance(item, pytest.Function))
    tested = (item.callspec.params["day"] for item in items if item.function is test)
    return sorted({day.number for day in tested if isinstance(day, Day)})


@cache
def _used_by(day: Day) -> list[Path]:
    headers = {path for source in day.library_sources for path in compiling.sources_of(source)}
    return [*headers, *(DAYS / f"day{number:02d}" for number in day.uses)]


@cache
def _kernels_of(module: Path) -> list[Path]:
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign([ast.Name("KERNELS")], ast.Constant(str(name))):
                return [ROOT / f"tests/cpu_kernels/{name}.cu"]
    return []


@cache
def _imported(module: Path) -> list[Path]:
    found: list[Path] = []
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found += [ROOT / f"{name.replace('.', '/')}.py" for name in names]
    return [*found, *(_OF_COMMAND_LINE if ROOT / "tests/command_line.py" in found else [])]


def _ages(made_of: Mapping[T, tuple[Iterable[Path], Iterable[Path]]]) -> dict[T, Age]:
    """Return the age of each item of which a path, or one that it uses, was touched.

    made_of: its own paths, and those that it uses.
    """
    found: dict[T, Age] = {}
    for item, parts in made_of.items():
        for used, paths in enumerate(parts):
            if ages := [touched()[path] for path in paths if path in touched()]:
                found.setdefault(item, (used, min(ages)))
    return found
