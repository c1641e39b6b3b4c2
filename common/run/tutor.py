"""Build and check a learner's file, which replaces the day's own."""

from __future__ import annotations

import datetime
import difflib
import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from common.base.day_files import DEBUG, SPEED
from common.base.days import Day
from common.base.figures import counted
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, SKIP, WRITTEN_OUTSIDE, DayOutcome, RungOutcome
from common.base.toolchain import Platform, ToolchainError, detect
from common.cpu.findings import source_text
from common.practice.challenge import (
    Challenge,
    State,
    WriteChallenge,
    shown,
    write_challenge,
)
from common.practice.debug import (
    BY_CHANCE,
    IN_A_ROW,
    UNSEEN_ON_CPU,
    DebugChallenge,
    debug_challenge,
)
from common.practice.journal import Entry, Journal
from common.practice.progress import next_line
from common.practice.speed import SpeedChallenge, speed_challenge
from common.practice.steps import ExerciseError, same_code, solution
from common.report.drawn_call import DrawnRungs
from common.report.files import write_atomically
from common.report.terminal import Report
from common.run.command import make_runner, prepare
from common.run.exit_status import EXIT_FAILED, EXIT_PASSED
from common.run.selection import Selection
from common.run.speed_check import SpeedCheck

EXPLAINED = 8  # lines that explain one failure to a learner
LATE = "no end after"  # beginning of the reason for reaching the time limit
PLANTING_LIMIT = 60.0  # seconds that a planted change may take to fail
_PLACE = re.compile(r"([^:]+):(\d+):")
NO_FUN = (LATE, "the process died")  # failures that teach nothing


