"""Recognise patterns of wrong results, and name the likely mistake.

There are two lists of recognisers. Those of OUTPUT examine one wrong output: the values of the
wrong elements, their positions, their relation to the expected values. Those of BEHAVIOUR examine
the outcomes of other calls: in other orders, with other numbers in fresh memory, of other sizes and
dtypes. A recogniser returns a sentence, or "" if it does not find its pattern. A sentence states
observations; a likely cause is put as a question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from common.base.declaration import Case
from common.check.guard import bits, is_poison
from common.cpu.backend import Launch

MOST = 3  # sentences about one output
SIZE = 1 << 22  # most elements of an output that is searched for relations
ALL_ONES = -1  # the bits of an element of shared memory to which nothing was stored
UNSET = 2**32 - 1  # the same as an unsigned int
FARTHEST = 8  # elements by which a result may be shifted
ROUNDINGS = 16  # times its eps: the most that many roundings to a dtype add up to


@dataclass(frozen=True)
class Look:
    """Further facts about the call that gave a wrong output.

    launches: of its kernels, as far as known. again: the same output of another call on the same
    input, with a different number in each tensor's fresh memory instead of NaN; None without such a
    call. untouched: bool mask, of its shape, of the elements that still held that number.
    explained: other calls or observations already show the cause.
    """

    launches: tuple[Launch, ...] = ()
    again: Tensor | None = None
    untouched: Tensor | None = None
    explained: bool = False

    def on(self, device: torch.device) -> Look:
        """Return the same with all tensors on this device."""
        if self.again is None:
            return self
        untouched = None if self.untouched is None else self.untouched.to(device)
        return replace(self, again=self.again.to(device), untouched=untouched)


NO_LOOK = Look()


@dataclass(frozen=True)
class Wrong:
    """A wrong output. got, truth: all elements, flat. places: flat indices of the wrong elements,
    in order. shape: of the output."""

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
        """Return the number of elements per row, the last dimension."""
        return self.shape[-1] if self.shape else 1

    @property
    def floating(self) -> bool:
        return self.got.dtype.is_floating_point

    @cached_property
    def bad(self) -> Tensor:
        """Return the wrong elements."""
        return self.got[self.places]

    @cached_property
    def bad_again(self) -> Tensor | None:
        """Return the same elements of the other call, or None."""
        again = self.look.again
        if again is None or again.numel() != self.total or again.dtype != self.got.dtype:
            return None
        return again.reshape(-1)[self.places]

    @cached_property
    def unwritten(self) -> Tensor:
        """Return a bool mask of all elements that still hold the fill of fresh memory."""
        untouched = self.look.untouched
        poison = is_poison(self.got)
        return poison if untouched is None else poison & untouched.reshape(-1)

    @cached_property
    def poisoned(self) -> bool:
        """Return True if all wrong elements still hold the fill of fresh memory."""
        return bool(self.unwritten[self.places].all())

    @cached_property
    def wide(self) -> Tensor:
        """Return the wrong elements in a dtype that all operations support; few support float8."""
        return self.bad.float() if self.floating and self.bad.element_size() == 1 else self.bad


Recogniser = Callable[[Wrong], str]

# ---------------------------------------------------------------- values of the wrong elements


def nothing_written(wrong: Wrong) -> str:
    if not wrong.poisoned or wrong.count < wrong.total:
        return ""
    return (
        "nothing was written: every element still holds what fresh memory is filled with"
        f"{_surely(wrong)}. Does the kernel run, and does any thread reach its store?"
    )


def not_written(wrong: Wrong) -> str:
    number = int(wrong.unwritten[wrong.places].sum())
    if not number:
        return ""
    they = "they were" if number == wrong.count else f"{number:,} of them were"
    if number == 1:
        they = "it was" if wrong.count == 1 else "1 of them was"
    what = "it holds" if number == 1 else "they hold"
    return f"{they} never written: {what} what fresh memory is filled with{_surely(wrong)}"


def _surely(wrong: Wrong) -> str:
    """Return "", or a reservation if one call alone cannot distinguish unwritten memory from a NaN
    that was read and passed on."""
    return "" if wrong.look.untouched is not None else " (or it was read, and passed on)"


def from_unwritten_memory(wrong: Wrong) -> str:
    """Recognise NaN where fresh memory holds NaN, and a number where it holds one."""
    if not wrong.floating or wrong.bad_again is None:
        return ""
    was_nan = wrong.wide.isnan()
    again = wrong.bad_again.float() if wrong.bad_again.element_size() == 1 else wrong.bad_again
    if not bool(was_nan.any()) or bool((was_nan & again.isnan()).any()):
        return ""
    return (
        f"{_some(wrong, was_nan)} NaN, and other numbers when fresh memory holds other numbers: "
        "computed from memory that was not written, or that lies outside of a tensor"
    )


def from_shared_memory(wrong: Wrong) -> str:
    """Recognise NaN with the bits that the CPU backend gives shared memory."""
    if not wrong.floating or wrong.bad.device.type != "cpu":
        return ""
    nan = wrong.wide.isnan()
    if not bool(nan.any()) or not bool((bits(wrong.bad)[nan] == ALL_ONES).all()):
        return ""
    return (
        f"{_some(wrong, nan)} NaN with all bits set, which is what shared memory holds before a "
        "thread stores to it, and often a variable without a first value: is one of them read?"
    )


def invalid_operation(wrong: Wrong) -> str:
    if not wrong.floating:
        return ""
    nan = wrong.wide.isnan()
    if not bool(nan.any()):
        return ""
    made = "0/0, inf − inf or 0 · inf"
    if wrong.bad.device.type == "cpu" and wrong.bad.element_size() > 1:
        # x86 generates this NaN for an invalid operation; a propagated NaN keeps its bits.
        default = bits(torch.tensor([-math.nan], dtype=wrong.bad.dtype))
        if bool((bits(wrong.bad)[nan] == default).all()):
            return f"{_some(wrong, nan)} NaN that an operation made: {made}"
    return (
        f"{_some(wrong, nan)} NaN: {made}, or computed from memory never written or outside of a "
        "tensor"
    )


def infinite(wrong: Wrong) -> str:
    if not wrong.floating or not bool(wrong.wide.isinf().all()):
        return ""
    return f"{_they_are(wrong)} infinite: does something overflow, or is it divided by zero?"


def zero(wrong: Wrong) -> str:
    if wrong.bad.dtype == torch.bool or bool(wrong.bad.any()):
        return ""
    every = "all " if wrong.count > 1 else ""
    return f"{_they_are(wrong)} {every}zero: is anything added to what a sum begins with?"


def _they_are(wrong: Wrong) -> str:
    return "it is" if wrong.count == 1 else "they are"


def _some(wrong: Wrong, which: Tensor) -> str:
    return _they_are(wrong) if bool(which.all()) else f"{int(which.sum()):,} of them are"


# ---------------------------------------------------------------- positions of the wrong elements


def one_blocks_part(wrong: Wrong) -> str:
    """Recognise that only the part of one block was written although several ran."""
    blocks, block = _launch(wrong)
    written = _written_beginning(wrong)
    if blocks < 2 or not written or wrong.look.untouched is None:
        return ""
    needed = -(-wrong.total // written)  # blocks, if each wrote as much
    if blocks != needed and not (blocks > needed and written == block):
        return ""
    rows = len(wrong.shape) > 1 and written % wrong.width == 0
    if not rows and written % block:
        return ""
    unit, noun = (wrong.width, "row") if rows else (1, "element")
    return (
        f"{_only_first(written // unit, noun, wrong.total // unit)} written, the part of one of "
        f"{blocks:,} blocks: does the index use blockIdx.x?"
    )


def _only_first(number: int, noun: str, size: int) -> str:
    """Return "only the first row of 3 was", "only the first 2 rows of 3 were"."""
    if number == 1:
        return f"only the first {noun} of {size:,} was"
    return f"only the first {number:,} {noun}s of {size:,} were"


def _written_beginning(wrong: Wrong) -> int:
    """Return the number of elements written at the beginning, 0 if any element after them was
    written."""
    unwritten = wrong.unwritten
    written = wrong.total - int(unwritten.sum())
    return 0 if bool(unwritten[:written].any()) or written == wrong.total else written


def one_tile(wrong: Wrong) -> str:
    """Recognise a matrix, with a 2D grid, of which only the part of one block along x or along y
    was written, or the part of threads whose x and y are swapped."""
    launch, corner = _launch_2d(wrong), _written_corner(wrong)
    if launch is None or corner is None or wrong.look.untouched is None:
        return ""
    (height, width), (rows, columns) = (wrong.total // wrong.width, wrong.width), corner
    (blocks_x, blocks_y, _), (block_x, block_y, _) = launch.grid, launch.block
    across, down = blocks_x * block_x, blocks_y * block_y
    fits = across >= width and down >= height
    if fits and (rows, columns) == (min(height, across), min(width, down)):
        return (
            f"of {height} × {width}, only the first {rows} × {columns} were written, and the grid "
            f"has {across} threads along x and {down} along y: are x and y, column and row, "
            "swapped?"
        )
    sides = (
        (columns, "column", width, blocks_x, block_x, "x"),
        (rows, "row", height, blocks_y, block_y, "y"),
    )
    for number, noun, size, blocks, block, axis in sides:
        part = f"{_only_first(number, noun, size)} written"
        if number < size and 1 < blocks == -(-size // number) and number % block == 0:
            return (
                f"{part}, the part of one of {blocks} blocks along {axis}: does the index use "
                f"blockIdx.{axis}?"
            )
        if number < size and number == blocks * block:
            return (
                f"{part}, as many as the grid has threads along {axis}: are there blocks enough "
                f"along {axis}?"
            )
    return ""


def _written_corner(wrong: Wrong) -> tuple[int, int] | None:
    """Return the rows and columns of the upper left part, if exactly that part was written."""
    if len(wrong.shape) < 2:
        return None
    written = ~wrong.unwritten.view(-1, wrong.width)
    rows, columns = int(written.any(1).sum()), int(written.any(0).sum())
    if not 0 < rows * columns < wrong.total:
        return None
    whole = bool(written[:rows, :columns].all()) and int(written.sum()) == rows * columns
    return (rows, columns) if whole else None


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
    size = wrong.bad.element_size()
    if size > 1 and wrong.first > 3 and wrong.first == wrong.total // size:
        return (
            f"{text} ({wrong.count:,}); {wrong.total:,} bytes are right, and as many elements are "
            "expected: is a size in bytes meant somewhere?"
        )
    return f"{text} ({wrong.count:,}){_next_thread(wrong)}"


def beginning(wrong: Wrong) -> str:
    if not _part(wrong) or wrong.first != 0 or wrong.last != wrong.count - 1:
        return ""
    return f"exactly the beginning is wrong: all before flat index {wrong.count}"


def columns(wrong: Wrong) -> str:
    if not _part(wrong) or len(wrong.shape) < 2 or wrong.width == 1:
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
    """Recognise wrong elements at one residue of the index; the stride is not a dimension."""
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
    """Return blocks and threads per block of the kernels that ran, if they have the same size,
    along x only; else (0, 0)."""
    sizes = set(wrong.look.launches)
    if len(sizes) != 1:
        return 0, 0
    (launch,) = sizes
    if launch.grid[1:] != (1, 1) or launch.block[1:] != (1, 1):
        return 0, 0
    return launch.grid[0], launch.block[0]


def _launch_2d(wrong: Wrong) -> Launch | None:
    """Return the size of all kernels that ran, if it is one size and extends along x and y."""
    sizes = set(wrong.look.launches)
    if len(sizes) != 1:
        return None
    (launch,) = sizes
    along_y = launch.grid[1] * launch.block[1] > 1
    return launch if along_y and launch.grid[2] == launch.block[2] == 1 else None


def _next_thread(wrong: Wrong) -> str:
    """Describe the thread of the tail's first element, for one element per thread; "" if any was
    stored."""
    blocks, block = _launch(wrong)
    if not blocks or not wrong.poisoned:
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
            f"{first // block}, and the grid has it ({grid}): does a condition "
            "exclude it, or is its index another?"
        )
    if first % threads == 0:
        return f". That is {first // threads} elements per thread of the grid ({grid})"
    return ""


def _next_column(wrong: Wrong, column: int) -> str:
    blocks, block = _launch(wrong)
    if not blocks or column != block or not wrong.poisoned:
        return ""
    return (
        f". A block has {_plural(block, 'thread')}: with one column per thread, column {column} "
        f"would be thread {column}'s, which no block has. Does each thread step on to the next?"
    )


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# ---------------------------------------------------------------- relation to the expected values


def _numbers(wrong: Wrong) -> tuple[Tensor, Tensor, float, float] | None:
    """Return got and truth in float64, the largest magnitude, eps; None if nothing can be
    compared."""
    if wrong.total == 1 or wrong.poisoned or wrong.total > SIZE:
        return None
    g, t = wrong.got.double(), wrong.truth.double()
    usable = g.isfinite() & t.isfinite()
    if not bool(usable.any()):
        return None
    eps = torch.finfo(wrong.got.dtype).eps if wrong.floating else 0.0
    return g, t, float(t[usable].abs().max()), eps


def _alike(wrong: Wrong, arrange: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> bool:
    """Return True if the two tensors that `arrange` makes of got and truth agree up to rounding,
    and are not constant."""
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
    if text := _shifted(wrong, wrong.total, "the end", "the start"):
        return f"got is what is expected, shifted {text}"
    return ""


def rows_shifted(wrong: Wrong) -> str:
    """Recognise rows that are each shifted."""
    if len(wrong.shape) < 2 or wrong.total == wrong.width:
        return ""
    if text := _shifted(wrong, wrong.width, "its end", "its start"):
        return f"each row is what is expected, shifted {text}"
    return ""


def _shifted(wrong: Wrong, width: int, end: str, start: str) -> str:
    """Describe the shift of rows of that width, in elements and to which side; "" if none fits."""

    def cut(tensor: Tensor, first: int, by: int) -> Tensor:
        return tensor.view(-1, width)[:, first : first + width - by].reshape(-1)

    for by in range(1, min(FARTHEST, width // 2) + 1):
        number = "one element" if by == 1 else f"{by} elements"
        if _alike(wrong, lambda g, t, by=by: (cut(g, by, by), cut(t, 0, by))):
            return f"{number} towards {end}"
        if _alike(wrong, lambda g, t, by=by: (cut(g, 0, by), cut(t, by, by))):
            return f"{number} towards {start}"
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
    """Return the values of `_numbers` for the finite wrong elements alone."""
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
    """Recognise rows that are each off by a different factor."""
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
    if g.numel() < 3 or wrong.got.dtype == torch.bool:
        return ""
    difference = g - t
    middle = float(difference.median())
    spread = float((difference - middle).abs().max())
    if abs(middle) > 0.01 * size and spread < 1e-3 * abs(middle) + 8 * eps * size:
        return f"got is what is expected {middle:+.5g}"
    return ""


def unset_integers(wrong: Wrong) -> str:
    """Recognise counts that started from the CPU backend's fill of shared memory."""
    if wrong.floating or wrong.got.element_size() != 8 or wrong.got.device.type != "cpu":
        return ""
    difference = wrong.bad - wrong.truth[wrong.places].to(wrong.bad.dtype)
    from_unset = (difference != 0) & (difference % UNSET == 0)
    if int(from_unset.sum()) < max(3, 0.75 * wrong.count):
        return ""
    return (
        "most are off by multiples of 2^32 − 1, which an unsigned int of shared memory holds "
        "before a thread stores to it: is each one set to 0 first?"
    )


