"""Timing: contenders take turns, rates are compared with ceilings, wrong results get no time."""

from __future__ import annotations

import json
import math
import time
from functools import partial
from typing import Any

import pytest
import torch

from common.base.ceilings import Ceilings
from common.base.declaration import COMPILE, Case, Cost, Problem, Rung
from common.base.outcome import PASS, RungOutcome, Timing
from common.bench import timing as bench
from common.bench.fresh_inputs import draw_into, fill
from common.bench.host_time import host_microseconds, host_times
from common.bench.showing import rows_as_json, seconds_in_turn
from common.bench.traces import launches_of, traced_events
from common.check.device import Backend
from common.check.draw import Draw
from common.process.worker import remark_host_time
from common.report.columns import HOST

CEILINGS = Ceilings(
    "NVIDIA Test",
    "2026-01-31",
    {"copy": 4000.0, "read": 4400.0, "fp32": 60.0, "tensor": 800.0, "int8": 1600.0},
)
L2 = 50 << 20
GIGABYTE = 10**9


def timing(ms: float, **fields: Any) -> Timing:
    return Timing("case", ms, 0.01, 10, **fields)


def problem(**fields: Any) -> Problem:
    declared: dict[str, Any] = {
        "name": "double",
        "inputs": lambda case, draw: (draw(*case.shape),),
        "reference": lambda x: x * 2,
        "pytorch": lambda x: x * 2,
        "rungs": (Rung("first", ""), Rung("second", "")),
        "cases": (Case((8,)),),
        "bench": Case((1 << 12,)),
        "bench_cpu": Case((1 << 12,)),
        "cost": lambda case: Cost(bytes=8 * case.shape[0], flops=case.shape[0]),
    }
    return Problem(**{**declared, **fields})


def test_contenders_take_turns() -> None:
    turns: list[str] = []

    def called(name: str) -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            turns.append(name)
            time.sleep(0.003)  # long enough to be timed one call at a time
            return x * 2

        return run

    case = problem(pytorch=called("pytorch"))
    calls = {"first": called("first"), "second": called("second")}
    results = bench.time_problem(case, calls, Backend("cpu"), None, quick=True)
    # At the end, the rungs alone are called on fresh inputs.
    rounds = [*["first", "second", "pytorch"] * 3, "first", "second"]
    assert " ".join(rounds) in " ".join(turns)
    for result in results.values():
        assert isinstance(result, Timing)
        assert 3 < result.ms < 30 and result.samples >= 3
        assert result.pytorch_ms is not None and 3 < result.pytorch_ms < 30


def test_all_that_is_timed_is_called_before_the_turn_and_fails_only_in_it() -> None:
    called: list[str] = []

    def call(name: str, fails: bool = False) -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            called.append(name)
            if fails:
                raise RuntimeError("it does not work")
            return x * 2

        return run

    calls = {"first": call("first", fails=True), "second": call("second")}
    bench.warm_up(problem(pytorch=call("pytorch", fails=True)), calls, Backend("cpu"))
    assert called == ["first", "second", "pytorch"]


def test_pytorch_that_cannot_be_timed_is_named() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("operation not permitted when stream is capturing")

    one = problem(rungs=(Rung("first", ""),), pytorch=refuses)
    with pytest.raises(bench.MeasuringFault, match="pytorch_not_captured: operation not perm"):
        bench.time_problem(one, {"first": lambda x: x * 2}, Backend("cpu"), None, quick=True)


def test_random_numbers_of_pytorchs_own_are_compared_by_their_norm() -> None:
    def timed(scale: float, own_numbers: bool) -> Any:
        one = problem(
            rungs=(Rung("first", ""),),
            pytorch=lambda x: torch.randn_like(x) * scale,
            own_numbers=own_numbers,
        )
        return bench.time_problem(one, {"first": lambda x: x * 2}, Backend("cpu"), None, quick=True)

    assert isinstance(timed(2, own_numbers=True)["first"], Timing)
    with pytest.raises(bench.MeasuringFault, match=r"does not compute.*differs by"):
        timed(2, own_numbers=False)
    with pytest.raises(bench.MeasuringFault, match=r"does not compute.*has the norm"):
        timed(3, own_numbers=True)


