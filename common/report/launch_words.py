"""Describe a drawn launch in sentences, used on a terminal and in an SVG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.base.figures import counted
from common.report.drawn_launch import (
    NEVER,
    DrawnLaunch,
    DrawnTensor,
    Marks,
    place_of,
    sizes_text,
    unravelled,
)


def remarks(launch: DrawnLaunch) -> list[str]:
    """Return sentences about the launch as a whole."""
    found = list(launch.idle)
    if launch.barriers:
        found.append(f"each block passed {counted(launch.barriers, 'barrier')}")
    if times := launch.warp_meetings:
        often = counted(times[-1], "time")
        text = often if len(times) == 1 else f"{times[0]} to {often}"
        found.append(f"the lanes of a warp met {text} (shuffles, votes, __syncwarp)")
    if sum(size > 1 for size in launch.block) > 1:
        dims = ",".join("xyz"[: 3 if launch.block[2] > 1 else 2])
        found.append(f"a cell names threadIdx, as {dims}; * stands for several")
    if launch.threads:
        found.append(f"shown: the first {launch.threads} threads of the first two blocks")
    if launch.left_out:
        found.append(f"{launch.left_out:,} further accesses were not recorded")
    return found


def headline(launch: DrawnLaunch) -> str:
    """Return "2 blocks of 256 threads"."""
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    grid = "" if launch.grid[1] == launch.grid[2] == 1 else f" ({sizes_text(launch.grid)})"
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    of = sizes_text(launch.block)
    return f"{counted(blocks, 'block')}{grid} of {of} thread{'s' * (threads > 1)}"


def summary(launch: DrawnLaunch, tensor: DrawnTensor, marks: Marks, what: str) -> str:
    """Return one line on how often the elements of a tensor were "read" or "written"."""
    if not marks.elements:
        return f"never {what}"
    verb = "updated atomically" if marks.atomic else what
    if marks.least == marks.most:
        often = {1: "once", 2: "twice"}.get(marks.most, f"{marks.most} times")
        text = f"each {verb} {often}"
    else:
        text = f"each {verb} {marks.least} to {marks.most} times"
    if marks.elements < tensor.elements and (what == "read" or not tensor.never_count):
        text = f"{marks.elements:,} of {tensor.elements:,} {text.removeprefix('each ')}"
    if marks.width > 1:
        text += f", {marks.width} elements per access"
    if len(marks.cells) < marks.elements:
        text += f", {len(marks.cells)} shown"
    if marks.by_writer_of:
        others = [other.name for other in launch.tensors if other.writes]
        of = f" of {marks.by_writer_of}" if len(others) > 1 else ""
        own = marks.by_writer_of == tensor.name
        text += ", by the thread that writes " + ("it" if own else f"the same index{of}")
    elif found := rule(launch, tensor, marks):
        text += f": {found}"
    if what == "written" and tensor.never_count:
        text += f"; {counted(tensor.never_count, 'element')} NEVER WRITTEN ({NEVER})"
    return text


def outside_text(launch: DrawnLaunch, tensor: DrawnTensor, marks: Marks, what: str) -> str:
    """Return a sentence about accesses outside of the tensor, or ""."""
    if not marks.outside or marks.example is None:
        return ""
    index, block, thread = marks.example
    return (
        f"OUT OF BOUNDS: {counted(marks.outside, 'element')} {what} beside it, as "
        f"{tensor.name}[{index}] of {tensor.elements} by thread "
        f"{launch.thread_name(thread).removeprefix('t')} of block {launch.block_name(block)}"
    )


FEW = 4  # fewer cells get no formula


@dataclass(frozen=True)
class _Seen:
    """An element with the only thread that accessed it. index: along each dimension; flat: the flat
    index. block, thread: their numbers. x, y: the thread's position in the grid."""

    index: tuple[int, ...]
    flat: int
    block: int
    thread: int
    x: int
    y: int


# Formulas that may hold for all elements of a matrix in a 2D grid, of one in a 1D grid,
# and of a vector; with the elements per access.
_Rule = tuple[str, Callable[[_Seen, int], bool]]
_OF_MATRIX: tuple[_Rule, ...] = (
    ("[r, c] by thread (c, r) of the grid", lambda seen, _: (seen.y, seen.x) == seen.index),
    ("[r, c] by thread (r, c) of the grid", lambda seen, _: (seen.x, seen.y) == seen.index),
)
_OF_ROWS: tuple[_Rule, ...] = (
    ("[r, c] by thread c of block r", lambda seen, _: (seen.block, seen.thread) == seen.index),
)
_OF_VECTOR: tuple[_Rule, ...] = (
    ("[i] by thread i of the grid", lambda seen, _: seen.x == seen.flat),
    ("[i] by thread i / {width} of the grid", lambda seen, width: seen.x == seen.flat // width),
)


def rule(launch: DrawnLaunch, tensor: DrawnTensor, marks: Marks) -> str:
    """Return a formula, valid for all cells, of which thread accesses which element; "" if none is
    known, there are few cells, or some elements of a tensor are not accessed. Shared memory is that
    of one block."""
    shared = tensor.name.startswith("shared")
    some = not shared and marks.elements < tensor.elements  # then the cells are shown
    if len(marks.cells) < FEW or some or any(len(cell.who) > 1 for cell in marks.cells):
        return ""
    found = []
    for cell in marks.cells:
        block, thread = cell.who[0]
        in_grid, in_block = place_of(block, launch.grid), place_of(thread, launch.block)
        before = (0, 0) if shared else (in_grid[0] * launch.block[0], in_grid[1] * launch.block[1])
        x, y = before[0] + in_block[0], before[1] + in_block[1]
        index = unravelled(cell.index, tensor.shape)
        found.append(_Seen(index, cell.index, block, thread, x, y))
    is_flat = launch.block[1] == launch.block[2] == launch.grid[1] == launch.grid[2] == 1
    rules = {1: _OF_VECTOR, 2: _OF_ROWS if is_flat else _OF_MATRIX}.get(len(tensor.shape), ())
    if len(tensor.shape) == 1 and not is_flat:
        rules = ()
    for text, holds in rules:
        if all(holds(seen, marks.width) for seen in found):
            text = text.format(width=marks.width)
            return text.replace("the grid", "its block") if shared else text
    return ""
