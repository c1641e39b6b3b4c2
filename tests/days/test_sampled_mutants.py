"""A few mutants of the days that are taken (tests/taken.py): their checks reject them, or are known
not to. The seed of the sample is part of a failure's message.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from common.base.days import Day, discover
from common.base.paths import ROOT
from common.report.stored import read_scores
from tests import progress, taken

DAYS, _ = discover()
PER_DAY = 2
SCORES = read_scores()
# A day without a stored score has nothing to compare its sample with.
TRIED = [day for day in DAYS if day.number in SCORES]


@pytest.fixture(scope="session")
def tried(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, dict[str, Any]]:
    """Return the outcome of each day's sample, from one run of the command over the days that tests
    use."""
    days = taken.numbers_of(request.session, test_a_sample_of_mutants)
    report = tmp_path_factory.mktemp("mutants") / "report.json"
    command = [sys.executable, "run_day.py", *map(str, days), "--mutants", "--json", str(report)]
    command += ["--sample", str(PER_DAY), "--seed", str(taken.seed())]
    run = progress.run(command, cwd=ROOT)
    assert report.is_file(), f"run_day.py wrote no report\n{run.stdout}\n{run.stderr}"
    return {day["day"]: day for day in json.loads(report.read_text())["mutants"]}


@pytest.mark.some_days("mutants")
@pytest.mark.parametrize("day", TRIED, ids=[day.name for day in TRIED])
def test_a_sample_of_mutants(day: Day, tried: dict[int, dict[str, Any]]) -> None:
    """None survives that the stored score does not know."""
    found = tried[day.number]
    assert not found["error"], found["error"]
    assert not found["problems"], "\n".join(found["problems"])
    assert len(found["verdicts"]) == PER_DAY
    survived = [v["identity"] for v in found["verdicts"] if v["status"] == "survived"]
    new = [identity for identity in survived if identity not in SCORES[day.number].survived]
    assert not new, (
        f"{new} survived; run_day.py {day.number} --mutants --sample {PER_DAY} "
        f"--seed {taken.seed()} repeats this"
    )
