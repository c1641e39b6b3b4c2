"""Draw a figure as the text of an SVG, the same for the same data."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PAPER = "#ffffff"  # the background


def figure_as_svg(size: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """Return an SVG of an empty figure after draw(figure); its text stays text.

    size: width and height in inches.
    """
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {"svg.hashsalt": "hundred days", "svg.fonttype": "none", "font.size": 9}
    settings["font.sans-serif"] = ["DejaVu Sans", "Verdana", "Arial"]  # named at each text
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
        draw(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
