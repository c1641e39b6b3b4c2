"""`--practice`: the learner's file is built and checked in the place of the day's own."""

from __future__ import annotations

import datetime
import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.base.days import Day
from common.base.figures import counted
from common.base.outcome import PASS, DayOutcome
from common.base.toolchain import Platform
from common.practice.challenge import (
    Challenge,
    practice_folder,
    shown,
    state,
    write_challenge,
)
from common.practice.exercise import ExerciseError
from common.practice.journal import Journal, JournalError
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


def practise(options: Options, wish: Wish) -> int:
    """Does what `--practice` and its companions ask for; returns the exit code."""
    try:
        selection = select(options.wanted, options.days)
        if len(selection.days) != 1:
            raise SelectionError(f"--practice takes one day, not {len(selection.days)}")
        journal = Journal(practice_folder(options.days))
        challenge = write_challenge(selection.days[0], options.days)
    except (SelectionError, ExerciseError, JournalError) as error:
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_USAGE
    report = Report(colour=options.colour, shown_details=EXPLAINED)
    try:
        if wish.reset:
            return _reset(challenge, journal, report)
        began = challenge.begin()
        if wish.hint:
            return _hint(challenge, journal, report)
        if wish.solution:
            return _solution(challenge, report)
        return _check(options, selection, challenge, journal, report, began)
    except (ExerciseError, JournalError) as error:
        report.close()
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        report.close()
        print(f"run_day.py: {error.filename}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED


def _reset(challenge: Challenge, journal: Journal, report: Report) -> int:
    kept = challenge.reset()
    journal.entry(challenge.day.number, challenge.kind).hints = 0
    journal.save()
    report.text(f"{shown(challenge.file)} begins anew")
    if kept:
        report.text(f"your file is kept as {shown(kept)}")
    return EXIT_PASSED


def _hint(challenge: Challenge, journal: Journal, report: Report) -> int:
    entry = journal.entry(challenge.day.number, challenge.kind)
    number = min(entry.hints, len(challenge.hints) - 1)
    report.text(f"hint {number + 1} of {len(challenge.hints)}:", "bold")
    report.text(challenge.hints[number])
    if entry.hints >= len(challenge.hints):
        report.text(f"that was the last one; {challenge.command} --solution shows the code", "dim")
    entry.hints = min(entry.hints + 1, len(challenge.hints))
    journal.save()
    return EXIT_PASSED


def _solution(challenge: Challenge, report: Report) -> int:
    """The difference between the learner's file and the day's own."""
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


def _check(
    options: Options,
    selection: Selection,
    challenge: Challenge,
    journal: Journal,
    report: Report,
    began: bool,
) -> int:
    options = replace(options, bench=False, rungs=challenge.rungs)
    with signals_raise():
        try:
            platform = prepare(options, selection, report)
            return _attempt(options, platform, challenge, journal, report, began)
        except Refused as refused:
            report.close()
            return refuse(refused)
        except Interrupted as interrupted:
            return 128 + interrupted.number
        finally:
            report.close()


def _attempt(
    options: Options,
    platform: Platform,
    challenge: Challenge,
    journal: Journal,
    report: Report,
    began: bool = False,
) -> int:
    """Checks the learner's file once and says what follows from it."""
    now = state(challenge)
    place = f"{shown(challenge.file)}:{now.line}"
    if began:
        report.text(f"wrote {shown(challenge.file)}: the day's file, and a gap for you", "bold")
    report.text(f"day {challenge.day.number}, {challenge.kind}: {place}", "bold")
    if now.changed:
        report.text(
            f"note: {_lines(now.changed)} differ from {shown(challenge.original)}, "
            "outside the exercise; what you wrote is checked as it stands",
            "yellow",
        )
    outcome = run_once(options, platform, challenge.day_to_run(), report)
    report.close()
    entry = journal.entry(challenge.day.number, challenge.kind)
    solved = outcome.status == PASS and not now.untouched
    if solved and not options.quick:
        entry.solved = entry.solved or datetime.date.today().isoformat()
    journal.save()
    if solved:
        hints = f" with {counted(entry.hints, 'hint')}" if entry.hints else ""
        checks = sum(rung.checked + rung.bad_inputs for rung in outcome.rungs)
        report.text(f"solved{hints}: {counted(checks, 'check')} passed", "bold green")
        report.text(f"the day's own version: {challenge.command} --solution", "dim")
        return EXIT_PASSED
    _say_how_to_go_on(challenge, entry.hints, place, now.untouched, report)
    return EXIT_FAILED


def run_once(options: Options, platform: Platform, day: Day, report: Report) -> DayOutcome:
    """Builds and runs the day, reporting as it goes; its outcome."""
    runner = make_runner(options, [day], platform, report)
    runner.run()
    return runner.outcomes[0]


def _say_how_to_go_on(
    challenge: Challenge, hints: int, place: str, untouched: bool, report: Report
) -> None:
    if untouched:
        report.line([("your turn: ", "bold yellow"), (challenge.task, "")])
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
