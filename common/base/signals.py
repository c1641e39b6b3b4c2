"""Note signals that would end a program, so that it ends where it loses nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Note SIGINT, SIGTERM and SIGHUP while the block runs. Yield the list of those that came."""
    came: list[int] = []
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # which nohup ignores
        numbers.append(signal.SIGHUP)
    before = {each: signal.signal(each, lambda got, _: came.append(got)) for each in numbers}
    try:
        yield came
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