def lower_precision(wrong: Wrong) -> str:
    numbers = _wrong_numbers(wrong)
    if numbers is None or not wrong.floating:
        return ""
    g, t, _, _ = numbers
    limits = torch.finfo(wrong.got.dtype)
    normal = t.abs() > limits.smallest_normal
    if int(normal.sum()) < 8:
        return ""
    error, size = (g - t).abs()[normal], t.abs()[normal]
    relative = float((error / size).median())
    # The relative error of a sum that is small by chance may be large.
    largest = float((error / size.clamp(min=float(size.median()))).max())
    # A long sum in float16 errs as much as one rounding to bfloat16.
    kinds = (
        ("float32", "float32", 2.0**-23),
        ("float16 or tf32", "float16 or tf32", 2.0**-10),
        ("bfloat16", "16 bits", 2.0**-7),
    )
    for narrow, kept, eps in kinds:
        # One rounding errs by a sixth of eps in the median, several by a little more.
        if eps > limits.eps and eps / 16 < relative <= eps / 2 and largest < ROUNDINGS * eps:
            return (
                f"the errors are the size of {narrow}'s rounding: is a value kept, or a sum added "
                f"up, in {kept}, although the result is "
                f"{str(wrong.got.dtype).removeprefix('torch.')}?"
            )
    return ""


