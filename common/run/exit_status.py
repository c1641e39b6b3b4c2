"""Define a command's exit status: after its outcomes or a signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from common.base.outcome import FAIL, PASS, DayOutcome
from common.process.child import end_strays

EXIT_PASSED, EXIT_FAILED = 0, 1

SWALLOWED = 0.01  # seconds after which a signal that Python has swallowed is sent again


class Interrupted(BaseException):
    """A signal ended this process. number: the signal."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def exit_code(outcomes: Sequence[DayOutcome]) -> int:
    """Return 0 if nothing failed and something passed, else 1."""
    if any(outcome.status == FAIL for outcome in outcomes):
        return EXIT_FAILED
    return EXIT_PASSED if any(o.status == PASS for o in outcomes) else EXIT_FAILED


@contextmanager
def signals_raise() -> Iterator[None]:
    """Make SIGINT, SIGTERM and SIGHUP raise Interrupted, once, so that a second one does not
    interrupt the clean-up. End all children of this process on exit.

    Python ignores an exception raised in a destructor or in the callback of a weak reference, as
    during imports: then the signal is sent again.
    """

    def interrupt(number: int, _frame: object) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    def swallowed(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, Interrupted):
            hook(unraisable)
            return
        for each in signals:
            signal.signal(each, interrupt)
        again = (os.getpid(), unraisable.exc_value.number)
        threading.Timer(SWALLOWED, os.kill, again).start()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in signals}
    hook, sys.unraisablehook = sys.unraisablehook, swallowed
    try:
        yield
    finally:
        end_strays()
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
