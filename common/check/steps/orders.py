"""Run threads and blocks in other orders, on the CPU backend."""

from __future__ import annotations

from dataclasses import replace

from common.check.call import Failure, first_difference
from common.check.patterns import Behaviour
from common.check.steps.case_run import CaseRun, observed, undefined, with_habits, with_hints
from common.check.steps.causes import elsewhere


def other_orders(run: CaseRun) -> Failure | None:
    """Check that every order gives the result of the first one, bit for bit."""
    for schedule in run.schedules[1:]:
        run.backend.use(schedule)
        done, failure = run.attempt(run.first)
        orders = {str(run.schedules[0]): True, str(schedule): False}
        if failure is not None:
            wrong = failure if done is None else elsewhere(run, done, failure)
            summary = f"with threads in {schedule} order, {wrong.summary}"
            wrong = replace(wrong, summary=summary)
            seen = Behaviour(orders, run.repeats(run.kept), undefined=undefined(done))
            return with_habits(wrong, seen)
        assert done is not None
        difference = first_difference(run.kept, done.outputs, done.names)
        if difference is not None and not run.rung.not_repeatable:
            cause = (
                "the result depends on the order in which threads run: a race"
                if run.repeats(run.kept)
                else f"another call in {run.schedules[0]} order differs as well: it depends "
                "on what ran before, on memory that is not written, or on chance"
            )
            if undefined(done):
                cause = "the result depends on the order in which threads run"
            differs = Failure(
                f"with threads in {schedule} order, the result differs in bits",
                [cause, f"{run.schedules[0]} order against {schedule} order: {difference}"],
            )
            return with_hints(differs, observed(done))
    run.backend.use(run.schedules[0])
    return None