# Recognisers that stay valid if other calls explain the output.
SURE = (nothing_written, not_written, from_unwritten_memory, one_tile, one_blocks_part)
# The first recogniser of each group that finds its pattern counts.
OUTPUT: tuple[tuple[Recogniser, ...], ...] = (
    (
        nothing_written,
        not_written,
        from_unwritten_memory,
        from_shared_memory,
        invalid_operation,
        infinite,
        zero,
    ),
    (one_tile, one_blocks_part, tail, beginning, columns, rows, every_nth),
    (
        transposed,
        opposite_sign,
        unset_integers,
        factor,
        offset,
        shifted,
        rows_shifted,
        reversed_order,
        row_factors,
        lower_precision,
    ),
)


def hints(wrong: Wrong) -> list[str]:
    """Return the sentences about an output, at most one per group; only those of SURE if other
    calls explain it."""
    groups = [[s for s in group if s in SURE or not wrong.look.explained] for group in OUTPUT]
    said = (next(filter(None, (see(wrong) for see in group)), "") for group in groups)
    return [text for text in said if text][:MOST]


# ---------------------------------------------------------------- other calls


@dataclass(frozen=True)
class Behaviour:
    """Outcomes of several calls of one rung, True for a right one.

    orders: by thread order. differ: two orders, both wrong, with different results, where the first
    one reproduces its result. repeats: further calls in the first order reproduced the first
    result; None if not tried. fresh: calls on one input, several with NaN in fresh memory, then
    several with numbers in it. calls: consecutive calls. cases: cases of one dtype. dtypes: of the
    failing case. not_finite: the wrong output has infinities or NaN where finite numbers are
    expected. near: its error is within what accumulated roundings to its dtype explain. undefined:
    an undefined value was read, which depends on the order. reading: how the input was misread, in
    words.
    """

    orders: dict[str, bool] = field(default_factory=dict)
    repeats: bool | None = None
    differ: tuple[str, ...] = ()
    fresh: tuple[tuple[bool, ...], tuple[bool, ...]] = ((), ())
    calls: tuple[bool, ...] = ()
    cases: tuple[tuple[Case, bool], ...] = ()
    dtypes: dict[str, bool] = field(default_factory=dict)
    not_finite: bool = False
    near: bool = False
    undefined: bool = False
    reading: str = ""


