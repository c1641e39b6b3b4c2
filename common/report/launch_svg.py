"""Draw launches as an SVG: tensors as cells with the threads that accessed them, coloured by block,
and shared arrays barrier by barrier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from common.base.figures import counted
from common.report.drawing import Drawing, width_of
from common.report.drawn_launch import NEVER, Cell, DrawnLaunch, DrawnShared, DrawnTensor, Marks
from common.report.launch_words import outside_text, summary

COLOURS = {
    "paper": ("#ffffff", "#0d1117"),
    "ink": ("#24292f", "#e6edf3"),
    "faint": ("#59636e", "#9198a1"),
    "track": ("#eef1f4", "#1b2129"),
    "wrong": ("#cf222e", "#ff7b72"),
    "link": ("#8c959f", "#6e7681"),
    "on-block": ("#ffffff", "#ffffff"),
    # Colours of blocks, for their writes and for their reads.
    "block0": ("#2f6fb5", "#1f6feb"),
    "block1": ("#bc4c00", "#bd561d"),
    "block2": ("#1a7f37", "#238636"),
    "block3": ("#8250df", "#8957e5"),
    "several": ("#57606a", "#6e7681"),
    "pale0": ("#cfe2f8", "#14315c"),
    "pale1": ("#ffe0c7", "#4d2600"),
    "pale2": ("#cdeed3", "#0b3d1a"),
    "pale3": ("#e8dcfb", "#341f63"),
    "pale-several": ("#e3e6ea", "#30363d"),
}
WIDTH, _MARGIN, _GAP = 860.0, 16.0, 26.0
_TITLE, _SMALL = 15.0, 11.0  # font sizes
_HEIGHT, _BETWEEN = 22.0, 3.0  # of a cell, and between two cells
_NARROW = 250.0  # the least width of a tensor's description
_PER_LINE = 16  # cells of a vector in a line: whole accesses of 2, 4, 8 and 16 elements
_STRIP, _PHASE = 9.0, 26.0  # height of a strip of shared memory, and distance to the next
_STRIPS = 560.0  # the width of such a strip
_STRIPS_TOP = 52.0  # the height of the text above the first strip
_MOST_PHASES = 24
_COLOURED = 4  # blocks with distinct colours


@dataclass
class _Box:
    """A part of the drawing with its size. draw(x, y)."""

    width: float
    height: float
    draw: Callable[[float, float], None]


Part = tuple[str, DrawnLaunch | None, Sequence[str]]  # heading, launch, and notes below it


def launches_as_svg(parts: Sequence[Part]) -> str:
    """Return the text of an SVG with these launches, one below the other."""
    drawing = Drawing(WIDTH, COLOURS)
    y = _MARGIN
    for title, launch, notes in parts:
        y += _TITLE
        drawing.text(_MARGIN, y, title, "ink", size=_TITLE, bold=True)
        y += 12
        if launch is not None:
            y = _draw_launch(drawing, launch, y)
        for note in notes:
            y += 16
            drawing.text(_MARGIN, y, note, "faint")
        y += _GAP
    return drawing.svg(y)


def _draw_launch(drawing: Drawing, launch: DrawnLaunch, y: float) -> float:
    """Draw the tensors read, the shared arrays, the tensors written; return the y of its end."""

    def box(tensor: DrawnTensor, marks: Marks, what: str) -> _Box:
        return _tensor_box(drawing, launch, tensor, marks, what)

    before = [box(tensor, tensor.reads, "read") for tensor in launch.tensors if tensor.reads]
    strips = []
    for shared in launch.shared:
        tensor = shared.cells
        if tensor is None:
            strips.append(_strips_box(drawing, launch, shared))
        else:
            both = (tensor.writes, "written"), (tensor.reads, "read")
            before += [box(tensor, marks, what) for marks, what in both if marks]
    after = [
        box(tensor, tensor.writes or Marks(), "written")
        for tensor in launch.tensors
        if tensor.writes or tensor.never_count
    ]
    y = _flow([*before, *strips, *after], y)
    return _draw_legend(drawing, launch, y)


def _flow(boxes: Sequence[_Box], y: float) -> float:
    """Draw boxes from left to right, as many per line as fit; return the y of their end."""
    x, height = _MARGIN, 0.0
    for box in boxes:
        if x > _MARGIN and x + box.width > WIDTH - _MARGIN:
            x, y, height = _MARGIN, y + height + 12, 0.0
        box.draw(x, y)
        x += box.width + 36
        height = max(height, box.height)
    return y + height + 12 if boxes else y


def _draw_legend(drawing: Drawing, launch: DrawnLaunch, y: float) -> float:
    """Draw the meaning of the colours; return the y of its end."""
    blocks: dict[tuple[int, ...], None] = {}
    for tensor in [*launch.tensors, *(s.cells for s in launch.shared if s.cells)]:
        for marks in (tensor.reads, tensor.writes):
            for cell in marks.cells if marks else ():
                blocks[launch.blocks(cell)] = None
    shown = sorted(each[0] for each in blocks if len(each) == 1)
    if len(shown) + any(len(each) > 1 for each in blocks) < 2:
        return y
    x = _MARGIN
    names = {f"block {launch.block_name(block)}": _colour((block,)) for block in shown[:_COLOURED]}
    if any(len(each) > 1 for each in blocks):
        names["several blocks"] = "several"
    for name, colour in names.items():
        drawing.rectangle(x, y, 12, 12, colour)
        drawing.text(x + 17, y + 10, name, "ink", size=_SMALL)
        x += 17 + width_of(name, _SMALL) + 18
    if len(shown) > _COLOURED:
        drawing.text(x, y + 10, "and again for further blocks", "faint", size=_SMALL)
    return y + 16


def _colour(blocks: Sequence[int]) -> str:
    return f"block{blocks[0] % _COLOURED}" if len(blocks) == 1 else "several"


def _pale(blocks: Sequence[int]) -> str:
    return f"pale{blocks[0] % _COLOURED}" if len(blocks) == 1 else "pale-several"


# ---------------------------------------------------------------- tensors


def _lines_of(tensor: DrawnTensor, indices: Sequence[int]) -> list[list[int]]:
    """Return the indices in lines: neighbours of one row, at most _PER_LINE for a vector."""
    lines: list[list[int]] = []
    vector = tensor.columns == tensor.elements
    for index in indices:
        line = lines[-1] if lines else []
        begins = index % tensor.columns == 0 or (vector and index % _PER_LINE == 0)
        if not line or line[-1] + 1 != index or begins or len(line) == 2 * _PER_LINE:
            lines.append([index])
        else:
            line.append(index)
    return lines


def _tensor_box(
    drawing: Drawing, launch: DrawnLaunch, tensor: DrawnTensor, marks: Marks, what: str
) -> _Box:
    """Return the box of a tensor's cells, each with the thread that read or wrote it."""
    cells = {cell.index: cell for cell in marks.cells}
    never = set(tensor.never) if what == "written" else set()
    lines = _lines_of(tensor, sorted({*cells, *never}))
    texts = [launch.text(cell) for cell in cells.values()]
    width = max(26.0, max((width_of(text, _SMALL) for text in texts), default=0) + 8)
    labels = [tensor.place(line[0], line[0]) for line in lines]
    left = max((width_of(label, _SMALL) for label in labels), default=0) + 8
    shape = f" ({'×'.join(map(str, tensor.shape))})" if tensor.shape else ""
    heading = f"{tensor.name}{shape}"
    longest = max((len(line) for line in lines), default=0)
    wide = max(left + longest * (width + _BETWEEN), _NARROW, width_of(heading))
    columns = int(wide / width_of(" ", _SMALL))
    said = [(text, "faint") for text in wrap(summary(launch, tensor, marks, what), columns)]
    said += [(text, "wrong") for text in wrap(outside_text(launch, tensor, marks, what), columns)]
    top = 20.0 + 14 * len(said)

    def draw(x: float, y: float) -> None:
        drawing.text(x, y + 12, heading, "ink", bold=True)
        for number, (text, colour) in enumerate(said, 1):
            drawing.text(x, y + 13 + 14 * number, text, colour, size=_SMALL)
        for number, line in enumerate(lines):
            below = y + top + number * (_HEIGHT + _BETWEEN)
            drawing.text(
                x + left - 8, below + 15, labels[number], "faint", size=_SMALL, anchor="end"
            )
            _draw_line(drawing, launch, line, cells, never, what, (x + left, below), width)

    return _Box(wide, top + len(lines) * (_HEIGHT + _BETWEEN), draw)


