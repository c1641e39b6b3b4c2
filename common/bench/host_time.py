"""Measure a call's cost on the host: the time until it returns, with its kernels launched.

Many calls of a small case follow each other, and only then does the host synchronise with the GPU,
whose queue is long enough for all of them, so that no call waits for the GPU. A small model, or a
model that writes one token at a time, spends most of its time on this cost.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from time import perf_counter  # before a day can replace it
from typing import Any

import torch

from common.base.declaration import Case, Problem
from common.check.device import Backend
from common.check.draw import Draw

BURSTS, CALLS = 20, 50
SECONDS = 0.03  # for all calls of one contender: slow ones are called less often

Call = Callable[..., Any]


def host_microseconds(
    problem: Problem,
    calls: Mapping[str, Call],
    backend: Backend,
    prepared: Callable[[Call, tuple[Any, ...]], Call],
    fallback: Callable[[], str],
) -> dict[str, float]:
    """Return the host's microseconds per call of each of `calls`, by name; {} if no case fits.

    calls: rungs, and PyTorch's call. They are called on the smallest case of the timed dtype that
    all of them take, an operator by its only overload, which a caller can look up once; in
    inference mode, unless a call needs gradients. prepared: turns a call into the timed one, such
    as a training step. fallback: see `time_problem`; a case on which a rung falls back is not used.
    """
    for mode in (nullcontext,) if problem.gradients else (torch.inference_mode, nullcontext):
        with mode():
            for case in _small_cases(problem, backend.name):
                inputs = problem.inputs(case, Draw(case, backend, seed=0, fast=True))
                bound = {
                    name: _bind(prepared(_overload(call), inputs), inputs)
                    for name, call in calls.items()
                }
                if _all_take_it(bound, backend, fallback):
                    return host_times(bound)
    return {}


def _small_cases(problem: Problem, device: str) -> Iterator[Case]:
    """Yield the ordinary cases of the timed dtype that have elements, the smallest first, then the
    timed one."""
    timed = problem.timing_case(device)
    of_dtype = [case for case in problem.cases if case.dtype == timed.dtype]
    usual = [case for case in of_dtype if case.values == "normal" and math.prod(case.shape) > 0]
    yield from sorted(usual, key=lambda case: math.prod(case.shape))
    yield timed


def _overload(call: Call) -> Call:
    return call.default if isinstance(call, torch._ops.OpOverloadPacket) else call


def _bind(call: Call, inputs: tuple[Any, ...]) -> Call:
    return lambda: call(*inputs)


def _all_take_it(calls: Mapping[str, Call], backend: Backend, fallback: Callable[[], str]) -> bool:
    """Return True if every call runs, without a fallback to another rung's kernel."""
    fallback()
    for call in calls.values():
        try:
            call()
        except Exception:  # PyTorch's call, or a library's, takes fewer shapes than a rung
            return False
        if fallback():
            return False
    backend.synchronize()
    return True


def host_times(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the host's microseconds per call of each of `calls`, by name: the median of bursts,
    which take turns. Without a GPU it is the whole time of a call."""
    repeats = {name: _repeats(call) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(BURSTS):
            for name, call in calls.items():
                _synchronize()
                start = perf_counter()
                for _ in range(repeats[name]):
                    call()
                samples[name].append((perf_counter() - start) / repeats[name])
        _synchronize()
    finally:
        if collecting:
            gc.enable()
    return {name: statistics.median(found) * 1e6 for name, found in samples.items()}


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _repeats(call: Callable[[], object]) -> int:
    """Return the number of calls per burst, after a few untimed calls."""
    for _ in range(3):
        call()
    _synchronize()
    start = perf_counter()
    call()
    _synchronize()
    single = perf_counter() - start
    return max(1, min(CALLS, int(SECONDS / BURSTS / single)))