def test_a_baseline_that_computes_something_else_is_found() -> None:
    x = torch.tensor([1.0, -2.0, math.nan, math.inf])
    assert not bench.differs((x.clone(), x[:1] * 1.01), (x, x[:1]))
    keys = torch.tensor([2**62, -(2**62), 5])
    assert not bench.differs(keys.clone(), keys)
    for other, ours in (
        (x.nan_to_num(7), x),
        (x.nan_to_num(posinf=7, nan=math.nan), x),
        (x, x.nan_to_num(nan=math.nan, posinf=7)),
        (keys.flip(0), keys),
        (torch.ones(3), torch.zeros(3)),
    ):
        assert "differs by" in bench.differs(other, ours)
    assert "shape" in bench.differs(x[:2], x)


def test_a_baseline_that_is_wrong_as_one_rung_is_wrong_is_not_shown() -> None:
    case = problem(pytorch=lambda x: x * 3)
    calls = {"first": lambda x: x * 3, "second": lambda x: x * 2}
    with pytest.raises(bench.MeasuringFault, match="does not compute what the rungs do"):
        bench.time_problem(case, calls, Backend("cpu"), None, quick=True)


def test_a_rung_for_which_the_card_lacks_something_is_not_timed() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("this card lacks shared memory for a tile: it needs 9 bytes")

    calls = {"first": refuses, "second": lambda x: x * 2}
    results = bench.time_problem(problem(), calls, Backend("cpu"), None, quick=True)
    assert isinstance(results["first"], bench.Untimed)
    assert results["first"] == "this card lacks shared memory for a tile: it needs 9 bytes"
    assert isinstance(results["second"], Timing)


def test_a_rung_that_falls_back_gets_no_time() -> None:
    """The day's mistake, or a feature that a lesser card lacks."""

    def timed(lesser: bool) -> Timing | str:
        one = problem(rungs=(Rung("first", ""),))
        return bench.time_problem(
            one,
            {"first": lambda x: x * 2},
            Backend("cpu"),
            None,
            lambda: "v1: no clusters",
            quick=True,
            lesser_card=lesser,
        )["first"]

    assert timed(False) == "timed on a case for which it fell back to v1: no clusters"
    lesser = timed(True)
    assert isinstance(lesser, bench.Untimed)
    assert lesser == "on this card it falls back to v1: no clusters"


