"""Plot a day's results as an SVG: the rate of each rung, with marks for PyTorch, the best library
and the machine's ceiling.

A problem is a group of bars, one per rung. Three or more problems whose names differ in one number
are sizes of one problem, which is drawn as a line per rung over the number. A problem with one rung
is a bar of the problem that it extends, as "copy in boxes" extends "copy", or of a group of such
problems; it is left out if that group would have no other bar.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from common.base.figures import library_name, operations, rate, significant
from common.base.outcome import RungOutcome, Timing
from common.report.drawing import Drawing, width_of

COLOURS = {
    "paper": ("#ffffff", "#0d1117"),
    "ink": ("#24292f", "#e6edf3"),
    "faint": ("#59636e", "#9198a1"),
    "track": ("#e7ebef", "#262c36"),
    "bar": ("#2f6fb5", "#4493f8"),
    "ceiling": ("#1a7f37", "#3fb950"),
    "pytorch": ("#d9480f", "#ff9657"),
    "library": ("#8250df", "#d2a8ff"),
    # Colours of the lines over size, in the order of the rungs.
    "first": ("#57606a", "#9198a1"),
    "second": ("#0f8b8d", "#39c5cf"),
    "third": ("#bf3989", "#f778ba"),
    "fourth": ("#9a6700", "#d29922"),
    "fifth": ("#0a3069", "#a5d6ff"),
}
_RUNGS = ("first", "second", "third", "fourth", "fifth")  # the last rung has the colour of bars
WIDTH, _MARGIN = 820.0, 12.0
_HEADING, _ROW, _BAR, _GAP = 24.0, 20.0, 12.0, 16.0  # heights
_SMALL = 11.0  # the font size of text that does not belong to a rung
_SPACE = 6.0  # between a text and its neighbour
_PLOT = 200.0  # the height of lines over size
_LINES = {"pytorch": "", "library": "5 3"}  # the dashes of the marks that are lines
SIZES = 3  # least number of problems drawn as sizes of one
ALONE = "problems with one rung"


def plot(rungs: Sequence[RungOutcome]) -> str:
    """Return the SVG of a day's rungs; "" if there is nothing to compare."""
    charts = _charts(rungs)
    return drawn(charts) if charts else ""


def drawn(charts: Sequence[Bars | Lines], pytorch: str = "PyTorch") -> str:
    """Return the SVG of charts, one below the other. pytorch: the name of its mark."""
    drawing = Drawing(WIDTH, COLOURS)
    y = _draw_legend(drawing, charts, _LEGEND | {"pytorch": pytorch})
    labels = [bar.label for chart in charts if isinstance(chart, Bars) for bar in chart.bars]
    left = _MARGIN + max((width_of(label) for label in labels), default=0) + _SPACE
    for chart in charts:
        y = chart.draw(drawing, _draw_heading(drawing, y, chart), left) + _GAP
    return drawing.svg(y - _GAP + _MARGIN)


# --- the elements -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A problem's timed rungs, and the rates that they are compared with.

    unit: of all rates. marks: the known rates of "pytorch", "library" and "ceiling". library,
    ceiling: their names.
    """

    name: str
    rungs: tuple[RungOutcome, ...]
    unit: str
    rates: tuple[float, ...]
    marks: dict[str, float]
    library: str
    ceiling: str

    @property
    def work(self) -> float:
        """Return a call's bytes or operations, the same for all rungs of the problem."""
        timing = self.rungs[-1].timing
        return self.rates[-1] * timing.ms if timing else 0.0


def problems_of(rungs: Sequence[RungOutcome]) -> list[Problem]:
    """Return the problems that have a rate."""
    found: dict[str, list[tuple[RungOutcome, Timing]]] = {}
    for rung in rungs:
        if rung.timing and rate(rung.timing):
            found.setdefault(rung.problem, []).append((rung, rung.timing))
    return [_problem(name, timed) for name, timed in found.items()]


