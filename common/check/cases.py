"""Choose the cases on which a rung is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torch.utils._pytree import tree_leaves

from common.base.declaration import Case, Problem
from common.check.draw import Draw

if TYPE_CHECKING:
    from common.check.device import Backend

TRACED_ELEMENTS = 8400  # of all arguments: a product of larger ones takes minutes to trace
MORE_CASES = 4  # that a quick check adds if a rung has only fallen back so far


def volume(case: Case) -> int:
    """Return the product of the sizes in the shape of the case."""
    return math.prod(case.shape)


def quick_cases(cases: Sequence[Case]) -> list[Case]:
    """Return one case per dtype: a small one, with an odd size in its shape if there is one."""

    def rank(case: Case) -> tuple[bool, bool, bool, int]:
        size = volume(case)
        odd = any(size % 2 and size > 1 for size in case.shape)
        return (case.values != "normal", size < 2, not odd, size)

    best: dict[str, Case] = {}
    for case in cases:
        if case.dtype not in best or rank(case) < rank(best[case.dtype]):
            best[case.dtype] = case
    return list(best.values())


def until_own_kernel(
    chosen: Sequence[Case], cases: Sequence[Case], enough: Callable[[], bool]
) -> Iterator[Case]:
    """Yield the chosen cases, then a few others, the smallest first, until `enough` is true."""
    yield from chosen
    others = dict.fromkeys(case for case in cases if case not in chosen)
    for case in sorted(others, key=volume)[:MORE_CASES]:
        if enough():
            return
        yield case


def largest(cases: Sequence[Case], most: int) -> list[Case]:
    """Return the three largest cases with at most `most` elements in their shape."""
    fitting = [case for case in cases if volume(case) <= most]
    return sorted(fitting, key=volume)[-3:]


def several_blocks(problem: Problem, cases: Sequence[Case], backend: Backend) -> list[Case]:
    """Return the largest case that can be traced in seconds, if any: a race needs two blocks, and
    the smallest case may have only one."""
    elements = {}
    for case in cases:
        if case.values == "normal":
            args = tree_leaves(problem.inputs(case, Draw(case, backend)))
            drawn = sum(arg.numel() for arg in args if isinstance(arg, Tensor))
            if drawn <= TRACED_ELEMENTS:
                elements[case] = drawn
    return sorted(elements, key=elements.__getitem__)[-1:]
