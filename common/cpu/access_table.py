"""Tabulate counts of memory accesses, of a day's rung or of a program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from common.cpu.findings import LineCounts, source_text

LINE_HEADER = ("line", "access", "requests", "lanes", "sect/req", "wavef/req", "bank confl.")
KERNEL_HEADER = ("kernel", "sect/ld", "sect/st", "bank confl.")
LEGEND = (
    "request: what a warp does at once; lanes: of 32 that take part, on average; sect: 32-byte "
    "sectors of global memory (4 for coalesced 4-byte accesses); wavef: passes over the banks of "
    "shared memory; bank confl.: passes that conflicts add"
)
_SOURCE_SHOWN = 60  # characters of a line


def by_kernel(counts: Sequence[LineCounts]) -> dict[str, list[LineCounts]]:
    """Return the counts of each kernel, in the order of its first line."""
    found: dict[str, list[LineCounts]] = defaultdict(list)
    for sums in counts:
        found[sums.kernel].append(sums)
    return found


def kernel_rows(counts: Sequence[LineCounts]) -> list[list[str]]:
    """Return a row for each kernel: sectors per global load and store, and bank conflicts, as in
    the table of a GPU's counters."""
    return [
        [
            kernel,
            _per_request([c for c in lines if c.kind == "global load"], "sectors"),
            _per_request([c for c in lines if c.kind == "global store"], "sectors"),
            str(sum(c.conflicts for c in lines)),
        ]
        for kernel, lines in by_kernel(counts).items()
    ]


def line_rows(counts: Sequence[LineCounts]) -> list[list[str]]:
    """Return a row for each line and kind of access."""
    rows = []
    for sums in counts:
        text = source_text(sums.file, sums.line)
        if len(text) > _SOURCE_SHOWN:
            text = text[: _SOURCE_SHOWN - 1] + "…"
        shared = sums.kind.startswith("shared")
        passes = shared and sums.wavefronts > 0
        rows.append(
            [
                f"{sums.line:4}  {text}",
                sums.kind,
                str(sums.requests),
                f"{sums.lanes / sums.requests:.1f}",
                "" if shared else _per_request([sums], "sectors"),
                _per_request([sums], "wavefronts") if passes else "",
                str(sums.conflicts) if passes else "",
            ]
        )
    return rows


def _per_request(counts: Sequence[LineCounts], what: str) -> str:
    requests = sum(sums.requests for sums in counts)
    return f"{sum(getattr(sums, what) for sums in counts) / requests:.2f}" if requests else "–"
