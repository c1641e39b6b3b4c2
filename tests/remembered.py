"""Tests that passed with the same sources, flags and versions are not run again.

`--all` runs them all the same. What a test depends on is all of common/ and tests/, the compilers
and packages in use, and the days that it names: the one that it is parametrised with, or those of
its mark `uses_days`. A test of the tier `unit` may read any file, so it depends on the repository.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from common.base import toolchain
from common.base.cache import cache_directory, digest
from common.base.paths import DAYS, ROOT
from common.report.files import write_atomically

REASON = "passed before with the same sources, flags and versions; --all runs it again"
_UNIT = ROOT / "tests" / "unit"
_PACKAGES = ("torch", "numpy", "pytest", "ninja", "rich")


def _file() -> Path:
    return cache_directory() / "tests-passed.json"


def _stored() -> dict[str, str]:
    return json.loads(_file().read_text()) if _file().is_file() else {}


def _contents(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if "__pycache__" not in path.parts)


@cache
def _everywhere() -> str:
    """The key of what all tests depend on."""
    try:
        compiler = toolchain.find_compiler().version
    except toolchain.ToolchainError:
        compiler = ""  # the tests of the tier `unit` do without
    toolkit = toolchain.find_toolkit()
    gpus = toolchain.find_gpus()
    parts = [
        str(ROOT),
        compiler,
        toolkit.version if toolkit else "",
        *gpus.names,
        platform.python_version(),
        *(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES),
    ]
    folders = [_contents(ROOT / "common"), _contents(ROOT / "tests")]
    files = [path for folder in folders for path in folder if path.suffix != ".md"]
    return digest(parts, [*files, ROOT / "run_day.py", ROOT / "pyproject.toml"])


@cache
def _of_day(name: str) -> str:
    return digest([name], _contents(DAYS / name))


@cache
def _whole() -> str:
    """The key of the repository, caches and what a learner writes left out."""
    folders = [ROOT / name for name in ("common", "days", "tests", ".ci", ".github")]
    top = [path for path in ROOT.iterdir() if path.is_file()]
    files = sorted([*top, *(path for folder in folders for path in _contents(folder))])
    return digest([str(path) for path in files], files)


def _days_of(item: pytest.Item) -> list[str]:
    call = getattr(item, "callspec", None)
    day = call.params.get("day") if call else None
    mark = item.get_closest_marker("uses_days")
    used = [f"day{number:02d}" for number in day.uses] if day else []
    return [*([day.name] if day else []), *used, *(mark.args if mark else ())]


def key_of(item: pytest.Item) -> str:
    """What the test's outcome depends on."""
    if item.path.is_relative_to(_UNIT):
        return digest([_everywhere(), _whole()])
    names = _days_of(item)
    if names == ["all"]:
        names = sorted(path.name for path in DAYS.glob("day*"))
    return digest([_everywhere(), *(_of_day(name) for name in names)])


class Remembered:
    """The tests that passed, across sessions."""

    def __init__(self) -> None:
        self._passed = _stored()
        self._new: dict[str, str | None] = {}  # None: it failed
        self._keys: dict[str, str] = {}

    def skip_passed(self, items: Sequence[pytest.Item], everything: bool) -> None:
        """Marks those that need not run; notes of the others what a pass would stand for."""
        for item in items:
            key = key_of(item)
            if not everything and self._passed.get(item.nodeid) == key:
                item.add_marker(pytest.mark.skip(reason=REASON))
            else:
                self._keys[item.nodeid] = key

    def note(self, report: pytest.TestReport) -> None:
        """Takes a test's outcome."""
        key = self._keys.get(report.nodeid)
        if key is None:
            return
        if report.failed:
            self._new[report.nodeid] = None
        elif report.when == "call" and report.passed:
            self._new[report.nodeid] = key

    def save(self) -> None:
        """Adds what is new to what other sessions have written meanwhile."""
        if self._new:
            known = {**_stored(), **self._new}
            passed = {name: key for name, key in known.items() if key is not None}
            write_atomically(_file(), json.dumps(passed, indent=0))
