"""Figures in prose: measured ones are in generated tables or have GPU and date; one clock."""

from __future__ import annotations

import re

import pytest

from common.base.ceilings import ceilings_of
from common.base.days import Day, discover

FOUND, _ = discover()
every_day = pytest.mark.parametrize("day", FOUND, ids=[day.name for day in FOUND])

TEXTS = (".md", ".cu", ".cuh", ".py", ".toml")
GENERATED = re.compile(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", re.DOTALL)
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
NUMBER = r"\d[\d,]*(?:\.\d+)?"
FIGURE = re.compile(
    rf"(?<![\w.])({NUMBER})(?: (?:to|and|or|instead of) ({NUMBER}))? (?:ms|µs|GB/s|TFLOP/s)\b"
)
DATED = re.compile(
    r"\bH[12]00\b.{0,80}20\d\d-\d\d-\d\d|20\d\d-\d\d-\d\d.{0,80}\bH[12]00\b", re.DOTALL
)
# A figure that is computed, from a rate or by a formula, or was predicted.
COMPUTED = re.compile(
    rf"\bat (?:the |day 50's )?{NUMBER}\s(?:TB/s|GHz|TFLOP/s)|rate\s+of\s+a\s+copy|copy's\s+rate"
    r"|\bGHz\b|formula|predict|expected"
)


def undated(text: str, shown: str) -> list[str]:
    """Return the figures of the paragraphs about measurements that are in no table of `shown`, are
    not computed, and are in a section without the GPU and date. text: of a Markdown file."""
    known = set(re.findall(NUMBER, shown))
    text = CODE.sub("", GENERATED.sub("", text))
    found = []
    for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
        if DATED.search(section):
            continue
        for paragraph in re.split(r"\n\s*\n|\n(?=- |\d+\. )", section):
            if COMPUTED.search(paragraph):
                continue
            for figure in FIGURE.finditer(paragraph):
                if not {number for number in figure.groups() if number} <= known:
                    found.append(figure.group(0))
    return found


@every_day
def test_a_measured_figure_is_in_a_table_or_has_a_date(day: Day) -> None:
    readmes = sorted(day.folder.rglob("README.md"))
    shown = "\n".join(m.group(0) for f in readmes for m in GENERATED.finditer(f.read_text()))
    for file in sorted(day.folder.rglob("*.md")):
        text = file.read_text(encoding="utf-8")
        if file.name == "README.md":
            sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
            text = "".join(
                s for s in sections if s.startswith(("## Results", "## What did not help"))
            )
        assert not (figures := undated(text, shown)), (
            f"{file}: {', '.join(figures)}: add the GPU and the date, as (H200, 2026-11-28)"
        )


@every_day
def test_bounds_are_computed_with_a_measured_clock(day: Day) -> None:
    """The clock is that of the H200, whose results the READMEs show; another has GPU and date."""
    known = ceilings_of("NVIDIA H200")
    assert known
    clocks = {f"{mhz / 1000:.2f}" for mhz in known.mhz.values()}
    for file in sorted(path for path in day.folder.rglob("*") if path.suffix in TEXTS):
        for paragraph in re.split(r"\n\s*\n", file.read_text(encoding="utf-8")):
            other = {*re.findall(r"(\d\.\d+)\sGHz", paragraph)} - clocks
            assert not other or DATED.search(paragraph), f"{file}: {', '.join(other)} GHz"


def test_a_figure_without_a_date_is_found() -> None:
    table = "| v1 | 0.50 ms |"
    assert undated("## Results\n\nv1 takes 0.50 ms, v2 0.40 ms.", table) == ["0.40 ms"]
    assert undated("## Results\n\nv1 takes 0.50 instead of 0.60 ms.", table)
    assert not undated("## Results\n\nv2 takes 0.40 ms (H200, 2026-11-28).", table)
    assert undated("## Results\n\nv2 takes 0.40 ms (H200).\n\n## On\n\nH200, 2026-11-28", table)
    assert not undated("## Results\n\n1.7 GB take 0.40 ms at 4.3 TB/s.", table)
