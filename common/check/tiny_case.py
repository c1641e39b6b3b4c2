"""Show one tiny case of a rung in full: its inputs, its result and the expected one, as numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from common.base.declaration import Case, Problem, Rung
from common.check.call import call_guarded, judge
from common.check.compare import Pair, wrong_elements
from common.check.draw import Draw
from common.check.expected import (
    RAISED,
    Expected,
    ProblemError,
    Signature,
    evaluate,
    rolled_samples,
    signature_of,
)

if TYPE_CHECKING:
    from common.check.device import Backend

MOST_ELEMENTS = 64  # of a tensor
MOST_LINES = 30  # that show a case
TRYING = 2.0  # seconds for the search for a case that is wrong
FEW = 4  # a smaller case shows no pattern: it is used if no larger one is wrong
WIDTH = 72  # characters per line: 78 minus the margin of a rung's explanation
NEVER = "—"  # shown for an element that was never written
ROUNDED = ("normal", "uniform")  # the values whose numbers are drawn with two decimals

# Sizes for dimensions that take any size, the most readable first.
_SIZES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((5,), (10,), (17,), (33,), (64,)),
    2: ((2, 3), (3, 5), (1, 7), (7, 1), (3, 7), (12, 3), (4, 9), (1, 33), (33, 1), (1, 64)),
    3: ((2, 3, 4), (1, 1, 7), (3, 5, 2), (3, 4, 5), (4, 3, 10), (7, 8, 8)),
}


# ---------------------------------------------------------------- the case


def small_cases(cases: Sequence[Case], like: Case) -> list[Case]:
    """Return cases of the dtype and values of `like`, declared ones and similar ones, the smallest
    first, but those of fewer than FEW elements last.

    As in a random case, a dimension that is odd in one of the cases takes any size; any other keeps
    the smallest size of the cases.
    """
    alike = [c for c in cases if (c.dtype, c.values) == (like.dtype, like.values)]
    shapes = [case.shape for case in alike if 0 not in case.shape]
    shapes += [
        shape
        for rank in dict.fromkeys(len(shape) for shape in shapes if shape)
        for shape in _made([c.shape for c in cases if len(c.shape) == rank])
    ]

    def size(shape: tuple[int, ...]) -> tuple[bool, int]:
        return 0 < math.prod(shape) < FEW, math.prod(shape)

    return [Case(s, like.dtype, like.values) for s in sorted(dict.fromkeys(shapes), key=size)]


def _made(shapes: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield small shapes that are similar to these, which have one rank."""
    known = [sorted({shape[dim] for shape in shapes} - {0}) for dim in range(len(shapes[0]))]
    free = [dim for dim, sizes in enumerate(known) if any(size % 2 and size > 1 for size in sizes)]
    if not free or not all(known):
        return
    last = free[-3:]
    for sizes in _SIZES[len(last)]:
        shape = [each[0] for each in known]
        for dim in free[:-3]:
            shape[dim] = 1 if 1 in known[dim] else 2
        for dim, size in zip(last, sizes, strict=True):
            shape[dim] = size
        yield tuple(shape)


class _RoundedDraw(Draw):
    """Draw floating numbers of two decimals, so that a result can be checked by hand."""

    def __call__(self, *shape: int, **how: Any) -> Tensor:
        drawn = super().__call__(*shape, **how)
        values = how.get("values") or self.case.values
        if how.get("low") is not None or values not in ROUNDED or not drawn.is_floating_point():
            return drawn
        return drawn.copy_(drawn.double().mul(100).round().div(100))


@dataclass(frozen=True)
class SmallCase:
    """A case whose tensors are all small, with its inputs and expected results."""

    case: Case
    args: tuple[Any, ...]
    on_host: bool
    expected: Expected


def small_case(
    problem: Problem, case: Case, backend: Backend, writes: tuple[int, ...], most: int
) -> SmallCase | None:
    """Return the case with its inputs; None if the problem or its reference does not support its
    shape, or a tensor has more than `most` elements.

    writes: positions of the arguments that the rung writes.
    """
    draw = _RoundedDraw(case, backend)
    try:
        args = problem.inputs(case, draw)
        if not isinstance(args, tuple) or _largest(args) > most:
            return None
        expected = evaluate(problem, args, writes)
    except (ProblemError, *RAISED):
        return None
    if _largest([own for _, own in expected.returned + expected.written]) > most:
        return None
    return SmallCase(case, args, draw.on_host, expected)


