"""Fixtures: the command line on the fixture days; the CPU backend's runtime, one for all tests;
files of test kernels, called by name on the CPU backend and on a GPU.

A test module of kernels says `KERNELS = "<name>"`, of `cpu_kernels/<name>.cu`, and its tests take
`call` (in each order on the CPU backend, and on the GPU), `cpu_call` (in each order on the CPU
backend), or `operators` (on the CPU backend, in the order that the test sets).
"""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from common import build, toolchain
from common.cpu import backend
from tests import wrapper_table
from tests.command_line import FIXTURE_DAYS, CommandLine
from tests.kernel_files import ORDERS, Call, Libraries


def _name_of_place(place: tuple[str, int] | str) -> str:
    return place if isinstance(place, str) else f"{place[0]}{place[1] or ''}"


_outcomes_on_gpu: dict[str, list[bool]] = {}  # of the tests of each file of kernels


def pytest_configure() -> None:
    """What a script starts in the background ignores Ctrl-C, and hands that on to programs that it
    starts: those that tests interrupt must not."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record",
        action="store_true",
        help="store which PTX wrappers were proven on this machine's GPU (wrapper_table.py)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    """Notes how each test of kernels went on the GPU."""
    report = yield
    call = getattr(item, "callspec", None)
    kernels = getattr(getattr(item, "module", None), "KERNELS", None)
    if call and kernels and call.params.get("call") == "gpu" and not report.skipped:
        _outcomes_on_gpu.setdefault(kernels, []).append(report.passed)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With --record, stores what was proven: files of kernels whose tests all passed."""
    if session.config.getoption("--record"):
        proven = [name for name, passed in _outcomes_on_gpu.items() if all(passed)]
        if not proven:
            raise pytest.UsageError("--record: no test of kernels passed on a GPU")
        print(f"\nrecorded in {wrapper_table.record(proven)}")


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
def cpu_library() -> backend.Runtime:
    """The runtime library, loaded: a process can have one only."""
    try:
        platform = toolchain.detect("cpu")
    except toolchain.ToolchainError as error:
        pytest.skip(str(error))
    return backend.Runtime(build.build_runtime(platform))


@pytest.fixture
def cpu_runtime(cpu_library: backend.Runtime) -> Iterator[backend.Runtime]:
    """The runtime with default settings, before and after."""
    yield cpu_library
    cpu_library.set_schedule("forward")
    cpu_library.set_threads(os.cpu_count() or 1)
    cpu_library.set_time_limit(30)
    cpu_library.set_spin_limit(1.5)
    cpu_library.set_stuck_limit(math.inf)


@pytest.fixture(params=ORDERS, ids=_name_of_place)
def cpu_ordered(request: pytest.FixtureRequest, cpu_runtime: backend.Runtime) -> backend.Runtime:
    """The runtime in each order of threads and blocks."""
    cpu_runtime.set_schedule(*request.param)
    return cpu_runtime


@pytest.fixture(scope="session")
def libraries(request: pytest.FixtureRequest, cpu_library: backend.Runtime) -> Iterator[Libraries]:
    """The files of kernels that the collected tests name, being built."""
    modules = {getattr(item, "module", None) for item in request.session.items}
    names = {getattr(module, "KERNELS", None) for module in modules}
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    found = Libraries(sorted(name for name in names if isinstance(name, str)), devices)
    yield found
    found.close()


@pytest.fixture
def operators(
    request: pytest.FixtureRequest, libraries: Libraries, cpu_runtime: backend.Runtime
) -> Any:
    """The operators of the module's file of kernels; with CPU tensors, the CPU backend's."""
    return libraries.operators(request.module.KERNELS)


@pytest.fixture(params=[*ORDERS, "gpu"], ids=_name_of_place)
def call(request: pytest.FixtureRequest, operators: Any, cpu_runtime: backend.Runtime) -> Call:
    """The same by name with CPU tensors: in each order on the CPU backend, and on the GPU."""
    if request.param == "gpu":
        if not torch.cuda.is_available():
            pytest.skip("no GPU")
        return Call(operators, "cuda")
    cpu_runtime.set_schedule(*request.param)
    return Call(operators, "cpu")


@pytest.fixture(params=ORDERS, ids=_name_of_place)
def cpu_call(request: pytest.FixtureRequest, operators: Any, cpu_runtime: backend.Runtime) -> Call:
    """The same on the CPU backend alone: for mistakes, and for what only that has."""
    cpu_runtime.set_schedule(*request.param)
    return Call(operators, "cpu")
