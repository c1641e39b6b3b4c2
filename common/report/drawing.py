"""Draw an SVG element by element, with colours that every renderer supports.

Each element carries its colour for a light background as an attribute, which every renderer reads,
and the colour's name as a class, by which a browser's style sheet replaces it on a dark one. Text
is set in a monospaced font, so that its width is known without the font.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
ADVANCE = 0.62  # character width / font size, for the widest of these fonts
SIZE = 12.0  # the default font size

Colours = Mapping[str, tuple[str, str]]  # by name: colours on a light and on a dark background


def width_of(text: str, size: float = SIZE) -> float:
    """Return the width of a text."""
    return ADVANCE * size * len(text)


class Drawing:
    """Elements on a background, from the first, at the bottom, to the last.

    colours: all names that its elements use, and "paper" for the background. Lengths are in pixels,
    from the top left corner.
    """

    def __init__(self, width: float, colours: Colours):
        self.width = width
        self._colours = colours
        self._elements: list[ET.Element] = []
        self._used: dict[tuple[str, str], None] = {}

    def _add(self, tag: str, attributes: Mapping[str, object], **paints: str) -> ET.Element:
        """Add an element and return it; paints: "fill" or "stroke", with the name of a colour."""
        texts = {name.replace("_", "-"): _text(value) for name, value in attributes.items()}
        element = ET.Element(tag, texts)
        for property_, colour in paints.items():
            element.set(property_, self._colours[colour][0])
            self._used[property_, colour] = None
        element.set("class", " ".join(_class(*paint) for paint in paints.items()))
        self._elements.append(element)
        return element

    def rectangle(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        shape = {"x": x, "y": y, "width": width, "height": height}
        self._add("rect", shape, fill=colour)

    def circle(self, x: float, y: float, radius: float, colour: str) -> None:
        self._add("circle", {"cx": x, "cy": y, "r": radius}, fill=colour)

    def polygon(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        self._add("polygon", {"points": _points(points)}, fill=colour)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        colour: str,
        width: float = 2,
        dashes: str = "",
    ) -> None:
        """Draw a line through points; dashes: lengths of its dashes and gaps, as in SVG."""
        shape: dict[str, object] = {"points": _points(points), "stroke_width": width}
        if dashes:
            shape["stroke_dasharray"] = dashes
        element = self._add("polyline", shape, stroke=colour)
        element.set("fill", "none")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str,
        *,
        size: float = SIZE,
        anchor: str = "start",
        bold: bool = False,
        exact: bool = False,
    ) -> None:
        """Write a line of text on the baseline y; x is its "start", "middle" or "end", by anchor.

        exact: set 0.6 of its size per character in every font.
        """
        shape: dict[str, object] = {"x": x, "y": y}
        if size != SIZE:
            shape["font_size"] = size
        if anchor != "start":
            shape["text_anchor"] = anchor
        if bold:
            shape["font_weight"] = "bold"
        if exact:
            shape |= {"textLength": 0.6 * size * len(text), "lengthAdjust": "spacingAndGlyphs"}
        self._add("text", shape, fill=colour).text = text

    def svg(self, height: float) -> str:
        """Return the text of the SVG."""
        size = {"width": _text(self.width), "height": _text(height)}
        svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
        svg.set("viewBox", f"0 0 {size['width']} {size['height']}")
        svg.set("font-family", FONT)
        svg.set("font-size", _text(SIZE))
        self.rectangle(0, 0, self.width, height, "paper")
        *elements, background = self._elements
        dark = [
            f".{_class(property_, colour)} {{ {property_}: {self._colours[colour][1]} }}"
            for property_, colour in self._used
            if len(set(self._colours[colour])) > 1
        ]
        if dark:
            style = ET.SubElement(svg, "style")
            style.text = f"@media (prefers-color-scheme: dark) {{ {' '.join(dark)} }}"
        svg.extend([background, *elements])
        ET.indent(svg, " ")
        return ET.tostring(svg, encoding="unicode") + "\n"


def _class(property_: str, colour: str) -> str:
    """Return the class of elements filled, or drawn, in a colour."""
    return colour if property_ == "fill" else f"{colour}-line"


def _text(value: object) -> str:
    """Return a number with one decimal at most, and any other value unchanged."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_text(float(x))},{_text(float(y))}" for x, y in points)
