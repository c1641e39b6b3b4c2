"""Check the gradients of a differentiable operator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from common.base.declaration import Problem
from common.base.outcome import WRITTEN_OUTSIDE
from common.check.call import Failure, first_difference, judge, raised
from common.check.expected import Gradients, Signature, backward, expected_gradients
from common.check.guard import GuardedAllocations, GuardedMemory
from common.check.steps.case_run import CaseRun

if TYPE_CHECKING:
    from common.check.device import Backend


def gradients(run: CaseRun) -> Failure | None:
    """Check the gradients twice in every order."""
    expected = expected_gradients(run.problem, run.first.args, run.signature)
    before: list[Tensor] | None = None
    for schedule in run.schedules:
        run.backend.use(schedule)
        for _ in range(2):
            failure, found = gradients_of(
                run.problem, run.call, run.first.args, run.signature, expected, run.backend
            )
            if failure is not None:
                return replace(failure, summary=f"{failure.summary} ({schedule} order)")
            names = expected.names
            difference = first_difference(before, found, names) if before else None
            if difference is not None and not run.rung.not_repeatable:
                return Failure("two backward passes on one input differ", [difference])
            before = found
    run.backend.use(run.schedules[0])
    return None


def expanded_gradient(run: CaseRun) -> Failure | None:
    """Check with an upstream gradient of stride 0, as `y.sum().backward()` gives: one row for
    all."""
    run.backend.use(run.schedules[0])
    expected = expected_gradients(run.problem, run.first.args, run.signature, expanded=True)
    failure, _ = gradients_of(
        run.problem, run.call, run.first.args, run.signature, expected, run.backend
    )
    if failure is None:
        return None
    return replace(
        failure, summary=f"with an upstream gradient of one row, expanded, {failure.summary}"
    )


def gradients_of(
    problem: Problem,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    signature: Signature,
    expected: Gradients,
    backend: Backend,
) -> tuple[Failure | None, list[Tensor]]:
    """Return the failure of the rung's gradients, or None, and the gradients.

    On the CPU, what both passes allocate is poisoned and between guard bands, as in `call_guarded`.
    """
    memory = GuardedMemory(backend.device, name=backend.namer())
    guarded = GuardedAllocations(memory, backend) if backend.name == "cpu" else nullcontext()
    try:
        with backend.watching(), guarded:
            found = backward(call, args, expected.places, expected.upstream)
        backend.synchronize()
    except Exception as error:
        return raised(error, "in the backward pass "), []
    if outside := memory.violations():
        return Failure(f"in the backward pass, {WRITTEN_OUTSIDE}", outside), []
    # Any strides are accepted: PyTorch's gradient may be a view of something else.
    failure = judge(problem, expected.expected, found, expected.names, signature, strides=False)
    return failure, found
