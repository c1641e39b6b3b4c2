"""Fixtures: the command line on the fixture days; the CPU backend's runtime, one for all tests;
files of test kernels, called by name on the CPU backend and on a GPU.

A test module of kernels sets `KERNELS = "<name>"`, for `cpu_kernels/<name>.cu`, and its tests take
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
from types import FrameType
from typing import Any

import pytest

# PyTorch's threads sleep while they have nothing to do, instead of keeping a core busy.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from common.base import toolchain
from common.base.days import Day, discover
from common.cpu import backend
from common.cpu import libraries as shared
from tests import taken, wrapper_table
from tests.command_line import FIXTURE_DAYS, CommandLine
from tests.compilations import Compilations
from tests.days.runs import DayRuns
from tests.kernel_files import ORDERS, Call, Libraries


def _name_of_place(place: tuple[str, int] | str) -> str:
    return place if isinstance(place, str) else f"{place[0]}{place[1] or ''}"


_outcomes_on_gpu: dict[str, list[bool]] = {}  # of the tests of each file of kernels


DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
_COMPILATIONS = pytest.StashKey[Compilations]()
_DAY_RUNS = pytest.StashKey[DayRuns]()
_TAKEN = pytest.StashKey[str]()

taken.hand_down()


def pytest_configure(config: pytest.Config) -> None:
    """Make Ctrl-C end the compilations immediately, since a second one may skip later clean-up.
    Handle it even if a script started the tests in the background with Ctrl-C ignored: programs
    started by tests would inherit that, and tests interrupt them."""
    compilations = Compilations()

    def interrupt(number: int, frame: FrameType | None) -> None:
        compilations.give_up()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    config.addinivalue_line("markers", "some_days(purpose): takes a part of the days: taken.py")
    config.stash[_COMPILATIONS] = compilations
    config.stash[_DAY_RUNS] = DayRuns(compilations.wait)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that are not taken, and start the compilations of the others."""
    named = config.getoption("keyword") or any("::" in word for word in config.args)
    if not named and not config.getoption("--all"):
        leave_out_what_is_not_taken(config, items)
    if config.getoption("collectonly"):
        return
    compilations = config.stash[_COMPILATIONS]
    for item in items:
        if name := getattr(getattr(item, "module", None), "KERNELS", None):
            Libraries(compilations, DEVICES).begin([name])
        if begin := getattr(getattr(item, "function", None), "begin", None):
            assert isinstance(item, pytest.Function)
            begin(compilations, **item.callspec.params)
    begin_day_runs(config.stash[_DAY_RUNS], items)


