"""The timed calls of every day, by discovery: the inputs have many different numbers, and pytorch=
computes the same as the rungs. Nothing is built: the reference replaces the rungs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from common.base.days import Day, discover, load_lesson
from common.base.declaration import Problem
from common.base.outcome import Skip
from common.bench.timing import differs
from common.check.compare import same_values
from common.check.device import Backend
from common.check.draw import Draw
from common.check.expected import map_tensors, tensors_of

DAYS, _ = discover()
MANY = 1000  # least elements of a tensor whose numbers are checked
LOOKED_AT = 1 << 16  # elements at most
every_day = pytest.mark.parametrize("day", DAYS, ids=[day.name for day in DAYS])


class NotedDraw(Draw):
    """Keep the tensors drawn without a range."""

    def __init__(self, problem: Problem):
        super().__init__(problem.timing_case("cpu"), Backend("cpu"), fast=True)
        self.unbounded: list[Tensor] = []

    def __call__(self, *shape: int, low: float | None = None, **options: Any) -> Tensor:
        drawn = super().__call__(*shape, low=low, **options)
        if low is None:
            self.unbounded.append(drawn)
        return drawn


def timed_problems(day: Day) -> list[Problem]:
    try:
        return [problem for problem in load_lesson(day).problems if problem.timed]
    except Skip as skip:
        pytest.skip(str(skip))


def few_numbers(x: Tensor) -> str:
    """Return in which way the numbers of a tensor are few, or ""."""
    if x.numel() < MANY or x.dtype == torch.bool:
        return ""
    x = x.flatten()[:LOOKED_AT]
    if x.is_floating_point():
        distinct = len(x.float().unique())
        return f"{distinct} numbers" if distinct < (256 if x.element_size() > 1 else 32) else ""
    limits, low, high = torch.iinfo(x.dtype), int(x.min()), int(x.max())
    small = high - low < 0.9 * (limits.max - limits.min)
    return f"integers in [{low}, {high}]" if small else ""


@every_day
def test_what_is_timed_is_drawn_from_many_numbers(day: Day) -> None:
    """Integers without low= and high= cover their dtype after the day has worked on them, too."""
    for problem in timed_problems(day):
        draw = NotedDraw(problem)
        problem.inputs(draw.case, draw)
        for x in draw.unbounded:
            assert not few_numbers(x), (
                f"{problem.name}: {x.dtype} {list(x.shape)}: {few_numbers(x)}"
            )


def outcome(call: Callable[..., Any], args: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors that a call returns or, if it returns none, those that it changes."""
    mine = map_tensors(torch.clone, args)
    with torch.no_grad():
        returned = tensors_of(call(*mine))
    pairs = zip(tree_leaves(args), tree_leaves(mine), strict=True)
    changed = [y for x, y in pairs if isinstance(x, Tensor) and not same_values(x, y)]
    return returned or changed


@every_day
def test_pytorch_computes_what_the_rungs_do(day: Day) -> None:
    for problem in timed_problems(day):
        assert problem.pytorch is not None
        draw = NotedDraw(problem)
        args = problem.inputs(draw.case, draw)
        expected, found = (outcome(call, args) for call in (problem.reference, problem.pytorch))
        assert expected and found, f"{problem.name}: nothing was computed"
        difference = differs(found, expected, problem.own_numbers)
        assert not difference, f"{problem.name}: {difference}"
