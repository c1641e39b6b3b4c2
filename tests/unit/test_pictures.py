"""The pictures that the runner draws: labels do not overlap, colours hold in every renderer."""

from __future__ import annotations

import itertools
import random
import re
import xml.etree.ElementTree as ET

import pytest

from common.base.days import discover
from common.base.outcome import PASS, RungOutcome, Timing
from common.report.drawing import ADVANCE
from common.report.front_chart import CLIMB, climb, steps_of
from common.report.markdown import RECORDED, first_results, run_lines
from common.report.plot import ALONE, COLOURS, plot
from common.report.recording import recording
from common.report.roofline import roofline
from common.report.stored import read_stored

SVG = "{http://www.w3.org/2000/svg}"
MOST = 20 * 1024  # bytes of a plot

Box = tuple[float, float, float, float]  # left, top, right, bottom


@pytest.fixture(scope="module")
def plots() -> dict[str, str]:
    """Return the plots of all stored results, by day, and of the parts beyond the main line."""
    results = {day: found[0] for day, found in read_stored().items()}
    main = {f"day {day}": plot(one.main.rungs) for day, one in results.items()}
    assert sum(map(bool, main.values())) > 0.9 * len(main) > 0
    further = {f"day {day}, further": plot(one.further.rungs) for day, one in results.items()}
    return {name: svg for name, svg in (main | further).items() if svg}


def rung(
    problem: str,
    name: str,
    gbs: float,
    work: float = 4000.0,
    share: float | None = None,
    **times: float,
) -> RungOutcome:
    """Return an outcome. times: ms of PyTorch, and of libraries by name."""
    pytorch = times.pop("pytorch", None)
    timing = Timing("", work / gbs, 0.0, 9, gbs, bound="copy", share=share, pytorch_ms=pytorch)
    timing.libraries = times
    return RungOutcome(problem, name, "", PASS, timing=timing)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def text_box(text: ET.Element) -> Box:
    size = float(text.get("font-size", "12"))
    width = ADVANCE * size * len(text.text or "")
    before = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor", "start")]
    left, y = float(text.attrib["x"]) - before * width, float(text.attrib["y"])
    return left, y - 0.75 * size, left + width, y + 0.2 * size


def shape_boxes(svg: ET.Element) -> list[tuple[str, Box]]:
    """Return the shapes that no text may cover: bars, marks, and each piece of a line, by their
    classes."""
    found = []
    for rect in svg.iter(f"{SVG}rect"):
        x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        if rect.attrib["class"] not in ("paper", "track"):
            found.append((rect.attrib["class"], (x, y, x + width, y + height)))
    for line in svg.iter(f"{SVG}polyline"):
        points = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
        for (x, y), (u, v) in itertools.pairwise(points):
            found.append((line.attrib["class"], (min(x, u), min(y, v), max(x, u), max(y, v))))
    return found


def meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def collisions(svg: str) -> list[str]:
    """Return the texts that cover another one or a shape, or leave the picture."""
    root = ET.fromstring(svg)
    boxes = [(text.text, text_box(text)) for text in root.iter(f"{SVG}text")]
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    found = [f"{a} on {b}" for (a, x), (b, y) in itertools.combinations(boxes, 2) if meet(x, y)]
    shapes = shape_boxes(root)
    found += [
        f"{text} on {name}"
        for (text, x), (name, y) in itertools.product(boxes, shapes)
        if meet(x, y)
    ]
    found += [f"{text} is cut" for text, (left, top, right, bottom) in boxes
              if left < 0 or top < 0 or right > width or bottom > height]  # fmt: skip
    return found


def test_no_label_of_a_stored_plot_collides(plots: dict[str, str]) -> None:
    assert {day: found for day, svg in plots.items() if (found := collisions(svg))} == {}


def test_the_climb_has_every_step_and_no_collision() -> None:
    results = first_results(read_stored())
    svg = climb(discover()[0], results)
    assert collisions(svg) == []
    steps = [day for day, _ in steps_of(discover()[0], results)]
    assert steps == [CLIMB[0], *CLIMB]
    assert len(svg.encode()) <= MOST
    assert climb(discover()[0], {}) == ""


