"""Implement `python -m common.cpu prog.cu --profile`: the cost of memory accesses on a GPU.

As for a day (common/tools/access_profile.py), no times are reported; counters are those of ncu.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.base.compiling import BuildError
from common.base.toolchain import Platform
from common.cpu import findings, program
from common.cpu.access_table import KERNEL_HEADER, LEGEND, LINE_HEADER, kernel_rows, line_rows
from common.cpu.program_debugger import Run, run

_COUNTS = {"CUDACPU_TRACE": "2"}


def report(
    sources: Sequence[Path],
    platform: Platform,
    flags: Sequence[str],
    arguments: Sequence[str],
    seconds: float,
) -> tuple[Run, str]:
    """Return the program's run, and the tables as text. seconds: limit of the run.

    Raise BuildError if the program does not build, or left no counts.
    """
    built = program.executable(sources, replace(platform, variant="trace"), flags)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        variables = {**_COUNTS, "CUDACPU_TRACE_FILE": str(trace)}
        done = run(built, arguments, "with its accesses counted", seconds, variables)
        if not trace.is_file():
            late = f"it did not end within {seconds:.0f} s; --time-limit gives it more"
            raise BuildError(f"no counts: {late if done.code is None else done.errors.strip()}")
        counts = findings.read(trace.read_text(encoding="utf-8")).counts
    if not counts:
        return done, "no kernel accessed memory"
    kernels = aligned([list(KERNEL_HEADER), *kernel_rows(counts)])
    return done, "\n\n".join([kernels, aligned([list(LINE_HEADER), *line_rows(counts)]), LEGEND])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells in columns: the first two left-aligned, numbers right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i == 0 or not _is_number(row, i) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number(row: Sequence[str], column: int) -> bool:
    return column > 0 and not row[column].startswith(("global", "shared", "local", "access"))