def _problem(name: str, timed: Sequence[tuple[RungOutcome, Timing]]) -> Problem:
    """Return a problem. Its marks follow from the last rung, since all rungs do the same work."""
    last = timed[-1][1]
    arithmetic = "GB/s" not in rate(last)
    rates = tuple((t.tflops if arithmetic else t.gbs) or 0.0 for _, t in timed)
    marks, library = {}, ""
    if last.share:
        marks["ceiling"] = rates[-1] / last.share
    if last.pytorch_ms:
        marks["pytorch"] = rates[-1] * last.ms / last.pytorch_ms
    if last.best_library:
        best, ms = last.best_library
        library = library_name(best)
        marks["library"] = rates[-1] * last.ms / ms
    unit = f"T{operations(last)}" if arithmetic else "GB/s"
    known = last.bound if last.share else ""
    return Problem(name, tuple(rung for rung, _ in timed), unit, rates, marks, library, known)


@dataclass(frozen=True)
class Bar:
    """A rung's rate, its label and the problem that its marks belong to."""

    label: str
    rate: float
    text: str
    problem: Problem


@dataclass
class Bars:
    """A group of bars with one scale."""

    title: str
    bars: list[Bar]

    @property
    def problems(self) -> list[Problem]:
        return [bar.problem for bar in self.bars]

    def draw(self, drawing: Drawing, top: float, left: float) -> float:
        """Draw the bars from top to bottom; return the y of their end."""
        longest = max(max(bar.rate, *bar.problem.marks.values(), 0.0) for bar in self.bars)
        widest = max(width_of(bar.text) for bar in self.bars)
        scale = (WIDTH - _MARGIN - widest - 2 * _SPACE - left) / longest
        for row, bar in enumerate(self.bars):
            y, marks = top + row * _ROW, bar.problem.marks
            upper = y + (_ROW - _BAR) / 2
            ceiling = scale * marks.get("ceiling", 0.0)
            if ceiling:
                drawing.rectangle(left, upper, ceiling, _BAR, "track")
            drawing.rectangle(left, upper, max(scale * bar.rate, 1.0), _BAR, "bar")
            if ceiling:
                drawing.rectangle(left + ceiling - 1, upper, 2.0, _BAR, "ceiling")
            drawing.text(left - _SPACE, y + 14, bar.label, "ink", anchor="end")
            ends = [left + scale * mark for mark in marks.values()]
            at = _beside(left + scale * bar.rate, width_of(bar.text), ends)
            drawing.text(at, y + 14, bar.text, "ink")
        for first, last in _runs(self.problems):
            y, until = top + first * _ROW, top + (last + 1) * _ROW
            for name in _LINES:
                if mark := self.bars[first].problem.marks.get(name):
                    x = left + scale * mark
                    drawing.line([(x, y), (x, until)], "paper", 4)
                    drawing.line([(x, y), (x, until)], name, dashes=_LINES[name])
        return top + len(self.bars) * _ROW


def _beside(end: float, width: float, marks: Iterable[float]) -> float:
    """Return the position of a text of this width: after its bar, and after each mark that it would
    cover."""
    at = end + _SPACE
    for mark in sorted(marks):
        if at - _SPACE < mark < at + width + _SPACE:
            at = mark + _SPACE
    return at


def _runs(problems: Sequence[Problem]) -> list[tuple[int, int]]:
    """Return the first and the last row of the bars of each problem."""
    firsts = [i for i, each in enumerate(problems) if i == 0 or each is not problems[i - 1]]
    return [(first, after - 1) for first, after in pairwise([*firsts, len(problems)])]


