"""Look for memory that calls do not free."""

from __future__ import annotations

from common.check.call import Failure
from common.check.steps.case_run import CaseRun


def leaks(run: CaseRun) -> Failure | None:
    """Call three times, and report memory that each call does not free as a leak."""
    memories, grown = [], []
    for _ in range(3):
        done, failure = run.attempt(run.first, compare_values=False)
        if failure is not None:
            return failure
        assert done is not None
        memories.append(done.memory)
        grown.append(done.watched.allocations)
        del done
    held = [memory.still_held() for memory in memories]
    if sum(map(bool, held)) > 1:
        return Failure(
            "a leak: tensors of earlier calls are still held",
            [f"{len(each)} after one call: {each[0]}" for each in held if each],
        )
    if min(grown[1:]) > 0:
        return Failure(
            "a leak: each call leaves memory allocated",
            [f"{grown[-1]} more allocations of cudaMalloc or its like after each call"],
        )
    return None
