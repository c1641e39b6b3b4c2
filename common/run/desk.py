"""A learner's file is built and checked in the place of the day's own."""

from __future__ import annotations

import datetime
import difflib
import io
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from common.base.days import Day
from common.base.figures import counted
from common.base.outcome import FAIL, PASS, DayOutcome
from common.base.toolchain import Platform
from common.practice.challenge import (
    Challenge,
    State,
    shown,
    write_challenge,
)
from common.practice.exercise import ExerciseError
from common.practice.journal import Entry, Journal
from common.practice.planted import (
    BY_CHANCE,
    IN_A_ROW,
    UNSEEN_ON_CPU,
    DebugChallenge,
    debug_challenge,
)
from common.practice.speed import SpeedChallenge, speed_challenge
from common.practice.standing import next_line
from common.report.terminal import Report
from common.run.command import (
    EXIT_FAILED,
    EXIT_PASSED,
    Options,
    make_runner,
    prepare,
)
from common.run.pace import Pace
from common.run.selection import Selection

EXPLAINED = 8  # lines that explain one failure to a learner
PLANTING_LIMIT = 60.0  # seconds that a planted change may take to fail
NO_FUN = ("no end after", "the process died")  # failures from which there is nothing to learn


class Desk:
    """A learner at work: the days, what is solved, and how files are checked."""

    def __init__(self, options: Options, days: Sequence[Day], journal: Journal):
        self.options = replace(options, bench=False)
        self.keys = False  # whether the learner presses keys instead of typing commands
        self.days, self.journal = days, journal
        self._platform: Platform | None = None

    def challenge(self, day: Day, kind: str, another: bool = False) -> Challenge:
        """The exercise. another: of kind "debug", not the one that is planted. Raises
        ExerciseError, OSError."""
        if kind == "write":
            return write_challenge(day, self.options.days)
        if kind == "speed":
            return speed_challenge(day, self.options.days)
        entry = self.journal.entry(day.number, kind)
        if another and entry.planted:
            entry.passed_over.append(entry.planted)
            entry.planted = ""
        return debug_challenge(
            day, self.options.days, entry.planted, [*entry.found, *entry.passed_over]
        )

    def begin(self, challenge: Challenge, report: Report) -> tuple[Challenge, bool]:
        """Writes the learner's file where there is none. A change is planted only if the checks
        reject it, so another one may come of it. Returns what is to be solved, and whether it was
        written now."""
        if challenge.kind != "debug":
            return challenge, challenge.begin()
        entry = self.journal.entry(challenge.day.number, challenge.kind)
        assert isinstance(challenge, DebugChallenge)
        if entry.planted == challenge.mutant.identity and challenge.file.exists():
            return challenge, False
        challenge.keep()
        # Nothing is planted until the checks have rejected it, so that an interruption of what
        # follows does not leave one change in the file and another one in the journal.
        entry.planted, entry.hints = "", 0
        self.journal.save()
        try:
            while True:
                challenge.begin()
                if self._rejected(challenge, report):
                    entry.planted = challenge.mutant.identity
                    break
                challenge.file.unlink()
                entry.passed_over.append(challenge.mutant.identity)
                challenge = self.challenge(challenge.day, "debug")
                assert isinstance(challenge, DebugChallenge)
        finally:
            if not entry.planted:
                challenge.file.unlink(missing_ok=True)
            self.journal.save()
        return challenge, True

    def _rejected(self, challenge: DebugChallenge, report: Report) -> bool:
        """Whether the checks fail in time on what is planted, and not by the compiler."""
        report.status("planting a change that the checks reject")
        kind = challenge.mutant.kind.name
        unheard = Report(io.StringIO())
        if kind in UNSEEN_ON_CPU and self._platform_for(challenge, unheard).device == "cpu":
            return False
        times = IN_A_ROW if kind in BY_CHANCE else 1
        return all(self._fails(challenge) for _ in range(times))

    def _fails(self, challenge: Challenge) -> bool:
        outcome = self._run(challenge, Report(io.StringIO()), PLANTING_LIMIT)
        reasons = [rung.reason for rung in outcome.rungs if rung.status == FAIL]
        no_fun = any(words in reason for reason in reasons for words in NO_FUN)
        return outcome.status == FAIL and bool(reasons) and not no_fun

    def _run(self, challenge: Challenge, report: Report, time_limit: float = 0.0) -> DayOutcome:
        platform = self._platform_for(challenge, report)
        limit = time_limit or self.options.time_limit
        options = replace(
            self.options,
            rungs=challenge.rungs,
            time_limit=limit,
            swap=(challenge.original, challenge.file),
            bench=challenge.kind == "speed" and platform.device == "cuda",
            alone=True,
        )
        runner = make_runner(options, [challenge.day_to_run()], platform, report)
        runner.run()
        return runner.outcomes[0]

    def _platform_for(self, challenge: Challenge, report: Report) -> Platform:
        """What days are built for and run on. Raises Refused."""
        if self._platform is None:
            self._platform = prepare(self.options, Selection((challenge.day,), {}), report)
        return self._platform

    def reset(self, challenge: Challenge, report: Report) -> int:
        """Begins the exercise anew."""
        kept = challenge.reset()
        self.journal.entry(challenge.day.number, challenge.kind).hints = 0
        self.journal.save()
        report.text(f"{shown(challenge.file)} begins anew")
        if kept:
            report.text(f"your file is kept as {shown(kept)}")
        return EXIT_PASSED

    def hint(self, challenge: Challenge, report: Report) -> int:
        """Shows the next hint, and the last one again and again."""
        entry = self.journal.entry(challenge.day.number, challenge.kind)
        number = min(entry.hints, len(challenge.hints) - 1)
        report.text(f"hint {number + 1} of {len(challenge.hints)}:", "bold")
        for line in textwrap.wrap(challenge.hints[number], 76):
            report.text(f"  {line}")
        entry.hints = number + 1
        self.journal.save()
        if number + 1 == len(challenge.hints) and not self.keys:
            report.line([("the code  ", "dim"), (f"{challenge.command} --solution", "")])
        return EXIT_PASSED

    def solution(self, challenge: Challenge, report: Report) -> int:
        """Shows the difference between the learner's file and the day's own."""
        mine = challenge.file.read_text(encoding="utf-8").splitlines()
        name, answer = challenge.answer
        names = shown(challenge.file), name
        styles = {"+": "green", "-": "red", "@": "cyan"}
        lines = list(difflib.unified_diff(mine, answer.splitlines(), *names, lineterm=""))
        for line in lines:
            report.line([(line, styles.get(line[:1], ""))])
        if not lines:
            report.text(f"{names[0]} is the same as {names[1]}")
        return EXIT_PASSED

    def check(self, challenge: Challenge, report: Report, began: bool = False) -> int:
        """Checks the learner's file once and says what follows from it. Raises ExerciseError,
        JournalError, OSError, Refused."""
        day, now = challenge.day, challenge.state()
        if began and challenge.kind == "write":
            report.text(f"wrote {shown(challenge.file)}: the day's file, and a gap for you", "bold")
        elif began:
            report.prose(f"wrote {shown(challenge.file)}: {challenge.task}", "bold")
        report.text(f"day {day.number}, {challenge.kind}: {now.place}", "bold")
        for note in now.notes:
            report.prose(f"note: {note}", "yellow")
        outcome = self._run(challenge, report)
        report.close()
        entry = self.journal.entry(day.number, challenge.kind)
        complete = self.options.mode == "run" and not self.options.quick
        solved = outcome.status == PASS and not now.open
        if isinstance(challenge, SpeedChallenge) and outcome.status == PASS and complete:
            solved = self._fast_enough(challenge, outcome, entry, report)
            now = replace(now, open="")
        self.journal.save()
        if not solved:
            if challenge.kind == "debug" and outcome.status == PASS:
                report.prose("the checks did not notice it this time: it depends on chance")
            _say_what_is_open(challenge, now, report)
            self._say_how_to_go_on(challenge, entry.hints, report)
            return EXIT_FAILED
        if not complete:
            report.prose(f"not all was checked: {challenge.command} says whether it is solved")
            return EXIT_PASSED
        self._solved(challenge, outcome, entry, report)
        return EXIT_PASSED

    def _say_how_to_go_on(self, challenge: Challenge, hints: int, report: Report) -> None:
        command = challenge.command
        left = len(challenge.hints) - hints
        which = f"hint {hints + 1} of {len(challenge.hints)}" if left > 0 else "last hint"
        if not self.keys:
            report.line([("check again  ", "dim"), (command, "")])
            report.line([(f"{which:<13}", "dim"), (f"{command} --hint", "")])
        if challenge.kind == "debug" and self.options.mode != "sanitize":
            report.line([("look deeper  ", "dim"), (f"{command} --sanitize", "")])

    def _fast_enough(
        self, challenge: SpeedChallenge, outcome: DayOutcome, entry: Entry, report: Report
    ) -> bool:
        """Measures what has passed its checks, and says how near to the goal it is."""
        assert self._platform
        verdict = Pace(self.options, self._platform, report).judge(challenge, outcome)
        report.close()
        entry.set_aside = verdict.needs
        for line in verdict.lines:
            report.text(line)
        if verdict.hint:
            report.line([("hint: ", "bold"), (verdict.hint, "")])
        return verdict.solved

    def _solved(
        self, challenge: Challenge, outcome: DayOutcome, entry: Entry, report: Report
    ) -> None:
        """Remembers that an exercise is solved, and says what there is to say then."""
        entry.solved = entry.solved or datetime.date.today().isoformat()
        if isinstance(challenge, DebugChallenge) and challenge.mutant.identity not in entry.found:
            entry.found.append(challenge.mutant.identity)
        self.journal.save()
        hints = f" with {counted(entry.hints, 'hint')}" if entry.hints else ""
        checks = sum(rung.checked + rung.bad_inputs for rung in outcome.rungs)
        report.text(f"solved{hints}: {counted(checks, 'check')} passed", "bold green")
        if challenge.kind == "write" and (waste := self._waste(challenge, report)):
            report.prose(f"right, but wasteful: {waste}", "yellow")
        for line in challenge.explanation():
            report.prose(line, indent=13 if line.startswith("  ") else 0)  # code goes on so
        if challenge.kind == "debug":
            report.line([("find another  ", "dim"), (f"{challenge.command} --next", "")])
        elif not self.keys:
            report.line(
                [("the day's own version  ", "dim"), (f"{challenge.command} --solution", "")]
            )
        here = challenge.day, challenge.kind
        report.text(next_line(self.days, self.journal, here))

    def _waste(self, challenge: Challenge, report: Report) -> str:
        assert self._platform
        try:
            return Pace(self.options, self._platform, report).waste(challenge)
        except ExerciseError:
            return ""  # it is solved whatever it costs
        finally:
            report.close()


def _say_what_is_open(challenge: Challenge, now: State, report: Report) -> None:
    if now.open and challenge.kind == "debug":
        report.text(f"{now.open}: find it, and fix it", "yellow")
    elif now.open:
        first, *rest = textwrap.wrap(f"your turn: {now.open}", 78)
        report.line([(first[:10], "bold yellow"), (first[10:], "")])
        for line in rest:
            report.text(line)
        report.line([(f"      at {now.place}", "cyan")])