def test_a_rung_that_goes_wrong_while_it_is_timed_gets_no_time() -> None:
    calls_made = 0

    def tires(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls_made
        calls_made += 1
        return x * 2 if calls_made < 3 else x * 2 + 1

    one = problem(rungs=(Rung("first", ""),))
    results = bench.time_problem(one, {"first": tires}, Backend("cpu"), None, quick=True)
    assert str(results["first"]).startswith("wrong after timing")


def test_a_result_that_is_kept_by_address_and_content_gets_no_time() -> None:
    kept: dict[tuple[int, float], torch.Tensor] = {}

    def works(x: torch.Tensor) -> torch.Tensor:
        time.sleep(2e-3)
        return x * 2

    def keeps(x: torch.Tensor) -> torch.Tensor:
        key = x.data_ptr(), float(x.sum())
        if key not in kept:
            kept[key] = works(x)
        return kept[key].clone()

    results = bench.time_problem(
        problem(), {"first": keeps, "second": works}, Backend("cpu"), None, quick=True
    )
    assert str(results["first"]).endswith("before: is a result kept?")
    assert isinstance(results["second"], Timing), results


def test_what_is_timed_is_judged_on_inputs_that_it_has_not_been_given_before() -> None:
    """A result kept by address alone is that of other inputs."""
    kept: dict[int, torch.Tensor] = {}

    def keeps(x: torch.Tensor) -> torch.Tensor:
        return kept.setdefault(x.data_ptr(), x * 2).clone()

    one = problem(rungs=(Rung("first", ""),))
    results = bench.time_problem(one, {"first": keeps}, Backend("cpu"), None, quick=True)
    assert str(results["first"]).startswith("wrong after timing")


def test_what_is_timed_is_judged_by_pytorchs_error_on_inputs_of_the_problem() -> None:
    """Arguments may depend on each other: moved elements would show another error, or raise."""

    def inputs(case: Case, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
        x = draw(*case.shape)
        return x, x.argsort()

    def reference(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        assert bool((x[order].diff() >= 0).all()), "the second argument does not sort the first"
        return x * 2

    case = problem(inputs=inputs, reference=reference, pytorch=lambda x, order: x * 2)
    calls = {"first": lambda x, order: x * 2.0001}
    result = bench.time_problem(case, calls, Backend("cpu"), None, quick=True)["first"]
    assert isinstance(result, str) and "wrong after timing" in result


def test_a_baseline_that_has_prepared_its_input_is_compared_on_that() -> None:
    prepared: list[torch.Tensor] = []

    def pytorch(x: torch.Tensor) -> torch.Tensor:
        prepared[:] = prepared or [x * 2]
        return prepared[0].clone()

    calls = {"first": lambda x: x * 2, "second": lambda x: 2 * x}
    results = bench.time_problem(problem(pytorch=pytorch), calls, Backend("cpu"), None, quick=True)
    assert all(isinstance(result, Timing) for result in results.values()), results


def test_inputs_that_do_not_fit_in_their_place_are_not_drawn_again() -> None:
    """A scalar of a captured call stays as it is."""
    scaled = problem(
        inputs=lambda case, draw: (draw(*case.shape), draw.seed),
        reference=lambda x, factor: x * factor,
    )
    inputs = scaled.inputs(Case((8,)), Draw(Case((8,)), Backend("cpu")))
    before = inputs[0].clone()
    assert not draw_into(scaled, Case((8,)), Backend("cpu"), inputs)
    assert torch.equal(inputs[0], before)
    repeated = (torch.zeros(1).expand(4), torch.zeros(4))
    for place in repeated:
        fill(place, torch.ones(1).expand(4) if place.stride() == (0,) else torch.ones(4))
        assert torch.equal(place, torch.ones(4))


def test_a_rung_that_writes_its_argument_finds_it_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In every call; and the other contenders, PyTorch's call among them, find it so too."""
    monkeypatch.setattr(bench, "too_slow", lambda *_: False)  # each try has other inputs
    seen: set[float] = set()

    def doubles(x: torch.Tensor) -> torch.Tensor:
        seen.add(float(x.abs().sum()))
        return x.mul_(2)

    def pure(x: torch.Tensor) -> torch.Tensor:
        seen.add(float(x.abs().sum()))
        return x * 2

    doubles.writes = ("x",)  # type: ignore[attr-defined]
    one = problem(pytorch=pure)
    calls = {"first": doubles, "second": pure}
    results = bench.time_problem(one, calls, Backend("cpu"), None, quick=True)
    assert all(isinstance(result, Timing) for result in results.values()), results
    # Warm-up calls it three times in a row; every timed call finds the first value, and the last
    # call fresh inputs.
    assert len(seen) == 4


def test_tensors_of_a_list_that_a_rung_writes_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "too_slow", lambda *_: False)  # each try has other inputs
    seen: set[tuple[float, ...]] = set()

    def reference(tensors: list[torch.Tensor]) -> None:
        for x in tensors:
            x.mul_(2)

    def doubles(tensors: list[torch.Tensor]) -> None:
        seen.add(tuple(float(x.abs().sum()) for x in tensors))
        reference(tensors)

    doubles.writes = ("tensors",)  # type: ignore[attr-defined]
    one = problem(
        inputs=lambda case, draw: ([draw(*case.shape), draw(*case.shape)],),
        reference=reference,
        rungs=(Rung("first", ""),),
        pytorch=doubles,
    )
    results = bench.time_problem(one, {"first": doubles}, Backend("cpu"), None, quick=True)
    assert isinstance(results["first"], Timing), results
    # Warm-up calls it three times in a row; PyTorch's call has separate tensors; the last call of
    # each has fresh inputs.
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("cost", "ms", "bound", "share"),
    [
        (Cost(bytes=4 * GIGABYTE, flops=1), 2.0, "copy", 0.5),
        (Cost(bytes=1, flops=60 * 10**12), 2000.0, "fp32", 0.5),
        (Cost(bytes=1, flops=60 * 10**12, unit="tensor"), 150.0, "tensor", 0.5),
        (Cost(bytes=1, flops=60 * 10**12, unit="int8"), 75.0, "int8", 0.5),
    ],
)
def test_a_rate_is_held_against_the_ceiling_that_bounds_it(
    cost: Cost, ms: float, bound: str, share: float
) -> None:
    one = timing(ms)
    bench.rate(one, cost, CEILINGS)
    assert one.bound == bound
    assert one.share == pytest.approx(share)


def test_a_rate_above_the_ceiling_is_a_measuring_fault() -> None:
    with pytest.raises(bench.MeasuringFault, match=r"1\.25 of the copy ceiling"):
        bench.rate(timing(0.8), Cost(bytes=4 * GIGABYTE), CEILINGS)


def test_what_fits_in_the_cache_is_not_held_against_memory() -> None:
    for known in (CEILINGS, None):
        one = timing(0.001, note="events")
        bench.rate(one, Cost(bytes=10 << 20), known, L2)
        assert (one.bound, one.share, one.note) == ("", None, "events, mostly in L2")
    one = timing(20.0)
    bench.rate(one, Cost(bytes=10 << 20, flops=10**12), CEILINGS, L2)
    assert one.bound == "fp32", "arithmetic bounds it wherever its bytes are"


def test_without_ceilings_the_balance_of_work_decides_which_rate_is_shown() -> None:
    memory, arithmetic = timing(1.0), timing(1.0)
    bench.rate(memory, Cost(bytes=1000, flops=1000), None)
    bench.rate(arithmetic, Cost(bytes=1000, flops=100_000), None)
    assert (memory.bound, arithmetic.bound) == ("copy", "fp32")
    assert memory.share is None and arithmetic.share is None


def test_an_unknown_ceiling_gives_no_share() -> None:
    """The GPU's file has no rate of fp8."""
    one = timing(1.0)
    bench.rate(one, Cost(bytes=1000, flops=100_000, unit="fp8"), CEILINGS)
    assert (one.bound, one.share) == ("fp8", None)


def test_no_rate_on_the_cpu_is_above_what_a_copy_reaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 1 << 20
    declared = {
        "bench_cpu": Case((size,)),
        "cost": lambda case: Cost(bytes=8 * case.shape[0]),
        "rungs": (Rung("kept", ""), Rung("copied", "")),
    }
    known: dict[tuple[int, float], torch.Tensor] = {}

    def kept(x: torch.Tensor) -> torch.Tensor:
        key = x.data_ptr(), float(x[0])
        if key not in known:
            known[key] = x * 2
        return known[key]

    calls = {"kept": kept, "copied": lambda x: x * 2}
    monkeypatch.setattr(bench, "too_slow", lambda *_: False)  # would find it first
    found = bench.time_problem(problem(**declared), calls, Backend("cpu"), None, quick=True)
    assert isinstance(found["kept"], str) and "a copy of as many bytes reaches" in found["kept"]
    assert isinstance(found["copied"], Timing), found["copied"]


def test_the_rate_of_a_copy_does_not_wait_for_busy_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """If PyTorch's threads waited for a core, a plain call seemed faster than memory."""
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *_: time.sleep(0.02))
    rate = bench.cpu_copy_rate(1 << 20)
    assert rate is not None and rate > 0.3  # 0.05 at that speed


