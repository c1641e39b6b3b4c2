"""A launch as a drawing shows it: which thread read and wrote which element, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Sizes = tuple[int, int, int]  # along x, y, z

SAME_ACCESS = "··"  # a cell whose element the access of the cell before it covers too
NEVER = "—"
FEW = 3  # threads that a cell names


@dataclass
class Cell:
    """An element that is shown. who: the blocks and threads that accessed it, each once, in order.
    times: accesses of it. continues: the first access of it began at the element before."""

    index: int
    who: list[tuple[int, int]]
    times: int
    continues: bool = False


@dataclass
class Marks:
    """All reads, or all writes, of a tensor by one launch.

    cells: of the elements that are shown. elements: that were accessed. least, most: accesses of
    one of these. width: elements of most accesses. atomic: they were atomic. by_writer_of: the
    tensor of which each thread writes the same elements, "" where that is not so. outside: accesses
    before the tensor's begin or beyond its end. example: one of these, (index, block, thread).
    """

    cells: list[Cell] = field(default_factory=list)
    elements: int = 0
    least: int = 0
    most: int = 0
    width: int = 1
    atomic: bool = False
    by_writer_of: str = ""
    outside: int = 0
    example: tuple[int, int, int] | None = None


@dataclass
class DrawnTensor:
    """A tensor in global memory. whole: all its elements are shown. never: those that are shown and
    were never written, of an output; never_count: all of them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    writes: Marks | None = None
    reads: Marks | None = None
    whole: bool = True
    never: list[int] = field(default_factory=list)
    never_count: int = 0

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def columns(self) -> int:
        """Return the length of a row, of the last dimension; a column counts as a row."""
        return self.shape[-1] if self.shape and self.shape[-1] > 1 else max(self.elements, 1)

    def place(self, first: int, last: int) -> str:
        """Return the index of the elements from `first` to `last` of one row: "[2, 0..3]"."""
        if not self.shape:
            return ""
        where = [str(each) for each in unravelled(first, self.shape)]
        # The dimension along which neighbours lie: the last, or of a column the one of its length.
        varied = max((dim for dim, size in enumerate(self.shape) if size > 1), default=0)
        if last > first:
            where[varied] += f"..{int(where[varied]) + last - first}"
        return f"[{', '.join(where)}]"


def unravelled(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index along each dimension of a flat one."""
    found = []
    for size in reversed(shape):
        found.append(index % max(size, 1))
        index //= max(size, 1)
    return tuple(reversed(found))


@dataclass
class Phase:
    """What a block did to a shared array between two barriers.

    writers, readers: how many threads. written, read: runs of elements, (first, last). links: some
    of (element that a thread read, element that it wrote), where these differ. first: the elements
    that the first thread of these read.
    """

    writers: int = 0
    readers: int = 0
    written: list[tuple[int, int]] = field(default_factory=list)
    read: list[tuple[int, int]] = field(default_factory=list)
    links: list[tuple[int, int]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)


@dataclass
class DrawnShared:
    """A shared array, in the first block that used it. elements: bytes over those of an access.
    reads, writes: accesses. phases: those in which it was accessed. cells: its elements, where few
    were accessed in few phases."""

    declaration: str
    bytes: int
    elements: int
    block: int
    reads: int = 0
    writes: int = 0
    phases: list[Phase] = field(default_factory=list)
    cells: DrawnTensor | None = None


@dataclass
class DrawnLaunch:
    """A launch of a kernel.

    grid, block: blocks and threads along x, y, z. barriers: that a block passed. warp_meetings: how
    often the lanes of a warp met, in shuffles, votes and __syncwarp: all numbers that there are, of
    warps that did. idle: sentences
    about threads that did nothing. threads: of how many threads of the first blocks the elements
    are shown, 0 where all are. left_out: accesses that are not in the drawing.
    """

    kernel: str
    grid: Sizes
    block: Sizes
    tensors: list[DrawnTensor] = field(default_factory=list)
    shared: list[DrawnShared] = field(default_factory=list)
    barriers: int = 0
    warp_meetings: list[int] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    threads: int = 0
    left_out: int = 0

    def block_name(self, block: int) -> str:
        """Return a block's index: "3", of a grid with several dimensions "(1,0)"."""
        return _index(block, self.grid)

    def thread_name(self, thread: int) -> str:
        """Return a thread's index as a cell shows it: "t3", of several dimensions "1,0"."""
        name = _index(thread, self.block)
        return name[1:-1] if name[0] == "(" else f"t{name}"

    def text(self, cell: Cell) -> str:
        """Return what a cell shows: the thread, up to FEW of them, "2,*" for threads that share
        their x, "×5" for five accesses by others."""
        if cell.continues:
            return SAME_ACCESS
        threads = list(dict.fromkeys(thread for _, thread in cell.who))
        shown = _shown_dimensions(self.block)
        if len(threads) == 1 or (len(shown) == 1 and len(threads) == cell.times <= FEW):
            return "+".join(self.thread_name(thread) for thread in threads)
        places = [place_of(thread, self.block) for thread in threads]
        parts = [str(p[0]) if len(set(p)) == 1 else "*" for p in zip(*places, strict=True)]
        parts = [parts[dim] for dim in shown]
        return ",".join(parts) if set(parts) != {"*"} and len(shown) > 1 else f"×{cell.times}"

    def blocks(self, cell: Cell) -> tuple[int, ...]:
        """Return the blocks that accessed it, each once."""
        return tuple(dict.fromkeys(block for block, _ in cell.who))


def place_of(number: int, sizes: Sizes) -> tuple[int, int, int]:
    """Return the place along x, y, z of a block or thread with this number."""
    x, y, _ = sizes
    return number % x, number // x % y, number // (x * y)


def _shown_dimensions(sizes: Sizes) -> list[int]:
    """Return the dimensions that an index is written with: up to the last with several places."""
    return list(range(max((dim + 1 for dim in range(3) if sizes[dim] > 1), default=1)))


def _index(number: int, sizes: Sizes) -> str:
    shown = [str(place_of(number, sizes)[dim]) for dim in _shown_dimensions(sizes)]
    return shown[0] if len(shown) == 1 else f"({','.join(shown)})"


def sizes_text(sizes: Sizes) -> str:
    """Return "256", or "32×8" of several dimensions."""
    return "×".join(str(sizes[dim]) for dim in _shown_dimensions(sizes))
