"""The case beyond 2^31 elements is chosen, and a wrong element is found there."""

from __future__ import annotations

import math

import pytest
import torch

from common.base.days import discover, load_lesson
from common.base.declaration import Case, Cost, Problem, Rung, streamed
from common.check import beyond
from common.check.beyond import BEYOND, difference, large_case

PART = 100
RUNG = Rung("v1", "an idea")
GB = 10**9


def problem(**changed: object) -> Problem:
    fields = {
        "name": "p",
        "inputs": lambda case, draw: (draw(*case.shape),),
        "reference": torch.exp,
        "rungs": (RUNG,),
        "cases": (Case((8,)), Case((8,), "bfloat16"), Case((8,), "int8", "uniform")),
        "bench": Case((4096, 1024)),
        "cost": streamed(2),
        "pytorch": torch.exp,
    }
    return Problem(**{**fields, **changed})  # type: ignore[arg-type]


def test_the_largest_dimension_grows_beyond_2_31() -> None:
    case, reason = large_case(problem(), RUNG, 139 * GB)
    assert case is not None and not reason
    assert case.dtype == "bfloat16" and case.shape[1] == 1024
    assert BEYOND < math.prod(case.shape) < BEYOND + 3 * 1024


def test_a_choice_in_a_shape_is_no_size() -> None:
    def cost(case: Case) -> Cost:
        return Cost(bytes=2 * case.shape[0] * case.shape[1])

    case, _ = large_case(problem(bench=Case((4096, 1024, 0)), cost=cost), RUNG, 139 * GB)
    assert case is not None and case.shape[0] > 1 << 20 and case.shape[1:] == (1024, 0)


def test_a_rung_is_tried_in_a_dtype_that_it_takes() -> None:
    case, _ = large_case(problem(), Rung("v1", "an idea", dtypes=("float32",)), 139 * GB)
    assert case is not None and case.dtype == "float32"
    assert large_case(problem(), Rung("v1", "", dtypes=("float16",)), 139 * GB)[0] is None


def test_what_is_left_out_says_why() -> None:
    assert "GB" in large_case(problem(), RUNG, 24 * GB)[1]
    multiplied = problem(cost=lambda case: Cost(bytes=100, flops=10**6))
    assert "limited by memory" in large_case(multiplied, RUNG, 139 * GB)[1]
    assert "timed" in large_case(problem(timed=False), RUNG, 139 * GB)[1]
    assert "of its own" in large_case(problem(own_numbers=True), RUNG, 139 * GB)[1]
    rings = problem(bench=Case((1024,) * 8), cost=lambda case: Cost(bytes=8 * sum(case.shape)))
    assert "list of sizes" in large_case(rings, RUNG, 139 * GB)[1]


def test_some_days_are_tried_on_a_large_card() -> None:
    tried = set()
    for day in discover()[0]:
        for one in load_lesson(day).problems:
            for rung in one.rungs:
                case, _ = large_case(one, rung, 139 * GB)
                if case is not None:
                    assert math.prod(filter(None, case.shape)) > 1 << 31
                    tried.add(day.number)
    assert {2, 3, 5, 9} <= tried


def test_a_wrong_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beyond, "PART", PART)
    own = torch.randn(3 * PART)
    assert difference(own.clone(), own) == ""
    assert difference(own * (1 + 1e-3), own) == ""
    for place in (0, PART // 2, 3 * PART - 1):
        got = own.clone()
        got[place] += 1
        assert f"element {place:,} of" in difference(got, own)
    assert "shape" in difference(own[1:], own)
    assert difference(torch.full((2,), torch.nan), torch.zeros(2))
    assert difference(torch.empty(0), torch.empty(0)) == ""
