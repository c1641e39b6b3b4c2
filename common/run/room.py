"""How many days run side by side on one device, and in which order they start."""

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
from common.run.runner import ONE_BY_ONE, Room, devices, free_memory

# Bytes. A day that finds the GPU's memory full is checked again when it has the GPU for itself, so
# these need not hold for every day.
CHECKED_GPU = 6e9  # of the GPU, for the context of a process, its cases and what is expected
WAITING_GPU = 1e9  # of the GPU, for a process that waits for its turn: a context, and its library
CHECKED_HOST = 2e9  # of the host, for any process
WAITING_HOST = 1e9
WAITING_CPU = 0.5e9  # the same on the CPU backend, for a process without a context
MOST_ALIVE = {"cuda": 64, "cpu": 8}  # processes per device


def room(platform: Platform, days: int, quick: bool, requested: int = 0) -> Room:
    """Return how many of so many days a device holds. requested: how many are checked at a time, 0
    for as many as cores and memory allow.

    On the CPU the kernels of one day use all cores at times, but most of a check uses one. In a
    full run on a GPU no more wait than are checked: the largest cases want the memory.
    """
    here = devices(platform, days)
    free, host_cores = free_memory(), cores() // here
    host = None if free is None else free / here
    if platform.device == "cpu":
        most = max(2, host_cores // 2)
        checked = requested or _at_least_one(host_cores, most, *_fitting(host, 0.5, CHECKED_HOST))
        waiting = _at_least_one(MOST_ALIVE["cpu"], *_fitting(host, 0.5, WAITING_CPU))
        return Room(checked, checked if checked == 1 else max(checked, waiting))
    gpu = free_gpu_memory()
    if gpu is None and not requested:
        return ONE_BY_ONE
    checked = requested or _at_least_one(
        host_cores, *_fitting(gpu, 1.0, CHECKED_GPU), *_fitting(host, 0.5, CHECKED_HOST)
    )
    if not quick or checked == 1:
        return Room(checked, checked)
    waiting = _at_least_one(
        MOST_ALIVE["cuda"], *_fitting(gpu, 0.5, WAITING_GPU), *_fitting(host, 0.5, WAITING_HOST)
    )
    return Room(checked, max(checked, waiting))


def _fitting(free: float | None, share: float, each: float) -> list[int]:
    """Return how many fit into this share of what is free; the rest is for the one that has its
    turn, or for builds."""
    return [] if free is None else [int(share * free / each)]


def _at_least_one(*numbers: int) -> int:
    return max(1, min(numbers))


def free_gpu_memory() -> int | None:
    """Return bytes that are free on the GPUs that days run on, the least of them; None where
    nvidia-smi does not say. Starts no context."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    if chosen := os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]:
        command += [f"--id={chosen}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return min(int(line) for line in done.stdout.split()) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


# ---------------------------------------------------------------- what takes longest starts first


def seconds_file(platform: Platform, quick: bool) -> Path:
    """Return where the seconds of the last run on this device are kept, by day."""
    name = re.sub(r"[^a-z0-9]+", "-", (platform.gpu or platform.device).lower())
    return cache_directory() / f"seconds-{name}-{'quick' if quick else 'full'}.json"


def _read(file: Path) -> dict[str, float]:
    try:
        return {day: float(seconds) for day, seconds in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # nothing is known


def longest_first(days: Sequence[Day], file: Path) -> list[Day]:
    """Return the days that took longest in the last run first, so that none of them is left to the
    end; before them those of which nothing is known, beginning with the longest sources."""
    known = _read(file)
    return sorted(days, key=lambda day: (-known.get(day.name, math.inf), -_length(day)))


def _length(day: Day) -> int:
    """Return bytes of the day's sources, as far as they can be read."""
    sources = (*day.library_sources, *day.other_sources)
    return sum(path.stat().st_size for path in sources if path.is_file())


def keep_seconds(outcomes: Sequence[DayOutcome], file: Path) -> None:
    """Note how long days took, for `longest_first`."""
    found = {o.name: round(o.build_s + o.run_s, 3) for o in outcomes if o.rungs}
    with suppress(ResultsError):  # of a cache that cannot be written: the order matters little
        write_atomically(file, json.dumps(_read(file) | found, indent=1) + "\n")
