"""`--watch`: the learner's file is checked whenever it is saved, and keys ask for more."""

from __future__ import annotations

import os
import select as posix
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.practice.challenge import Challenge
from common.practice.exercise import ExerciseError
from common.practice.standing import next_exercise
from common.report.terminal import Report
from common.run.command import EXIT_PASSED, EXIT_USAGE, signals_raise
from common.run.desk import EXPLAINED, Desk

POLL = 0.2  # seconds between looks at the file: no service of the system's, so it works anywhere
SETTLED = 0.2  # seconds that a file must stay as it is: an editor may write it in two goes
_CLEAR = "\x1b[2J\x1b[3J\x1b[H"

Stamp = tuple[int, int]  # when a file was changed, in nanoseconds, and its bytes


def watch(desk: Desk, challenge: Challenge) -> int:
    """Checks the file at every save until q is pressed; returns the exit code."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(
            f"run_day.py: --watch needs a terminal; without one, run {challenge.command} again "
            "after each change",
            file=sys.stderr,
        )
        return EXIT_USAGE
    with signals_raise(), _keys():
        return _watch(desk, challenge)


@contextmanager
def _keys() -> Iterator[None]:
    """Keys arrive one by one and are not shown; whatever ends it, the terminal is as before."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _watch(desk: Desk, challenge: Challenge) -> int:
    while True:
        seen = stamp(challenge.file)
        _check(desk, challenge)
        while True:
            key = _key_or_change(challenge.file, seen)
            if key == "":
                break
            report = Report(colour=desk.options.colour)
            if key == "h":
                desk.hint(challenge, report)
            elif key == "s":
                _solution(desk, challenge, report)
            elif key == "n":
                if following := next_exercise(
                    desk.days, desk.journal, (challenge.day, challenge.kind)
                ):
                    challenge, _ = desk.begin(desk.challenge(*following), report)
                    break
                report.text("there is no other exercise that is not solved")
            elif key == "q":
                return EXIT_PASSED


def _check(desk: Desk, challenge: Challenge) -> None:
    """One check, on a cleared screen, and the line of keys below it."""
    sys.stdout.write(_CLEAR)
    report = Report(colour=desk.options.colour, shown_details=EXPLAINED, narrow=True)
    try:
        desk.check(challenge, report)
    except ExerciseError as error:
        report.close()
        report.text(str(error), "red")
    finally:
        report.close()
    report.text("")
    keys = (("h", "hint"), ("n", "next exercise"), ("s", "solution"), ("q", "quit"))
    for key, word in keys:
        sys.stdout.write(f"[{key}] {word}  ")
    sys.stdout.write("- checked at every save\n")
    sys.stdout.flush()


def _solution(desk: Desk, challenge: Challenge, report: Report) -> None:
    report.text("show the day's own version? y shows it, any other key does not")
    if _key() == "y":
        desk.solution(challenge, report)


def stamp(file: Path) -> Stamp | None:
    """What changes when the file is saved; None while it is not there, as between the two steps of
    an editor that replaces it."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _key_or_change(file: Path, seen: Stamp | None) -> str:
    """The key that is pressed, or "" when the file is another than it was and has settled."""
    changed: tuple[Stamp | None, float] = (seen, 0.0)
    while True:
        if posix.select([sys.stdin], [], [], POLL)[0]:
            if key := _key():
                return key
            continue
        now = stamp(file)
        if now is None or now == seen:
            continue
        if now != changed[0]:
            changed = now, time.monotonic()
        elif time.monotonic() - changed[1] >= SETTLED:
            return ""


def _key() -> str:
    """The next key, in lower case; "q" where the terminal is gone."""
    data = os.read(sys.stdin.fileno(), 16)
    if not data:
        return "q"
    return data[:1].decode("ascii", "ignore").lower()
