"""Define the columns of every table of rungs: on the terminal, in a README, in progress.md.

A column is added only here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from common.base.figures import (
    duration,
    library_name,
    mark,
    printable,
    rate,
    ratio,
    share,
    significant,
)
from common.base.outcome import PASS, RungOutcome, Timing


@dataclass(frozen=True)
class Column:
    """One figure of a rung.

    heading: in Markdown. text: returns the figure of an outcome, "" without one. short, width:
    heading and characters on the terminal; width 0 omits the column. in_progress: also shown in
    progress.md. meaning: an explanation for newcomers, "" if the heading is clear.
    """

    heading: str
    text: Callable[[RungOutcome], str]
    left: bool = False
    short: str = ""
    width: int = 0
    in_progress: bool = False
    meaning: str = ""


def _timed(show: Callable[[Timing], str]) -> Callable[[RungOutcome], str]:
    """Return a function that applies `show` to the timing of a passed rung; "" without a timing."""

    def text(outcome: RungOutcome) -> str:
        timing = outcome.timing
        return show(timing) if timing is not None and outcome.status == PASS else ""

    return text


def _state(outcome: RungOutcome) -> str:
    """Return the time, or another state."""
    if outcome.status != PASS:
        return f"{outcome.status}: {outcome.reason}"
    return duration(outcome.timing.ms / 1e3) if outcome.timing else "checked"


def _library(timing: Timing, name: str) -> str:
    """Return the ratio to the fastest library; name: format of its name, with {}."""
    if timing.best_library is None:
        return ""
    best, ms = timing.best_library
    return ratio(ms, timing.ms) + name.format(library_name(best))


def _target(outcome: RungOutcome) -> str:
    return f"{outcome.target} {mark(outcome)}".strip()


def _host(timing: Timing) -> str:
    """Return the host's microseconds per call, and those of PyTorch's call."""
    if timing.host_us is None or timing.pytorch_host_us is None:
        return ""
    return f"{significant(timing.host_us)} ({significant(timing.pytorch_host_us)})"


def beside(outcome: RungOutcome) -> tuple[list[str], list[list[str]]]:
    """Return a table of a timed rung, PyTorch and all libraries, the fastest first: its header and
    rows."""
    timing = outcome.timing
    assert timing is not None
    times = {outcome.rung: timing.ms, **timing.libraries}
    if timing.pytorch_ms is not None:
        times["PyTorch"] = timing.pytorch_ms
    rows = []
    for name, ms in sorted(times.items(), key=lambda item: item[1]):
        scale = timing.ms / ms
        moved = timing.gbs and timing.gbs * scale
        computed = timing.tflops and timing.tflops * scale
        shown = rate(replace(timing, gbs=moved, tflops=computed))
        rows.append([library_name(name), duration(ms / 1e3), shown, ratio(ms, timing.ms)])
    return ["", "time", "rate", f"× {outcome.rung}"], rows


def untimed(outcome: RungOutcome) -> list[str]:
    """Return a line for each library that could not be timed with the rung, with the reason."""
    missing = outcome.timing.missing if outcome.timing else {}
    return [f"{library_name(name)}: {reason}" for name, reason in missing.items()]


PEAK = (
    "the share of what limits the kernel, as day 50's kernels measure it on that GPU: copying "
    "memory (copy) or arithmetic (fp32, tensor cores …); reading alone can pass 100% of copy"
)
PYTORCH = "times as fast as PyTorch's own operator: 2.00× takes half of its time"
LIBRARY = "times as fast as the best library that was tried, often torch.compile"
HOST = Column(
    "host µs (PyTorch)",
    _timed(_host),
    meaning="what a call costs the processor before the GPU begins, and what PyTorch's call does",
)
COLUMNS = (
    Column("time", _state, short="time", width=8, in_progress=True),
    Column("rate", _timed(rate), short="rate", width=11, in_progress=True),
    Column(
        "of peak",
        _timed(lambda t: f"{share(t)} {t.bound}" if t.share is not None else ""),
        in_progress=True,
        meaning=PEAK,
    ),
    Column("", _timed(share), short="peak", width=4, meaning=PEAK),
    Column(
        "× PyTorch",
        _timed(lambda t: ratio(t.pytorch_ms, t.ms)),
        short="×torch",
        width=6,
        in_progress=True,
        meaning=PYTORCH,
    ),
    Column(
        "× library",
        _timed(lambda t: _library(t, " {}")),
        in_progress=True,
        meaning=LIBRARY,
    ),
    Column("", _timed(lambda t: _library(t, "")), short="×lib.", width=6, meaning=LIBRARY),
    HOST,
    Column("build", lambda o: duration(o.build_s) if o.build_s is not None else ""),
    Column("target", _target, left=True, meaning="what the rung was to reach: ✓ it did, ✗ not"),
)

MARKDOWN = tuple(column for column in COLUMNS if column.heading)
TERMINAL = tuple(column for column in COLUMNS if column.width)
PROGRESS = tuple(column for column in COLUMNS if column.in_progress)


def markdown_table(
    header: Sequence[str], left: Sequence[bool], rows: Sequence[Sequence[str]]
) -> list[str]:
    """Return a Markdown table as lines; left: for each column, True to align its text left."""
    lines = [f"| {' | '.join(header)} |"]
    lines.append("|" + "|".join("---" if is_left else "---:" for is_left in left) + "|")
    lines += ["| " + " | ".join(map(in_markdown, row)) + " |" for row in rows]
    return lines


def in_markdown(text: str) -> str:
    """Return the text as one line of Markdown, with tags and cell separators escaped."""
    text = text.replace("&", "&amp;") if re.search(r"&#?\w+;", text) else text
    text = re.sub(r"\\(?=\|)", r"\\\\", text)  # otherwise it would undo the next escape
    text = text.replace("<", "&lt;").replace("|", "\\|")
    return " ".join(printable(text).split())
