"""A rung all of whose cases are computed by another rung's kernel is not checked at all."""

from types import SimpleNamespace

import pytest

from common.base.outcome import FAIL, PASS, RungOutcome
from common.check.rungs import CheckResult
from common.process import worker
from common.process.worker import Work

TO = "v1_scalar: rows that are not aligned"


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
    run = SimpleNamespace(
        fallback=str,
        work=Work(quick=quick),
        backend=SimpleNamespace(name=device),
        platform=SimpleNamespace(model=model),
    )
    outcome = RungOutcome("p", "v2", "", PASS)
    result = CheckResult(checked=3, fallbacks=[TO] * fallbacks)
    worker._take_fallbacks(run, outcome, result)  # type: ignore[arg-type]
    assert outcome.status == status
    remarks = [f"falls back on {fallbacks} of 3 cases to {TO}"] if fallbacks else []
    assert outcome.remarks == remarks
    assert (TO in outcome.reason) == (status == FAIL)
