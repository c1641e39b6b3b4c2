"""The days' checks reject kernels that are wrong in a way that any kernel can be wrong.

Nothing is built: Python functions replace the rung's operator. They are made of the problem's own
reference, which as a rung must pass; so only the fault is rejected.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from common.base.days import Day, discover, load_lesson
from common.base.declaration import Problem, Rung
from common.base.outcome import Skip
from common.check.cases import quick_cases
from common.check.compare import same_values
from common.check.device import Backend
from common.check.draw import Draw
from common.check.expected import map_tensors, tensors_of
from common.check.rungs import check_rung

DAYS, _ = discover()
Call = Callable[..., Any]


def _rounded(problem: Problem) -> Call:
    """Return the reference as a rung: without visible allocations, and never a view of an input."""

    def call(*args: Any) -> Any:
        with _disable_current_modes():
            return map_tensors(lambda t: t.clone(), (problem.reference(*args),))[0]

    return call


def _each(function: Callable[[Tensor], Tensor]) -> Callable[[Call], Call]:
    def wrong(right: Call) -> Call:
        return lambda *args: map_tensors(function, (right(*args),))[0]

    return wrong


def _not_a_number(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return torch.full_like(tensor, torch.nan)
    return torch.full_like(tensor, 0 if tensor.dtype == torch.bool else 77)


def _stale(right: Call) -> Call:
    """Return a call that gives the last call's memory, cut off or followed by zeros; the first is
    right."""
    last: list[list[Tensor]] = []

    def call(*args: Any) -> Any:
        now = right(*args)
        kept = iter(last[0] if last else tensors_of(now))
        last[:] = [tensors_of(now)]

        def stale(output: Tensor) -> Tensor:
            left, result = next(kept).flatten(), torch.zeros_like(output).flatten()
            count = min(left.numel(), result.numel())
            result[:count] = left[:count]
            return result.view(output.shape)

        return map_tensors(stale, (now,))[0]

    return call


def _first_call_only(right: Call) -> Call:
    calls: list[int] = []

    def call(*args: Any) -> Any:
        calls.append(1)
        result = right(*args)
        return result if len(calls) == 1 else map_tensors(torch.zeros_like, (result,))[0]

    return call


def _by_pointer(right: Call) -> Call:
    known: dict[Any, Any] = {}

    def call(*args: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        key = tuple((t.data_ptr(), t.shape, t.dtype) for t in tensors)
        if key not in known:
            known[key] = right(*args)
        return map_tensors(torch.clone, (known[key],))[0]

    return call


def _input_back(right: Call) -> Call:
    """Return a call that gives an input as an output of its shape and dtype; else, zeros."""

    def call(*args: Any) -> Any:
        inputs = [arg for arg in args if isinstance(arg, Tensor)]

        def like(output: Tensor) -> Tensor:
            for tensor in inputs:
                if (tensor.shape, tensor.dtype) == (output.shape, output.dtype):
                    return tensor
            return torch.zeros_like(output)

        return map_tensors(like, (right(*args),))[0]

    return call


def _tensors(args: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments, including those in lists."""
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list):
            yield from _tensors(arg)


def _modified_and_restored(right: Call) -> Call:
    def call(*args: Any) -> Any:
        for arg in _tensors(args):
            if arg.numel() and arg.dtype != torch.bool:
                before = arg.clone()
                arg.zero_()
                arg.copy_(before)
        return right(*args)

    return call


WRONG = {
    "zeros": _each(torch.zeros_like),
    "not a number": _each(_not_a_number),
    "stale": _stale,
    "an input handed back": _input_back,
    "right on the first call only": _first_call_only,
    "kept by pointer": _by_pointer,
    "an input modified and restored": _modified_and_restored,
}


def _only_timing_shape(problem: Problem) -> Call:
    """Return a call that is right for the timed shapes; for other sizes, the last element is left
    out."""
    right = _rounded(problem)
    shapes = {case.shape for case in (problem.bench, problem.bench_cpu)}

    def call(*args: Any) -> Any:
        result = right(*args)
        sizes = tuple(size for arg in _tensors(args) for size in arg.shape)
        if any(all(size in sizes for size in shape) for shape in shapes if shape):
            return result

        def short(output: Tensor) -> Tensor:
            flat = output.contiguous().flatten()
            if flat.numel():
                flat[-1] = 0 if flat[-1] != 0 else 1
            return flat.view(output.shape)

        return map_tensors(short, (result,))[0]

    return call


def _writes(problem: Problem) -> bool:
    """Return True if its rungs write arguments, as the reference then does."""
    case = quick_cases(problem.cases)[0]
    args = problem.inputs(case, Draw(case, Backend("cpu"), 1))
    copies = map_tensors(torch.clone, args)
    with torch.no_grad():
        returned = tensors_of(problem.reference(*copies))
    tensors = [a for a in args if isinstance(a, Tensor)]
    changed = [c for c in copies if isinstance(c, Tensor)]
    same = all(torch.equal(a, c) for a, c in zip(tensors, changed, strict=True))
    return not returned or not same


def _depends_on_numbers(problem: Problem) -> bool:
    """Return True if two draws of a case give different results: else a kept one is a right one."""
    for case in quick_cases(problem.cases):
        first, second = (
            tensors_of(problem.reference(*problem.inputs(case, Draw(case, Backend("cpu"), seed))))
            for seed in (1, 2)
        )
        if not all(same_values(a, b) for a, b in zip(first, second, strict=True)):
            return True
    return False


def _problems(day: Day) -> list[Problem]:
    try:
        return [p for p in load_lesson(day).problems if not _writes(p) and not p.gradients]
    except Skip:
        return []


def _check(problem: Problem, call: Call) -> Any:
    """Return the check of a call as the rung, with the reference's argument names."""
    try:
        signature = inspect.signature(problem.reference)
    except ValueError:  # a function of PyTorch's has no argument names
        inputs = problem.inputs(problem.cases[0], Draw(problem.cases[0], Backend("cpu"), seed=1))
        names = "abcdefgh"[: len(inputs)]
        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, positional) for name in names])
    call.__signature__ = signature  # type: ignore[attr-defined]
    rung = Rung("wrong", "a wrong one", not_repeatable="compared by value alone")
    return check_rung(problem, rung, call, Backend("cpu"), quick=True)


@pytest.mark.some_days("wrong kernels")
@pytest.mark.parametrize("day", DAYS, ids=[day.name for day in DAYS])
def test_wrong_kernels_are_rejected(day: Day) -> None:
    for problem in _problems(day):
        right = _check(problem, _rounded(problem)).failure
        assert right is None, f"{problem.name}: its own reference is rejected: {right}"
        kept = _depends_on_numbers(problem)
        for name, wrong in WRONG.items():
            if wrong in (_stale, _by_pointer) and not kept:
                continue
            result = _check(problem, wrong(_rounded(problem)))
            assert result.failure is not None, f"{problem.name}: {name} was accepted"
        result = _check(problem, _only_timing_shape(problem))
        assert result.failure is not None, f"{problem.name}: right for the timing shape alone"
