"""The part beyond a day's main line: the folder `further`, run by --further and by `all`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.command_line import CommandLine

DAY = """\
from tests.fixture_days import parts
from ..day import PROBLEMS as MAIN

SOURCE = "more.cu"
PROBLEMS = (parts.problem(parts.rung("twice_v3", parts.twice)),)
assert len(MAIN) == 1, "the main line can be imported"


def show(operators, device):
    print("shown by further")
    return {"show.txt": ""}


def show_times(operators, device):
    print("times of further")
    return {"times.txt": ""}
"""
MAIN_TIMES = """

def show_times(operators, device):
    print("times of the main line")
"""


def ran(run: CommandLine, report: Path, *arguments: str) -> dict[str, Any]:
    """Return day 1 of the report of a run."""
    done = run(*arguments, "--no-bench", "--json", str(report))
    assert done.returncode == 0, done.stdout
    return json.loads(report.read_text())["days"][0]


def test_further_runs_after_the_main_line_where_it_is_requested(
    run_copy: CommandLine, tmp_path: Path
) -> None:
    folder = run_copy.days / "day01" / "further"
    folder.mkdir()
    (folder / "day.py").write_text(DAY)
    (folder / "more.cu").write_text("// Nothing to build.\n")
    (folder / "README.md").write_text("# Further\n")
    for path in run_copy.days.iterdir():
        if path.name.startswith("day") and path.name != "day01":
            path.rename(run_copy.days / f"no-{path.name}")
    report = tmp_path / "report.json"
    main = ran(run_copy, report, "1")
    whole = ran(run_copy, report, "1", "--further")
    everything = ran(run_copy, report, "all")
    names = [(rung["rung"], rung["further"]) for rung in whole["rungs"]]
    assert names == [("twice_v1", False), ("twice_v2", False), ("twice_v3", True)]
    assert [rung["rung"] for rung in main["rungs"]] == ["twice_v1", "twice_v2"]
    assert [rung["rung"] for rung in everything["rungs"]] == [name for name, _ in names]
    shown = ["further:", "shown by further", "times of further"]
    assert whole["output"].splitlines() == shown and not main["output"]
    assert set(whole["files"]) == {"further/show.txt", "further/times.txt"}
    with (run_copy.days / "day01" / "day.py").open("a") as file:
        file.write(MAIN_TIMES)
    printed = ran(run_copy, report, "1", "--further")["output"].splitlines()
    assert printed == ["times of the main line", *shown]
