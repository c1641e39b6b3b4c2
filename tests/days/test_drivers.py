"""Every day.py is a program, `python days/day05/day.py`, that builds, calls and compares."""

from __future__ import annotations

import sys

import pytest

from common.base.days import Day, discover
from common.base.paths import ROOT
from tests import progress

DAYS, _ = discover()
SKELETON = (ROOT / "common/run/skeleton/day.txt").read_text(encoding="utf-8")
START = SKELETON[SKELETON.index("if __name__") : SKELETON.index("from common.day")]

every_day = pytest.mark.parametrize("day", DAYS, ids=[day.name for day in DAYS])


@every_day
def test_every_day_is_a_program(day: Day) -> None:
    text = (day.folder / "day.py").read_text(encoding="utf-8")
    assert text.count('if __name__ == "__main__":') == 1
    assert f'"""\n\n{START.replace("day00", day.name)}' in text, "it differs from that of --new"


@pytest.mark.some_days("drivers")
@every_day
def test_a_day_builds_calls_and_compares(day: Day) -> None:
    command = [sys.executable, str(day.folder / "day.py"), "--device", "cpu"]
    done = progress.run(command, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch.utils.cpp_extension.load" in done.stdout
    assert "right, largest error: " in done.stdout


@pytest.mark.some_days("drivers")
@every_day
def test_importing_a_day_does_nothing(day: Day) -> None:
    program = (
        f"import sys; before = [*sys.path]; import days.{day.name}.day; print(sys.path == before)"
    )
    command = [sys.executable, "-c", program]
    done = progress.run(command, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stdout + done.stderr