def leave_out_what_is_not_taken(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of days and of modules of tests/backend that are not taken. A module named
    on the command line is taken."""
    days = taken.order_of_days(discover()[0])
    modules = taken.order_of_modules()
    named = {Path(word).resolve() for word in config.args}
    requested: dict[str, set[Day]] = {}
    for item in items:
        if mark := item.get_closest_marker("some_days"):
            requested.setdefault(mark.args[0], set()).add(_day(item))
    first = {name: days.first(taken.DAYS_TAKEN[name], of) for name, of in requested.items()}
    others = set(modules.items[taken.MODULES_TAKEN :]) - named
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker("some_days")
        is_taken = _day(item) in first[mark.args[0]] if mark else item.path not in others
        (kept if is_taken else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        config.stash[_TAKEN] = taken.in_words(days, modules)
        items[:] = kept


def _day(item: pytest.Item) -> Day:
    return item.callspec.params["day"]  # type: ignore[attr-defined]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Report which part of the tests is run, and the seed of what they draw."""
    return [config.stash.get(_TAKEN, "taken: all that was named"), taken.drawn_by()]


def begin_day_runs(runs: DayRuns, items: list[pytest.Item]) -> None:
    """Start the shared runs, over the days of the tests that will run; these tests come last."""
    waiting: dict[Any, set[Day]] = {}
    for item in items:
        begin = getattr(getattr(item, "function", None), "begin_run", None)
        if begin:
            waiting.setdefault(begin, set()).add(_day(item))
    for begin, days in waiting.items():
        begin(runs, sorted(days, key=lambda day: day.number))
    items.sort(key=lambda item: hasattr(getattr(item, "function", None), "begin_run"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record",
        action="store_true",
        help="store which PTX wrappers were proven on this machine's GPU (wrapper_table.py)",
    )
    parser.addoption(
        "--all", action="store_true", help="take every day and every module; it takes hours"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    """Record the outcome of each test of kernels on the GPU."""
    report = yield
    call = getattr(item, "callspec", None)
    kernels = getattr(getattr(item, "module", None), "KERNELS", None)
    if call and kernels and call.params.get("call") == "gpu" and not report.skipped:
        _outcomes_on_gpu.setdefault(kernels, []).append(report.passed)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End running compilations; with --record, store which files of kernels were proven."""
    session.config.stash[_COMPILATIONS].close()
    session.config.stash[_DAY_RUNS].close()  # they waited for compilations
    if session.config.getoption("--record"):
        proven = [name for name, passed in _outcomes_on_gpu.items() if all(passed)]
        if not proven:
            raise pytest.UsageError("--record: no test of kernels passed on a GPU")
        print(f"\nrecorded in {wrapper_table.record(proven)}")


@pytest.fixture
def run_day() -> CommandLine:
    """Return the command line on the fixture days."""
    return CommandLine(FIXTURE_DAYS)


@pytest.fixture
def run_copy(tmp_path: Path) -> CommandLine:
    """Return the command line on a copy of the fixture days, which a test may change, with a place
    for stored results."""
    shutil.copytree(FIXTURE_DAYS, tmp_path / "days", ignore=shutil.ignore_patterns("__pycache__"))
    return CommandLine(tmp_path / "days")


@pytest.fixture(scope="session")
def cpu_library() -> backend.Runtime:
    """Load and return the runtime library; a process can have only one."""
    try:
        platform = toolchain.detect("cpu")
    except toolchain.ToolchainError as error:
        pytest.skip(str(error))
    return backend.Runtime(shared.build_runtime(platform))


@pytest.fixture
def cpu_runtime(cpu_library: backend.Runtime) -> Iterator[backend.Runtime]:
    """Yield the runtime with default settings, which are restored afterwards."""
    yield cpu_library
    cpu_library.set_model("")
    cpu_library.set_schedule("forward")
    cpu_library.set_threads(os.cpu_count() or 1)
    cpu_library.set_time_limit(30)
    cpu_library.set_spin_limit(1.5)
    cpu_library.set_stuck_limit(math.inf)
    cpu_library.refuse_masks(False)


@pytest.fixture(params=ORDERS, ids=_name_of_place)
def cpu_ordered(request: pytest.FixtureRequest, cpu_runtime: backend.Runtime) -> backend.Runtime:
    """Return the runtime, in each order of threads and blocks."""
    cpu_runtime.set_schedule(*request.param)
    return cpu_runtime


@pytest.fixture(scope="session")
def compilations(request: pytest.FixtureRequest) -> Compilations:
    """Return the compilations in the background."""
    return request.config.stash[_COMPILATIONS]


@pytest.fixture(scope="session")
def day_runs(request: pytest.FixtureRequest) -> DayRuns:
    """Return the runs shared by tests of all days."""
    return request.config.stash[_DAY_RUNS]


@pytest.fixture(scope="session")
def libraries(cpu_library: backend.Runtime, compilations: Compilations) -> Libraries:
    """Return the files of kernels, which are being built."""
    return Libraries(compilations, DEVICES)


@pytest.fixture
def operators(
    request: pytest.FixtureRequest, libraries: Libraries, cpu_runtime: backend.Runtime
) -> Any:
    """Return the operators of the module's file of kernels; with CPU tensors, the CPU backend's."""
    return libraries.operators(request.module.KERNELS)


@pytest.fixture(params=[*ORDERS, "gpu"], ids=_name_of_place)
def call(request: pytest.FixtureRequest, operators: Any, cpu_runtime: backend.Runtime) -> Call:
    """Return a function that calls the operators by name with CPU tensors: in each order on the CPU
    backend, and on the GPU."""
    if request.param == "gpu":
        if not torch.cuda.is_available():
            pytest.skip("no GPU")
        return Call(operators, "cuda")
    cpu_runtime.set_schedule(*request.param)
    return Call(operators, "cpu")


@pytest.fixture(params=ORDERS, ids=_name_of_place)
def cpu_call(request: pytest.FixtureRequest, operators: Any, cpu_runtime: backend.Runtime) -> Call:
    """Return `call` for the CPU backend only: for mistakes, and for features that only it has."""
    cpu_runtime.set_schedule(*request.param)
    return Call(operators, "cpu")
