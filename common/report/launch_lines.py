"""Draw a launch as plain lines of text, for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from common.base.figures import counted
from common.report.drawn_launch import NEVER, Cell, DrawnLaunch, DrawnShared, DrawnTensor, Marks
from common.report.launch_words import outside_text, rule, summary

WRITTEN_ROWS, READ_ROWS = 13, 5  # lines of cells that show a tensor's writes, and its reads
MOST_LISTED = 18  # phases of a shared array


@dataclass
class _Row:
    """Neighbouring elements of a row that the same blocks accessed. first: its first element.
    blocks: () if none accessed it. last: the first element of the last of several consecutive equal
    rows. step: 1 if each of these belongs to the next block."""

    first: int
    blocks: tuple[int, ...]
    texts: list[str]
    last: int
    step: int = 0


def launch_lines(launch: DrawnLaunch, said: Sequence[str], width: int, most: int) -> list[str]:
    """Return at most `most` lines of at most `width` characters that show a launch, without its
    heading: as much of its memory as fits, then the sentences `said`."""
    written = [tensor for tensor in launch.tensors if tensor.writes or tensor.never_count]
    parts = [_Part(tensor, tensor.writes or Marks(), "written") for tensor in written]
    parts += [_Part(tensor, tensor.reads, "read") for tensor in launch.tensors if tensor.reads]
    lines = []
    for _, alike in groupby(parts, key=lambda part: _said(launch, part)):
        lines += _part_lines(launch, list(alike), width)
    for shared in launch.shared:
        lines += _shared_lines(launch, shared, width)
    last = [line for text in said for line in _wrapped(text, width)]
    room = most - len(last)
    if len(lines) > room:
        lines[room - 1 :] = [f"  … {counted(len(lines) - room + 1, 'more line')}; an SVG has all"]
    return lines + last


@dataclass(frozen=True)
class _Part:
    """The "written" or "read" part of a tensor."""

    tensor: DrawnTensor
    marks: Marks
    what: str


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ")


def _said(launch: DrawnLaunch, part: _Part) -> str:
    """Return the part's description without its name; parts with equal descriptions are merged."""
    said = summary(launch, part.tensor, part.marks, part.what)
    shape = f"({'×'.join(map(str, part.tensor.shape))})"
    outside = outside_text(launch, part.tensor, part.marks, part.what)
    cells = "" if part.marks.by_writer_of else repr((part.marks.cells, part.tensor.never))
    return "\n".join([shape, said, outside, cells])


def _part_lines(launch: DrawnLaunch, parts: Sequence[_Part], width: int) -> list[str]:
    """Return the lines of tensors with equal descriptions."""
    first = parts[0]
    tensor, marks = first.tensor, first.marks
    names = ", ".join(part.tensor.name for part in parts)
    shape, said, outside, _ = _said(launch, first).split("\n", 3)
    lines = _wrapped(f"{names} {shape}  {said}", width)
    if outside:
        lines += _wrapped(outside, width, "    ")
    # A formula replaces the cells, except for writes to global memory.
    drawn_too = first.what == "written" and not tensor.name.startswith("shared")
    in_words = marks.by_writer_of or (rule(launch, tensor, marks) and not drawn_too)
    if not in_words:
        never = tensor.never if first.what == "written" else []
        most = WRITTEN_ROWS if first.what == "written" else READ_ROWS
        lines += _cell_lines(launch, tensor, marks, never, most, width)
    return lines


