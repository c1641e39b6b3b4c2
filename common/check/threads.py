"""How many threads of the CPU a day's process may use, where several days run at a time."""

from __future__ import annotations

import os

THREADS_VARIABLE = "HUNDRED_DAYS_THREADS"


def threads_allowed() -> int | None:
    """The number that the runner allows this process; None where it is alone."""
    text = os.environ.get(THREADS_VARIABLE, "")
    return int(text) if text.isdecimal() and int(text) > 0 else None
