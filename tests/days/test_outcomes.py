"""The outcomes announced in "Try it yourself" of a README happen."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from common.base.day_files import EXERCISES, Outcome, read_outcomes
from common.base.days import Day, discover
from common.base.paths import ROOT
from tests.days.outcomes import changed_by
from tests.progress import run

OPTIONS = {"check": ("--no-bench",), "sanitize": ("--sanitize",), "profile": ("--profile",)}
STATED = [
    pytest.param(day, outcome, id=f"{day.name}-{outcome.item}")
    for day in discover()[0]
    for outcome in read_outcomes(day.folder / EXERCISES)
]


@pytest.mark.some_days("outcomes")
@pytest.mark.parametrize(("day", "outcome"), STATED)
def test_what_is_said_happens(day: Day, outcome: Outcome, tmp_path: Path) -> None:
    original, text = changed_by(outcome, day)
    changed = tmp_path / original.name
    changed.write_text(text, encoding="utf-8")
    command = [sys.executable, "run_day.py", str(day.number), "--device", "cpu", "--no-color"]
    command += [*OPTIONS[outcome.run], "--swap", str(original), str(changed)]
    if outcome.rungs:
        command += ["--rungs", ",".join(outcome.rungs)]
    done = run(command, cwd=ROOT)
    shown = " ".join(done.stdout.split())
    assert (done.returncode == 0) == (outcome.passes == "yes"), done.stdout
    for words in outcome.says:
        assert re.search(words, shown), f"{words!r} is not in\n{done.stdout}"
