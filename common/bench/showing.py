"""Measure and print memory, single times and tables for a day's `show`."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

import torch


def peak_memory(call: Callable[[], object]) -> int:
    """Return the peak of a call's GPU memory in bytes, its results included; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak


HEAD_START = 2_000_000  # clock cycles, about 1 ms: longer than it takes to launch a few kernels


def seconds(call: Callable[[], object], repeats: int = 10) -> float:
    """Return the median time of a call: by the GPU's events or, without a GPU, by the host's clock.

    For a table in a day's `show`. The runner times rungs, with the caches emptied. The GPU is kept
    busy until the call's launches are queued, so that they follow each other immediately.
    """
    call()
    if torch.cuda.is_available():
        return statistics.median(gpu_times(call, repeats))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def wake_gpu(busy: float = 0.3) -> None:
    """Keep the GPU busy for `busy` seconds. After idling it moves about a tenth fewer bytes per
    second in its first milliseconds, although its multiprocessors are at full clock."""
    x = torch.zeros(1 << 26, device="cuda")
    began = time.perf_counter()
    while time.perf_counter() - began < busy:
        for _ in range(20):
            x.add_(1)
        torch.cuda.synchronize()


def gpu_times(call: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of each of `repeats` calls, by events of the GPU, which waits until the
    call and both events are in its queue, so that the host's launch time does not count."""
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HEAD_START)
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return times


def seconds_in_turn(
    calls: Mapping[str, Callable[[], object]], turn: float = 0.05, rounds: int = 10
) -> dict[str, float]:
    """Return the seconds per call of each under load: the calls take turns, in another order in
    each round, and each turn launches one back to back for `turn` seconds. Medians of the rounds.
    Without a GPU by the host's clock.

    Unlike for single calls with pauses, the card keeps the clock that it can sustain.
    """
    once = {name: seconds(call, 3) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    shuffled = random.Random(0)
    for _ in range(rounds):
        for name, call in shuffled.sample(list(calls.items()), len(calls)):
            times = max(1, round(turn / once[name]))

            def repeated(call: Callable[[], object] = call, times: int = times) -> None:
                for _ in range(times):
                    call()

            if torch.cuda.is_available():
                samples[name] += [taken / times for taken in gpu_times(repeated, 1)]
            else:
                began = time.perf_counter()
                repeated()
                samples[name].append((time.perf_counter() - began) / times)
    return {name: statistics.median(taken) for name, taken in samples.items()}


def card_state() -> str:
    """Return the multiprocessors' clock and the power at this moment, by nvidia-smi; "" without
    it."""
    query = "--query-gpu=clocks.sm,power.draw.instant"
    try:
        run = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return ""
    return run.stdout.strip().splitlines()[0] if run.returncode == 0 else ""


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table, the first column to the left and the others to the right."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        first, *others = row
        line = first.ljust(widths[0])
        line += "".join(f"  {cell:>{w}}" for cell, w in zip(others, widths[1:], strict=True))
        print(line.rstrip())


def rows_as_json(found: Mapping[str, Sequence[object]]) -> str:
    """Return rows by name as the text of a file, a line per row, so that a diff shows changes."""
    lines = [
        f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows)
        for name, rows in found.items()
    ]
    return "{\n" + "\n ],\n".join(lines) + "\n ]\n}\n"
