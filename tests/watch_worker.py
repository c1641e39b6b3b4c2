"""Run `--watch` on this terminal, for day 2's exercise, with checks that build nothing and always
fail.

Arguments: the folder of the learner's files. `// for 5 s` in the checked file makes a check last
this long, and `// crash` makes it end this program.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from common.base.days import discover
from common.base.options import RunOptions
from common.base.outcome import FAIL, DayOutcome, RungOutcome
from common.practice.challenge import Challenge, WriteChallenge
from common.practice.journal import Journal
from common.report.terminal import Report
from common.run.exit_status import Interrupted, signals_raise
from common.run.tutor import Tutor
from common.run.watching import watch


class QuickTutor(Tutor):
    """A tutor that checks nothing."""

    checks = 0

    def _run(
        self, challenge: Challenge, report: Report, time_limit: float = 0.0, **_: object
    ) -> DayOutcome:
        self.checks += 1
        text = challenge.file.read_text(encoding="utf-8")
        seconds = re.search(r"// for (\d+) s", text)
        until = time.monotonic() + (int(seconds[1]) if seconds else 0)
        report.status(f"check {self.checks} begins")
        while time.monotonic() < until:
            self.options.attend()
            time.sleep(0.02)
        if "// crash" in text:
            raise RuntimeError("the program itself is wrong")
        rung = RungOutcome("p", "v2", "", FAIL, f"check {self.checks} is over")
        report.rung(challenge.day.number, rung)
        return DayOutcome(challenge.day.number, "day02", "", FAIL, rungs=[rung])


def main(folder: Path) -> int:
    days = [day for day in discover()[0] if day.number == 2]
    tutor = QuickTutor(RunOptions(("2",), days=folder / "days"), days, Journal(folder / "practice"))
    try:
        with signals_raise():
            begun = tutor.challenge(days[0], days[0].steps[-1].name)
            challenge, _ = tutor.begin(begun, Report())
            assert isinstance(challenge, WriteChallenge)
            challenge.file.write_text(challenge.solved)  # otherwise there would be nothing to check
            return watch(tutor, challenge)
    except Interrupted as interrupted:
        return 128 + interrupted.number


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
