"""Implement `--watch`: check the learner's file whenever it is saved, and act on keys."""

from __future__ import annotations

import os
import re
import select as posix
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from common.base.days import Day
from common.base.refusal import UsageError
from common.practice.challenge import Challenge
from common.practice.progress import next_exercise
from common.practice.steps import ExerciseError
from common.report.terminal import Report
from common.run.exit_status import EXIT_PASSED
from common.run.tutor import EXPLAINED, Tutor

POLL = 0.2  # seconds between looks at the file: no service of the system, so it works anywhere
SETTLED = 0.2  # seconds without a change: an editor may write a file in two steps
SAVED = "saved"  # handled by `_Watch` like a key
KEYS = {"h": "hint", "n": "next exercise", "s": "solution", "q": "quit"}
_CLEAR = "\x1b[2J\x1b[3J\x1b[H"
_SEQUENCE = re.compile(r"\x1b(\[[0-9;]*.?|O.?|.)?")  # sent by an arrow, F2, or Alt with a key

Stamp = tuple[int, int]  # time of a file's change, in nanoseconds, and its size in bytes


class Stopped(Exception):
    """A key or a save ended a check or a planting. key: one of KEYS, or SAVED."""

    def __init__(self, key: str):
        super().__init__(key)
        self.key = key


def watch(tutor: Tutor, challenge: Challenge) -> int:
    """Check the file at every save until q is pressed; return the exit code. Raise CommandError."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            f"--watch needs a terminal; without one, run {challenge.command} again after each "
            "change"
        )
    with _keys():
        return _Watch(tutor, challenge).run()


@contextmanager
def _keys() -> Iterator[None]:
    """Read keys one by one, without echo; restore the terminal in every case."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def take(*_: object) -> None:
        tty.setcbreak(descriptor, termios.TCSANOW)

    # After Ctrl-Z the shell changes the terminal's mode, and does not restore it at `fg`.
    handler = signal.signal(signal.SIGCONT, take)
    # Ctrl-\ would end the process at once, without restoring the terminal.
    quitting = signal.signal(signal.SIGQUIT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        take()
        yield
    finally:
        signal.signal(signal.SIGCONT, handler)
        with suppress(termios.error):  # the terminal has closed
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
        signal.signal(signal.SIGQUIT, quitting)


class _Watch:
    """The loop of `--watch`. Keys and saves take effect immediately, even during a check."""

    def __init__(self, tutor: Tutor, challenge: Challenge):
        tutor.options, tutor.keys = replace(tutor.options, attend=self._attend), True
        self._tutor, self._challenge = tutor, challenge
        self._report = Report()  # the report of the current action
        self._heeded: tuple[str, ...] = ()  # keys that act during an action
        self._typed = ""  # keys that have been read, but not handled
        self._seen: Stamp | None = None  # the file that was checked last
        self._changed: tuple[Stamp | None, float] = (None, 0.0)  # a newer one, and its time
        self._complete = False  # True if the last check was not stopped

    def run(self) -> int:
        """Run until q is pressed; return the exit code."""
        key: str | None = SAVED
        while key != "q":
            key = self._check() if key == SAVED else self._answer(key) if key else None
            key = key or self._next(POLL)
        return EXIT_PASSED

    @contextmanager
    def _doing(self, *heeded: str) -> Iterator[Report]:
        """Yield the report of the current action; the keys in `heeded` may stop it."""
        self._report = Report(
            colour=self._tutor.options.colour, shown_details=EXPLAINED, narrow=True
        )
        self._heeded = heeded
        try:
            yield self._report
        finally:
            self._heeded = ()
            self._report.close()

    def _check(self) -> str | None:
        """Run one check, on a cleared screen, and print the line of keys below it. Return the key
        that stopped it, or None."""
        sys.stdout.write(_CLEAR)
        self._seen, self._complete = stamp(self._challenge.file), False
        with self._doing(*KEYS, SAVED) as report:
            try:
                self._tutor.check(self._challenge, report)
            except Stopped as stopped:
                return stopped.key
            except (ExerciseError, OSError) as error:
                report.close()
                report.text(in_words(error), "red")
        self._complete = True
        sys.stdout.write("\n" + "".join(f"[{key}] {word}  " for key, word in KEYS.items()))
        sys.stdout.write("- checked at every save\n")
        sys.stdout.flush()
        return None

    def _attend(self) -> None:
        """Handle a key or a save during an action. Raise Stopped if the action is to end."""
        key = self._next(0.0)
        if key is None or key not in self._heeded:
            return
        if key == "h" or (key == "n" and self._following() is None):
            self._answer(key)  # it prints something, and the action continues
        else:
            raise Stopped(key)

    def _answer(self, key: str) -> str | None:
        """Do what a key requests. Return the key or save to handle next, if any."""
        report = self._report
        if key == "h":
            self._tutor.hint(self._challenge, report)
        elif key == "s":
            return self._solution()
        elif key == "n":
            if self._following() is not None:
                return self._go_on()
            report.text("there is no other exercise that is not solved")
        return None

    def _following(self) -> tuple[Day, str] | None:
        here = self._challenge.day, self._challenge.name
        return next_exercise(self._tutor.days, self._tutor.journal, here)

    def _go_on(self) -> str | None:
        """Replace this exercise by the next one."""
        following = self._following()
        assert following
        with self._doing("q") as report:
            try:
                found = self._tutor.challenge(*following)
                self._challenge, _ = self._tutor.begin(found, report)
            except Stopped as stopped:
                return stopped.key
            except ExerciseError as error:
                report.close()
                report.text(in_words(error), "red")
                return None
        return SAVED

    def _solution(self) -> str | None:
        self._report.text("show the day's own version? y shows it, any other key does not")
        while (answer := self._next(POLL)) in (None, SAVED):
            pass
        if answer != "y":
            self._report.text("not shown", "dim")
            return None if self._complete else SAVED
        try:
            self._tutor.solution(self._challenge, self._report)
        except (ExerciseError, OSError) as error:
            self._report.text(in_words(error), "red")
        return None

    def _next(self, seconds: float) -> str | None:
        """Return the next key in lower case, q if the terminal has closed; SAVED if the file has
        changed and settled; None if nothing happens within `seconds`."""
        if not self._typed and posix.select([sys.stdin], [], [], seconds)[0]:
            data = os.read(sys.stdin.fileno(), 64)
            if not data:
                return "q"
            self._typed = _SEQUENCE.sub("", data.decode("ascii", "ignore")).lower()
        if self._typed:
            key, self._typed = self._typed[0], self._typed[1:]
            return key
        now = stamp(self._challenge.file)
        if now is None or now == self._seen:
            return None
        if now != self._changed[0]:
            self._changed = now, time.monotonic()
        return SAVED if time.monotonic() - self._changed[1] >= SETTLED else None


def in_words(error: Exception) -> str:
    """Return the error's message, with the file that it is about."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def stamp(file: Path) -> Stamp | None:
    """Return a value that changes when the file is saved; None while it does not exist, as between
    the two steps of an editor that replaces it."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
