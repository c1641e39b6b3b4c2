"""The plot of a day's results: the rate of each rung beside PyTorch, the best library and the
machine's ceiling, as an SVG that follows the reader's light or dark theme."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from common.base.figures import operations, rate
from common.base.outcome import RungOutcome, Timing
from common.report.svg import figure_as_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stand-ins for the colours, which the SVG's own style sheet chooses by theme.
_COLOURS = {
    "#010101": ("ink", "#24292f", "#e6edf3"),
    "#020202": ("faint", "#8c959f", "#7d8590"),
    "#030303": ("bar", "#2f6fb5", "#58a6ff"),
    "#040404": ("goal", "#1a7f37", "#3fb950"),
    "#050505": ("on-bar", "#ffffff", "#0d1117"),
}
_INK, _FAINT, _BAR, _GOAL, _ON_BAR = _COLOURS
_BAR_HEIGHT, _WIDTH, _MARGIN = 0.32, 8.2, 0.75  # inches
_ROOF_HEIGHT = 0.6 * _WIDTH  # inches
_INNER = (0.92, 0.9)  # of a roofline's width and height are its axes
NUMBER = (11.0, 8.0)  # the width and height of a day's number, in points
_DOT = 4.0  # the width of its dot
_RINGS, _WAYS = (8.0, 13.0, 18.0, 24.0, 30.0, 36.0), 16  # how far from its dot, and where around it


def plotted(rungs: Sequence[RungOutcome]) -> list[RungOutcome]:
    """The rungs that have a rate, which are those that a plot shows."""
    return [rung for rung in rungs if rung.timing and rate(rung.timing)]


def plot(rungs: Sequence[RungOutcome]) -> str:
    """The SVG for a day's timed rungs; "" where none has a rate. The same for the same results."""
    timed = plotted(rungs)
    if not timed:
        return ""
    problems = list(dict.fromkeys(rung.problem for rung in timed))
    groups = [[rung for rung in timed if rung.problem == name] for name in problems]
    heights = [len(group) * _BAR_HEIGHT + _MARGIN for group in groups]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)
        for (axis,), name, group in zip(axes, problems, groups, strict=True):
            _draw(axis, name if len(groups) > 1 else "", group)

    return _themed(figure_as_svg((_WIDTH, sum(heights)), draw, transparent=True))


