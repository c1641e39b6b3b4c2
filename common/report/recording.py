"""Draw a run's output on a terminal as an SVG."""

from __future__ import annotations

import re
from collections.abc import Sequence

from common.report.drawing import Drawing
from common.report.terminal import Line

_SIZE = 14.0
_COLUMN, _ROW = 0.6 * _SIZE, 1.4 * _SIZE  # size of a character
_MARGIN, _TITLE = 16.0, 40.0
# Colours of a dark terminal, also on a light background; by the last word of a line's style.
_COLOURS = {
    name: (colour, colour)
    for name, colour in {
        "paper": "#292929",
        "": "#d0d4d2",
        "dim": "#9a9d9b",
        "green": "#a5b951",
        "red": "#ff7b72",
        "yellow": "#d6a94a",
        "title": "#ffffff",
        "close": "#ff5f57",
        "smaller": "#febc2e",
        "larger": "#28c840",
    }.items()
}


def recording(title: str, lines: Sequence[Line]) -> str:
    """Return the SVG of a terminal's window with these lines.

    Each word is positioned separately, so that columns are aligned in every font.
    """
    texts = ["".join(text for text, _ in line) for line in lines]
    width = 2 * _MARGIN + _COLUMN * max(len(text) for text in texts)
    drawing = Drawing(width, _COLOURS)
    for index, name in enumerate(("close", "smaller", "larger")):
        drawing.circle(_MARGIN + 6 + 20 * index, _TITLE / 2, 6, name)
    drawing.text(width / 2, _TITLE / 2 + 5, title, "title", size=_SIZE, anchor="middle")
    for row, line in enumerate(lines):
        y, column = _TITLE + (row + 1) * _ROW, 0
        for text, style in line:
            colour = style.split(" ")[-1]
            for word in re.finditer(r"\S+", text):
                x = _MARGIN + _COLUMN * (column + word.start())
                bold = style.startswith("bold")
                drawing.text(x, y, word[0], colour, size=_SIZE, bold=bold, exact=True)
            column += len(text)
    return drawing.svg(_TITLE + len(lines) * _ROW + _MARGIN)