def _draw_line(
    drawing: Drawing,
    launch: DrawnLaunch,
    line: Sequence[int],
    cells: dict[int, Cell],
    never: set[int],
    what: str,
    at: tuple[float, float],
    width: float,
) -> None:
    """Draw one line of cells, with the elements of one access in one cell."""
    x, y = at
    step = width + _BETWEEN
    number = 0
    while number < len(line):
        index = line[number]
        if index not in cells:
            left = x + number * step
            _draw_frame(drawing, left, y, width)
            drawing.text(left + width / 2, y + 15, NEVER, "wrong", size=_SMALL, anchor="middle")
            number += 1
            continue
        cell = cells[index]
        end = number + 1
        while end < len(line) and line[end] in cells and cells[line[end]].continues:
            end += 1
        left, wide = x + number * step, (end - number) * step - _BETWEEN
        blocks = launch.blocks(cell)
        written = what == "written"
        fill = _colour(blocks) if written else _pale(blocks)
        drawing.rectangle(left, y, wide, _HEIGHT, fill)
        for border in range(1, end - number):  # between the elements of one access
            middle = left + border * step - _BETWEEN / 2
            for ends in ((y, y + 4), (y + _HEIGHT - 4, y + _HEIGHT)):
                drawing.line([(middle, ends[0]), (middle, ends[1])], "paper", width=1.5)
        text = launch.text(Cell(cell.index, cell.who, cell.times))
        ink = "on-block" if written else "ink"
        drawing.text(left + wide / 2, y + 15, text, ink, size=_SMALL, anchor="middle")
        number = end