def _draw(axis: Axes, title: str, rungs: Sequence[RungOutcome]) -> None:
    """Bars from the first rung at the top to the last; lines for what they are held against."""
    timings = [rung.timing for rung in rungs if rung.timing]
    arithmetic = "GB/s" not in rate(timings[-1])
    values = [(t.tflops if arithmetic else t.gbs) or 0.0 for t in timings]
    marks = _marks(timings[-1], values[-1])
    longest = max([*values, *(at for _, at, _ in marks)])
    axis.barh(range(len(rungs)), values, height=0.62, color=_BAR, clip_on=False)
    axis.set_yticks(range(len(rungs)), [rung.rung for rung in rungs])
    axis.invert_yaxis()
    for place, timing in enumerate(timings):
        inside = values[place] > 0.3 * longest
        axis.annotate(
            rate(timing),
            (values[place], place),
            xytext=(-4 if inside else 4, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            color=_ON_BAR if inside else _INK,
        )
    for label, at, colour in marks:
        axis.axvline(at, color=colour, linewidth=1.2, linestyle="--", clip_on=False)
        axis.annotate(
            label,
            (at, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8,
            color=colour,
        )
    axis.set_xlim(0, 1.1 * longest)
    unit = f"T{operations(timings[-1])}" if arithmetic else "GB/s"
    axis.set_xlabel(f"{title}, {unit}" if title else unit, color=_INK)
    axis.tick_params(colors=_INK, length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(_FAINT)


def _marks(last: Timing, mine: float) -> list[tuple[str, float, str]]:
    """Label, rate and colour of PyTorch, the best library and the ceiling, from the last rung's
    timing and its rate; what lies close together gets one line."""
    found: list[tuple[str, float, str]] = []
    if last.share:
        found.append((f"{last.bound} ceiling", mine / last.share, _GOAL))
    if last.pytorch_ms:
        found.append(("PyTorch", mine * last.ms / last.pytorch_ms, _FAINT))
    if last.best_library:
        name, ms = last.best_library
        found.append((name, mine * last.ms / ms, _FAINT))
    found.sort(key=lambda mark: mark[1])
    span = max(at for _, at, _ in found) if found else 1.0
    merged: list[tuple[str, float, str]] = []
    for label, at, colour in found:
        if merged and at - merged[-1][1] < 0.09 * span:
            before, _, _ = merged.pop()
            merged.append((f"{before}, {label}", at, colour))
        else:
            merged.append((label, at, colour))
    return merged


def _themed(svg: str) -> str:
    """Gives the colours to a style sheet with a light and a dark theme."""
    light, dark = [], []
    for stand_in, (name, on_light, on_dark) in _COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{name})")
        light.append(f"--{name}: {on_light}")
        dark.append(f"--{name}: {on_dark}")
    style = (
        f"<style>:root {{ {'; '.join(light)} }} text {{ font-family: sans-serif }} "
        f"@media (prefers-color-scheme: dark) {{ :root {{ {'; '.join(dark)} }} }}</style>"
    )
    head, tag, rest = svg.partition("<defs>")
    return f"{head}{style}\n {tag}{rest}"


def roofline(
    timings: Sequence[tuple[int, Timing]], firsts: Mapping[int, Timing] | None = None
) -> str:
    """The SVG of rungs in the plane of operations per byte and operations per second, each marked
    with the number of its day, below the ceilings that their shares imply; "" where none has
    bytes, operations and a share.

    firsts: by day, the rung that it began with: a hollow dot, from which a line leads to the rung.
    """
    points = [(day, t) for day, t in timings if t.gbs and t.tflops and t.share]
    began = [(t, firsts[day]) for day, t in points if firsts and day in firsts]
    if not points:
        return ""

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        _draw_ways(axis, [(first, last) for last, first in began if first.gbs and first.tflops])
        _draw_roofline(axis, points)

    text = figure_as_svg((_WIDTH, _ROOF_HEIGHT), draw, transparent=True)
    # It stands in a page, which has variables of these names for its own colours.
    svg = _themed(text).replace(":root {", "svg {")
    return svg[svg.index("<svg") :]


def _place(timing: Timing) -> tuple[float, float]:
    """Operations per byte, TFLOP/s."""
    return 1e3 * (timing.tflops or 0) / (timing.gbs or 1), timing.tflops or 0.0


def _draw_ways(axis: Axes, ways: Sequence[tuple[Timing, Timing]]) -> None:
    """Hollow dots, each with a line to where it led."""
    for first, last in ways:
        xs, ys = zip(_place(first), _place(last), strict=True)
        axis.plot(xs, ys, color=_FAINT, linewidth=0.7, zorder=2)
        axis.plot(xs[0], ys[0], "o", color=_BAR, fillstyle="none", markersize=3, zorder=3)


def _draw_roofline(axis: Axes, points: Sequence[tuple[int, Timing]]) -> None:
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
        at = 0.8 * end  # along the line, where it is above what most kernels reach
        axis.text(
            at,
            at * slope,
            "memory bandwidth",
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
    shares = axis.transLimits.transform(axis.transScale.transform(places))
    dots = [(float(x) * inside[0], float(y) * inside[1]) for x, y in shares]
    for (day, _), place, offset in zip(points, places, apart(dots), strict=True):
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


def apart(dots: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Where the number of each dot stands, from the dot, so that no number covers another one or a
    dot, as far as there is room. dots: x and y of each, in points."""
    ways = [2 * math.pi * i / _WAYS for i in range(_WAYS)]
    offsets = [(r * math.sin(way), r * math.cos(way)) for r in _RINGS for way in ways]
    taken = [(x, y, _DOT, _DOT) for x, y in dots]
    found = []
    for x, y in dots:
        boxes = [(x + dx, y + dy, *NUMBER) for dx, dy in offsets]
        best = min(range(len(boxes)), key=lambda i: (sum(_meet(boxes[i], t) for t in taken), i))
        taken.append(boxes[best])
        found.append(offsets[best])
    return found


_Box = tuple[float, float, float, float]  # the middle, the width and the height


def _meet(one: _Box, other: _Box) -> bool:
    (x, y, width, height), (u, v, wide, high) = one, other
    return abs(x - u) < (width + wide) / 2 and abs(y - v) < (height + high) / 2


def _named(ceilings: dict[str, float]) -> list[tuple[str, float]]:
    """Labels of ceilings, one for those that lie close together, above the highest of them."""
    merged: list[tuple[str, float]] = []
    for name, ceiling in sorted(ceilings.items(), key=lambda each: each[1]):
        if merged and ceiling < 1.25 * merged[-1][1]:
            name = f"{merged.pop()[0]}, {name}"
        merged.append((name, ceiling))
    return [(f"{name} ceiling", ceiling) for name, ceiling in merged]


def _ceilings(timings: Sequence[Timing]) -> dict[str, float]:
    """The machine's ceilings by name: GB/s for "copy" and "read", else TFLOP/s."""
    found: dict[str, float] = {}
    for t in timings:
        mine = t.gbs if t.bound in ("copy", "read") else t.tflops
        if t.share and mine:
            found[t.bound] = mine / t.share
    return found