def test_rows_are_written_a_line_each() -> None:
    found: dict[str, list[object]] = {"copy in": [[0, 1.5], [1, 2.5]], "kernel": [["a"]]}
    text = rows_as_json(found)
    assert json.loads(text) == found
    assert [line.strip(" ,") for line in text.splitlines() if line.startswith("  ")] == [
        *("[0, 1.5]", "[1, 2.5]", '["a"]')
    ]


def test_calls_take_turns_under_load() -> None:
    """All are called in each round, in another order, and the slower one has the longer time."""
    called: list[str] = []

    def call(name: str, pause: float) -> None:
        called.append(name)
        time.sleep(pause)

    calls = {"fast": lambda: call("fast", 0.001), "slow": lambda: call("slow", 0.02)}
    found = seconds_in_turn(calls, turn=0.001, rounds=8)
    assert list(found) == ["fast", "slow"] and 0.001 <= found["fast"] < found["slow"]
    rounds = called[-16:]
    firsts = {tuple(rounds[i : i + 2]) for i in range(0, 16, 2)}
    assert firsts == {("fast", "slow"), ("slow", "fast")}


@pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without a GPU")
def test_without_a_gpu_no_launch_is_traced() -> None:
    x = torch.ones(4)
    assert launches_of(lambda: x + 1) == []
    assert any("add" in event.get("name", "") for event in traced_events(lambda: x + 1))


