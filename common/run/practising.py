"""`--practice`: the learner's file is built and checked in the place of the day's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.base.days import Day
from common.practice.exercise import ExerciseError
from common.practice.journal import Journal, JournalError, practice_folder
from common.practice.standing import next_exercise
from common.report.files import ResultsError
from common.report.terminal import Report
from common.run.command import (
    EXIT_FAILED,
    EXIT_USAGE,
    Interrupted,
    Options,
    Refused,
    refuse,
    signals_raise,
)
from common.run.desk import EXPLAINED, Desk
from common.run.selection import SelectionError, select
from common.run.watching import in_words, watch


@dataclass(frozen=True)
class Wish:
    """What the command line asks of an exercise. kind: a key of
    `common.practice.journal.KINDS`."""

    kind: str = "write"
    hint: bool = False
    reset: bool = False
    solution: bool = False
    next: bool = False
    watch: bool = False


def practise(options: Options, wish: Wish) -> int:
    """Does what `--practice` and its companions ask for; returns the exit code."""
    report = Report(colour=options.colour, shown_details=EXPLAINED, narrow=True)
    try:
        days = select(("all",), options.days).days
        journal = Journal(practice_folder(options.days))
        day, kind = _chosen(options, wish, days, journal)
        desk = Desk(replace(options, selected=(str(day.number),)), days, journal)
        challenge = desk.challenge(day, kind, another=wish.next and kind == "debug")
        if wish.reset:
            return desk.reset(challenge, report)
        with signals_raise():
            challenge, began = desk.begin(challenge, report)
            if wish.hint:
                return desk.hint(challenge, report)
            if wish.solution:
                return desk.solution(challenge, report)
            if wish.watch:
                report.close()
                return watch(desk, challenge)
            return desk.check(challenge, report, began)
    except (SelectionError, ExerciseError, JournalError) as error:
        report.close()
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        raise  # the reader (head, less) has gone
    except (OSError, ResultsError) as error:
        report.close()
        print(f"run_day.py: {in_words(error)}", file=sys.stderr)
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
        if not wish.next or wish.kind == "debug":
            return chosen[0], wish.kind
        found = next_exercise(days, journal, (chosen[0], wish.kind))
    else:
        found = next_exercise(days, journal)
    if found is None:
        raise SelectionError("every exercise is solved; name a day to do one again")
    return found
