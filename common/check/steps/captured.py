"""Capture a call in a CUDA graph, and replay it with other inputs."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from common.check.call import Failure, outputs_of, raised
from common.check.expected import map_tensors
from common.check.guard import bits
from common.check.steps.case_run import CaseRun, with_hints
from common.check.steps.streams import fill


def graph(run: CaseRun) -> Failure | None:
    """Check a CUDA graph, captured with one input and replayed with another in the same
    memory."""
    static = map_tensors(torch.clone, run.first.args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        result = _capture(run, graph, static)
        outputs, names = outputs_of(result, static, run.signature)
        for output, name in zip(outputs, names, strict=True):
            if not name.startswith("argument") and output.numel():
                bits(output).fill_(-1)
        fill(static, run.second.args)
        graph.replay()
        torch.cuda.synchronize()
    except Exception as error:
        failure = raised(error, "captured in a CUDA graph, ")
        note = "if it cannot be captured, the rung says why in not_captured"
        return replace(failure, details=[*failure.details, note])
    wrong = run.judge(run.second, outputs, names)
    if wrong is None:
        return None
    hint = (
        "the graph was captured with other inputs: was something computed once, at capture, or "
        "on another stream?"
    )
    summary = f"replayed from a CUDA graph, {wrong.summary}"
    return with_hints(replace(wrong, summary=summary), [hint])


def _capture(run: CaseRun, graph: torch.cuda.CUDAGraph, args: tuple[Any, ...]) -> Any:
    """Return the call's result while it is captured."""
    # torch.cuda.graph would empty the allocator's cache each time, which would take longer
    # than everything else.
    stream = torch.cuda.Stream()
    with torch.no_grad(), warnings.catch_warnings(), torch.cuda.stream(stream):
        # A case without elements launches nothing.
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            result = run.call(*args)
        except BaseException:
            # The capture is invalid, and ending it raises; the call's exception has the cause.
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    return result
