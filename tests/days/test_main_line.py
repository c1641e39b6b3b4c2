"""The budget of a day's main line, for each day that has one: a folder `further` for the rest."""

from __future__ import annotations

import pytest

from common.base.days import Day, discover
from tests.unit.test_language import GENERATED

DAYS, _ = discover()
CONVERTED = [day for day in DAYS if day.further]
README_LINES, SOURCE_LINES, DRIVER_LINES = 120, 350, 80
TOML = {"exercises.toml", "mutants.toml", "evidence.toml"}
BESIDE = {*TOML, "notes.md", "results", "further", "__pycache__"}

each_converted = pytest.mark.parametrize("day", CONVERTED, ids=[day.name for day in CONVERTED])


@each_converted
def test_a_main_line_keeps_its_budget(day: Day) -> None:
    text = (day.folder / "README.md").read_text(encoding="utf-8")
    sources = [path for path in day.folder.iterdir() if path.suffix in (".cu", ".cuh")]
    lines = {
        "README.md beside generated parts": len(GENERATED.sub("", text).splitlines()),
        ".cu and .cuh": sum(len(path.read_text().splitlines()) for path in sources),
        "day.py": len((day.folder / "day.py").read_text().splitlines()),
    }
    most = dict(zip(lines, (README_LINES, SOURCE_LINES, DRIVER_LINES), strict=True))
    over = {name: (lines[name], most[name]) for name in lines if lines[name] > most[name]}
    assert not over, f"(lines, at most): {over}; what does not fit goes to further/ or is cut"


@each_converted
def test_a_main_line_is_three_files(day: Day) -> None:
    """README.md, sources and day.py; plus pictures and the further parts."""
    others = {
        path.name
        for path in day.folder.iterdir()
        if path.name not in BESIDE and path.suffix not in (".cu", ".cuh", ".svg")
    }
    assert others == {"README.md", "day.py"}


def test_converted_days_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{len(CONVERTED)} of {len(DAYS)} days have a main line within the budget")
    assert len(DAYS) >= 100
