"""The random case of a problem: replayable, within what its cases allow."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from common.base.declaration import Case, Cost, Problem, Rung, grid
from common.check.expected import Expected, in_range
from common.check.random_case import (
    LARGEST,
    SEED_VARIABLE,
    huge_case,
    long_case,
    random_case,
    random_cases,
    session_seed,
)
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


def test_sizes_are_of_all_orders_of_magnitude() -> None:
    cases = grid([(1,), (LARGEST - 1,)], ["float32"])
    sizes = [case.shape[0] for seed in range(200) if (case := random_case(cases, seed))]
    for least in (1, 10, 100, 1000, 10_000):
        assert sum(least <= size < 10 * least for size in sizes) >= 5, least
    assert len(random_cases(cases, 1)) > 3


def test_without_sizes_there_is_none() -> None:
    assert random_cases((Case(()), Case((0,)), Case((1 << 20,))), 1) == []


def test_a_long_case_has_one_long_dimension() -> None:
    for seed in range(20):
        case = long_case(CASES, seed)
        assert case is not None and case.dtype == "bfloat16"
        rows, cols, depth = case.shape
        assert depth in (8, 16) and LARGEST - 16 * 65 * 16 < math.prod(case.shape) <= LARGEST
        assert rows == 3 or cols == 65
    assert long_case(grid([(8, 64)], ["float16"]), 1) is None
    assert long_case(grid([(8, 63)], ["float32"]), 1) is None


def test_a_sum_in_16_bits_is_rejected() -> None:
    """The declared rows are so short that its error is within the tolerance."""
    problem = Problem(
        "sum of rows",
        lambda case, draw: (draw(*case.shape),),
        lambda x: x.sum(-1),
        (Rung("sums", "the test's own"),),
        grid([(2, 3), (2, 8)], ["float16"]),
        cost=lambda case: Cost(),
    )

    def in_half(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape[:-1], dtype=x.dtype)
        for column in x.unbind(-1):
            total = total + column
        return total

    rung = problem.rungs[0]
    found = check_rung(problem, rung, in_half, FakeBackend(), first_calls=True)
    assert found.failure is None, str(found.failure)
    found = check_rung(problem, rung, in_half, FakeBackend())
    assert found.failure is not None and "a random case" in str(found.failure)
    assert check_rung(problem, rung, lambda x: x.sum(-1), FakeBackend()).failure is None


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
    assert any(case.shape not in known for case in random_cases(FEW, f"double {session_seed()}"))
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
    drawn = random_cases(FEW, f"double {session_seed()}")
    assert drawn and {case.shape for case in drawn} <= set(evaluated)


def test_a_rung_that_is_wrong_beyond_1e30_is_rejected() -> None:
    problem = doubling(lambda x: 2 * x)

    def limited(x: torch.Tensor) -> torch.Tensor:
        return 2 * x.clamp(-1e30, 1e30)

    found = check_rung(problem, problem.rungs[0], limited, FakeBackend())
    assert found.failure is not None and "float32 huge, a random case" in str(found.failure)


@pytest.mark.parametrize(
    "reference", [lambda x: x * x, lambda x: x * (x * x).mean().rsqrt()], ids=["square", "norm"]
)
def test_values_that_overflow_in_pytorch_as_well_are_left_out(
    reference: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Their square is infinite in float32, and the norm by it 0 instead of about 1."""
    problem = doubling(reference)

    def limited(x: torch.Tensor) -> torch.Tensor:
        return reference(x.clamp(-1e18, 1e18))

    found = check_rung(problem, problem.rungs[0], limited, FakeBackend())
    assert found.failure is None, str(found.failure)


def test_huge_values_are_of_dtypes_that_hold_them() -> None:
    assert {case.dtype for seed in range(50) if (case := huge_case(CASES, seed))} == {
        "float32",
        "bfloat16",
    }
    assert huge_case(grid([(3,), (99,)], ["float16", "int32"]), 1) is None


def test_results_beyond_the_range_are_not_compared() -> None:
    truth = torch.tensor([1e31, 2.0], dtype=torch.float64)

    def result(truth: torch.Tensor, own: torch.Tensor) -> Expected:
        return Expected((), [(truth, own)], [], [])

    assert in_range(result(truth, truth.float()))
    for wrong in (truth.float() * 1.1, torch.tensor([math.inf, 2.0])):
        assert not in_range(result(truth, wrong))
    assert not in_range(result(truth * math.inf, truth.float())), "a truth that overflows float64"