def _cell_lines(
    launch: DrawnLaunch,
    tensor: DrawnTensor,
    marks: Marks,
    never: Sequence[int],
    most: int,
    width: int,
) -> list[str]:
    """Return lines of cells: each with the index of its elements, the block, and the threads."""
    rows = _rows(launch, tensor, marks.cells, never)
    stride = _stride(tensor)
    several = len({row.blocks for row in rows if row.blocks}) > 1 or any(r.step for r in rows)
    names = [_blocks_text(launch, r, stride) if several and r.blocks else "" for r in rows]
    cell = max((len(text) for row in rows for text in row.texts), default=1) + 1
    label = 4 + max((len(_place(tensor, row, 0, len(row.texts))) for row in rows), default=0)
    label += 2 + max(map(len, names), default=0)
    fits = max((width - label) // cell, 1)
    fits -= fits % marks.width if fits > marks.width else 0  # whole accesses
    lines = []
    for row, name in zip(rows, names, strict=True):
        for first in range(0, len(row.texts), fits):
            last = min(first + fits, len(row.texts))
            place = f"    {_place(tensor, row, first, last)}"
            texts = "".join(text.ljust(cell) for text in row.texts[first:last])
            lines.append(f"{place.ljust(label - len(name) - 1)}{name} {texts}".rstrip())
    if len(lines) > most:
        lines[most - 1 :] = [f"    … {counted(len(lines) - most + 1, 'more line')}"]
    return lines


def _blocks_text(launch: DrawnLaunch, row: _Row, columns: int) -> str:
    if row.step:
        last = row.blocks[0] + (row.last - row.first) // columns
        return f"blocks {launch.block_name(row.blocks[0])} to {launch.block_name(last)}:"
    if len(row.blocks) > 3:
        return f"{len(row.blocks)} blocks:"
    names = " ".join(launch.block_name(block) for block in row.blocks)
    return f"block{'s' * (len(row.blocks) > 1)} {names}:"


def _rows(
    launch: DrawnLaunch, tensor: DrawnTensor, cells: Sequence[Cell], never: Sequence[int]
) -> list[_Row]:
    """Return the cells in rows; consecutive equal rows of a matrix are merged."""
    items: list[tuple[int, Cell | None]] = [(cell.index, cell) for cell in cells]
    items = sorted([*items, *((index, None) for index in never)], key=lambda item: item[0])
    found: list[_Row] = []
    for index, cell in items:
        blocks = launch.blocks(cell) if cell else ()
        text = launch.text(cell) if cell else NEVER
        row = found[-1] if found else None
        goes_on = row is not None and row.first + len(row.texts) == index
        if not (goes_on and index % tensor.columns and row and blocks in (row.blocks, ())):
            row = _Row(index, blocks, [], index)
            found.append(row)
        row.texts.append(text)
        row.blocks = row.blocks or blocks
    return _merged(found, _stride(tensor))


def _stride(tensor: DrawnTensor) -> int:
    """Return the distance of rows that may be merged; for a vector, of its elements."""
    return tensor.columns if len(tensor.shape) == 2 and tensor.shape[1] > 1 else 1


def _merged(rows: Sequence[_Row], stride: int) -> list[_Row]:
    """Return the rows with consecutive equal ones merged."""
    merged: list[_Row] = []
    for row in rows:
        above = merged[-1] if merged else None
        if above and row.first == above.last + stride and row.texts == above.texts:
            times = (row.first - above.first) // stride
            same = row.blocks == above.blocks and not above.step
            next_one = above.step == 1 or above.last == above.first
            if same or (next_one and _follows(above.blocks, row.blocks, times)):
                above.last, above.step = row.first, int(not same)
                continue
        merged.append(row)
    return merged


def _follows(first: tuple[int, ...], other: tuple[int, ...], times: int) -> bool:
    """Return True for single blocks of which the other is `times` blocks after the first."""
    return len(first) == len(other) == 1 and other[0] == first[0] + times


def _place(tensor: DrawnTensor, row: _Row, first: int, last: int) -> str:
    """Return the index of the cells from `first` to before `last` of a row: "[2, 0..3]"."""
    if row.last > row.first and _stride(tensor) == 1:
        return tensor.place(row.first, row.last)
    text = tensor.place(row.first + first, row.first + last - 1)
    if row.last == row.first:
        return text
    top, bottom = row.first // tensor.columns, row.last // tensor.columns
    return text.replace(f"[{top},", f"[{top}..{bottom},", 1)


def _shared_lines(launch: DrawnLaunch, shared: DrawnShared, width: int) -> list[str]:
    if shared.cells:
        tensor = shared.cells
        both = (tensor.writes, "written"), (tensor.reads, "read")
        return [
            line
            for marks, what in both
            if marks
            for line in _part_lines(launch, [_Part(tensor, marks, what)], width)
        ]
    lines = _wrapped(
        f"shared {shared.declaration} ({shared.bytes:,} bytes), in block "
        f"{launch.block_name(shared.block)}: {counted(shared.writes, 'write')}, "
        f"{counted(shared.reads, 'read')}",
        width,
    )
    writers = [str(phase.writers) for phase in shared.phases if phase.writers]
    lines += _wrapped(
        f"threads that write, from barrier to barrier: {_listed(writers)}", width, "    "
    )
    combined = [
        "+".join(str(index) for index in sorted(phase.first))
        for phase in shared.phases
        if phase.links and len(phase.first) > 1
    ]
    if combined:
        said = f"thread 0 combines the elements {_listed(combined)}"
        lines += _wrapped(said, width, "    ")
    return lines


def _listed(texts: Sequence[str]) -> str:
    """Return the texts as a list, shortened to the first ones if there are many."""
    more = len(texts) > MOST_LISTED
    return ", ".join(texts[:MOST_LISTED]) + (" …" if more else "")
