"""Implement `--profile` on the CPU backend: the cost of each line's memory accesses on a GPU.

Every rung runs once, on its small timing case, in a build whose accesses are traced. No times are
reported, since a CPU's do not predict a GPU's. Counters are those of ncu, with the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.base.days import Day, load_lesson
from common.base.declaration import Problem, Rung
from common.base.options import RunOptions
from common.base.outcome import PASS, SKIP, RungOutcome, Skip
from common.base.toolchain import Platform
from common.bench.counters import LAUNCH, SECTORS, WAVEFRONTS
from common.build import library
from common.check import device
from common.check.draw import Draw
from common.cpu.access_table import (
    KERNEL_HEADER,
    LINE_HEADER,
    by_kernel,
    kernel_rows,
    line_rows,
)
from common.cpu.findings import LineCounts, Trace
from common.process.events import Channel, Finished, Over, Planned, Stage, Table
from common.process.worker import chosen_problems, load_rung


def run_day(day: Day, platform: Platform, options: RunOptions, channel: Channel) -> None:
    """Count the accesses of each rung, and send a table for each.

    platform: with the variant "trace".
    """
    backend = device.make(platform)
    todo = library.plan(day, platform)
    operators = library.load(todo)
    problems = chosen_problems(load_lesson(day), options)
    channel.emit(Planned([[p.name, r.name, r.idea] for p in problems for r in p.rungs]))
    for problem in problems:
        case = problem.timing_case("cpu")
        inputs = problem.inputs(case, Draw(case, backend, seed=0, fast=True))
        for rung in problem.rungs:
            outcome = RungOutcome(problem.name, rung.name, rung.idea, PASS)
            outcome.further = problem.further
            channel.emit(Stage(rung.name, "counting accesses"))
            try:
                call, _ = load_rung(day, todo, rung, operators)
            except Skip as skip:
                outcome.status, outcome.reason = SKIP, str(skip)
            else:
                backend.trace("profile")
                call(*inputs)
                backend.trace("off")
                traced = backend.take_trace()
                outcome.counts = [sums.to_json() for sums in traced.counts]
                outcome.kernels = kernels(traced)
                _tell_tables(problem, rung, traced.counts, channel)
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


def kernels(traced: Trace) -> list[dict[str, Any]]:
    """Return the counts, and the launch with the largest blocks, under ncu's names, as in
    `RungOutcome.kernels`."""
    found = []
    for kernel, lines in by_kernel(traced.counts).items():
        counters: dict[str, int] = dict(zip(LAUNCH, max(traced.launches[kernel]), strict=True))
        for kind, (sectors, requests) in SECTORS.items():
            of_kind = [line for line in lines if line.kind == kind]
            counters[sectors] = sum(line.sectors for line in of_kind)
            counters[requests] = sum(line.requests for line in of_kind)
        wavefronts, ideal = WAVEFRONTS
        counters[wavefronts] = sum(line.wavefronts for line in lines)
        counters[ideal] = sum(line.wavefronts - line.conflicts for line in lines)
        found.append({"name": kernel, "counters": counters})
    return found
