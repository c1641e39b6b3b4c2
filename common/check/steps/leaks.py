"""Look for memory, of the device and of the host, streams, graphs, files and threads that calls do
not free, close or end."""

from __future__ import annotations

import gc
from itertools import pairwise

from common.check.call import Failure
from common.check.host_state import descriptors, host_memory, threads
from common.check.steps.case_run import CaseRun

_CALLS = 4  # in a row that must leave more memory each: one may fill a cache
_LEAST = 4096  # bytes of the host per call: freed blocks that malloc keeps at hand count as used


def leaks(run: CaseRun) -> Failure | None:
    """Call three times, and report what each call allocates or opens, and does not free or close,
    as a leak."""
    memories, grown = [], []
    for _ in range(3):
        files, running = descriptors(), threads()
        done, failure = run.attempt(run.first, compare_values=False)
        if failure is not None:
            return failure
        assert done is not None
        memories.append(done.memory)
        watched = done.watched
        more = descriptors() - files, threads() - running
        grown.append((watched.allocations, watched.handles, *more))
        del done
    held = [memory.still_held() for memory in memories]
    if sum(map(bool, held)) > 1:
        return Failure(
            "a leak: tensors of earlier calls are still held",
            [f"{len(each)} after one call: {each[0]}" for each in held if each],
        )
    what = (
        ("memory allocated", "allocations of cudaMalloc or its like"),
        ("streams, events, graphs or memory pools", "of them"),
        ("files open", "file descriptors"),
        ("threads running", "threads"),
    )
    for (left, counted), numbers in zip(what, zip(*grown, strict=True), strict=True):
        if min(numbers[1:]) > 0:
            return Failure(
                f"a leak: each call leaves {left}",
                [f"{numbers[-1]} more {counted} after each call"],
            )
    # On a GPU the driver allocates as well; the same launchers are checked on the CPU.
    return _host_memory(run) if run.backend.name == "cpu" else None


def _host_memory(run: CaseRun) -> Failure | None:
    """Report host memory that each of several calls leaves allocated, also after Python has
    collected its own."""
    growth = 0
    for collects in (False, True):
        held = []
        for _ in range(_CALLS):
            _, failure = run.attempt(run.first, compare_values=False)
            if failure is not None:
                return failure
            if collects:
                gc.collect()
            held.append(host_memory())
        growth = min(after - before for before, after in pairwise(held))
        if growth < _LEAST:
            return None
    return Failure(
        "a leak: each call leaves host memory allocated", [f"{growth} more bytes after each call"]
    )