@pytest.mark.parametrize(
    ("falls_back_below", "expected"), [(0, 8), (8, 8), (9, 64), (65, 4096), (1 << 20, None)]
)
def test_the_host_is_timed_on_the_smallest_case_that_all_rungs_take(
    falls_back_below: int, expected: int | None
) -> None:
    sizes: list[int] = []
    said = ""

    def rung(x: torch.Tensor) -> torch.Tensor:
        nonlocal said
        sizes.append(len(x))
        said = "first: too short" if len(x) < falls_back_below else ""
        return x * 2

    def pytorch(x: torch.Tensor) -> torch.Tensor:
        if len(x) == 32:
            raise RuntimeError("32 elements are not supported")
        return x * 2

    shapes = [(64,), (0,), (8,), (32,)]
    case = problem(cases=(*map(Case, shapes), Case((2,), "float16")))
    found = host_microseconds(
        case,
        {"first": rung, "pytorch": pytorch},
        Backend("cpu"),
        lambda call, inputs: call,
        lambda: said,
    )
    if expected is None:
        assert found == {}
        return
    assert sizes[-1] == expected and 0 not in sizes
    assert found.keys() == {"first", "pytorch"} and all(us > 0 for us in found.values())


def test_host_times_are_those_of_a_call() -> None:
    found = host_times({"short": lambda: None, "long": lambda: time.sleep(0.002)})
    assert found["short"] < 50 and 2000 <= found["long"] < 20_000


def test_a_costly_call_is_remarked_and_old_results_have_none() -> None:
    outcome = RungOutcome("p", "r", "", PASS, timing=timing(1.0))
    remark_host_time(outcome)
    assert HOST.text(outcome) == "" and outcome.remarks == []
    outcome.timing = timing(1.0, host_us=12.0, pytorch_host_us=10.0)
    remark_host_time(outcome)
    assert HOST.text(outcome) == "12.0 (10.0)" and outcome.remarks == []
    outcome.timing = timing(1.0, host_us=13.0, pytorch_host_us=10.0)
    remark_host_time(outcome)
    assert outcome.remarks == ["a call costs the host 13.0 µs, PyTorch's 10.0 µs"]


def test_torch_compile_compiles_each_shape_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it gives up after eight, and an eager call would be timed in its place."""
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compiled.append(tuple(inputs[0].shape))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    for length in range(3, 15):
        call = bench.library_call(problem(pytorch=doubled), COMPILE)
        assert call(torch.ones(length)).sum() == 2 * length
    assert compiled == [(length,) for length in range(3, 15)]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2