class Lines:
    """A line per rung over a number in the names of the problems. sizes: problems by number."""

    def __init__(self, title: str, sizes: dict[int, Problem]):
        self.title = title
        self.sizes = dict(sorted(sizes.items()))

    @property
    def problems(self) -> list[Problem]:
        return list(self.sizes.values())

    def draw(self, drawing: Drawing, top: float, _left: float) -> float:
        """Draw the lines, their axes and, to the right, the names of the rungs; return the y of
        their end."""
        top += _SPACE
        lines = self._lines()
        marks = {name: self._marks(name) for name in ("ceiling", "pytorch", "library")}
        steps = _steps(max(y for line in [*lines.values(), *marks.values()] for _, y in line))
        ticks = [significant(step, 1) if step < 1 else f"{step:.0f}" for step in steps]
        left = _MARGIN + max(width_of(tick, _SMALL) for tick in ticks) + _SPACE
        right = WIDTH - _MARGIN - max(width_of(name) for name in lines) - 5 * _SPACE
        first, *_, last = self.sizes
        across = (right - left - 4 * _SPACE) / math.log2(last / first)

        def place(size: float, value: float) -> tuple[float, float]:
            x = left + 2 * _SPACE + across * math.log2(size / first)
            return x, top + _PLOT * (1 - value / steps[-1])

        for step, tick in zip(steps, ticks, strict=True):
            y = place(first, step)[1]
            drawing.line([(left, y), (right, y)], "track", 1)
            drawing.text(left - _SPACE, y + 4, tick, "faint", size=_SMALL, anchor="end")
        _draw_sizes(drawing, [(str(size), place(size, 0)) for size in self.sizes])
        for name, line in marks.items():
            if line:
                dashes = _LINES.get(name, "")
                drawing.line([place(*point) for point in line], name, dashes=dashes)
        for index, (name, line) in enumerate(lines.items()):
            is_last = index == len(lines) - 1
            colour = "bar" if is_last else _RUNGS[index % len(_RUNGS)]
            points = [place(*point) for point in line]
            y = top + 8 + index * _ROW
            drawing.line(points, colour)
            drawing.line([(right + _SPACE, y), (right + 4 * _SPACE, y)], colour)
            # Coinciding points all remain visible, since those of later rungs are smaller.
            radius = 6.5 - 3.5 * (index + 1) / len(lines)
            for point in [*points, (right + 2.5 * _SPACE, y)]:
                _draw_point(drawing, *point, radius, colour, index)
            drawing.text(right + 5 * _SPACE, y + 4, name, "ink")
        return max(top + _PLOT + _ROW, top + len(lines) * _ROW)

    def _lines(self) -> dict[str, list[tuple[int, float]]]:
        """Return the sizes and rates of each rung, in the rungs' common order in all problems."""
        found: dict[str, list[tuple[int, float]]] = {}
        order: list[str] = []
        for size, problem in self.sizes.items():
            names = [rung.rung for rung in problem.rungs]
            for index, (name, value) in enumerate(zip(names, problem.rates, strict=True)):
                if name not in order:
                    later = [order.index(each) for each in names[index:] if each in order]
                    order.insert(min(later, default=len(order)), name)
                found.setdefault(name, []).append((size, value))
        return {name: found[name] for name in order}

    def _marks(self, name: str) -> list[tuple[int, float]]:
        return [(n, each.marks[name]) for n, each in self.sizes.items() if name in each.marks]


def _draw_sizes(drawing: Drawing, places: Iterable[tuple[str, tuple[float, float]]]) -> None:
    """Draw a tick at each place of the axis, and the text below it if there is room."""
    until = 0.0
    for text, (x, y) in places:
        half = width_of(text, _SMALL) / 2
        drawing.line([(x, y), (x, y + 4)], "faint", 1)
        if x - half > until:
            drawing.text(x, y + 16, text, "faint", size=_SMALL, anchor="middle")
            until = x + half + _SPACE


def _draw_point(
    drawing: Drawing, x: float, y: float, radius: float, colour: str, index: int
) -> None:
    """Draw a circle, square, diamond or triangle, in turn by the index."""
    corners = (0, 4, 4, 3)[index % 4]
    if not corners:
        drawing.circle(x, y, radius, colour)
        return
    begin = (0, math.pi / 4, 0, 0)[index % 4]
    angles = [begin + 2 * math.pi * i / corners for i in range(corners)]
    r = 1.2 * radius  # about the area of the circle
    drawing.polygon([(x + r * math.sin(a), y - r * math.cos(a)) for a in angles], colour)


def _steps(highest: float) -> list[float]:
    """Return at most six round numbers, from 0 to the first that is not below the highest."""
    power = 10.0 ** math.floor(math.log10(highest / 5))
    step = next(factor * power for factor in (1, 2, 5, 10) if 5 * factor * power >= highest)
    return [i * step for i in range(math.ceil(highest / step) + 1)]


# --- the charts -------------------------------------------------------------------------------


