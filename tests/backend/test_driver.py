"""`python days/dayNN/day.py`, on fixture days: its output and its exit code."""

from __future__ import annotations

import sys

import pytest

from common.base.paths import ROOT
from tests import progress
from tests.command_line import FIXTURE_DAYS

RUN = "import sys; from common.run.driver import main; sys.exit(main(sys.argv.pop(1)))"


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (
            2,
            1,
            "right, largest error: float32 0.0e+00\n  twice_v2_wrong(x)\n      WRONG, 1025",
        ),
        (3, 1, "twice.cu:3:14: error"),
        (10, 1, "needs the package moonbeam"),
        (11, 0, "skipped, needs the package moonbeam"),
    ],
)
def test_a_day_run_as_a_file(number: int, code: int, said: str) -> None:
    file = FIXTURE_DAYS / f"day{number:02d}" / "day.py"
    command = [sys.executable, "-c", RUN, str(file), "--device", "cpu"]
    done = progress.run(command, cwd=ROOT)
    assert said in done.stdout + done.stderr
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
