"""Run the work of streams late: on a GPU after other work, on the CPU as late as legal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from common.check.call import Failure, outputs_of, raised
from common.check.expected import map_tensors
from common.check.steps.case_run import CaseRun, with_hints

SLEEP_CYCLES = 4_000_000  # of the GPU, about 2 ms: longer than it takes to issue a launch


def late_streams(run: CaseRun) -> Failure | None:
    """Check on the CPU backend with streams that run their work as late as legal."""
    several = run.problem.several_streams
    if run.first.on_host and not several:
        return None  # host code may read its arguments at once
    for schedule in run.backend.late_schedules(several):
        run.backend.use(schedule)
        failure = run.attempt(run.first, late=True)[1]
        if failure is not None:
            hint = "does a stream lack an event that it has to wait for?"
            summary = f"with late streams ({schedule} order), {failure.summary}"
            return with_hints(replace(failure, summary=summary), [hint])
    run.backend.use(run.schedules[0])
    return None


def side_stream(run: CaseRun) -> Failure | None:
    """Check on a busy stream, on which the true input arrives only after that work."""
    stale = map_tensors(torch.clone, run.second.args)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    try:
        with torch.no_grad(), torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP_CYCLES)
            fill(stale, run.first.args)
            result = run.call(*stale)
        torch.cuda.synchronize()
        outputs, names = outputs_of(result, stale, run.signature)
    except Exception as error:
        return raised(error, "on a side stream, ")
    failure = run.judge(run.first, outputs, names)
    if failure is None:
        return None
    hint = "is some work not on the current stream, so that it reads its input too early?"
    return with_hints(replace(failure, summary=f"on a side stream, {failure.summary}"), [hint])


def fill(into: tuple[Any, ...], source: tuple[Any, ...]) -> None:
    """Copy the tensors of one set of arguments into another, on the current stream."""
    for mine, theirs in zip(tree_leaves(into), tree_leaves(source), strict=True):
        if isinstance(mine, Tensor):
            mine.copy_(theirs, non_blocking=True)
