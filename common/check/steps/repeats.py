"""Call again: with other inputs, with other content of fresh memory, with further rows."""

from __future__ import annotations

from dataclasses import replace

from common.check.call import Failure, first_difference
from common.check.draw import NONFINITE_ROWS
from common.check.patterns import Behaviour
from common.check.steps.case_run import CaseRun, with_habits, with_hints


def second_call(run: CaseRun) -> Failure | None:
    """Check other numbers in the same memory: the first call must leave nothing that changes
    them."""
    done = run.done
    again, failure = run.attempt(run.second, into=done)
    if failure is not None:
        details = failure.details
        if again is not None and first_difference(run.kept, again.outputs, done.names) is None:
            details = [
                "hint: it is the result of the call before, on other inputs in the same "
                "memory: is a result kept by the address of its input?",
                *details,
            ]
        summary = f"in a second call, on other inputs, {failure.summary}"
        second = replace(failure, summary=summary, details=details)
        if not run.explain:
            return second
        calls = (True, False, run.right(), run.right())
        return with_habits(second, Behaviour(calls=calls))
    assert again is not None
    if again.memory is done.memory:  # arguments were rewritten for the second call
        pairs = zip(done.outputs, run.kept, done.names, strict=True)
        own = [(now, was, name) for now, was, name in pairs if not name.startswith("argument")]
        changed = first_difference(
            [was for _, was, _ in own], [now for now, _, _ in own], [name for *_, name in own]
        )
    else:
        changed = first_difference(run.kept, done.outputs, done.names)
    if changed is not None:
        return Failure(
            "a second call overwrote the result of the first",
            ["the two share a buffer: allocate the output in each call", changed],
        )
    return None


def same_again(run: CaseRun) -> Failure | None:
    """Check the same input again, with other numbers in all unwritten memory."""
    again, failure = run.attempt(run.first, variant=1)
    if failure is not None:
        summary = f"with large numbers in fresh memory instead of NaN, {failure.summary}"
        fresh = (True, run.right()), (False, run.right(variant=1))
        seen = with_habits(replace(failure, summary=summary), Behaviour(fresh=fresh))
        if seen.details != failure.details:
            return seen
        return with_hints(seen, ["is memory read that was not written, or do runs differ?"])
    assert again is not None
    difference = first_difference(run.kept, again.outputs, again.names)
    if difference is None or run.rung.not_repeatable:
        return None
    return Failure(
        "two runs on the same input differ in bits",
        [
            difference,
            "does the order of the additions change (atomics), or is memory read unwritten? If "
            "it is meant, the rung says why in not_repeatable",
        ],
    )


def further_rows(run: CaseRun) -> Failure | None:
    """Check further draws, so that every kind of row occurs, even if a case has only one
    row."""
    for draw in range(2, NONFINITE_ROWS):
        failure = run.attempt(run.expected(draw))[1]
        if failure is not None:
            return replace(failure, summary=f"on its draw {draw}, {failure.summary}")
    return None
