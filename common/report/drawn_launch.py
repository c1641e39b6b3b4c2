"""Hold the drawing of a launch as plain data: which thread read and wrote which element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Sizes = tuple[int, int, int]  # along x, y, z

SAME_ACCESS = "··"  # a cell covered by the access of the previous cell
NEVER = "—"
FEW = 3  # most threads named in a cell


@dataclass
class Cell:
    """A shown element. who: the blocks and threads that accessed it, each once, in order. times:
    number of accesses. continues: its first access began at the previous element."""

    index: int
    who: list[tuple[int, int]]
    times: int
    continues: bool = False


@dataclass
class Marks:
    """All reads, or all writes, of a tensor by one launch.

    cells: the shown elements. elements: number of accessed elements. least, most: accesses per such
    element. width: elements of most accesses. atomic: the accesses were atomic. by_writer_of: a
    tensor of which each thread writes the elements that it accesses here, or "". outside: accesses
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
    """A tensor in global memory. whole: all its elements are shown. never: shown elements of an
    output that were never written; never_count: number of all such elements."""

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
        """Return the length of a row, the last dimension; a column counts as a row."""
        return self.shape[-1] if self.shape and self.shape[-1] > 1 else max(self.elements, 1)

    def place(self, first: int, last: int) -> str:
        """Return the index of the elements from `first` to `last` of one row: "[2, 0..3]"."""
        if not self.shape:
            return ""
        where = [str(each) for each in unravelled(first, self.shape)]
        # The dimension of neighbours: the last one or, for a column, the one with its length.
        varied = max((dim for dim, size in enumerate(self.shape) if size > 1), default=0)
        if last > first:
            where[varied] += f"..{int(where[varied]) + last - first}"
        return f"[{', '.join(where)}]"


def unravelled(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index along each dimension for a flat index."""
    found = []
    for size in reversed(shape):
        found.append(index % max(size, 1))
        index //= max(size, 1)
    return tuple(reversed(found))


@dataclass
class Phase:
    """A block's accesses to a shared array between two barriers.

    writers, readers: numbers of threads. written, read: runs of elements, (first, last). links:
    some pairs of (element that a thread read, element that it wrote), if these differ. first: the
    elements read by the first of these threads.
    """

    writers: int = 0
    readers: int = 0
    written: list[tuple[int, int]] = field(default_factory=list)
    read: list[tuple[int, int]] = field(default_factory=list)
    links: list[tuple[int, int]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)


@dataclass
class DrawnShared:
    """A shared array, in the first block that used it. elements: its bytes divided by those of an
    access. reads, writes: numbers of accesses. phases: the phases with accesses. cells: its
    elements, if few were accessed in few phases."""

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

    grid, block: blocks and threads along x, y, z. barriers: number that a block passed.
    warp_meetings: numbers of times that the lanes of a warp met, in shuffles, votes and __syncwarp,
    over warps that did. idle: sentences about threads that did nothing. threads: number of threads
    of the first blocks whose elements are shown, 0 for all. left_out: accesses that are not in the
    drawing.
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
        """Return a block's index: "3", or "(1,0)" in a grid with several dimensions."""
        return _index(block, self.grid)

    def thread_name(self, thread: int) -> str:
        """Return a thread's index as in a cell: "t3", or "1,0" in several dimensions."""
        name = _index(thread, self.block)
        return name[1:-1] if name[0] == "(" else f"t{name}"

    def text(self, cell: Cell) -> str:
        """Return a cell's text: the threads, at most FEW of them, "2,*" for threads that share
        their x, "×5" for five other accesses."""
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
        """Return the blocks that accessed the cell, each once."""
        return tuple(dict.fromkeys(block for block, _ in cell.who))


def place_of(number: int, sizes: Sizes) -> tuple[int, int, int]:
    """Return the position along x, y, z of a block or thread with this number."""
    x, y, _ = sizes
    return number % x, number // x % y, number // (x * y)


def _shown_dimensions(sizes: Sizes) -> list[int]:
    """Return the dimensions of a printed index: up to the last one larger than 1."""
    return list(range(max((dim + 1 for dim in range(3) if sizes[dim] > 1), default=1)))


def _index(number: int, sizes: Sizes) -> str:
    shown = [str(place_of(number, sizes)[dim]) for dim in _shown_dimensions(sizes)]
    return shown[0] if len(shown) == 1 else f"({','.join(shown)})"


def sizes_text(sizes: Sizes) -> str:
    """Return "256", or "32×8" in several dimensions."""
    return "×".join(str(sizes[dim]) for dim in _shown_dimensions(sizes))
