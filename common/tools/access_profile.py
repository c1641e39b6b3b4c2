"""`--profile` on the CPU backend: what each line's accesses to memory would cost on a GPU.

Every rung runs once, on its small timing case, in a build whose accesses are traced. There is no
time in it: a CPU's says nothing of a GPU's. Counts are those of ncu, by the same names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from common.base.days import Day, load_lesson
from common.base.declaration import Problem, Rung
from common.base.outcome import PASS, SKIP, RungOutcome, Skip
from common.base.toolchain import Platform
from common.bench.counters import SECTORS, WAVEFRONTS
from common.build import library
from common.check import device
from common.check.draw import Draw
from common.cpu.findings import LineCounts, source_text
from common.process.events import Channel, Finished, Over, Planned, Stage, Table
from common.process.worker import Work, load_rung

LINE_HEADER = ("line", "access", "requests", "lanes", "sect/req", "wavef/req", "bank confl.")
KERNEL_HEADER = ("kernel", "sect/ld", "sect/st", "bank confl.")
LEGEND = (
    "request: what a warp does at once; lanes: of 32 that take part, on average; sect: 32-byte "
    "sectors of global memory (4 for coalesced 4-byte accesses); wavef: passes over the banks of "
    "shared memory; bank confl.: passes that conflicts add"
)
_SOURCE_SHOWN = 60  # characters of a line


def run_day(day: Day, platform: Platform, work: Work, channel: Channel) -> None:
    """Counts the accesses of each rung, and tells a table for each.

    platform: its variant is "trace".
    """
    backend = device.make(platform)
    todo = library.plan(day, platform)
    operators = library.load(todo)
    problems = work.of(load_lesson(day))
    channel.emit(Planned([[p.name, r.name, r.idea] for p in problems for r in p.rungs]))
    for problem in problems:
        case = problem.timing_case("cpu")
        inputs = problem.inputs(case, Draw(case, backend, seed=0, fast=True))
        for rung in problem.rungs:
            outcome = RungOutcome(problem.name, rung.name, rung.idea, PASS)
            channel.emit(Stage(rung.name, "counting accesses"))
            try:
                call, _ = load_rung(day, todo, rung, operators)
            except Skip as skip:
                outcome.status, outcome.reason = SKIP, str(skip)
            else:
                backend.trace("profile")
                call(*inputs)
                backend.trace("off")
                counts = backend.take_trace().counts
                outcome.counts = [sums.to_json() for sums in counts]
                outcome.kernels = kernels(counts)
                _tell_tables(problem, rung, counts, channel)
            channel.emit(Finished(outcome))
    channel.emit(Over())


def _tell_tables(
    problem: Problem, rung: Rung, counts: Sequence[LineCounts], channel: Channel
) -> None:
    title = f"{rung.name}, {problem.timing_case('cpu')}"
    rows = kernel_rows(counts)
    channel.emit(Table(title, list(KERNEL_HEADER), rows))
    if counts:
        channel.emit(Table("", list(LINE_HEADER), line_rows(counts)))


def _by_kernel(counts: Sequence[LineCounts]) -> dict[str, list[LineCounts]]:
    found: dict[str, list[LineCounts]] = defaultdict(list)
    for sums in counts:
        found[sums.kernel].append(sums)
    return found


def kernels(counts: Sequence[LineCounts]) -> list[dict[str, Any]]:
    """The same as ncu counts it, as `RungOutcome.kernels` has it."""
    found = []
    for kernel, lines in _by_kernel(counts).items():
        counters = {}
        for kind, (sectors, requests) in SECTORS.items():
            of_kind = [line for line in lines if line.kind == kind]
            counters[sectors] = sum(line.sectors for line in of_kind)
            counters[requests] = sum(line.requests for line in of_kind)
        wavefronts, ideal = WAVEFRONTS
        counters[wavefronts] = sum(line.wavefronts for line in lines)
        counters[ideal] = sum(line.wavefronts - line.conflicts for line in lines)
        found.append({"name": kernel, "counters": counters})
    return found


def kernel_rows(counts: Sequence[LineCounts]) -> list[list[str]]:
    """A row for each kernel: sectors per global load and store, and bank conflicts, as in the table
    of a GPU's counters."""
    return [
        [
            kernel,
            _per_request([c for c in lines if c.kind == "global load"], "sectors"),
            _per_request([c for c in lines if c.kind == "global store"], "sectors"),
            str(sum(c.conflicts for c in lines)),
        ]
        for kernel, lines in _by_kernel(counts).items()
    ]


def line_rows(counts: Sequence[LineCounts]) -> list[list[str]]:
    """A row for each line and kind of access."""
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
