"""Make further calls after a failure, to find its cause."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.base.declaration import Case
from common.check.call import Call, Failure, first_difference
from common.check.cases import volume
from common.check.expected import ProblemError
from common.check.lacks import Lacking
from common.check.misread import misread
from common.check.patterns import ROUNDINGS, Behaviour, Look
from common.check.steps.case_run import CaseRun, undefined, with_habits, with_hints
from common.check.tiny_case import tiny_case

if TYPE_CHECKING:
    from common.check.device import Schedule

TRYING = 2.0  # seconds for other cases of a rung that is wrong


def explained(run: CaseRun, done: Call | None, failure: Failure) -> Failure:
    """Return the first call's failure, with hints from other calls on the same input."""
    if done is None:
        return failure
    run.wrong_values = failure.values
    right = next((order for order in _further_orders(run) if run.right(order)), None)
    if right is not None:
        orders = {str(run.schedules[0]): False, str(right): True}
        repeats = not run.right(run.schedules[0])
        seen = Behaviour(orders, repeats, undefined=undefined(done))
        return with_habits(elsewhere(run, done, failure), seen)
    run.backend.use(run.schedules[0])
    if len(run.schedules) == 1 and not run.rung.not_repeatable:
        again, _ = run.attempt(run.first, compare_values=False)
        if again is not None and first_difference(done.outputs, again.outputs, done.names):
            hint = "a second run gives other values: is there a race, or is memory read unwritten?"
            return with_hints(elsewhere(run, done, failure), [hint])
    if not failure.values:
        return failure
    run.wrong = done
    return _looked_at(run, done) if run.explain else failure


def elsewhere(run: CaseRun, done: Call, failure: Failure) -> Failure:
    """Return the failure without hints from the size of an error, since other calls explain
    it."""
    looks = [Look(explained=True)] * len(done.outputs)
    return (run.judge_call(run.first, done, looks) or failure) if failure.values else failure


def _looked_at(run: CaseRun, done: Call) -> Failure:
    """Return the failure of wrong values, explained by further calls on the same input."""
    again, fault = run.attempt(run.first, variant=2)
    differ = _differing_orders(run, done)
    run.reading = _misread(run, done)
    known = Look(done.watched.launches, explained=bool(differ or run.reading or undefined(done)))
    looks = [known] * len(done.outputs)
    if again is not None and len(again.outputs) == len(done.outputs):
        looks = [
            replace(known, again=output, untouched=again.memory.untouched(output))
            for output in again.outputs
        ]
    better = run.judge_call(run.first, done, looks)
    assert better is not None
    better = with_hints(better, [run.reading])
    better = with_habits(better, Behaviour(differ=differ, undefined=undefined(done)))
    if again is None or fault is not None:
        return better
    fresh = (False, run.right()), (True, run.right(variant=2))
    return with_habits(better, Behaviour(fresh=fresh))


def _differing_orders(run: CaseRun, done: Call) -> tuple[str, ...]:
    """Return the first order and another one with a different wrong result; () if there is
    none, or if the first order itself gives different results."""
    if run.rung.not_repeatable or not run.repeats(done.outputs):
        return ()
    for schedule in _further_orders(run):
        run.backend.use(schedule)
        other, _ = run.attempt(run.first, compare_values=False)
        run.backend.use(run.schedules[0])
        if other and first_difference(done.outputs, other.outputs, done.names):
            return str(run.schedules[0]), str(schedule)
    return ()


def _floating(run: CaseRun) -> list[tuple[Tensor, Tensor]]:
    """Return (output, truth) in float64 of the wrong call, for its floating outputs."""
    assert run.wrong is not None
    pairs = run.first.pairs(len(run.wrong.outputs)) or []
    return [
        (got.double(), truth.double())
        for got, (truth, _) in zip(run.wrong.outputs, pairs, strict=False)
        if got.dtype.is_floating_point and got.shape == truth.shape
    ]


def _not_finite(run: CaseRun) -> bool:
    """Return True if the first call gave infinities or NaN where finite numbers are
    expected."""
    return any(bool((truth.isfinite() & ~got.isfinite()).any()) for got, truth in _floating(run))


def _near(run: CaseRun) -> bool:
    """Return True if the first call's error is within what accumulated roundings in 16 bits
    explain."""
    if run.case.dtype not in ("float16", "bfloat16"):
        return False
    allowed = ROUNDINGS * torch.finfo(getattr(torch, run.case.dtype)).eps
    found = _floating(run)
    return bool(found) and all(
        bool(((got - truth).abs() <= allowed * (truth.abs() + truth.norm() / size)).all())
        for got, truth in found
        if (size := max(truth.numel(), 1) ** 0.5)
    )


def _misread(run: CaseRun, done: Call) -> str:
    """Return how a call with wrong outputs misread the first input, or "" if unknown."""
    return misread(run.problem, run.first, done.outputs, run.signature, done.watched.launches)


def _further_orders(run: CaseRun) -> Sequence[Schedule]:
    """Return the orders in which a wrong call is tried again: with `explain`, more than a right one
    needs."""
    return (run.backend.schedules() if run.explain else run.schedules)[1:]


def _among_cases(failed: CaseRun, right: Sequence[Case]) -> Behaviour:
    """Return which other cases are right, by size and by dtype. right: the cases known to be right.

    On the CPU backend only: on the next case the same mistake may be an illegal access, which would
    leave a GPU in error.
    """
    if not failed.backend.watches_calls:
        return Behaviour()
    case, rung = failed.case, failed.rung
    known = {each: True for each in right} | {case: False}
    mine = failed.problem.cases_of(rung)
    twins = [c for c in mine if (c.shape, c.values) == (case.shape, case.values)]
    alike = [c for c in mine if (c.dtype, c.values) == (case.dtype, case.values)]
    until = time.monotonic() + TRYING
    reading = ""
    for other in [*twins, *sorted(alike, key=volume)]:
        if other in known or time.monotonic() > until:
            continue
        try:
            run = CaseRun(
                failed.problem, rung, failed.call, other, failed.backend, failed.schedules[:1]
            )
            done, failure = run.attempt(run.first)
        except (Lacking, ProblemError):
            continue
        known[other] = failure is None
        if done and failure and failure.values and not (failed.reading or reading):
            reading = _misread(run, done)
            reading = reading and f"in another case, {other}, {reading}"
    failed.backend.use(failed.schedules[0])
    return Behaviour(
        cases=tuple((c, known[c]) for c in alike if c in known and 0 not in c.shape),
        dtypes={c.dtype: known[c] for c in twins if c in known},
        not_finite=_not_finite(failed),
        near=_near(failed),
        reading=reading,
    )


def with_further_causes(run: CaseRun, failure: Failure, right: Sequence[Case]) -> Failure:
    """Return the failure with hints from other cases, and with a tiny case, if the first call gave
    wrong values. right: the cases known to be right."""
    if run.wrong is not None:
        failure = with_habits(failure, _among_cases(run, right))
    if not run.wrong_values:
        return failure
    run.backend.use(run.schedules[0])
    example = tiny_case(run.problem, run.rung, run.call, run.case, run.backend)
    return replace(failure, example=example)