def _draw_frame(drawing: Drawing, x: float, y: float, width: float) -> None:
    right, bottom = x + width - 1, y + _HEIGHT - 1
    corners = [(x + 1, y + 1), (right, y + 1), (right, bottom), (x + 1, bottom), (x + 1, y + 1)]
    drawing.line(corners, "wrong", width=1.5, dashes="3 2")


# ---------------------------------------------------------------- shared arrays


def _strips_box(drawing: Drawing, launch: DrawnLaunch, shared: DrawnShared) -> _Box:
    """Return a shared array as one strip per phase between barriers: full where it was written,
    pale where it was only read; lines lead from elements that a thread read to the one it wrote."""
    phases = shared.phases[:_MOST_PHASES]
    more = len(shared.phases) - len(phases)
    heading = f"shared {shared.declaration}"
    said = (
        f"{shared.bytes:,} bytes, in block {launch.block_name(shared.block)}: "
        f"{counted(shared.writes, 'write')}, {counted(shared.reads, 'read')}",
        "a strip per phase between barriers: full where it is written, pale where only read",
    )
    scale = _STRIPS / max(shared.elements, 1)

    def draw(x: float, y: float) -> None:
        drawing.text(x, y + 12, heading, "ink", bold=True)
        for line, text in enumerate(said):
            drawing.text(x, y + 27 + 14 * line, text, "faint", size=_SMALL)
        for number, phase in enumerate(phases):
            top = y + _STRIPS_TOP + number * _PHASE
            drawing.rectangle(x, top, _STRIPS, _STRIP, "track")
            for colour, runs in (("pale", phase.read), ("block", phase.written)):
                for first, last in runs:
                    wide = max((last - first + 1) * scale, 1.5)
                    fill = f"{colour}{shared.block % _COLOURED}"
                    drawing.rectangle(x + first * scale, top, wide, _STRIP, fill)
            for source, target in phase.links if number else ():
                points = [
                    (x + (source + 0.5) * scale, top - _PHASE + _STRIP),
                    (x + (target + 0.5) * scale, top),
                ]
                drawing.line(points, "link", width=0.8)
            text = _phase_text(phase.writers, phase.readers)
            drawing.text(x + _STRIPS + 10, top + 9, text, "faint", size=_SMALL)
        if more:
            below = y + _STRIPS_TOP + len(phases) * _PHASE + 4
            drawing.text(x, below, f"… {counted(more, 'more phase')}", "faint", size=_SMALL)

    height = _STRIPS_TOP + len(phases) * _PHASE + (8 if more else 0)
    return _Box(WIDTH - 2 * _MARGIN, height, draw)


def _phase_text(writers: int, readers: int) -> str:
    if writers:
        return f"{counted(writers, 'thread')} write{'s' * (writers == 1)}"
    return f"{counted(readers, 'thread')} read{'s' * (readers == 1)}"
