"""Format times, rates, ratios and counts, in the same way on the terminal and in the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable

from common.base.outcome import RungOutcome, Timing


def significant(value: float, digits: int = 3) -> str:
    """Return `value` with at least `digits` significant digits, and no exponent: 0.214, 21.4,
    4187."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
    return f"{value:.{max(digits - 1 - exponent, 0)}f}"


def duration(seconds: float) -> str:
    """Return seconds in the most readable unit: "12.3 µs", "0.214 ms", "1.25 s", "125 s"."""
    if seconds >= 0.9995:
        return f"{significant(seconds)} s"
    if seconds >= 0.00009995:
        return f"{significant(seconds * 1e3)} ms"
    return f"{significant(seconds * 1e6)} µs"


def rate(timing: Timing) -> str:
    """Return the rate that is compared with the ceiling: GB/s, or TFLOP/s if arithmetic is the
    bound.

    Without a known ceiling, bytes are used if the day declares any. "" if it declares no work.
    """
    arithmetic = timing.bound in ("fp32", "int32", "tensor", "int8", "fp8") or not timing.gbs
    if arithmetic and timing.tflops:
        unit = operations(timing)
        if timing.tflops < 0.995:
            return f"{significant(timing.tflops * 1e3)} G{unit}"
        return f"{significant(timing.tflops)} T{unit}"
    return f"{significant(timing.gbs)} GB/s" if timing.gbs else ""


def operations(timing: Timing) -> str:
    """Return the unit of arithmetic: "FLOP/s", or "OP/s" for integers."""
    return "OP/s" if timing.bound in ("int32", "int8") else "FLOP/s"


def share(timing: Timing) -> str:
    """Return the share of the machine's measured ceiling: "61%"; "" if no ceiling is known."""
    return "" if timing.share is None else f"{timing.share * 100:.0f}%"


def ratio(theirs_ms: float | None, ours_ms: float) -> str:
    """Return the speed relative to theirs: "1.02×"; "" if theirs was not measured."""
    if theirs_ms is None:
        return ""
    times = theirs_ms / ours_ms
    return f"{times:.2f}×" if times < 9.995 else f"{significant(times)}×"


def library_name(name: str) -> str:
    """Return a library's name as its users know it: "torch.compile" for a day's "compile"."""
    return re.sub(r"^compile\b", "torch.compile", name)


def mark(outcome: RungOutcome) -> str:
    """Return "✓" or "✗" for a target that was met or missed, "" if none was compared."""
    return {True: "✓", False: "✗", None: ""}[outcome.target_met]


def printable(text: str) -> str:
    """Return the text with control characters shown, not executed: "\\x1b" for an escape, which
    could move a terminal's cursor or change its title. Tabs stay."""
    return _CONTROL.sub(lambda found: repr(found.group())[1:-1], text)


# Those of C0 and C1, line and paragraph separators, and marks that reverse the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def counted(number: int, noun: str) -> str:
    """Return "1 day", "3 days"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def numbers(values: Iterable[int]) -> str:
    """Return numbers with consecutive ones joined: "1-8, 12"."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
