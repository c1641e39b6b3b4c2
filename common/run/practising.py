"""`--practice`: the learner's file is built and checked in the place of the day's own."""

from __future__ import annotations

import datetime
import difflib
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.base.days import Day
from common.base.figures import counted
from common.base.outcome import PASS
from common.base.toolchain import Platform
from common.practice.challenge import (
    Challenge,
    practice_folder,
    shown,
    state,
    write_challenge,
)
from common.practice.exercise import ExerciseError
from common.practice.journal import KINDS, Journal, JournalError
from common.practice.standing import next_exercise, next_line
from common.report.terminal import Report
from common.run.command import (
    EXIT_FAILED,
    EXIT_PASSED,
    EXIT_USAGE,
    Interrupted,
    Options,
    Refused,
    make_runner,
    prepare,
    refuse,
    signals_raise,
)
from common.run.selection import Selection, SelectionError, select

EXPLAINED = 8  # lines that explain one failure to a learner


@dataclass(frozen=True)
class Wish:
    """What the command line asks of an exercise. kind: "write", "debug" or "speed"."""

    kind: str = "write"
    hint: bool = False
    reset: bool = False
    solution: bool = False
    next: bool = False
    watch: bool = False


def practise(options: Options, wish: Wish) -> int:
    """Does what `--practice` and its companions ask for; returns the exit code."""
    report = Report(colour=options.colour, shown_details=EXPLAINED)
    try:
        days = select(("all",), options.days).days
        journal = Journal(practice_folder(options.days))
        day, kind = _chosen(options, wish, days, journal)
        desk = Desk(replace(options, selected=(str(day.number),)), days, journal)
        challenge = desk.challenge(day, kind)
        if wish.reset:
            return desk.reset(challenge, report)
        began = challenge.begin()
        if wish.hint:
            return desk.hint(challenge, report)
        if wish.solution:
            return desk.solution(challenge, report)
        if wish.watch:
            from common.run.watching import watch

            return watch(desk, challenge)
        with signals_raise():
            return desk.check(challenge, report, began)
    except (SelectionError, ExerciseError, JournalError) as error:
        report.close()
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        report.close()
        print(f"run_day.py: {error.filename}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    except Refused as refused:
        report.close()
        return refuse(refused)
    except Interrupted as interrupted:
        return 128 + interrupted.number
    finally:
        report.close()


def _chosen(options: Options, wish: Wish, days: Sequence[Day], journal: Journal) -> tuple[Day, str]:
    """The day and the kind of exercise that the command line means."""
    if options.selected:
        chosen = select(options.selected, options.days).days
        if len(chosen) != 1:
            raise SelectionError(f"--practice takes one day, not {len(chosen)}")
        if not wish.next:
            return chosen[0], wish.kind
        found = next_exercise(days, journal, (chosen[0], wish.kind))
    else:
        found = next_exercise(days, journal)
    if found is None:
        raise SelectionError("every exercise is solved; name a day to do one again")
    return found


class Desk:
    """A learner at work: the days, what is solved, and how files are checked."""

    def __init__(self, options: Options, days: Sequence[Day], journal: Journal):
        self.options = replace(options, bench=False)
        self.days, self.journal = days, journal
        self._platform: Platform | None = None

    def challenge(self, day: Day, kind: str) -> Challenge:
        """The exercise. Raises ExerciseError, OSError."""
        assert kind in KINDS
        return write_challenge(day, self.options.days)

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
        for line in textwrap.wrap(challenge.hints[number], 78):
            report.text(f"  {line}")
        entry.hints = number + 1
        self.journal.save()
        if number + 1 == len(challenge.hints):
            last = f"that is the last one; {challenge.command} --solution shows the code"
            report.text(last, "dim")
        return EXIT_PASSED

    def solution(self, challenge: Challenge, report: Report) -> int:
        """Shows the difference between the learner's file and the day's own."""
        mine = challenge.file.read_text(encoding="utf-8").splitlines()
        original = challenge.original.read_text(encoding="utf-8").splitlines()
        names = shown(challenge.file), shown(challenge.original)
        styles = {"+": "green", "-": "red", "@": "cyan"}
        lines = list(difflib.unified_diff(mine, original, *names, lineterm=""))
        for line in lines:
            report.line([(line, styles.get(line[:1], ""))])
        if not lines:
            report.text(f"{names[0]} is the same as {names[1]}")
        return EXIT_PASSED

    def check(self, challenge: Challenge, report: Report, began: bool = False) -> int:
        """Checks the learner's file once and says what follows from it. Raises ExerciseError,
        JournalError, OSError, Refused."""
        day = challenge.day
        now = state(challenge)
        if self._platform is None:
            self._platform = prepare(self.options, Selection((day,), {}), report)
        place = f"{shown(challenge.file)}:{now.line}"
        if began:
            report.text(f"wrote {shown(challenge.file)}: the day's file, and a gap for you", "bold")
        report.text(f"day {day.number}, {challenge.kind}: {place}", "bold")
        if now.changed:
            report.text(
                f"note: {_lines(now.changed)} differ from {shown(challenge.original)}, outside "
                "the exercise; what you wrote is checked as it stands",
                "yellow",
            )
        options = replace(self.options, rungs=challenge.rungs)
        runner = make_runner(options, [challenge.day_to_run()], self._platform, report)
        runner.run()
        outcome = runner.outcomes[0]
        report.close()
        entry = self.journal.entry(day.number, challenge.kind)
        solved = outcome.status == PASS and not now.untouched
        if solved and not options.quick:
            entry.solved = entry.solved or datetime.date.today().isoformat()
        self.journal.save()
        if not solved:
            _say_how_to_go_on(challenge, entry.hints, place, now.untouched, report)
            return EXIT_FAILED
        hints = f" with {counted(entry.hints, 'hint')}" if entry.hints else ""
        checks = sum(rung.checked + rung.bad_inputs for rung in outcome.rungs)
        report.text(f"solved{hints}: {counted(checks, 'check')} passed", "bold green")
        report.text(f"the day's own version: {challenge.command} --solution", "dim")
        if options.quick:
            report.text("checked quickly, not noted as solved: run it without --quick", "yellow")
        report.text(next_line(self.days, self.journal))
        return EXIT_PASSED


def _say_how_to_go_on(
    challenge: Challenge, hints: int, place: str, untouched: bool, report: Report
) -> None:
    if untouched:
        first, *rest = textwrap.wrap(f"your turn: {challenge.task}", 78)
        report.line([(first[:10], "bold yellow"), (first[10:], "")])
        for line in rest:
            report.text(line)
        report.line([(f"      at {place}", "cyan")])
    left = len(challenge.hints) - hints
    report.line([("check again  ", "dim"), (challenge.command, "")])
    which = f"hint {hints + 1} of {len(challenge.hints)}" if left > 0 else "the last hint again"
    report.line([(f"{which:<13}", "dim"), (f"{challenge.command} --hint", "")])


def _lines(numbers: Sequence[int]) -> str:
    """ "line 5", "lines 3 to 9"."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"line {first}"
    return f"lines {first} to {last}"