def _largest(tensors: Any) -> int:
    """Return the number of elements of the largest of these tensors."""
    return max((t.numel() for t in tree_leaves(tensors) if isinstance(t, Tensor)), default=0)


def tiny_case(
    problem: Problem, rung: Rung, call: Callable[..., Any], like: Case, backend: Backend
) -> list[str]:
    """Return lines that show a small case on which the rung gives wrong values; [] if none is found
    in TRYING seconds.

    like: a case with wrong values. On the CPU backend only: on the next case the same mistake may
    be an illegal access, which would leave a GPU in error.
    """
    if not backend.watches_calls:
        return []
    signature = signature_of(call, problem.reference)
    until = time.monotonic() + TRYING
    for case in small_cases(problem.cases_of(rung), like):
        left = until - time.monotonic()
        if left <= 0:
            break
        small = small_case(problem, case, backend, signature.writes, MOST_ELEMENTS)
        if small is None:
            continue
        with backend.time_limit(left):
            lines = _shown_if_wrong(problem, call, signature, small, backend)
        if lines:
            return lines
    return []


def _shown_if_wrong(
    problem: Problem,
    call: Callable[..., Any],
    signature: Signature,
    small: SmallCase,
    backend: Backend,
) -> list[str]:
    """Return the lines of `tiny_case` for this case; [] if the rung is right, or refuses it."""

    expected = small.expected
    try:
        done, other = (
            call_guarded(call, signature, small.args, backend, variant, small.on_host)
            for variant in (0, 2)  # fresh memory holds other numbers in the second
        )
    except Exception:
        return []  # it refuses the case, or fails in another way: another case may show more
    more = rolled_samples(problem, expected, signature.writes)
    if not judge(problem, expected, done.outputs, done.names, signature, lambda: more):
        return []
    pairs = expected.pairs(len(done.outputs))
    if pairs is None or len(other.outputs) != len(done.outputs):
        return []
    results = []
    for place, (name, got) in enumerate(zip(done.names, done.outputs, strict=True)):
        truth, own = pairs[place]
        if (got.shape, got.dtype) != (own.shape, own.dtype):
            return []
        samples: list[Pair] = [*expected.rough[place : place + 1]]
        for sample in more:
            samples += (sample.pairs(len(pairs)) or [])[place : place + 1]
        how = problem.tolerance, problem.outputs_exact
        never = done.memory.untouched(got) & other.memory.untouched(other.outputs[place])
        wrong = wrong_elements(got, truth, own, *how, samples)
        results.append(Result(name.removeprefix("the output"), got, truth, wrong, never))
    if not any(bool(result.wrong.any()) for result in results):
        return []  # its strides are wrong, or its errors on average
    inputs = list(zip(signature.names, small.args, strict=False))
    lines = [f"a tiny case in full, {small.case}:", *picture(inputs, results)]
    return lines if len(lines) <= MOST_LINES else []


# ---------------------------------------------------------------- numbers as text


@dataclass(frozen=True)
class Result:
    """An output and its expected values. name: "" for the only output. wrong: bool mask of the
    elements that are not accepted; never: bool mask of those never written."""

    name: str
    got: Tensor
    truth: Tensor
    wrong: Tensor
    never: Tensor


@dataclass
class _Block:
    """A tensor as text. cells: its elements, in order. shape: () for a scalar."""

    label: str
    shape: tuple[int, ...]
    cells: list[str]

    @property
    def width(self) -> int:
        """Return the number of cells per row; a column is shown as a row."""
        return self.shape[-1] if self.shape and self.shape[-1] > 1 else len(self.cells)

    @property
    def title(self) -> str:
        if len(self.shape) < 2:
            return self.label
        return f"{self.label} ({'×'.join(map(str, self.shape))})"


