"""Cases that hypothesis draws: right on every rung, or refused. See tests/random_cases.py.

A few cases per rung, on the days that are taken (tests/taken.py); HUNDRED_DAYS_CASES makes it more.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from common.base.days import Day, discover
from common.base.paths import ROOT
from tests import progress, taken

DAYS, _ = discover()
CASES = int(os.environ.get("HUNDRED_DAYS_CASES", "8"))


@pytest.fixture(scope="session")
def explored(request: pytest.FixtureRequest) -> tuple[str, dict[int, list[dict[str, Any]]], str]:
    """Return the command, its findings by day, and its error output, of the days that tests use."""
    days = taken.numbers_of(request.session, test_random_cases)
    words = ["-m", "tests.random_cases", *map(str, days)]
    words += ["--cases", str(CASES), "--seed", str(taken.seed())]
    run = progress.run([sys.executable, *words], cwd=ROOT)
    found: dict[int, list[dict[str, Any]]] = {day: [] for day in days}
    for line in run.stdout.splitlines():
        if line.startswith('{"day"'):
            data = json.loads(line)
            found[data["day"]].append(data)
    return " ".join(["python", *words]), found, run.stderr


@pytest.mark.some_days("random cases")
@pytest.mark.parametrize("day", DAYS, ids=[day.name for day in DAYS])
def test_random_cases(day: Day, explored: tuple[str, dict[int, list[dict[str, Any]]], str]) -> None:
    command, everything, complaints = explored
    *found, end = everything[day.number] or [{}]
    assert end.get("exit") == 0, f"{command} died on this day\n{found}\n{complaints}"
    assert found, f"{command} tried nothing\n{complaints}"
    wrong = [
        "\n".join([f"{one['problem']}: {one['rung']}: {one['called']}", *one["wrong"]])
        for one in found
        if one.get("wrong")
    ]
    assert not wrong, "\n".join([*wrong, f"{command} repeats this"])
