"""How times, rates, ratios and counts are written: the same on the terminal and in the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable

from common.base.outcome import RungOutcome, Timing


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with so many significant digits, at least, and no exponent: 0.214, 21.4,
    4187."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
    return f"{value:.{max(digits - 1 - exponent, 0)}f}"


def duration(seconds: float) -> str:
    """Return seconds, in the unit that reads best: "12.3 µs", "0.214 ms", "1.25 s", "125 s"."""
    if seconds >= 0.9995:
        return f"{significant(seconds)} s"
    if seconds >= 0.00009995:
        return f"{significant(seconds * 1e3)} ms"
    return f"{significant(seconds * 1e6)} µs"


def rate(timing: Timing) -> str:
    """Return the rate that the rung is held against: GB/s, or TFLOP/s where arithmetic is the
    bound.

    Without a known ceiling, bytes are taken where the day declares any. "" where it declares no
    work.
    """
    arithmetic = timing.bound in ("fp32", "int32", "tensor", "int8", "fp8") or not timing.gbs
    if arithmetic and timing.tflops:
        unit = operations(timing)
        if timing.tflops < 0.995:
            return f"{significant(timing.tflops * 1e3)} G{unit}"
        return f"{significant(timing.tflops)} T{unit}"
    return f"{significant(timing.gbs)} GB/s" if timing.gbs else ""


def operations(timing: Timing) -> str:
    """Return what is counted where arithmetic is the bound: "FLOP/s", or "OP/s" of integers."""
    return "OP/s" if timing.bound in ("int32", "int8") else "FLOP/s"


def share(timing: Timing) -> str:
    """Return the share of the machine's measured ceiling: "61%"; "" where no ceiling is known."""
    return "" if timing.share is None else f"{timing.share * 100:.0f}%"


def ratio(theirs_ms: float | None, ours_ms: float) -> str:
    """Return how many times as fast as theirs: "1.02×"; "" where theirs was not measured."""
    if theirs_ms is None:
        return ""
    times = theirs_ms / ours_ms
    return f"{times:.2f}×" if times < 9.995 else f"{significant(times)}×"


def library_name(name: str) -> str:
    """Return a library's name as its users know it: "torch.compile" for a day's "compile"."""
    return re.sub(r"^compile\b", "torch.compile", name)


def mark(outcome: RungOutcome) -> str:
    """Return whether the rung's target was met: "✓", "✗", or "" where nothing was held against
    it."""
    return {True: "✓", False: "✗", None: ""}[outcome.target_met]


def printable(text: str) -> str:
    """Return the text with control characters shown, not acted upon: "\\x1b" for an escape, which
    could move a terminal's cursor or change its title. Tabs stay."""
    return _CONTROL.sub(lambda found: repr(found.group())[1:-1], text)


# Those of C0 and C1, line and paragraph separators, and marks that reverse the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def counted(number: int, noun: str) -> str:
    """Return "1 day", "3 days"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def numbers(values: Iterable[int]) -> str:
    """Return numbers with their runs drawn together: "1-8, 12"."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
