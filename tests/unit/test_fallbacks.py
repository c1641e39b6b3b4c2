"""A rung all of whose cases are computed by another rung's kernel counts as not checked."""

from types import SimpleNamespace

import pytest

from common.base.declaration import Rung
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, RungOutcome
from common.check.rungs import CheckResult
from common.process import worker

TO = "v1_scalar: rows that are not aligned"


def taken(
    fallbacks: list[str],
    checked: int,
    declared: str = "",
    quick: bool = False,
    device: str = "cpu",
    model: str = "",
) -> RungOutcome:
    """Return the outcome of a rung with these fallbacks."""
    run = SimpleNamespace(
        fallback=str,
        rungs=("v1_scalar", "v2"),
        options=RunOptions(quick=quick),
        backend=SimpleNamespace(name=device),
        platform=SimpleNamespace(model=model),
    )
    outcome = RungOutcome("p", "v2", "", PASS)
    result, rung = CheckResult(checked, fallbacks=fallbacks), Rung("v2", "", falls_back=declared)
    operators = SimpleNamespace(step_of_python=None)
    worker._take_fallbacks(run, outcome, result, rung, operators)  # type: ignore[arg-type]
    return outcome


@pytest.mark.parametrize(
    ("fallbacks", "quick", "device", "model", "status"),
    [
        (0, False, "cpu", "", PASS),
        (2, False, "cpu", "", PASS),
        (3, False, "cpu", "", FAIL),
        (3, True, "cpu", "", PASS),  # the few cases of --quick may all fall back
        (3, False, "cpu", "8.0", PASS),  # the card may lack what the rung needs
        (3, False, "cuda", "", PASS),
    ],
)
def test_a_rung_that_always_falls_back_fails(
    fallbacks: int, quick: bool, device: str, model: str, status: str
) -> None:
    outcome = taken([TO] * fallbacks, 3, quick=quick, device=device, model=model)
    assert outcome.status == status
    asides = [f"falls back on {fallbacks} of 3 cases to {TO}"] if fallbacks else []
    assert outcome.asides == asides and outcome.remarks == []
    assert (TO in outcome.reason) == (status == FAIL)


@pytest.mark.parametrize(
    ("to", "count", "declared", "reason"),
    [
        ("v1_scalar", 37, "", ""),
        ("v1_scalar", 41, "", "hardly any case checks the rung's own kernel: 41 of 50"),
        ("v1_scalar", 41, "its cases are v1's", ""),
        ("v1_scalar", 50, "its cases are v1's", "no case checks the rung's own kernel"),
        ("scalar", 1, "", ""),  # of softmax_v1_scalar and of gelu_v1_scalar
        ("a warp per row", 1, "", ""),
        ("step_of_python", 1, "", ""),  # an operator that a rung in Python calls
        ("v1_scalr", 1, "", "it falls back to 'v1_scalr', which is no rung of the day"),
        ("calar", 1, "", "no rung of the day"),
    ],
)
def test_what_a_rung_may_fall_back_to_and_how_often(
    to: str, count: int, declared: str, reason: str
) -> None:
    outcome = taken([f"{to}: rows that are not aligned"] * count, 50, declared)
    assert outcome.status == (FAIL if reason else PASS)
    assert reason in outcome.reason and bool(reason) == bool(outcome.reason)
