"""What a pattern of wrong results says about the mistake behind it.

Two lists of recognisers. Those of OUTPUT look at one wrong output: what the wrong elements hold,
where they are, how they relate to the expected ones. Those of BEHAVIOUR look at what became of
other calls: in other orders, with other numbers in fresh memory, of other sizes and dtypes. A
recogniser returns a sentence, or "" where it does not see its pattern. A sentence states what was
seen; what is only likely, it puts as a question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from common.base.declaration import Case
from common.check.guard import bits, is_poison
from common.cpu.backend import Launch

MOST = 3  # sentences about one output
SIZE = 1 << 22  # elements in which relations are looked for, at most


@dataclass(frozen=True)
class Look:
    """What else is known of the call that gave a wrong output.

    launches: of its kernels, as far as known. again: the same output of another call on the same
    input, where each tensor's fresh memory held a number of its own instead of NaN; None where
    there was none. untouched: where it still held that number; bool, of its shape.
    """

    launches: tuple[Launch, ...] = ()
    again: Tensor | None = None
    untouched: Tensor | None = None


NO_LOOK = Look()


@dataclass(frozen=True)
class Wrong:
    """A wrong output. got, truth: all elements, flat. places: flat indices of the wrong ones, in
    order. shape: of the output."""

    got: Tensor
    truth: Tensor
    places: Tensor
    shape: tuple[int, ...]
    look: Look = NO_LOOK

    @property
    def total(self) -> int:
        return self.got.numel()

    @property
    def count(self) -> int:
        return self.places.numel()

    @property
    def first(self) -> int:
        return int(self.places[0])

    @property
    def last(self) -> int:
        return int(self.places[-1])

    @property
    def width(self) -> int:
        """Elements per row: of the last dimension."""
        return self.shape[-1] if self.shape else 1

    @property
    def floating(self) -> bool:
        return self.got.dtype.is_floating_point

    @cached_property
    def bad(self) -> Tensor:
        """The wrong elements."""
        return self.got[self.places]

    @cached_property
    def bad_again(self) -> Tensor | None:
        """The same elements of the other call."""
        again = self.look.again
        if again is None or again.numel() != self.total or again.dtype != self.got.dtype:
            return None
        return again.reshape(-1)[self.places]

    @cached_property
    def poisoned(self) -> bool:
        """Whether all wrong elements hold what fresh memory is filled with."""
        if not bool(is_poison(self.bad).all()):
            return False
        untouched = self.look.untouched
        return untouched is None or bool(untouched.reshape(-1)[self.places].all())

    @cached_property
    def wide(self) -> Tensor:
        """The wrong elements in a dtype that every operation knows: float8 has few of its own."""
        return self.bad.float() if self.floating and self.bad.element_size() == 1 else self.bad


Recogniser = Callable[[Wrong], str]

# ---------------------------------------------------------------- what the wrong elements hold


def nothing_written(wrong: Wrong) -> str:
    if not wrong.poisoned or wrong.count < wrong.total:
        return ""
    return (
        "nothing was written: every element still holds what fresh memory is filled with"
        f"{_surely(wrong)}. Does the kernel run, and does any thread reach its store?"
    )


def not_written(wrong: Wrong) -> str:
    if not wrong.poisoned:
        return ""
    return f"they hold the poison that fresh memory is filled with: never written{_surely(wrong)}"


def _surely(wrong: Wrong) -> str:
    """One call alone does not tell memory never written from a NaN that was read and passed on."""
    return "" if wrong.look.untouched is not None else ", or read and passed on"


def from_unwritten_memory(wrong: Wrong) -> str:
    """Not a number where fresh memory holds NaN, and a number where it holds one."""
    if not wrong.floating or wrong.bad_again is None:
        return ""
    was_nan = wrong.wide.isnan()
    again = wrong.bad_again.float() if wrong.bad_again.element_size() == 1 else wrong.bad_again
    if not bool(was_nan.any()) or bool((was_nan & again.isnan()).any()):
        return ""
    return (
        f"{_some(was_nan)} NaN, and other numbers when fresh memory holds other numbers: they are "
        "computed from memory that was not written, or that lies outside of a tensor"
    )


def invalid_operation(wrong: Wrong) -> str:
    if not wrong.floating:
        return ""
    nan = wrong.wide.isnan()
    if not bool(nan.any()):
        return ""
    made = "0/0, inf − inf or 0 · inf"
    if wrong.bad.device.type == "cpu" and wrong.bad.element_size() > 1:
        # x86 makes this NaN for an invalid operation; those that are passed on keep their bits.
        default = bits(torch.tensor([-math.nan], dtype=wrong.bad.dtype))
        if bool((bits(wrong.bad)[nan] == default).all()):
            return f"{_some(nan)} NaN that an operation made: {made}"
    return f"{_some(nan)} NaN: {made}, or computed from memory never written or outside of a tensor"


def infinite(wrong: Wrong) -> str:
    if not wrong.floating or not bool(wrong.wide.isinf().all()):
        return ""
    return "they are infinite: an overflow, or a division by zero"


def zero(wrong: Wrong) -> str:
    return "they are all zero" if wrong.count > 1 and not bool(wrong.bad.any()) else ""


def _some(which: Tensor) -> str:
    return "they are" if bool(which.all()) else f"{int(which.sum()):,} of them are"


# ---------------------------------------------------------------- where the wrong elements are


def tail(wrong: Wrong) -> str:
    if not _part(wrong) or wrong.last != wrong.total - 1:
        return ""
    if wrong.count != wrong.total - wrong.first:
        return ""
    if len(wrong.shape) > 1 and wrong.first % wrong.width == 0:
        height = wrong.total // wrong.width
        row = wrong.first // wrong.width
        if row == height - 1:
            return f"only the last row, {row}, is wrong"
    text = f"exactly the tail is wrong: all from flat index {wrong.first} to the end"
    return f"{text} ({wrong.count:,}){_next_thread(wrong)}"


def beginning(wrong: Wrong) -> str:
    if not _part(wrong) or wrong.first != 0 or wrong.last != wrong.count - 1:
        return ""
    return f"exactly the beginning is wrong: all before flat index {wrong.count}"


def columns(wrong: Wrong) -> str:
    if not _part(wrong) or len(wrong.shape) < 2:
        return ""
    width = wrong.width
    found = torch.unique(wrong.places % width)
    low, high = int(found[0]), int(found[-1])
    if found.numel() == 1:
        if low == width - 1 and wrong.count == wrong.total // width:
            return f"the last column, {low}, is wrong in every row, and nothing else is"
        return f"only column {low} of {width} is wrong"
    if low > 0 and high == width - 1 and found.numel() == width - low and low >= width // 2:
        return (
            f"only columns {low} to {high} are wrong, the tail of each row of {width}"
            f"{_next_column(wrong, low)}"
        )
    return ""


def rows(wrong: Wrong) -> str:
    if not _part(wrong) or len(wrong.shape) < 2:
        return ""
    height = wrong.total // wrong.width
    if height == 1:
        return ""
    found = torch.unique(wrong.places // wrong.width)
    if found.numel() == 1:
        row = int(found[0])
        last = ", the last one," if row == height - 1 else ""
        return f"only row {row}{last} of {height} is wrong"
    if int(found[0]) >= height // 2 and int(found[-1]) == height - 1:
        return f"only rows {int(found[0])} to {int(found[-1])} of {height} are wrong, the last ones"
    return ""


def every_nth(wrong: Wrong) -> str:
    """One residue of the index, with a stride that is no dimension."""
    if not _part(wrong) or wrong.count < 8:
        return ""
    steps = wrong.places.diff()
    step = int(steps[0])
    if step < 2 or bool((steps != step).any()):
        return ""
    if wrong.count != len(range(wrong.first % step, wrong.total, step)):
        return ""
    return f"one element in {step} is wrong: those whose index is {wrong.first} modulo {step}"


def _part(wrong: Wrong) -> bool:
    return wrong.count < wrong.total and wrong.total > 1


def _launch(wrong: Wrong) -> tuple[int, int]:
    """Blocks and threads per block of the kernels that ran, where all have one size, along x."""
    sizes = set(wrong.look.launches)
    if len(sizes) != 1:
        return 0, 0
    (launch,) = sizes
    if launch.grid[1:] != (1, 1) or launch.block[1:] != (1, 1):
        return 0, 0
    return launch.grid[0], launch.block[0]


def _next_thread(wrong: Wrong) -> str:
    """Which thread the first element of the tail is, where each thread has one."""
    blocks, block = _launch(wrong)
    if not blocks:
        return ""
    first, threads = wrong.first, blocks * block
    grid = f"{_plural(blocks, 'block')} of {_plural(block, 'thread')}"
    if first == threads:
        return (
            f". The grid has as many threads, {grid}: with one element per thread, thread 0 of "
            f"block {blocks} would be the next, and the grid ends before it"
        )
    if first < threads:
        return (
            f". With one element per thread, that is thread {first % block} of block "
            f"{first // block}, and the grid has it ({grid}): does a condition exclude it?"
        )
    if first % threads == 0:
        return f". That is {first // threads} elements per thread of the grid ({grid})"
    return ""


def _next_column(wrong: Wrong, column: int) -> str:
    blocks, block = _launch(wrong)
    if not blocks or column != block:
        return ""
    return (
        f". A block has {_plural(block, 'thread')}: with one column per thread, column {column} "
        f"would be thread {column}'s, which no block has. Does each thread step on to the next?"
    )


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# ---------------------------------------------------------------- how they relate to the expected


def _numbers(wrong: Wrong) -> tuple[Tensor, Tensor, float, float] | None:
    """got and truth in float64, the largest magnitude, eps; None where there is nothing to say."""
    if wrong.total == 1 or wrong.poisoned or wrong.total > SIZE:
        return None
    g, t = wrong.got.double(), wrong.truth.double()
    usable = g.isfinite() & t.isfinite()
    if not bool(usable.any()):
        return None
    eps = torch.finfo(wrong.got.dtype).eps if wrong.floating else 0.0
    return g, t, float(t[usable].abs().max()), eps


def _alike(wrong: Wrong, arrange: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> bool:
    """Whether what `arrange` makes of got and truth is equal but for rounding, and not because all
    is one value."""
    numbers = _numbers(wrong)
    if numbers is None:
        return False
    g, t, size, eps = numbers
    a, b = arrange(g, t)
    if a.numel() < 2 or bool((b == b[0]).all()):
        return False
    return bool(torch.isclose(a, b, rtol=64 * eps, atol=size * 16 * eps).all())


def transposed(wrong: Wrong) -> str:
    shape = wrong.shape
    if len(shape) < 2 or min(shape[-2:]) < 2:
        return ""
    if not _alike(wrong, lambda g, t: (g, t.view(shape).transpose(-1, -2).reshape(-1))):
        return ""
    each = " of each matrix" if len(shape) > 2 else ""
    return f"got is the transpose{each} of what is expected: are row and column swapped?"


def shifted(wrong: Wrong) -> str:
    if _alike(wrong, lambda g, t: (g[1:], t[:-1])):
        return "got is what is expected, shifted one element towards the end"
    if _alike(wrong, lambda g, t: (g[:-1], t[1:])):
        return "got is what is expected, shifted one element towards the start"
    return ""


def rows_shifted(wrong: Wrong) -> str:
    """Every row shifted by itself."""
    if len(wrong.shape) < 2 or wrong.width < 3 or wrong.total == wrong.width:
        return ""
    width = wrong.width

    def cut(tensor: Tensor, start: int) -> Tensor:
        return tensor.view(-1, width)[:, start : start + width - 1].reshape(-1)

    if _alike(wrong, lambda g, t: (cut(g, 1), cut(t, 0))):
        return "each row is what is expected, shifted one element towards its end"
    if _alike(wrong, lambda g, t: (cut(g, 0), cut(t, 1))):
        return "each row is what is expected, shifted one element towards its start"
    return ""


def reversed_order(wrong: Wrong) -> str:
    if wrong.total > 2 and _alike(wrong, lambda g, t: (g, t.flip(0))):
        return "got is what is expected in reversed order"
    return ""


def opposite_sign(wrong: Wrong) -> str:
    if _alike(wrong, lambda g, t: (g, -t)):
        return "got is what is expected with the opposite sign"
    return ""


def _wrong_numbers(wrong: Wrong) -> tuple[Tensor, Tensor, float, float] | None:
    """The same of the wrong elements alone, those that are finite."""
    numbers = _numbers(wrong)
    if numbers is None:
        return None
    g, t, size, eps = numbers
    g, t = g[wrong.places], t[wrong.places]
    usable = g.isfinite() & t.isfinite()
    return g[usable], t[usable], size, eps


def factor(wrong: Wrong) -> str:
    numbers = _wrong_numbers(wrong)
    if numbers is None:
        return ""
    g, t, _, eps = numbers
    nonzero = (t != 0) & (g != 0)
    if int(nonzero.sum()) < 3:
        return ""
    ratio = g[nonzero] / t[nonzero]
    middle = float(ratio.median())
    if abs(middle - 1) > 0.01 and bool(((ratio / middle - 1).abs() < 1e-3 + 8 * eps).all()):
        return f"got is {middle:.5g} times what is expected"
    return ""


def row_factors(wrong: Wrong) -> str:
    """Every row is off by a factor of its own."""
    numbers = _numbers(wrong)
    if numbers is None or len(wrong.shape) < 2 or wrong.width < 8:
        return ""
    g, t, _, eps = numbers
    rows = torch.unique(wrong.places // wrong.width)
    g, t = g.view(-1, wrong.width)[rows], t.view(-1, wrong.width)[rows]
    if g.shape[0] < 2 or not bool((g.isfinite() & t.isfinite() & (g != 0) & (t != 0)).all()):
        return ""
    ratio = g / t
    middle = ratio.median(dim=1, keepdim=True).values
    if not bool(((ratio / middle - 1).abs() < 1e-3 + 8 * eps).all()):
        return ""
    if not bool(((middle - 1).abs() > 0.003).all()):
        return ""
    first = int(rows[0])
    return (
        f"each wrong row is off by a factor of its own (row {first}: {float(middle[0]):.5g}, row "
        f"{int(rows[1])}: {float(middle[1]):.5g}): is what the row is divided or scaled by wrong?"
    )


def offset(wrong: Wrong) -> str:
    numbers = _wrong_numbers(wrong)
    if numbers is None:
        return ""
    g, t, size, eps = numbers
    if g.numel() < 3:
        return ""
    difference = g - t
    middle = float(difference.median())
    spread = float((difference - middle).abs().max())
    if abs(middle) > 0.01 * size and spread < 1e-3 * abs(middle) + 8 * eps * size:
        return f"got is what is expected {middle:+.5g}"
    return ""


def lower_precision(wrong: Wrong) -> str:
    numbers = _wrong_numbers(wrong)
    if numbers is None or not wrong.floating:
        return ""
    g, t, _, _ = numbers
    limits = torch.finfo(wrong.got.dtype)
    normal = t.abs() > limits.smallest_normal
    if int(normal.sum()) < 8:
        return ""
    relative = float(((g - t).abs() / t.abs())[normal].median())
    # A long sum in float16 errs as much as one rounding to bfloat16.
    kinds = (
        ("float32", "float32", 2.0**-23),
        ("float16 or tf32", "float16 or tf32", 2.0**-10),
        ("bfloat16", "16 bits", 2.0**-7),
    )
    for narrow, kept, eps in kinds:
        # One rounding errs by a sixth of eps in the median, several by a little more.
        if eps > limits.eps and eps / 16 < relative <= eps / 2:
            return (
                f"the errors are the size of {narrow}'s rounding: is a value kept, or a sum added "
                f"up, in {kept}, although the result is "
                f"{str(wrong.got.dtype).removeprefix('torch.')}?"
            )
    return ""


# Of each group, the first that sees its pattern speaks.
OUTPUT: tuple[tuple[Recogniser, ...], ...] = (
    (nothing_written, not_written, from_unwritten_memory, invalid_operation, infinite, zero),
    (tail, beginning, columns, rows, every_nth),
    (
        transposed,
        shifted,
        rows_shifted,
        reversed_order,
        opposite_sign,
        factor,
        row_factors,
        offset,
        lower_precision,
    ),
)


def hints(wrong: Wrong) -> list[str]:
    """What the output says, a sentence of each group at most."""
    said = (next(filter(None, (see(wrong) for see in group)), "") for group in OUTPUT)
    return [text for text in said if text][:MOST]


# ---------------------------------------------------------------- other calls


@dataclass(frozen=True)
class Behaviour:
    """What became of several calls of one rung.

    orders: of threads, and whether the result was right in each. differ: two orders, both wrong,
    that give different results, where the first gives its own again. repeats: whether further calls
    in the first order gave the same as the first did; None where that was not tried. fresh: of
    calls on one input, whether they were right with NaN in fresh memory and with numbers in it;
    both several times. calls: of calls in turn, whether they were right. cases: of one dtype,
    with whether they were right. dtypes: of the case that failed, which were right. not_finite: the
    wrong output has infinities or NaN where finite numbers are expected.
    """

    orders: dict[str, bool] = field(default_factory=dict)
    repeats: bool | None = None
    differ: tuple[str, ...] = ()
    fresh: tuple[tuple[bool, ...], tuple[bool, ...]] = ((), ())
    calls: tuple[bool, ...] = ()
    cases: tuple[tuple[Case, bool], ...] = ()
    dtypes: dict[str, bool] = field(default_factory=dict)
    not_finite: bool = False


def one_order(seen: Behaviour) -> str:
    right = [order for order, fine in seen.orders.items() if fine]
    wrong = [order for order, fine in seen.orders.items() if not fine]
    if not right or not wrong:
        return ""
    text = f"right with threads in {right[0]} order, wrong in {wrong[0]} order"
    if seen.repeats:
        return f"{text}: it depends on the order in which threads run: a race"
    if seen.repeats is None:
        return text
    return (
        f"{text}. But another call in {next(iter(seen.orders))} order differs as well: it depends "
        "on what ran before (a result that is kept, memory that is not written), or on chance"
    )


def every_order(seen: Behaviour) -> str:
    if not seen.differ:
        return ""
    return (
        f"wrong with threads in {' and in '.join(seen.differ)} order, and differently: it depends "
        "on the order in which threads run: a race"
    )


def unwritten_memory(seen: Behaviour) -> str:
    nan, numbers = seen.fresh
    if len(nan) < 2 or len(numbers) < 2 or any(nan) != all(nan) or any(numbers) != all(numbers):
        return ""  # too few, or runs differ by chance
    if nan[0] == numbers[0]:
        return ""
    right, wrong = ("NaN", "numbers") if nan[0] else ("numbers", "NaN")
    return (
        f"right where fresh memory holds {right}, wrong where it holds {wrong}: memory is read "
        "that was not written, or that lies outside of a tensor"
    )


def first_call_only(seen: Behaviour) -> str:
    if len(seen.calls) < 3 or not seen.calls[0] or any(seen.calls[1:]):
        return ""
    return (
        f"right on the first call only, wrong on the {len(seen.calls) - 1} after it: something is "
        "kept from call to call (a static variable, a counter or buffer that is not reset)"
    )


def multiples(seen: Behaviour) -> str:
    """Right where one size is a multiple of a power of two, and wrong where it is not."""
    found = [text for place in range(_rank(seen)) if (text := _multiples_of(seen, place))]
    return found[0] if len(found) == 1 else ""  # two sizes that explain it explain nothing


def _rank(seen: Behaviour) -> int:
    ranks = {len(case.shape) for case, _ in seen.cases}
    return ranks.pop() if len(ranks) == 1 else 0


def _multiples_of(seen: Behaviour, place: int) -> str:
    right = sorted({case.shape[place] for case, fine in seen.cases if fine and all(case.shape)})
    wrong = sorted({case.shape[place] for case, fine in seen.cases if not fine})
    if len(right) < 2 or len(wrong) < 2 or set(right) & set(wrong):
        return ""
    if right[-1] < wrong[0] or wrong[-1] < right[0]:
        return ""  # it may as well be how large they are
    steps = [
        step
        for step in (2**power for power in range(1, 11))
        if all(size % step == 0 for size in right) and all(size % step for size in wrong)
    ]
    if not steps:
        return ""
    few = " or ".join([", ".join(map(str, steps[:-1])), str(steps[-1])][len(steps) == 1 :])
    return (
        f"right where {_size(seen, place)} is {_list(right)}, wrong where it is {_list(wrong)}, as "
        f"if only multiples of {few} were handled: what does the incomplete part at the end do?"
    )


def up_to_a_size(seen: Behaviour) -> str:
    found = [text for place in range(_rank(seen)) if (text := _up_to(seen, place))]
    return found[0] if len(found) == 1 else ""


def _up_to(seen: Behaviour, place: int) -> str:
    right = sorted({case.shape[place] for case, fine in seen.cases if fine and all(case.shape)})
    wrong = sorted({case.shape[place] for case, fine in seen.cases if not fine})
    if len(right) < 3 or len(wrong) < 2 or right[-1] >= wrong[0]:
        return ""
    odd = {size % 2 for size in right}, {size % 2 for size in wrong}
    if not odd[0] & odd[1]:
        return ""  # it may as well be what they are multiples of
    return (
        f"right where {_size(seen, place)} is at most {right[-1]}, wrong from {wrong[0]} on: "
        "does each thread go on to its next element, and are there enough blocks?"
    )


def half_overflow(seen: Behaviour) -> str:
    right = [name for name, fine in seen.dtypes.items() if fine and name != "float16"]
    if seen.dtypes.get("float16", True) or not right or not seen.not_finite:
        return ""
    if not all(fine for name, fine in seen.dtypes.items() if name != "float16"):
        return ""
    return (
        f"right in {' and '.join(right)}, infinite or NaN in float16 alone, whose largest number "
        "is 65504: does a sum or a product on the way exceed it?"
    )


def _size(seen: Behaviour, place: int) -> str:
    """What to call that size of the cases' shapes."""
    last = _rank(seen) - 1
    if last == 0:
        return "the length"
    return {0: "the first size", last: "the last size"}.get(place, f"size {place + 1}")


def _list(sizes: Sequence[int]) -> str:
    shown = [str(size) for size in sizes[:4]]
    return ", ".join([*shown, "…"] if len(sizes) > 4 else shown)


BEHAVIOUR: tuple[Callable[[Behaviour], str], ...] = (
    one_order,
    every_order,
    unwritten_memory,
    first_call_only,
    half_overflow,
    multiples,
    up_to_a_size,
)


def habits(seen: Behaviour) -> list[str]:
    """What the calls say."""
    return [text for recognise in BEHAVIOUR if (text := recognise(seen))]
