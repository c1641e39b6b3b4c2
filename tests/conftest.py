"""Fixtures: the command line on the fixture days; the CPU backend's runtime, one for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.cpu import backend
from tests import cpu_build
from tests.command_line import FIXTURE_DAYS, CommandLine


@pytest.fixture
def run_day() -> CommandLine:
    """The command line on the fixture days."""
    return CommandLine(FIXTURE_DAYS)


@pytest.fixture
def run_copy(tmp_path: Path) -> CommandLine:
    """The command line on a copy of the fixture days, which a test may change, and beside which
    results are stored."""
    shutil.copytree(FIXTURE_DAYS, tmp_path / "days", ignore=shutil.ignore_patterns("__pycache__"))
    return CommandLine(tmp_path / "days")


@pytest.fixture(scope="session")
def cpu_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where libraries for the CPU backend are built, `libcudacpu.so` among them."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("cpu")
    cpu_build.build_runtime(folder)
    return folder


@pytest.fixture(scope="session")
def cpu_library(cpu_folder: Path) -> backend.Runtime:
    """The runtime library, loaded: a process can have one only."""
    return backend.Runtime(cpu_folder / "libcudacpu.so")


@pytest.fixture
def cpu_runtime(cpu_library: backend.Runtime) -> Iterator[backend.Runtime]:
    """The runtime with default settings, before and after."""
    yield cpu_library
    cpu_library.set_schedule("forward")
    cpu_library.set_threads(os.cpu_count() or 1)
    cpu_library.set_time_limit(30)


@pytest.fixture(params=cpu_build.ORDERS, ids=lambda p: f"{p[0]}{p[1] or ''}")
def cpu_ordered(request: pytest.FixtureRequest, cpu_runtime: backend.Runtime) -> backend.Runtime:
    """The runtime in each order of threads and blocks."""
    cpu_runtime.set_schedule(*request.param)
    return cpu_runtime
