"""A rung that replaces what judges or times it."""

from __future__ import annotations

import builtins
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.base.declaration import Rung
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, RungOutcome
from common.check import bad_input, call, compare, replaced, rungs
from common.check.device import Backend
from common.process import child, worker
from common.process.events import Direct
from tests.fixture_days import parts


def _nothing(*_: Any, **__: Any) -> None:
    return None


@pytest.fixture
def found() -> Iterator[Callable[[], list[str]]]:
    look = replaced.record()
    yield look
    look()  # a failed test leaves nothing replaced


@pytest.mark.parametrize(
    ("owner", "name", "title"),
    [
        (time, "perf_counter", "time.perf_counter"),
        (statistics, "median", "statistics.median"),
        (torch.cuda.Event, "elapsed_time", "torch.cuda.streams.Event.elapsed_time"),
        (compare, "compare", "common.check.compare.compare"),
        (call, "compare", "common.check.call.compare"),
        (call, "all", "common.check.call.all"),  # the same, of Python's own
        (rungs, "check_rung", "common.check.rungs.check_rung"),
        (worker.Run, "tell", "common.process.worker.Run.tell"),
        (child.Pipe, "emit", "common.process.child.Pipe.emit"),
        (RungOutcome, "__setattr__", "common.base.outcome.RungOutcome.__setattr__"),
    ],
)
def test_what_is_replaced_is_named_and_restored(
    found: Callable[[], list[str]], owner: Any, name: str, title: str
) -> None:
    before = getattr(owner, name, getattr(builtins, name, None))
    setattr(owner, name, _nothing)
    assert found() == [title]
    assert found() == [] and getattr(owner, name, before) is before


def test_a_function_with_another_body_is_named_and_restored(
    found: Callable[[], list[str]],
) -> None:
    before = call.judge.__code__
    call.judge.__code__ = _nothing.__code__
    assert found() == ["common.check.call.judge"]
    assert call.judge.__code__ is before


def test_what_a_day_may_import_replaces_nothing(found: Callable[[], list[str]]) -> None:
    importlib.import_module("torch._dynamo")
    importlib.import_module("torch.distributed")
    assert found() == []


def checked(rung: Rung) -> RungOutcome:
    """Return the outcome of a rung of the fixture days' problem."""
    platform = SimpleNamespace(device="cpu", model="", variant="plain")
    options, todo = RunOptions(quick=True, bench=False), SimpleNamespace(platform=platform)
    run: Any = worker.Run(
        None, platform, options, Direct(_nothing), todo, Backend("cpu"), str, (rung.name,)  # type: ignore[arg-type]
    )  # fmt: skip
    run.replaced = replaced.record()
    return worker.check_rung(run, parts.problem(rung), rung, None)[1]


def test_a_call_that_replaces_the_comparison_fails_by_name() -> None:
    def wrong(x: Any) -> Any:
        call.judge = _nothing
        return x * 3

    outcome = checked(parts.rung("wrong", wrong))
    assert outcome.status == FAIL and outcome.reason == "it replaced common.check.call.judge"
    assert checked(parts.rung("right", parts.twice)).status == PASS


def test_a_rung_that_replaces_the_check_when_it_is_loaded_fails_by_name() -> None:
    def load(build: Any) -> Any:
        passed = rungs.CheckResult(checked=3)
        rungs.check_rung = bad_input.check_bad_input = lambda *_, **__: passed  # type: ignore
        return lambda x: x * 3

    outcome = checked(Rung("wrong", "", load=load))
    assert outcome.status == FAIL and outcome.details == []
    assert outcome.reason == (
        "it replaced common.check.bad_input.check_bad_input, common.check.rungs.check_rung"
    )
