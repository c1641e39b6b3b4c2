"""Implement `--profile` on a GPU: run every rung once under Nsight Compute, with few counters."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Sequence
from typing import Any

import torch

from common.base.days import Day, load_lesson
from common.base.figures import significant
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, SKIP, RungOutcome, Skip
from common.base.toolchain import Platform
from common.bench.counters import SECTORS, WAVEFRONTS
from common.build import library
from common.check import device
from common.check.draw import Draw
from common.process.events import Channel, Finished, Over, Planned, Stage, Table
from common.process.worker import chosen_problems, load_rung
from common.tools.nvidia import find_tool

# Column of the table: counters of ncu; its unit, or the combination of two counters.
METRICS = {
    "µs": (("gpu__time_duration.sum",), "duration"),
    "DRAM %": (("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",), "percent"),
    "SM %": (("sm__throughput.avg.pct_of_peak_sustained_elapsed",), "percent"),
    "L2 hit %": (("lts__t_sector_hit_rate.pct",), "percent"),
    "occup. %": (("sm__warps_active.avg.pct_of_peak_sustained_active",), "percent"),
    "regs": (("launch__registers_per_thread",), "count"),
    "sect/ld": (SECTORS["global load"], "ratio"),
    "sect/st": (SECTORS["global store"], "ratio"),
    # From the addresses of each instruction. The counters l1tex__data_bank_conflicts_… also count
    # waiting for other traffic, so that they are never quite 0 and differ from run to run.
    "bank confl.": (WAVEFRONTS, "difference"),
}
LEGEND = (
    "DRAM, SM: share of the peak; sect/ld, sect/st: 32-byte sectors a warp's global load or store "
    "touches (4 for coalesced 4-byte accesses); bank confl.: of shared memory"
)
INSTALL = "ncu (Nsight Compute) is missing: it comes with the CUDA toolkit; put it on PATH"
PERMISSION = (
    "the driver lets only root read the GPU's counters: run as root, or load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)


class ProfileError(Exception):
    """The profiler gave no counters; the message contains the reason and the fix."""


def run_rungs(day: Day, platform: Platform, options: RunOptions, channel: Channel) -> None:
    """Run the rungs for the profiler: each on its timing case (the CPU's if `quick`), once to warm
    up and once between the marks that start and stop the profiler, in an NVTX range with its
    name."""
    backend = device.make(platform)
    todo = library.plan(day, platform)
    operators = library.load(todo)
    for problem in chosen_problems(load_lesson(day), options):
        case = problem.timing_case("cpu" if options.quick else "cuda")
        inputs = problem.inputs(case, Draw(case, backend, seed=0, fast=True))
        for rung in problem.rungs:
            outcome = RungOutcome(problem.name, rung.name, rung.idea, PASS)
            try:
                call, _ = load_rung(day, todo, rung, operators)
            except Skip as skip:
                outcome.status, outcome.reason = SKIP, str(skip)
            else:
                call(*inputs)
                backend.synchronize()
                torch.cuda.profiler.start()
                with torch.cuda.nvtx.range(rung.name):
                    call(*inputs)
                    backend.synchronize()
                torch.cuda.profiler.stop()
            channel.emit(Finished(outcome))
    channel.emit(Over())


def run_day(day: Day, platform: Platform, options: RunOptions, channel: Channel) -> None:
    """Profile a day and send the table of its kernels."""
    outcome = RungOutcome("profile", "ncu", "hardware counters of every kernel", PASS)
    channel.emit(Planned([[outcome.problem, outcome.rung, outcome.idea]]))
    channel.emit(Stage(outcome.rung, "profiling"))
    ncu = find_tool("ncu", platform)
    if ncu is None:
        outcome.status, outcome.reason = SKIP, INSTALL
    else:
        try:
            text = _measure(ncu, day, options)
            rows = parse(text)
        except ProfileError as error:
            first, *rest = str(error).splitlines()
            outcome.status, outcome.reason, outcome.details = FAIL, first, rest
        else:
            outcome.kernels = kernels(text)
            header = ["kernel", *METRICS]
            channel.emit(Table(f"day {day.number}, kernels", header, rows))
            if day.metrics:
                channel.emit(Table("", *further(day.metrics, outcome.kernels)))
            outcome.remarks.append(LEGEND)
    channel.emit(Finished(outcome))
    channel.emit(Over())


def _measure(ncu: str, day: Day, options: RunOptions) -> str:
    """Return ncu's CSV for the day. Raise ProfileError with the reason if there is none."""
    counters = ",".join([*(name for names, _ in METRICS.values() for name in names), *day.metrics])
    command = [ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv"]
    command += ["--page", "raw", "--print-units", "base", "--metrics", counters]
    command += options.watched_command(day.number, "cuda", mode="profiled")
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    text = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in text:
        raise ProfileError(PERMISSION)
    if done.returncode != 0 or '"Kernel Name"' not in done.stdout:
        last = "\n".join(text.strip().splitlines()[-20:])
        raise ProfileError(f"ncu gave no counters (exit code {done.returncode})\n{last}")
    return done.stdout


def parse(text: str) -> list[list[str]]:
    """Return ncu's raw CSV, one line per kernel, as rows of the table.

    Raise ProfileError if it contains no kernel.
    """
    return [
        [kernel_name(record["Kernel Name"]), *(_value(record, *m) for m in METRICS.values())]
        for record in _records(text)
    ]


def kernels(text: str) -> list[dict[str, Any]]:
    """Return the counters of ncu's raw CSV by name, in base units, for each kernel in the order of
    the launches, as in `RungOutcome.kernels`. Columns without "_" in their names are not counters.
    Counters without a value are left out.

    Raise ProfileError if it contains no kernel.
    """
    found = []
    for record in _records(text):
        counters = {
            name: value
            for name, field in record.items()
            if "_" in name and (value := _number(field)) is not None
        }
        found.append({"name": kernel_name(record["Kernel Name"]), "counters": counters})
    return found


def further(
    names: Sequence[str], found: Sequence[dict[str, Any]]
) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table of these counters, a column per kernel."""
    rows = [
        [name, *(significant(k["counters"][name]) if name in k["counters"] else "–" for k in found)]
        for name in names
    ]
    return ["counter", *(kernel["name"] for kernel in found)], rows


def _records(text: str) -> list[dict[str, str]]:
    """Return the kernels of ncu's raw CSV. Raise ProfileError if there are none."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ProfileError("ncu's output holds no table")
    # The line below the header contains the units and no ID.
    records = [record for record in csv.DictReader(lines[start:]) if record["ID"]]
    if not records:
        raise ProfileError("ncu saw no kernel: the rungs launched none")
    return records


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None  # "n/a": this GPU or this version of ncu does not have the counter


def kernel_name(text: str) -> str:
    """Return "softmax_v1_kernel<float>" for "void softmax_v1_kernel<float>(const float *, …)"."""
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "(" and depth == 0 and not text.startswith("(anonymous", index):
            text = text[:index]
            break
    return text.removeprefix("void ").replace("(anonymous namespace)::", "")


def _value(record: dict[str, str], names: Sequence[str], kind: str) -> str:
    values = [value for name in names if (value := _number(record.get(name, ""))) is not None]
    if len(values) < len(names):
        return "–"
    if kind == "duration":
        return f"{values[0] / 1e3:.1f}"  # base unit: ns
    if kind == "percent":
        return f"{values[0]:.1f}"
    if kind == "ratio":
        return f"{values[0] / values[1]:.2f}" if values[1] else "–"
    if kind == "difference":
        return f"{values[0] - values[1]:.0f}"
    return f"{values[0]:.0f}"
