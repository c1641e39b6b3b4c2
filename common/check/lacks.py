"""Recognise a launcher's message that the card lacks something (common/cuda/capability.cuh)."""

from __future__ import annotations

import re

# The beginning of the message of common/cuda/capability.cuh; a test compares the two.
PHRASE = "this card lacks "


class Lacking(Exception):
    """The card lacks something that the call needs; the message names it, in one line."""


def lacking(message: str) -> str:
    """Return the part of an exception's message that names what the card lacks, or ""."""
    found = re.search(rf"{PHRASE}[^\n]*", message)
    return found.group() if found else ""