class Tutor:
    """A learner's session: the days, the solved exercises, and the checks of files."""

    def __init__(self, options: RunOptions, days: Sequence[Day], journal: Journal):
        self.options = replace(options, bench=False)
        self.keys = False  # True if the learner presses keys instead of typing commands
        self.days, self.journal = days, journal
        self._platform: Platform | None = None

    def challenge(self, day: Day, name: str, another: bool = False) -> Challenge:
        """Return the exercise of this name. another: for "debug", choose a change that is not
        planted. Raise ExerciseError, OSError."""
        if name == SPEED:
            return speed_challenge(day, self.options.days)
        if step := day.step(name):
            return write_challenge(day, self.options.days, step)
        entry = self.journal.entry(day.number, name)
        if another and entry.planted:
            entry.passed_over.append(entry.planted)
            entry.planted = ""
        return debug_challenge(
            day, self.options.days, entry.planted, [*entry.found, *entry.passed_over]
        )

    def begin(
        self, challenge: Challenge, report: Report, another: bool = False
    ) -> tuple[Challenge, bool]:
        """Write the learner's file if there is none. A change is planted only if the checks reject
        it, so the exercise may change. Return the exercise, and True if the file was written now.

        another: plant another change, and keep the old file. Raise ExerciseError if a file to debug
        exists, no other change was requested, and its planted change is unknown.
        """
        if not isinstance(challenge, DebugChallenge):
            return challenge, challenge.begin()
        entry = self.journal.entry(challenge.day.number, challenge.name)
        there = challenge.file.exists()
        if there and entry.planted == challenge.mutant.identity:
            return challenge, False
        if there and not another:
            raise ExerciseError(
                f"{shown(challenge.file)} is there, but progress.json does not name what is "
                f"planted in it; {challenge.command} --reset plants a change and keeps your file"
            )
        if kept := challenge.keep():
            report.text(f"your file is kept as {shown(kept)}")
        # The journal names a change only after the checks have rejected it, so that an interruption
        # does not leave one change in the file and another one in the journal.
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
                challenge = self.challenge(challenge.day, DEBUG)
                assert isinstance(challenge, DebugChallenge)
        finally:
            if not entry.planted:
                challenge.file.unlink(missing_ok=True)
            self.journal.save()
        return challenge, True

    def _rejected(self, challenge: DebugChallenge, report: Report) -> bool:
        """Return True if the checks, not the compiler, reject the planted change in time."""
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

    def _checked(self, challenge: Challenge, report: Report) -> DayOutcome:
        """Check the learner's file: first a few cases, for a verdict in seconds, then all of them,
        then races, bad addresses and unwritten memory that right results may hide."""
        first = self._run(challenge, report, quick=True, bench=False)
        if first.status != PASS:
            self._draw(challenge, first, report)
            return first
        passed = counted(_checks(first), "check")
        report.text(f"right so far: {passed} passed; now all cases, races, addresses …", "green")
        report.status("checking all cases")
        found = self._run(challenge, _StatusOf(report))
        if found.status != PASS:
            _show_failures(found, report)
            self._draw(challenge, found, report)
            return found
        report.status("looking for races, bad addresses and unwritten memory")
        closer = self._run(challenge, _StatusOf(report), mode="sanitize", quick=True)
        closer = _with_what_is_no_fault_noted(closer, report)
        if closer.status != PASS:
            _show_failures(closer, report)
            return closer
        return replace(found, rungs=[*found.rungs, *closer.rungs])

    def _draw(self, challenge: Challenge, outcome: DayOutcome, report: Report) -> None:
        """Show which thread reads and writes which element, for a rung with a wrong result or a
        write outside, and save that as a picture next to the learner's file."""

        def can_be_drawn(rung: RungOutcome) -> bool:
            return bool(rung.example) or WRITTEN_OUTSIDE in rung.reason

        wrong = [r.rung for r in outcome.rungs if r.status == FAIL and can_be_drawn(r)]
        if not wrong or isinstance(challenge, SpeedChallenge):
            return
        platform = self._platform_for(challenge, report)
        report.status("drawing what the threads did")
        try:
            on_cpu = replace(
                platform if platform.device == "cpu" else detect("cpu"), variant="trace"
            )
            quiet = Report(io.StringIO())
            found = self._run(challenge, quiet, platform=on_cpu, mode="draw", rungs=(wrong[0],))
            drawn = DrawnRungs.of(found.rungs)
            if found.status == FAIL and not found.rungs:  # it does not build, or does not end
                drawn.missing.append(f"{challenge.day.title}: {found.reason}")
        except ToolchainError as error:
            drawn = DrawnRungs([], [str(error)])
        report.close()
        for line in drawn.lines():
            report.text(line, "" if line.startswith(" ") else "bold")
        if drawn.calls:
            picture = challenge.file.with_suffix(".svg")
            write_atomically(picture, drawn.svg())
            report.line([("as a picture ", "dim"), (shown(picture), "")])

    def _run(
        self,
        challenge: Challenge,
        report: Report,
        time_limit: float = 0.0,
        *,
        platform: Platform | None = None,
        **changes: Any,
    ) -> DayOutcome:
        """Run the day with the learner's file. platform: by default the usual one. changes: to the
        options."""
        platform = platform or self._platform_for(challenge, report)
        options = replace(
            self.options,
            rungs=challenge.rungs,
            time_limit=time_limit or self.options.time_limit,
            swap=(challenge.original, challenge.file),
            bench=challenge.name == SPEED and platform.device == "cuda",
            alone=True,
        )
        options = replace(options, **changes)
        runner = make_runner(options, [challenge.day_to_run()], platform, report)
        runner.run()
        return runner.outcomes[0]

    def _platform_for(self, challenge: Challenge, report: Report) -> Platform:
        """Return the platform that days are built for and run on. Raise CommandError."""
        if self._platform is None:
            self._platform = prepare(self.options, Selection((challenge.day,), {}), report)
        return self._platform

    def reset(self, challenge: Challenge, report: Report) -> int:
        """Restart the exercise."""
        entry = self.journal.entry(challenge.day.number, challenge.name)
        if isinstance(challenge, DebugChallenge) and entry.planted != challenge.mutant.identity:
            challenge, _ = self.begin(challenge, report, another=True)
        elif kept := challenge.reset():
            report.text(f"your file is kept as {shown(kept)}")
        entry.hints = 0
        self.journal.save()
        report.text(f"{shown(challenge.file)} begins anew")
        return EXIT_PASSED

    def hint(self, challenge: Challenge, report: Report) -> int:
        """Show the next hint; after the last hint, show that one again."""
        entry = self.journal.entry(challenge.day.number, challenge.name)
        number = min(entry.hints, len(challenge.hints) - 1)
        report.text(f"hint {number + 1} of {len(challenge.hints)}:", "bold")
        for line in textwrap.wrap(challenge.hints[number], 76):
            report.text(f"  {line}")
        if not entry.solved:  # hints of a solved exercise are not counted
            entry.hints = number + 1
            self.journal.save()
        if number + 1 == len(challenge.hints) and not self.keys:
            report.line([("the code  ", "dim"), (f"{challenge.command} --solution", "")])
        return EXIT_PASSED

    def solution(self, challenge: Challenge, report: Report) -> int:
        """Show the difference between the learner's file and the day's own."""
        mine = challenge.text.splitlines()
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
        """Check the learner's file once and print the next steps. Raise CommandError, OSError."""
        day, now = challenge.day, challenge.state()
        if began and isinstance(challenge, WriteChallenge):
            report.text(f"wrote {shown(challenge.file)}: the day's code, and a gap for you", "bold")
        elif began:
            report.prose(f"wrote {shown(challenge.file)}: {challenge.task}", "bold")
        report.text(f"day {day.number}, {challenge.name}: {now.place}", "bold")
        for note in now.notes:
            report.prose(f"note: {note}", "yellow")
        entry = self.journal.entry(day.number, challenge.name)
        if now.open and isinstance(challenge, WriteChallenge):
            report.text("not begun: there is nothing to check yet", "yellow")
            _say_what_is_open(challenge, now, report)
            self._say_how_to_go_on(challenge, entry.hints, report)
            return EXIT_FAILED
        complete = self.options.mode == "run" and not self.options.quick
        outcome = self._checked(challenge, report) if complete else self._run(challenge, report)
        report.close()
        solved = outcome.status == PASS and not now.open
        if isinstance(challenge, SpeedChallenge) and outcome.status == PASS and complete:
            solved = self._fast_enough(challenge, outcome, entry, report)
        self.journal.save()
        if not solved:
            if challenge.name == DEBUG and outcome.status == PASS:
                report.prose("the checks did not notice it this time: it depends on chance")
            _say_what_is_open(challenge, now, report)
            self._say_how_to_go_on(challenge, entry.hints, report, _asks_for_more(outcome))
            return EXIT_FAILED
        if not complete:
            report.prose(f"not all was checked: {challenge.command} says whether it is solved")
            return EXIT_PASSED
        self._solved(challenge, outcome, entry, report)
        return EXIT_PASSED

    def _say_how_to_go_on(
        self, challenge: Challenge, hints: int, report: Report, look_deeper: bool = False
    ) -> None:
        command = challenge.command
        left = len(challenge.hints) - hints
        which = f"hint {hints + 1} of {len(challenge.hints)}" if left > 0 else "last hint"
        if not self.keys:
            report.line([("check again  ", "dim"), (command, "")])
            report.line([(f"{which:<13}", "dim"), (f"{command} --hint", "")])
        if (challenge.name == DEBUG or look_deeper) and self.options.mode != "sanitize":
            report.line([("look deeper  ", "dim"), (f"{command} --sanitize", "")])

    def _fast_enough(
        self, challenge: SpeedChallenge, outcome: DayOutcome, entry: Entry, report: Report
    ) -> bool:
        """Measure a file that passed its checks, and print the verdict on its speed."""
        assert self._platform
        verdict = SpeedCheck(self.options, self._platform, report).judge(challenge, outcome)
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
        """Record an exercise as solved, and print its explanation and the next steps."""
        entry.solved = entry.solved or datetime.date.today().isoformat()
        if isinstance(challenge, DebugChallenge) and challenge.mutant.identity not in entry.found:
            entry.found.append(challenge.mutant.identity)
        self.journal.save()
        hints = f" with {counted(entry.hints, 'hint')}" if entry.hints else ""
        report.text(f"solved{hints}: {counted(_checks(outcome), 'check')} passed", "bold green")
        if isinstance(challenge, WriteChallenge) and (waste := self._waste(challenge, report)):
            report.prose(f"right, but wasteful: {waste}", "yellow")
        for line in challenge.explanation():
            report.prose(line, indent=13 if line.startswith("  ") else 0)  # continued lines of code
        if isinstance(challenge, WriteChallenge):
            _show_own_lines(challenge, report)
        if challenge.name == DEBUG:
            report.line([("find another  ", "dim"), (f"{challenge.command} --next", "")])
        elif not self.keys:
            report.line(
                [("all of the difference  ", "dim"), (f"{challenge.command} --solution", "")]
            )
        here = challenge.day, challenge.name
        report.text(next_line(self.days, self.journal, here))

    def _waste(self, challenge: Challenge, report: Report) -> str:
        assert self._platform
        try:
            return SpeedCheck(self.options, self._platform, report).waste(challenge)
        except ExerciseError:
            return ""  # it is solved regardless of its cost
        finally:
            report.close()