def picture(inputs: Sequence[tuple[str, Any]], results: Sequence[Result]) -> list[str]:
    """Return lines of at most WIDTH characters with all numbers of a case: the inputs, then "yours"
    and "expected" for each output, and a legend.

    inputs: names and values, which may be tensors or lists of tensors.
    """
    blocks, plain = [], []
    for name, value in inputs:
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
        for number, tensor in enumerate(tensors):
            label = name if isinstance(value, Tensor) else f"{name}[{number}]"
            blocks.append(_Block(label, tuple(tensor.shape), _cells(tensor)))
        if not tensors:
            plain.append(f"{name} = {value}")
    for result in results:
        yours, expected = _compared(result)
        shape = tuple(result.got.shape)
        name = result.name.removeprefix(", ").strip()
        blocks.append(_Block(f"yours {name}".strip(), shape, yours))
        blocks.append(_Block(f"expected {name}".strip(), shape, expected))
    return [*_laid_out(blocks), *([f"  {', '.join(plain)}"] if plain else []), _legend(results)]


def _legend(results: Sequence[Result]) -> str:
    never = any(bool(result.never.any()) for result in results)
    return "  * wrong" + (f"   {NEVER} never written" if never else "")


def _compared(result: Result) -> tuple[list[str], list[str]]:
    """Return the cells of an output and of its expected values, with enough digits to distinguish
    each wrong element from its expected value."""
    got, truth = result.got, result.truth
    wrong = result.wrong.reshape(-1).tolist()
    never = result.never.reshape(-1).tolist()
    most = 17 if got.dtype == torch.float64 else 9
    for digits in range(DIGITS, most + 1):
        if got.dtype.is_floating_point:
            both = _cells(torch.cat([got.reshape(-1).double(), truth.reshape(-1).double()]), digits)
        else:
            both = [*_cells(got), *_cells(truth.to(got.dtype))]
        mine, theirs = both[: got.numel()], both[got.numel() :]
        pairs = zip(mine, theirs, wrong, strict=True)
        if not any(a == b for a, b, is_wrong in pairs if is_wrong):
            break
    shown = [NEVER if n else text for text, n in zip(mine, never, strict=True)]
    return [f"{text}*" if w else text for text, w in zip(shown, wrong, strict=True)], theirs


DIGITS = 4  # of a floating number, unless more are needed to distinguish two


def _cells(tensor: Tensor, digits: int = DIGITS) -> list[str]:
    """Return the elements as text, in order; floating ones with `digits` significant digits, and
    with equally many decimals if no exponent is needed."""
    if not tensor.dtype.is_floating_point:
        return [str(value) for value in tensor.reshape(-1).tolist()]
    values = tensor.reshape(-1).double().tolist()
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    top = math.floor(math.log10(max(sizes, default=1.0)))
    decimals = max(digits - 1 - max(top, 0), 0)
    if top >= 6 or (sizes and min(sizes) < 0.5 * 10.0**-decimals):
        return [f"{value:.{digits}g}" for value in values]
    texts = [f"{value:.{decimals}f}" for value in values]
    while decimals and all(text[-1] == "0" for text in texts if text[-1].isdigit()):
        decimals -= 1
        texts = [f"{value:.{decimals}f}" for value in values]
    return texts


def _laid_out(blocks: Sequence[_Block]) -> list[str]:
    """Return the lines of all tensors; those with equally long rows share their columns."""
    margin = max(len(block.title) for block in blocks) + 4
    widths: dict[int, int] = {}
    for block in blocks:
        longest = max((len(text.rstrip("*")) for text in block.cells), default=0)
        widths[block.width] = max(widths.get(block.width, 0), longest)
    return [line for block in blocks for line in _rows(block, margin, widths[block.width])]


def _rows(block: _Block, margin: int, width: int) -> list[str]:
    """Return the lines of a tensor. Long rows are cut into pieces: the first piece of each row
    comes first, then the next."""
    if not block.cells:
        return [f"  {block.title}".ljust(margin) + "(empty)"]
    fits = max((WIDTH - margin) // (width + 2), 1)
    slices = block.width * (block.shape[-2] if len(block.shape) > 2 else len(block.cells))
    lines = []
    for first in range(0, block.width, fits):
        last = min(first + fits, block.width)
        for row in range(0, len(block.cells), block.width):
            place = f"[{row // slices}]" if len(block.shape) > 2 and row % slices == 0 else ""
            title = block.title if row == first == 0 else f"  {place}"
            if row == 0 < first:
                title = f"  {place}[{first}…]"
            cells = "".join(
                text.rjust(width + 1) + " " if text[-1] != "*" else text.rjust(width + 2)
                for text in block.cells[row + first : row + last]
            )
            lines.append((f"  {title}".ljust(margin) + cells).rstrip())
    return lines
