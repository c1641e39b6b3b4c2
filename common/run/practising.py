"""Implement `--practice`: build and check the learner's file in place of the day's own."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.base.day_files import DEBUG, SPEED, WRITE
from common.base.days import Day
from common.base.options import RunOptions
from common.base.refusal import CommandError, UsageError
from common.base.toolchain import ToolchainError
from common.practice.journal import Journal, practice_folder
from common.practice.progress import next_exercise, next_step
from common.report.files import ResultsError
from common.report.terminal import Report
from common.run import command
from common.run.editor import write_editor_files
from common.run.exit_status import Interrupted, signals_raise
from common.run.selection import select
from common.run.tutor import EXPLAINED, Tutor
from common.run.watching import in_words, watch


@dataclass(frozen=True)
class Wish:
    """Options of an exercise. name: of a step, "debug" or "speed"; "write" for the day's only step,
    or for the first unsolved exercise if there are several steps."""

    name: str = WRITE
    hint: bool = False
    reset: bool = False
    solution: bool = False
    next: bool = False
    watch: bool = False


def practise(options: RunOptions, wish: Wish) -> int:
    """Execute `--practice` and its related options; return the exit code. Raise CommandError."""
    report = Report(colour=options.colour, shown_details=EXPLAINED, narrow=True)
    try:
        days = select(("all",), options.days).days
        journal = Journal(practice_folder(options.days))
        day, name = _chosen(options, wish, days, journal)
        tutor = Tutor(replace(options, selected=(str(day.number),)), days, journal)
        another = wish.next and wish.name == DEBUG
        challenge = tutor.challenge(day, name, another)
        if wish.reset:
            return tutor.reset(challenge, report)
        with signals_raise():
            first = not journal.begun
            challenge, began = tutor.begin(challenge, report, another)
            if began and first:
                _help_the_editor(options.days.parent, report)
            if wish.hint:
                return tutor.hint(challenge, report)
            if wish.solution:
                return tutor.solution(challenge, report)
            if wish.watch:
                report.close()
                return watch(tutor, challenge)
            return tutor.check(challenge, report, began)
    except BrokenPipeError:
        raise  # the reader (head, less) has ended
    except OSError as error:
        raise CommandError(in_words(error)) from None
    except Interrupted as interrupted:
        return 128 + interrupted.number
    finally:
        report.close()


def debug(options: RunOptions, name: str) -> int:
    """Run the selected day in this process, for a debugger, with the learner's file of this name,
    which must exist; return the exit code. Raise CommandError."""
    days = select(("all",), options.days).days
    journal = Journal(practice_folder(options.days))
    challenge = Tutor(options, days, journal).challenge(
        *_chosen(options, Wish(name), days, journal)
    )
    if not challenge.file.is_file():
        raise UsageError(f"{challenge.file} is not there; {challenge.command} writes it")
    swap = (challenge.original, challenge.file)
    return command.run(replace(options, swap=swap, rungs=challenge.rungs, in_process=True))


def _help_the_editor(root: Path, report: Report) -> None:
    """Write the files that an editor needs to read the learner's file, if possible."""
    try:
        if write_editor_files(root):
            report.text("wrote what clangd and VS Code need: see README.md, Your editor", "dim")
    except (ToolchainError, ResultsError) as error:
        report.prose(f"note: an editor does not know how to read it: {error}", "yellow")


def _chosen(
    options: RunOptions, wish: Wish, days: Sequence[Day], journal: Journal
) -> tuple[Day, str]:
    """Return the day and the exercise selected on the command line."""
    if options.selected:
        chosen = select(options.selected, options.days).days
        if len(chosen) != 1:
            raise UsageError(f"--practice takes one day, not {len(chosen)}")
        name = _named(chosen[0], wish.name, journal)
        if not wish.next or name == DEBUG:
            return chosen[0], name
        found = next_exercise(days, journal, chosen[0] if wish.name == WRITE else (chosen[0], name))
    else:
        found = next_exercise(days, journal)
    if found is None:
        raise UsageError("every exercise is solved; name a day to do one again")
    return found


def _named(day: Day, name: str, journal: Journal) -> str:
    if name == WRITE and not day.step(WRITE):  # only a day's single step has this name
        return next_step(day, journal)
    known = [*(step.name for step in day.steps), DEBUG, SPEED]
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"day {day.number} has no exercise {name!r}: it has {', '.join(known)}"
        + (f"; did you mean {near[0]}?" if near else "")
    )
