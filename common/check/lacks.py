"""A launcher's words for what the card lacks, which are no failure (common/cuda/capability.cuh)."""

from __future__ import annotations

import re

# What the message of common/cuda/capability.cuh begins with; a test compares the two.
PHRASE = "this card lacks "


class Lacking(Exception):
    """The card cannot do what was called; the message says what it lacks, in one line."""


def lacking(message: str) -> str:
    """Return what the card lacks, from an exception's message; "" where that says nothing of it."""
    found = re.search(rf"{PHRASE}[^\n]*", message)
    return found.group() if found else ""
