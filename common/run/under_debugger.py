"""Run a day with the learner's file, which replaces the day's, in this process, for a debugger."""

from __future__ import annotations

import sys
from dataclasses import replace

from common.base.options import RunOptions
from common.practice.journal import Journal, JournalError, practice_folder
from common.practice.steps import ExerciseError
from common.run import command
from common.run.exit_status import EXIT_USAGE
from common.run.selection import SelectionError, select
from common.run.tutor import Tutor


def run(options: RunOptions, name: str) -> int:
    """Run the selected day with the learner's file of this name, which must exist; return the exit
    code."""
    try:
        days = select(("all",), options.days).days
        chosen = select(options.selected, options.days).days
        if len(chosen) != 1:
            raise SelectionError(f"--practice takes one day, not {len(chosen)}")
        journal = Journal(practice_folder(options.days))
        challenge = Tutor(options, days, journal).challenge(chosen[0], name)
        if not challenge.file.is_file():
            raise SelectionError(f"{challenge.file} is not there; {challenge.command} writes it")
    except (SelectionError, ExerciseError, JournalError, OSError) as error:
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_USAGE
    swap = (challenge.original, challenge.file)
    return command.run(replace(options, swap=swap, rungs=challenge.rungs, in_process=True))
