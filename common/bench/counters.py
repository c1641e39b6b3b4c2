"""Read counters of a day's kernels by `run_day.py N --profile`, for the day's `show`.

They have the names of Nsight Compute, also on the CPU backend, which counts some of them.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.base.options import RunOptions
from common.base.outcome import PASS

# Kind of access: the counters of its 32-byte sectors and of its requests.
SECTORS = {
    f"global {access}": (
        f"l1tex__t_sectors_pipe_lsu_mem_global_op_{short}.sum",
        f"l1tex__t_requests_pipe_lsu_mem_global_op_{short}.sum",
    )
    for access, short in (("load", "ld"), ("store", "st"))
}
# Passes over the banks of shared memory, and their number without bank conflicts.
WAVEFRONTS = ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal")
# Threads per block, and bytes of its dynamic shared memory.
LAUNCH = ("launch__block_size", "launch__shared_mem_per_block_dynamic")

STORED = "counters.json"  # in results/show of a day: the last column of each device
LIMIT = 10.0  # seconds for a day on a GPU; a tool may take ten times as long, `show` even longer
COLUMNS = {"cpu": "CPU backend", "cuda": "ncu"}


@dataclass(frozen=True)
class Kernel:
    """A kernel that a rung launched. counters: values by Nsight Compute's names."""

    name: str
    counters: dict[str, float]

    def ratio(self, over: str, under: str) -> float:
        """Return one counter divided by another; 0 if that is 0. Raise NotCounted if one is
        missing, as on some GPUs and with some versions of ncu."""
        for name in (over, under):
            if name not in self.counters:
                raise NotCounted(f"{self.name} has no counter {name}")
        above, below = self.counters[over], self.counters[under]
        return above / below if below else 0.0


class NotCounted(Exception):
    """The profiler gave no counters; the message contains the reason."""


def profiled(folder: Path, device: str, quick: bool) -> list[Kernel]:
    """Return the kernels of the day in `folder`, in the order of its rungs.

    device: "cpu" or "cuda". quick: on a GPU, use the CPU's small timing cases. Raise NotCounted if
    a rung gives no counters, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="counters-") as temporary:
        report = Path(temporary, "report.json")
        options = RunOptions(
            selected=(folder.name.removeprefix("day"),),
            device=device,
            mode="profile",
            quick=quick,
            time_limit=LIMIT if device == "cuda" else 0.0,
            json=report,
            days=folder.parent,
        )
        done = subprocess.run(options.command(), capture_output=True, text=True)
        if not report.is_file():
            raise NotCounted(f"run_day.py gave no report: {done.stderr.strip()}")
        (day,) = json.loads(report.read_text(encoding="utf-8"))["days"]
    for outcome in (*day["rungs"], day):
        if outcome["status"] != PASS:
            raise NotCounted(outcome["reason"])
    return [Kernel(**kernel) for rung in day["rungs"] for kernel in rung["kernels"]]


def counted_columns(
    folder: Path,
    device: str,
    rows: Callable[[Sequence[Kernel]], dict[str, Any]],
    quick: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the known columns "CPU backend" and "ncu" of a day's table: that of this device
    measured now, the other one from the day's counters.json.

    rows: returns a column from the kernels, values by the name of the row. quick: see `profiled`.
    Raise NotCounted if the CPU backend gives no counters. If a GPU gives none, print the reason,
    and keep the stored column.
    """
    stored = folder / "results" / "show" / STORED
    columns = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    try:
        columns[COLUMNS[device]] = rows(profiled(folder, device, quick))
    except NotCounted as reason:
        if device == "cpu":
            raise
        print(f"the column of ncu is the stored one, if there is one: {reason}")
    return {title: columns[title] for title in COLUMNS.values() if title in columns}


def columns_file(columns: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return counters.json with these columns, a line per row, as `show` returns it."""
    parts = []
    for title, column in columns.items():
        lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in column.items())
        parts.append(f" {json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n }")
    return {STORED: "{\n" + ",\n".join(parts) + "\n}\n"}
