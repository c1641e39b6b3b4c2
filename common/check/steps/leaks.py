"""Look for memory, streams, events and files that calls do not free or close."""

from __future__ import annotations

from common.check.call import Failure
from common.check.host_state import descriptors
from common.check.steps.case_run import CaseRun


def leaks(run: CaseRun) -> Failure | None:
    """Call three times, and report what each call allocates or opens, and does not free or close,
    as a leak."""
    memories, grown = [], []
    for _ in range(3):
        before = descriptors()
        done, failure = run.attempt(run.first, compare_values=False)
        if failure is not None:
            return failure
        assert done is not None
        memories.append(done.memory)
        watched = done.watched
        grown.append((watched.allocations, watched.handles, descriptors() - before))
        del done
    held = [memory.still_held() for memory in memories]
    if sum(map(bool, held)) > 1:
        return Failure(
            "a leak: tensors of earlier calls are still held",
            [f"{len(each)} after one call: {each[0]}" for each in held if each],
        )
    what = (
        ("memory allocated", "allocations of cudaMalloc or its like"),
        ("streams or events", "streams and events"),
        ("files open", "file descriptors"),
    )
    for (left, counted), numbers in zip(what, zip(*grown, strict=True), strict=True):
        if min(numbers[1:]) > 0:
            return Failure(
                f"a leak: each call leaves {left}",
                [f"{numbers[-1]} more {counted} after each call"],
            )
    return None
