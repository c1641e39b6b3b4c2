"""Decide how many days run side by side on one device, and in which order they start."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from common.base.cache import cache_directory
from common.base.days import Day
from common.base.outcome import DayOutcome
from common.base.toolchain import Platform
from common.base.where import cores
from common.report.files import ResultsError, write_atomically
from common.run.runner import ONE_BY_ONE, Capacity, devices, free_memory

# Bytes. A day that finds the GPU's memory full is checked again when it has the GPU for itself, so
# these need not hold for every day.
CHECKED_GPU = 6e9  # of the GPU, for a process's context, its cases and the expected results
WAITING_GPU = 1e9  # of the GPU, for a process that waits for its turn: a context, and its library
CHECKED_HOST = 2e9  # of the host, for any process
WAITING_HOST = 1e9
WAITING_CPU = 0.5e9  # the same on the CPU backend, for a process without a context
MOST_ALIVE = {"cuda": 64, "cpu": 8}  # processes per device


def capacity(platform: Platform, days: int, quick: bool, requested: int = 0) -> Capacity:
    """Return the limits on the days of a device, for a run of `days` days. requested: days checked
    at a time, 0 for the number that cores and memory allow.

    On the CPU the kernels of one day use all cores at times, but most of a check uses one. In a
    full run on a GPU fewer days wait, since the largest cases need the memory.
    """
    here = devices(platform, days)
    free, host_cores = free_memory(), cores() // here
    host = None if free is None else free / here
    if platform.device == "cpu":
        most = max(2, host_cores // 2)
        checked = requested or _at_least_one(host_cores, most, *_fitting(host, 0.5, CHECKED_HOST))
        waiting = _at_least_one(MOST_ALIVE["cpu"], *_fitting(host, 0.5, WAITING_CPU))
        return Capacity(checked, checked if checked == 1 else max(checked, waiting))
    gpu = free_gpu_memory()
    if gpu is None and not requested:
        return ONE_BY_ONE
    checked = requested or _at_least_one(
        host_cores, *_fitting(gpu, 1.0, CHECKED_GPU), *_fitting(host, 0.5, CHECKED_HOST)
    )
    if checked == 1:
        return ONE_BY_ONE
    waiting = _at_least_one(
        MOST_ALIVE["cuda"],
        *_fitting(gpu, 0.5 if quick else 0.3, WAITING_GPU),
        *_fitting(host, 0.5, WAITING_HOST),
    )
    return Capacity(checked, max(checked, waiting))


def _fitting(free: float | None, share: float, each: float) -> list[int]:
    """Return [the number that fits into this share of the free memory]; the rest is for the day
    that has its turn, or for builds. [] if unknown."""
    return [] if free is None else [int(share * free / each)]


def _at_least_one(*numbers: int) -> int:
    return max(1, min(numbers))


def free_gpu_memory() -> int | None:
    """Return the free bytes of the GPUs in use, the least of them; None if nvidia-smi does not
    report it. Creates no context."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    if chosen := os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]:
        command += [f"--id={chosen}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return min(int(line) for line in done.stdout.split()) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


# ---------------------------------------------------------------- the longest days start first


def seconds_file(platform: Platform, quick: bool) -> Path:
    """Return the file with the seconds of the last run on this device, by day."""
    name = re.sub(r"[^a-z0-9]+", "-", (platform.gpu or platform.device).lower())
    return cache_directory() / f"seconds-{name}-{'quick' if quick else 'full'}.json"


def _read(file: Path) -> dict[str, float]:
    try:
        return {day: float(seconds) for day, seconds in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # no times are known


def longest_first(days: Sequence[Day], file: Path) -> list[Day]:
    """Return the days in order of decreasing time in the last run, so that none of the longest ones
    starts last; unknown days come first, beginning with the longest sources."""
    known = _read(file)
    return sorted(days, key=lambda day: (-known.get(day.name, math.inf), -_length(day)))


def _length(day: Day) -> int:
    """Return the bytes of the day's existing sources."""
    sources = (*day.library_sources, *day.other_sources)
    return sum(path.stat().st_size for path in sources if path.is_file())


def keep_seconds(outcomes: Sequence[DayOutcome], file: Path) -> None:
    """Store the times of days for `longest_first`."""
    found = {o.name: round(o.build_s + o.run_s, 3) for o in outcomes if o.rungs}
    with suppress(ResultsError):  # an unwritable cache: the order matters little
        write_atomically(file, json.dumps(_read(file) | found, indent=1) + "\n")
