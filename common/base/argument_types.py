"""Types of arguments for the programs of days: a number or a text, refused by its limits."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def value(
    kind: Callable[[str], T], allowed: str, is_allowed: Callable[[T], bool]
) -> Callable[[str], T]:
    """Return a type for argparse: kind(text), refused unless is_allowed(it). allowed: the same in
    words, for the message."""

    def parse(text: str) -> T:
        try:
            found = kind(text)
            if is_allowed(found):
                return found
        except ValueError:
            pass  # of `kind`: not even of this type
        raise argparse.ArgumentTypeError(f"expected {allowed}, got {text!r}")

    return parse


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a type for argparse: a whole number from `least` to `most`, or without an end."""
    limits = f"{least} or more" if most is None else f"{least} to {most}"
    return value(int, limits, lambda n: n >= least and (most is None or n <= most))