def _charts(rungs: Sequence[RungOutcome]) -> list[Bars | Lines]:
    problems = problems_of(rungs)
    lines = {problem.name: each for each in _series(problems) for problem in each.problems}
    charts: list[Bars | Lines] = []
    groups: list[Bars] = []
    alone: list[Problem] = []
    for problem in problems:
        if found := lines.get(problem.name):
            if found not in charts:
                charts.append(found)
        elif len(problem.rungs) > 1:
            groups.append(Bars(problem.name, _bars(problem)))
            charts.append(groups[-1])
        else:
            alone.append(problem)
    rest: dict[str, list[Bar]] = {}  # by unit
    for problem in alone:
        for group in groups:
            if _extends(problem, group.problems[0]):
                group.bars += _bars(problem)
                break
        else:
            bars = [replace(bar, label=problem.name) for bar in _bars(problem)]
            rest.setdefault(problem.unit, []).extend(bars)
    return charts + [Bars(ALONE, bars) for bars in rest.values() if len(bars) > 1]


def _bars(problem: Problem) -> list[Bar]:
    return [
        Bar(rung.rung, value, rate(rung.timing) if rung.timing else "", problem)
        for rung, value in zip(problem.rungs, problem.rates, strict=True)
    ]


def _series(problems: Sequence[Problem]) -> list[Lines]:
    """Return charts of problems whose names differ in one number, if there are at least SIZES."""
    found: dict[tuple[str, str], dict[int, Problem]] = {}
    for problem in problems:
        for number in re.finditer(r"(?<![\w.])\d+(?![\w.])", problem.name):
            before, after = problem.name[: number.start()], problem.name[number.end() :]
            if number[0] == "1":
                after = re.sub(r"^( \w+)", r"\1s", after)  # "1 bin" is a size of "n bins"
            sizes = found.setdefault((f"{before}n{after}", problem.unit), {})
            sizes[int(number[0])] = problem
    series: list[Lines] = []
    drawn: set[str] = set()
    for (title, _), sizes in found.items():
        names = {problem.name for problem in sizes.values()}
        if len(sizes) >= SIZES and min(sizes) > 0 and not names & drawn:
            series.append(Lines(title, sizes))
            drawn |= names
    return series


def _extends(one: Problem, other: Problem) -> bool:
    """Return True if `one` is `other` with a longer name, the same work and a new rung."""
    same = one.unit == other.unit and math.isclose(one.work, other.work, rel_tol=1e-3)
    new = one.rungs[0].rung not in {rung.rung for rung in other.rungs}
    return same and new and one.name.startswith(other.name)


# --- marks, headings and the legend -----------------------------------------------------------


_LEGEND = {"ceiling": "machine's ceiling", "pytorch": "PyTorch", "library": "best library"}


def _draw_legend(
    drawing: Drawing, charts: Sequence[Bars | Lines], names: Mapping[str, str]
) -> float:
    """Draw the meaning of the marks, in one line; return the y of its end. names: of the marks."""
    used = {name for chart in charts for problem in chart.problems for name in problem.marks}
    x, y = _MARGIN, _MARGIN + 8
    for name, text in names.items():
        if name not in used:
            continue
        if name == "ceiling":
            drawing.rectangle(x, y - _BAR / 2, 20, _BAR, "track")
            drawing.rectangle(x + 19, y - _BAR / 2, 2, _BAR, name)
        else:
            drawing.line([(x + 10, y - 9), (x + 10, y + 9)], name, dashes=_LINES[name])
        drawing.text(x + 20 + _SPACE, y + 4, text, "ink", size=_SMALL)
        x += 20 + _SPACE + width_of(text, _SMALL) + 4 * _SPACE
    return y + _ROW if used else _MARGIN


def _draw_heading(drawing: Drawing, y: float, chart: Bars | Lines) -> float:
    """Draw the title and, at the right or below it, the unit and the names of the marks; return the
    y of their end."""
    drawing.text(_MARGIN, y + 14, chart.title, "ink", bold=True)
    ceilings = dict.fromkeys(each.ceiling for each in chart.problems if each.ceiling)
    libraries = dict.fromkeys(each.library for each in chart.problems if each.library)
    parts = [chart.problems[0].unit]
    parts += [f"ceiling: {', '.join(ceilings)}"] if ceilings else []
    parts += [f"library: {', '.join(libraries)}"] if libraries else []
    text = " · ".join(parts)
    if 2 * _MARGIN + width_of(chart.title) + _SPACE + width_of(text, _SMALL) > WIDTH:
        y += _ROW
    drawing.text(WIDTH - _MARGIN, y + 14, text, "faint", size=_SMALL, anchor="end")
    return y + _HEADING