def test_plots_are_small(plots: dict[str, str]) -> None:
    assert {day: size for day, svg in plots.items() if (size := len(svg.encode())) > MOST} == {}


def test_no_label_collides_whatever_the_rates() -> None:
    """Marks and ends of bars anywhere, also on one another; names of any length."""
    draw = random.Random(1)
    for _ in range(300):
        rungs = []
        for problem in range(draw.randint(1, 3)):
            name = "problem " * draw.randint(1, 6) + draw.choice("abc") * problem
            times = {"pytorch": draw.choice([1.0, 1.001, draw.uniform(0.1, 100)])}
            times["library " * draw.randint(1, 4)] = draw.choice([1.0, draw.uniform(0.5, 10)])
            share = draw.choice([None, draw.uniform(0.001, 1.2)])
            for number in range(draw.randint(1, 5)):
                gbs = draw.choice([4000, 3990, draw.uniform(1, 4000)])
                label = f"rung_v{number}" + "_x" * draw.randint(0, 14)
                rungs.append(rung(name, label, gbs, share=share, **times))
        if svg := plot(rungs):
            assert collisions(svg) == []


def test_a_collision_is_found() -> None:
    """A check that finds none in a picture that has one would pass everything."""
    svg = plot([rung("p", "a", 100), rung("p", "b", 200)])
    assert collisions(svg.replace("200 GB/s", "200 GB/s" * 9))
    assert collisions(re.sub(r'(<text x=)"[^"]*"', r'\1"300"', svg))


def test_colours_need_no_style_sheet(plots: dict[str, str]) -> None:
    """Outside a browser variables and media queries are unknown; in one, each colour has a rule for
    a dark background."""
    for svg in plots.values():
        assert "var(" not in svg
        style, *elements = ET.fromstring(svg)
        assert style.tag == f"{SVG}style"
        for element in elements:
            property_ = "stroke" if element.tag == f"{SVG}polyline" else "fill"
            name = element.attrib["class"]
            assert element.attrib[property_] == COLOURS[name.removesuffix("-line")][0]
            assert f".{name} {{ {property_}: " in (style.text or "")


def test_bars_are_as_long_as_their_rates() -> None:
    svg = plot([rung("p", "a", 1000), rung("p", "b", 2000, pytorch=4.0, share=0.5)])
    root = ET.fromstring(svg)
    a, b = (float(r.attrib["width"]) for r in root.iter(f"{SVG}rect") if r.get("class") == "bar")
    assert b / a == pytest.approx(2, abs=0.01)
    boxes = dict(shape_boxes(root))
    left = boxes["bar"][0]
    # PyTorch takes 4 ms for 4000 bytes, as do 1000 GB/s; half the ceiling is reached.
    assert boxes["pytorch-line"][0] - left == pytest.approx(a, abs=0.2)
    assert boxes["ceiling"][2] - left == pytest.approx(2 * b, abs=1.1)


def sizes(*numbers: int) -> list[RungOutcome]:
    return [
        rung(f"sort, {n} bin{'s' if n > 1 else ''}", name, 100 + n)
        for n in numbers
        for name in ("sort_v1", "sort_v2")
    ]


def test_three_sizes_are_a_line_over_size() -> None:
    svg = plot(sizes(1, 16, 256))
    assert "sort, n bins" in texts(svg) and {"1", "16", "256"} <= {*texts(svg)}
    assert texts(svg).count("sort_v1") == 1
    lines = [
        line
        for line in ET.fromstring(svg).iter(f"{SVG}polyline")
        if line.get("class") == "bar-line"
    ]
    (x, y), (u, v), (s, t) = (
        tuple(map(float, p.split(","))) for p in lines[0].attrib["points"].split()
    )
    assert u - x == pytest.approx(s - u, abs=0.2), "equal steps for equal ratios"
    assert y > v > t, "upward"


def test_close_sizes_share_no_label() -> None:
    svg = plot(sizes(1000, 1001, 1002, 64000))
    assert collisions(svg) == [] and {"1000", "64000"} <= {*texts(svg)}


