"""Run on a card so small that a small case takes the paths of a large one."""

from __future__ import annotations

from dataclasses import replace

from common.check.call import Failure
from common.check.steps.case_run import CaseRun


def on_small_card(run: CaseRun, shared: bool = False) -> Failure | None:
    """Check on a card with few multiprocessors, little shared memory and small grids, so that
    this case takes the paths of a large one. The call may be refused for a reason. shared: keep
    the usual shared memory."""
    with run.backend.small_card(shared):
        failure = run.right_or_refused()
    if failure is None:
        return None
    memory = "" if shared else " 2 KB of shared memory to opt in to,"
    return replace(
        failure,
        summary=f"on a small card (2 multiprocessors with one block each,{memory} 3 blocks "
        f"along y), {failure.summary}",
    )