def one_order(seen: Behaviour) -> str:
    right = [order for order, fine in seen.orders.items() if fine]
    wrong = [order for order, fine in seen.orders.items() if not fine]
    if not right or not wrong:
        return ""
    text = f"right with threads in {right[0]} order, wrong in {wrong[0]} order"
    if seen.repeats is None or seen.undefined:
        return text
    if seen.repeats:
        return (
            f"{text}: it depends on the order in which threads run: a race, or a variable that is "
            "read before it is set"
        )
    return (
        f"{text}. But another call in {next(iter(seen.orders))} order differs as well: it depends "
        "on what ran before (a result that is kept, a variable or memory that is not set), or on "
        "chance"
    )


def every_order(seen: Behaviour) -> str:
    if not seen.differ or seen.undefined:
        return ""
    return (
        f"wrong with threads in {' and in '.join(seen.differ)} order, and differently: it depends "
        "on the order in which threads run: a race, or a variable that is read before it is set"
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
    """Recognise a size that is right if, and only if, it is a multiple of a power of two."""
    found = [text for place in range(_rank(seen)) if (text := _multiples_of(seen, place))]
    return found[0] if len(found) == 1 else ""  # ambiguous if two sizes explain it


def _rank(seen: Behaviour) -> int:
    ranks = {len(case.shape) for case, _ in seen.cases}
    return ranks.pop() if len(ranks) == 1 else 0


def _multiples_of(seen: Behaviour, place: int) -> str:
    right = sorted({case.shape[place] for case, fine in seen.cases if fine and all(case.shape)})
    wrong = sorted({case.shape[place] for case, fine in seen.cases if not fine})
    if len(right) < 2 or len(wrong) < 2 or set(right) & set(wrong):
        return ""
    if right[-1] < wrong[0] or wrong[-1] < right[0]:
        return ""  # the magnitude of the sizes explains it as well
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
        return ""  # their divisors explain it as well
    return (
        f"right where {_size(seen, place)} is at most {right[-1]}, wrong from {wrong[0]} on: is "
        "that what a block, the grid or an array can hold?"
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


def short_sum(seen: Behaviour) -> str:
    wrong = [name for name in ("float16", "bfloat16") if not seen.dtypes.get(name, True)]
    if not wrong or not seen.dtypes.get("float32") or not seen.near:
        return ""
    return (
        f"right in float32, and in {' and '.join(wrong)} off by what roundings to 16 bits add up "
        "to: is a sum, or another value on the way, kept in 16 bits? Keep it in float, and round "
        "the result alone"
    )


def misread_input(seen: Behaviour) -> str:
    return seen.reading


def _size(seen: Behaviour, place: int) -> str:
    """Return the name of that size in the cases' shapes."""
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
    short_sum,
    misread_input,
)
# Weaker evidence than the positions of wrong elements in one output.
SIZES: tuple[Callable[[Behaviour], str], ...] = (multiples, up_to_a_size)


def habits(seen: Behaviour) -> list[str]:
    """Return the sentences about the calls."""
    return [text for recognise in BEHAVIOUR if (text := recognise(seen))]


def sizes(seen: Behaviour) -> list[str]:
    """Return the sentences about the sizes for which the calls are right."""
    return [text for recognise in SIZES if (text := recognise(seen))]
