"""Draw a roofline as an SVG: rungs of several days below the machine's ceilings."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from common.base.outcome import Timing
from common.report.svg import PAPER, figure_as_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# For each colour on a light background: its name, and the colour on a dark one.
_COLOURS = {
    PAPER: ("paper", "#0d1117"),
    "#24292f": ("ink", "#e6edf3"),
    "#8c959f": ("faint", "#7d8590"),
    "#2f6fb5": ("bar", "#58a6ff"),
    "#1a7f37": ("goal", "#3fb950"),
}
_, _INK, _FAINT, _BAR, _GOAL = _COLOURS
_WIDTH = 8.2  # inches
_ROOF_HEIGHT = 0.6 * _WIDTH
_INNER = (0.92, 0.9)  # share of the axes in a roofline's width and height
_BANDWIDTH = "memory bandwidth"
NUMBER = (11.0, 8.0)  # width and height of a day's number, in points
_DOT = 4.0  # width of its dot
_RINGS = (8.0, 13.0, 18.0, 24.0, 30.0, 36.0, 44.0, 52.0)  # distances from its dot
_WAYS = 16  # number of directions from it


def roofline(
    timings: Sequence[tuple[int, Timing]], firsts: Mapping[int, Timing] | None = None
) -> str:
    """Return the SVG of rungs in the plane of operations per byte and operations per second, each
    marked with the number of its day, below the ceilings that their shares imply; "" if no rung has
    bytes, operations and a share.

    firsts: the first rung of each day: a hollow dot, from which a line leads to the rung.
    """
    points = [(day, t) for day, t in timings if t.gbs and t.tflops and t.share]
    began = [(t, firsts[day]) for day, t in points if firsts and day in firsts]
    if not points:
        return ""

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        ways = [(first, last) for last, first in began if first.gbs and first.tflops]
        _draw_ways(axis, ways)
        _draw_roofline(axis, points, [first for first, _ in ways])

    svg = _themed(figure_as_svg((_WIDTH, _ROOF_HEIGHT), draw))
    return svg[svg.index("<svg") :]  # an element of a page


def _themed(svg: str) -> str:
    """Return the SVG with a variable after each colour, which a style sheet sets by the reader's
    theme. A renderer without variables uses the colour before it."""
    for colour, (name, _) in _COLOURS.items():
        svg = re.sub(rf"(fill|stroke): {colour}", rf"\g<0>; \1: var(--{name})", svg)
    light = "; ".join(f"--{name}: {colour}" for colour, (name, _) in _COLOURS.items())
    dark = "; ".join(f"--{name}: {on_dark}" for name, on_dark in _COLOURS.values())
    style = (
        f"<style>svg {{ {light} }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}</style>"
    )
    head, tag, rest = svg.partition("<defs>")
    return f"{head}{style}\n {tag}{rest}"


def _place(timing: Timing) -> tuple[float, float]:
    """Return (operations per byte, TFLOP/s)."""
    return 1e3 * (timing.tflops or 0) / (timing.gbs or 1), timing.tflops or 0.0


def _draw_ways(axis: Axes, ways: Sequence[tuple[Timing, Timing]]) -> None:
    """Draw hollow dots, each with a line to the rung that followed it."""
    for first, last in ways:
        xs, ys = zip(_place(first), _place(last), strict=True)
        axis.plot(xs, ys, color=_FAINT, linewidth=0.7, zorder=2)
        axis.plot(xs[0], ys[0], "o", color=_BAR, fillstyle="none", markersize=3, zorder=3)


def _draw_roofline(
    axis: Axes, points: Sequence[tuple[int, Timing]], firsts: Sequence[Timing]
) -> None:
    places = [_place(t) for _, t in points]
    left, right = 0.5 * min(x for x, _ in places), 2 * max(x for x, _ in places)
    axis.set_xscale("log")
    axis.set_yscale("log")
    ceilings = _ceilings([t for _, t in points])
    bandwidth = ceilings.pop("copy", 0.0) or ceilings.get("read", 0.0)
    ceilings.pop("read", None)
    starts = {n: max(left, 1e3 * c / bandwidth) if bandwidth else left for n, c in ceilings.items()}
    # Their labels are to the right of all kernels.
    end = max([5 * right if ceilings else right, *(1.5 * start for start in starts.values())])
    for name, ceiling in ceilings.items():
        axis.plot([starts[name], end], [ceiling, ceiling], color=_GOAL, linewidth=1.2)
    for label, ceiling in _named(ceilings):
        axis.annotate(label, (end, ceiling), ha="right", va="bottom", fontsize=8, color=_GOAL)
    if bandwidth:
        highest = max([y for _, y in places] + list(ceilings.values()))
        end = 1e3 * highest / bandwidth
        slope = bandwidth / 1e3
        axis.plot([left, end], [left * slope, end * slope], color=_GOAL, linewidth=1.2)
        tip = 0.8 * end  # along the line, above most kernels
        axis.text(
            tip,
            tip * slope,
            _BANDWIDTH,
            rotation=math.degrees(math.atan2(slope, 1)),
            rotation_mode="anchor",
            transform_rotates_text=True,
            ha="right",
            va="bottom",
            fontsize=8,
            color=_GOAL,
        )
    axis.scatter([x for x, _ in places], [y for _, y in places], s=14, color=_BAR, zorder=3)
    inside = 72 * _WIDTH * _INNER[0], 72 * _ROOF_HEIGHT * _INNER[1]

    def point(place: tuple[float, float]) -> tuple[float, float]:
        x, y = axis.transLimits.transform(axis.transScale.transform(place))
        return float(x) * inside[0], float(y) * inside[1]

    taken = [(*point(_place(first)), _DOT, _DOT) for first in firsts]
    if bandwidth:
        taken += _along(point((tip, tip * slope)), point((left, left * slope)))
    numbers = apart([point(place) for place in places], taken)
    for (day, _), place, offset in zip(points, places, numbers, strict=True):
        far = math.hypot(*offset) > _RINGS[0] + 1
        axis.annotate(
            str(day),
            place,
            xytext=offset,
            textcoords="offset points",
            ha="center",
            va="center",
            color=_INK,
            arrowprops={"arrowstyle": "-", "color": _FAINT, "linewidth": 0.6} if far else None,
        )
    axis.set_xlabel("operations per byte", color=_INK)
    axis.set_ylabel("TFLOP/s", color=_INK)
    axis.tick_params(colors=_INK, which="both", length=0)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(_FAINT)


_Box = tuple[float, float, float, float]  # the middle, the width and the height


def apart(
    dots: Sequence[tuple[float, float]], taken: Sequence[_Box] = ()
) -> list[tuple[float, float]]:
    """Return the offset of each dot's number, chosen so that no number covers another one, a dot,
    or a box in `taken`, as far as there is room. dots: x and y of each, in points."""
    ways = [2 * math.pi * i / _WAYS for i in range(_WAYS)]
    offsets = [(r * math.sin(way), r * math.cos(way)) for r in _RINGS for way in ways]
    taken = [*taken, *((x, y, _DOT, _DOT) for x, y in dots)]
    found = []
    for x, y in dots:
        boxes = [(x + dx, y + dy, *NUMBER) for dx, dy in offsets]
        best = min(range(len(boxes)), key=lambda i: (sum(_meet(boxes[i], t) for t in taken), i))
        taken.append(boxes[best])
        found.append(offsets[best])
    return found


def _along(end: tuple[float, float], start: tuple[float, float]) -> list[_Box]:
    """Return a box per letter of the label that ends at `end`, on the line from `start`."""
    length = math.dist(start, end)
    dx, dy = (end[0] - start[0]) / length, (end[1] - start[1]) / length
    letters = [(4.6 * (i + 0.5), 4.0) for i in range(len(_BANDWIDTH))]  # along and above the line
    return [(end[0] - a * dx - b * dy, end[1] - a * dy + b * dx, 6.0, 8.0) for a, b in letters]


def _meet(one: _Box, other: _Box) -> bool:
    (x, y, width, height), (u, v, wide, high) = one, other
    return abs(x - u) < (width + wide) / 2 and abs(y - v) < (height + high) / 2


def _named(ceilings: dict[str, float]) -> list[tuple[str, float]]:
    """Return the labels of ceilings; close ceilings share one label, above the highest of them."""
    merged: list[tuple[str, float]] = []
    for name, ceiling in sorted(ceilings.items(), key=lambda each: each[1]):
        if merged and ceiling < 1.25 * merged[-1][1]:
            name = f"{merged.pop()[0]}, {name}"
        merged.append((name, ceiling))
    return [(f"{name} ceiling", ceiling) for name, ceiling in merged]


def _ceilings(timings: Sequence[Timing]) -> dict[str, float]:
    """Return the machine's ceilings by name: GB/s for "copy" and "read", else TFLOP/s."""
    found: dict[str, float] = {}
    for t in timings:
        mine = t.gbs if t.bound in ("copy", "read") else t.tflops
        if t.share and mine:
            found[t.bound] = mine / t.share
    return found