def test_a_problem_is_drawn_once() -> None:
    """Names that differ in two numbers, and a number that has no logarithm."""
    grid = [rung(f"{m} by {n}", "a", 100 + m * n) for m in (1, 2, 3) for n in (1, 2, 3)]
    lines = plot(grid).count('class="bar-line"')
    assert lines == 2 * 3, "three charts, each with a line and its legend"
    assert plot(sizes(0, 1, 2)).count('class="bar"') == 6


def test_two_sizes_are_bars() -> None:
    assert texts(plot(sizes(16, 256))).count("sort_v1") == 2


def test_a_type_is_no_size() -> None:
    rungs = [rung(f"sort, int{n}", name, 100 + n) for n in (8, 16, 32) for name in "ab"]
    assert texts(plot(rungs)).count("a") == 3


def test_lines_have_the_order_of_the_rungs() -> None:
    """Also where no size has all of them."""
    names = {1: "ac", 2: "bc", 3: "abd", 4: "cd"}
    rungs = [rung(f"p {n}", name, 100) for n, found in names.items() for name in found]
    assert [text for text in texts(plot(rungs)) if text in "abcd"] == ["a", "b", "c", "d"]


def test_no_group_has_a_single_bar() -> None:
    one, two = rung("x", "x_v1", 100), rung("y", "y_v1", 200)
    ladder = [rung("p", "p_v1", 100), rung("p", "p_v2", 200)]
    assert plot([one]) == ""
    assert plot([*ladder, one]) == plot(ladder)
    shown = texts(plot([*ladder, one, two]))
    assert ALONE in shown and {"x", "y"} <= {*shown} and "x_v1" not in shown
    assert plot([RungOutcome("p", "checked alone", "", PASS)]) == ""


def test_a_rung_with_a_problem_of_its_own_joins_the_ladder_that_it_extends() -> None:
    ladder = [rung("copy", "copy_v1", 100), rung("copy", "copy_v2", 200)]
    joined = [*ladder, rung("copy in boxes", "copy_v3", 300)]
    assert [text for text in texts(plot(joined)) if "_v" in text] == [
        "copy_v1",
        "copy_v2",
        "copy_v3",
    ]
    for other in (
        rung("copy in boxes", "copy_v3", 300, work=5000.0),
        rung("copy in boxes", "copy_v2", 300),
        rung("another", "copy_v3", 300),
    ):
        assert plot([*ladder, other]) == plot(ladder)


def test_the_recorded_words_stand_in_their_columns() -> None:
    """By their positions alone, the words form the lines that the terminal shows."""
    lines = run_lines(read_stored()[RECORDED][0])
    shown = ["".join(text for text, _ in line).rstrip() for line in lines]
    svg = recording("a title", lines)
    title, *words = ET.fromstring(svg).iter(f"{SVG}text")
    assert title.text == "a title"
    size = float(words[0].attrib["font-size"])
    left = float(words[0].attrib["x"])
    rows: dict[float, str] = {}
    for word in words:
        text, y = word.text or "", float(word.attrib["y"])
        column = (float(word.attrib["x"]) - left) / (0.6 * size)
        assert column == pytest.approx(round(column), abs=0.02)
        assert float(word.attrib["textLength"]) == pytest.approx(0.6 * size * len(text), abs=0.1)
        rows[y] = rows.get(y, "").ljust(round(column)) + text
    assert list(rows.values()) == shown
    _, _, width, height = map(float, ET.fromstring(svg).attrib["viewBox"].split())
    assert left + 0.6 * size * max(map(len, shown)) < width and max(rows) < height


def test_a_roofline_has_colours_without_its_style_sheet() -> None:
    timing = Timing("", 1.0, 0.0, 9, gbs=100.0, tflops=1.0, bound="copy", share=0.5)
    svg = roofline([(1, timing)])
    variables = re.findall(r"(fill|stroke): var\(--\w+\)", svg)
    assert len(variables) > 5
    assert len(re.findall(r"(fill|stroke): #[0-9a-f]{6}; \1: var\(--\w+\)", svg)) == len(variables)