def _show_own_lines(challenge: WriteChallenge, report: Report) -> None:
    """Show the day's version of the step if the learner's differs."""
    theirs = challenge.text
    if same_code(theirs, challenge.solved, challenge.step):
        report.text("the day has the same lines")
        return
    report.text(f"the day has, in {shown(challenge.original)}:")
    for line in solution(challenge.solved, challenge.step).splitlines():
        report.text(f"  {line}".rstrip(), "cyan")


class _StatusOf(Report):
    """A report that shows only the live line of a run whose other lines a learner does not need."""

    def __init__(self, report: Report):
        super().__init__(io.StringIO())
        self._shown = report

    def status(self, text: str) -> None:
        self._shown.status(text)


def _checks(outcome: DayOutcome) -> int:
    return sum(rung.checked + rung.bad_inputs for rung in outcome.rungs)


def _asks_for_more(outcome: DayOutcome) -> bool:
    """Return True if --sanitize may find more: a hint names a race, a result is wrong for an
    unknown reason, or the process died."""
    hints = [
        " ".join(line for line in rung.details if line.startswith("hint:"))
        for rung in outcome.rungs
        if rung.status == FAIL and rung.checked
    ]
    died = "the process died" in outcome.reason
    return died or any(not hint or "race" in hint for hint in hints)


