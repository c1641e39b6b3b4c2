"""The process that checks a day."""

import logging
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.base.days import Lesson
from common.base.declaration import Case, Problem, Rung
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, RungOutcome, Status, Timing
from common.check import beyond
from common.check.call import Failure
from common.process import worker
from common.process.events import AskTurn, Checked, Direct, Ended, Finished, Made, TurnOver
from common.process.worker import without_advice


def test_libraries_advice_is_dropped_and_later_words_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.getLogger("a library's")
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with without_advice():
            logger.critical("advice")
            warnings.warn("advice", stacklevel=1)
        assert not seen
        logger.critical("later")
        warnings.warn("later", stacklevel=1)
    assert [str(each.message) for each in seen] == ["later"]
    logger.removeHandler(handler)
    said = capsys.readouterr().err
    assert "later" in said and "advice" not in said


NOTHING_SHOWN = Lesson(())


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the rungs "a" and "b" of a problem as on a GPU, with given outcomes of the checks, in
    order; return the events, in order. full: the number of timings that find the memory full."""

    def run(
        checks: dict[str, list[RungOutcome]],
        quick: bool = True,
        full: int = 0,
        lesson: Lesson = NOTHING_SHOWN,
    ) -> list[Any]:
        happened: list[Any] = []
        left = [full]
        rungs = tuple(Rung(name, "") for name in checks)
        problem = Problem("p", lambda case, draw: (), abs, rungs, (Case((1,)),), pytorch=abs)
        backend = SimpleNamespace(
            name="cuda", device="cuda", synchronize=lambda: None,
            release_memory=lambda: happened.append("memory released"),
        )  # fmt: skip
        platform = SimpleNamespace(device="cuda", arch="9.0a")
        options = RunOptions(quick=quick)
        ceilings: Any = SimpleNamespace(rates={})
        whole: Any = worker.Run(
            None, platform, options, Direct(happened.append), None, backend, str, (),  # type: ignore[arg-type]
            ceilings=ceilings,
        )  # fmt: skip

        def check(run: Any, problem: Any, rung: Rung, operators: Any) -> Any:
            return abs, checks[rung.name].pop(0)

        def timed(problem: Any, calls: dict[str, Any], *_: Any, **__: Any) -> dict[str, Timing]:
            happened.append(f"timed {', '.join(calls)}")
            left[0] -= 1
            if left[0] >= 0:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 32.00 GiB")
            return {name: Timing("1", 1.0, 0.0, 3) for name in calls}

        def tried(problem: Any, rung: Rung, *_: Any) -> Any:
            happened.append(f"beyond {rung.name}")
            return (Failure("wrong there") if rung.name == "b" else None), ""

        monkeypatch.setattr(worker, "check_rung", check)
        monkeypatch.setattr(worker, "time_problem", timed)
        monkeypatch.setattr(worker, "warm_up", lambda *_, **__: happened.append("warm"))
        monkeypatch.setattr(beyond, "why_not", lambda problem, rung: "")
        monkeypatch.setattr(beyond, "check_beyond", tried)
        checked = worker._check_problem(whole, problem, None)
        worker._take_turn(whole, lesson, None, [checked])
        return [each for each in happened if not isinstance(each, worker.Stage)]

    return run


def outcome(name: str, status: Status = PASS, reason: str = "") -> RungOutcome:
    return RungOutcome("p", name, "", status, reason)


def in_short(happened: list[Any]) -> list[str]:
    words = {AskTurn(False): "turn", AskTurn(True, last=True): "last turn", TurnOver(): "turn over"}
    found = []
    for each in happened:
        if isinstance(each, Made):
            found.append("shown")
        elif isinstance(each, (Checked, Finished)):
            kind = "checked" if isinstance(each, Checked) else each.outcome.status
            found.append(f"{kind} {each.outcome.rung}")
        else:
            found.append(words.get(each, each))
    return found


def test_what_needs_the_gpu_alone_is_done_in_the_turn(on_gpu: Any) -> None:
    happened = on_gpu({"a": [outcome("a")], "b": [outcome("b")]}, quick=False)
    assert in_short(happened) == [
        "checked a", "checked b", "warm", "memory released", "turn",
        "beyond a", "beyond b", "FAIL b", "timed a", "PASS a", "turn over",
    ]  # fmt: skip


def test_a_rung_that_finds_the_memory_full_is_checked_again_alone(on_gpu: Any) -> None:
    full = outcome("b", FAIL, "1024 float32: it raised CUDA out of memory. Tried to allocate")
    happened = on_gpu({"a": [outcome("a")], "b": [full, outcome("b")]})
    assert in_short(happened) == [
        "checked a", "warm", "memory released", "turn", "memory released", "turn over", "last turn",
        "checked b", "timed a, b", "PASS a", "PASS b", "turn over",
    ]  # fmt: skip
    happened = on_gpu({"b": [full, full]})
    assert in_short(happened) == [
        "memory released", "turn", "memory released", "turn over", "last turn", "FAIL b",
        "turn over",
    ]  # fmt: skip


def test_a_problem_whose_timing_finds_the_memory_full_is_timed_again_last(on_gpu: Any) -> None:
    """The days that wait for their turns hold memory too, a GB each."""
    happened = on_gpu({"a": [outcome("a")]}, full=1)
    again = ["memory released", "turn over", "last turn", "timed a", "PASS a", "turn over"]
    assert in_short(happened)[-7:] == ["timed a", *again]
    happened = on_gpu({"a": [outcome("a")]}, full=2)
    assert in_short(happened)[-3:] == ["timed a", "FAIL a", "turn over"]


def test_a_day_that_fails_takes_no_turn(on_gpu: Any) -> None:
    assert in_short(on_gpu({"a": [outcome("a", FAIL, "wrong")]})) == ["FAIL a"]


def test_show_runs_beside_other_days_and_show_times_alone(
    on_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.Run, "goes_beyond", False)
    full = torch.cuda.OutOfMemoryError("CUDA out of memory")
    turn = ["warm", "memory released", "turn", "timed a", "PASS a"]
    last = ["memory released", "turn over", "last turn"]
    for alone, errors, expected in (
        (False, [None], ["shown", *turn]),
        (False, [full, None], [*turn, "shown"]),
        (True, [None], [*turn, "shown"]),
        (True, [full, None], [*turn, *last, "shown"]),
    ):

        def show(operators: Any, device: Any, errors: list[Any] = errors) -> dict[str, str]:
            if (error := errors.pop(0)) is not None:
                raise error
            return {"shown.json": "[]"}

        lesson = Lesson((), show_times=show) if alone else Lesson((), show)
        happened = in_short(on_gpu({"a": [outcome("a")]}, quick=False, lesson=lesson))
        assert happened == ["checked a", *expected, "turn over"]


@pytest.mark.parametrize("made", [["a.json"], {"a.json": b"[]"}, {1: "[]"}])
def test_what_a_show_returns_are_texts(on_gpu: Any, made: Any) -> None:
    """Anything else would end the runner, and all days with it."""
    happened = on_gpu({"a": [outcome("a")]}, quick=False, lesson=Lesson((), lambda *_: made))
    reasons = [event.reason for event in happened if isinstance(event, Ended)]
    assert len(reasons) == 1 and "texts by the names" in reasons[0]
    assert not any(isinstance(event, Made) for event in happened)


def test_a_day_whose_show_fails_is_not_shown_with_times(on_gpu: Any) -> None:
    def fails(operators: Any, device: Any) -> None:
        raise RuntimeError("wrong")

    def called(operators: Any, device: Any) -> None:
        raise AssertionError("called after a failure")

    happened = on_gpu({"a": [outcome("a")]}, quick=False, lesson=Lesson((), fails, called))
    reasons = [event.reason for event in happened if isinstance(event, Ended)]
    assert len(reasons) == 1 and "wrong" in reasons[0]
