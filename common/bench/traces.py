"""Record a call with PyTorch's profiler."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def traced_events(call: Callable[[], object]) -> list[dict[str, Any]]:
    """Return the events of a trace of a call, in the format of Chrome's traces: ranges, operators
    and, on a GPU, launches and kernels."""
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with _without_notes(), profile(activities=activities) as profiler:
        call()
        if on_gpu:
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def launches_of(call: Callable[[], object]) -> list[dict[str, Any]]:
    """Return the kernels that a call launches, with the profiler's names: "name", "registers per
    thread", "shared memory" (bytes per block), "grid", "block" and more; [] without a GPU."""
    call()  # the first launch loads the kernel
    return [
        {"name": event["name"], **event["args"]}
        for event in traced_events(call)
        if event.get("cat") == "kernel"
    ]


@contextmanager
def _without_notes() -> Iterator[None]:
    """Suppress the notes that the profiler writes to the standard error stream in every run: that
    it starts and stops, that the thread did not import PyTorch, which matters only for profiling
    from outside, and that it clears earlier records."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Profiler clears events")
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            for line in file.read().decode(errors="replace").splitlines():
                if not line.startswith(("USDT:", "ERROR: External init callback")):
                    print(line, file=sys.stderr)