def _show_failures(outcome: DayOutcome, report: Report) -> None:
    failed = [rung for rung in outcome.rungs if rung.status == FAIL]
    for rung in failed:
        report.rung(outcome.number, rung)
    if not failed:
        report.day(outcome)


def _with_what_is_no_fault_noted(outcome: DayOutcome, report: Report) -> DayOutcome:
    """Return the outcome of --sanitize without findings that leave a solution right; these are
    printed as notes: a too small index for an array larger than any case, and skipped checks. A
    check that hit its time limit may hide a fault: it stays a failure, with advice."""
    rows = []
    for row in outcome.rungs:
        if row.rung == "indices" and row.status == FAIL:
            if lines := [line for line in (row.reason, *row.details) if not _of_a_launch(line)]:
                note = "note: right for every case, but not for arrays of any size:"
                report.prose(note, "yellow")
                report.details(lines)
            row = replace(row, status=PASS)
        elif row.status == SKIP:
            report.prose(f"note: {row.rung} not looked at: {row.reason}", "yellow")
            row = replace(row, status=PASS)
        elif row.status == FAIL and row.reason.startswith(LATE):
            note = "not solved before this has come to its end; --time-limit S gives it more time"
            row = replace(row, details=[*row.details, note])
        rows.append(row)
    failed = any(row.status == FAIL for row in rows)
    status = outcome.status if failed or not rows else PASS
    return replace(outcome, rungs=rows, status=status)


def _of_a_launch(finding: str) -> bool:
    """Return True if a finding, "path:line: text", is about a launch: a grid's size has at most 32
    bits, and a larger one is refused."""
    place = _PLACE.match(finding)
    return place is not None and "<<<" in source_text(place[1], int(place[2]))


def _say_what_is_open(challenge: Challenge, now: State, report: Report) -> None:
    if now.open and challenge.name == DEBUG:
        report.text(f"{now.open}: find it, and fix it", "yellow")
    elif now.open:
        first, *rest = textwrap.wrap(f"your turn: {now.open}", 78)
        report.line([(first[:10], "bold yellow"), (first[10:], "")])
        for line in rest:
            report.text(line)
        report.line([(f"      at {now.place}", "cyan")])
