"""The random case of a problem: replayable, within what its cases allow."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from common.base.declaration import Case, Cost, Problem, Rung, grid
from common.check.random_case import LARGEST, SEED_VARIABLE, random_case, session_seed
from common.check.rungs import check_rung
from tests.unit.test_check import FakeBackend

CASES = (
    *grid([(3, 65, 8), (5, 100, 16)], ["float32", "bfloat16"]),
    Case((9, 9), "float32", "nonfinite"),
    Case((1 << 10, 1 << 10, 64)),
)


def test_a_seed_gives_one_case() -> None:
    found = [random_case(CASES, seed) for seed in range(200)]
    assert found == [random_case(CASES, seed) for seed in range(200)]
    assert len({case.shape for case in found if case}) > 50


def test_sizes_keep_to_what_the_cases_show() -> None:
    for seed in range(200):
        case = random_case(CASES, seed)
        assert case is not None and case.values == "normal"
        rows, cols, depth = case.shape
        assert 1 <= rows <= 5 and 1 <= cols <= 100
        assert depth in (8, 16)  # never odd: it may have to be a multiple
        assert math.prod(case.shape) <= LARGEST


def test_without_sizes_there_is_none() -> None:
    assert random_case((Case(()), Case((0,)), Case((1 << 20,))), 1) is None


FEW = grid([(1,), (255,), (999,)], ["float32"])


def doubling(reference: Callable[[torch.Tensor], torch.Tensor]) -> Problem:
    """Return a problem with these few cases."""
    return Problem(
        "double",
        lambda case, draw: (draw(*case.shape),),
        reference,
        (Rung("double", "the test's own"),),
        FEW,
        cost=lambda case: Cost(),
    )


def test_a_rung_that_is_wrong_on_other_shapes_is_rejected() -> None:
    """Right on all cases that are declared, wrong on any other."""
    known = {case.shape for case in FEW}
    problem = doubling(lambda x: 2 * x)

    def learnt_by_heart(x: torch.Tensor) -> torch.Tensor:
        return 2 * x if tuple(x.shape) in known else 3 * x

    found = check_rung(problem, problem.rungs[0], learnt_by_heart, FakeBackend())
    case = random_case(FEW, f"double {session_seed()}")
    assert case is not None
    if case.shape not in known:
        assert found.failure is not None
        assert f"{SEED_VARIABLE}={session_seed()} repeats it" in str(found.failure)
    assert check_rung(problem, problem.rungs[0], lambda x: 2 * x, FakeBackend()).failure is None


@pytest.mark.parametrize("raised", [ZeroDivisionError, IndexError, RuntimeError, TypeError])
def test_a_shape_that_the_reference_does_not_know_is_left_out(raised: type[Exception]) -> None:
    known = {case.shape for case in FEW}
    evaluated = []

    def reference(x: torch.Tensor) -> torch.Tensor:
        evaluated.append(tuple(x.shape))
        if tuple(x.shape) not in known:
            raise raised
        return 2 * x

    problem = doubling(reference)
    assert check_rung(problem, problem.rungs[0], lambda x: 2 * x, FakeBackend()).failure is None
    case = random_case(FEW, f"double {session_seed()}")
    assert case is not None and case.shape in evaluated
