"""Every day, by discovery: right on the CPU backend, compiled for GPUs, its README true.

This module names no day. An invalid day's folder is a failure, and so is finding none.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from common.base import toolchain
from common.base.days import Day, discover
from common.base.paths import ROOT
from common.report import stored
from tests.compilations import Compilations, narrowed_on_cpu
from tests.days.runs import DayRuns
from tests.unit.test_language import GENERATED

DAYS, ERRORS = discover()
HEADINGS = [
    "You will learn",
    "The problem",
    "The idea",
    "Walk-through",
    "Run it",
    "Results",
    "What did not help",
    "Try it yourself",
    "Read on",
]
MOST_LINES = 172  # of a README without its generated parts; a day of one topic needs 152 at most

STEPS = [
    pytest.param(day, number, id=f"{day.name}-{step.name}")
    for day in DAYS
    for number, step in enumerate(day.steps)
]
every_day = pytest.mark.parametrize("day", DAYS, ids=[day.name for day in DAYS])


def test_days_are_found_and_proper() -> None:
    assert DAYS, "no day was found"
    assert not ERRORS, "\n".join(str(error) for error in ERRORS)


MODELS = ["7.5", "8.6"]  # an ordinary run simulates 9.0


def _lines(outcome: dict[str, Any]) -> str:
    """Return the output of a day's run, for a test that fails."""
    lines = [f"{outcome['status']} {outcome['reason']}", *outcome["details"]]
    for rung in outcome["rungs"]:
        lines += [f"{rung['rung']}: {rung['status']} {rung['reason']}", *rung["details"]]
    return "\n".join([*lines, outcome["output"]])


@pytest.mark.some_days("cpu")
@every_day
def test_right_on_the_cpu(day: Day, day_runs: DayRuns) -> None:
    outcome = day_runs.outcomes("cpu")[day.number]
    assert outcome["status"] == "PASS", _lines(outcome)
    assert outcome["rungs"], "no rung ran"
    assert any(rung["status"] == "PASS" for rung in outcome["rungs"]), _lines(outcome)
    for rung in outcome["rungs"]:
        if rung["status"] == "SKIP":  # it needs a feature of GPUs, or an optional tool
            assert rung["reason"], f"{rung['rung']} was skipped and does not say why"
            continue
        assert rung["status"] == "PASS", _lines(outcome)
        assert rung["checked"] > 0, f"{rung['rung']} was checked on no case"


def begin_on_cpu(runs: DayRuns, days: list[Day]) -> None:
    runs.begin("cpu", days)


test_right_on_the_cpu.begin_run = begin_on_cpu  # type: ignore[attr-defined]


@pytest.mark.some_days("stubs")
@pytest.mark.parametrize(("day", "number"), STEPS)
def test_the_stub_compiles_and_is_wrong(day: Day, number: int, day_runs: DayRuns) -> None:
    """A learner who has written a part sees a result that is wrong, not a compiler's error."""
    outcome = day_runs.outcomes(f"stubs {number}")[day.number]
    assert outcome["status"] == "FAIL"
    assert outcome["rungs"], _lines(outcome)
    assert outcome["reason"].startswith("failed: "), _lines(outcome)
    for rung in outcome["rungs"]:
        if rung["status"] == "FAIL":
            assert rung["details"] or rung["reason"], "it does not say what is wrong"


def begin_stubs(runs: DayRuns, days: list[Day]) -> None:
    runs.begin_stubs("stubs", days)


test_the_stub_compiles_and_is_wrong.begin_run = begin_stubs  # type: ignore[attr-defined]


@pytest.mark.some_days("models")
@every_day
@pytest.mark.parametrize("model", MODELS)
def test_right_on_other_cards(day: Day, model: str, day_runs: DayRuns) -> None:
    """Right, or refused by a launcher that names what the card lacks; nothing else is left out."""
    outcome = day_runs.outcomes(f"model-{model}")[day.number]
    assert outcome["status"] in ("PASS", "SKIP"), _lines(outcome)
    assert outcome["rungs"], _lines(outcome)
    for rung in outcome["rungs"]:
        assert rung["status"] in ("PASS", "SKIP"), _lines(outcome)
        if rung["status"] == "PASS":
            assert rung["checked"] > 0, f"{rung['rung']} was checked on no case"
        else:
            assert rung["reason"], f"{rung['rung']} was skipped and does not say why"


def begin_on_models(runs: DayRuns, days: list[Day]) -> None:
    for model in MODELS:
        runs.begin(f"model-{model}", days, "--quick", "--no-bench", "--model", model)


test_right_on_other_cards.begin_run = begin_on_models  # type: ignore[attr-defined]


@pytest.mark.some_days("nvcc")
@every_day
def test_compiles_for_gpus(day: Day, compilations: Compilations) -> None:
    for source in day.nvcc_sources:
        compilations.nvcc(day.name, source).result()


def begin(compilations: Compilations, day: Day) -> None:
    """Start the compilations that the test waits for."""
    for source in day.nvcc_sources:
        compilations.nvcc(day.name, source)


test_compiles_for_gpus.begin = begin  # type: ignore[attr-defined]


def readme(day: Day) -> str:
    return (day.folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.some_days("narrowing")
@every_day
def test_sizes_and_indices_keep_their_64_bits(day: Day, compilations: Compilations) -> None:
    """No input that fits a check can show them: the row "indices" of `--sanitize`."""
    try:
        places = compilations.begin(narrowed_on_cpu, day).result()
    except toolchain.ToolchainError as error:
        pytest.skip(str(error))
    assert not places


def begin_narrowed(compilations: Compilations, day: Day) -> None:
    compilations.begin(narrowed_on_cpu, day)


test_sizes_and_indices_keep_their_64_bits.begin = begin_narrowed  # type: ignore[attr-defined]


@every_day
def test_a_show_beside_which_other_days_run_reads_no_clock(day: Day) -> None:
    """A day without `show_times` has no clock at all; `train.py` and the like are programs."""
    files = [path for path in day.with_further().modules if path.name != "train.py"]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    if not any("show_times" in text for text in texts.values()):
        for path, text in texts.items():
            clocks = r"\bimport time\b|\bEvent\(|\w*seconds\w*\(|\w+_times\("
            assert not re.findall(clocks, text), path


@every_day
def test_readme_has_the_headings_in_order(day: Day) -> None:
    found = re.findall(r"^## (.+)$", readme(day), re.MULTILINE)
    assert found == HEADINGS


@every_day
def test_readme_quotes_are_verbatim(day: Day) -> None:
    """Every block of code is in the day's sources unchanged, except for indentation."""
    own = [path for path in day.folder.iterdir() if path.suffix in (".cuh", ".py")]
    sources = [day.source, *day.extra_sources, *day.programs, *own]
    texts = [_stripped(path.read_text(encoding="utf-8")) for path in sources]
    quotes = re.findall(
        r"^```(?:cuda|cpp|c\+\+|python|cmake)\n(.*?)^```$",
        GENERATED.sub("", readme(day)),
        re.DOTALL | re.MULTILINE,
    )
    assert quotes, "the walk-through quotes no code"
    for quote in quotes:
        # A line of nothing but … stands for lines left out.
        for part in re.split(r"^\s*…\s*$", quote, flags=re.MULTILINE):
            assert any(_stripped(part) in text for text in texts), f"not in the sources:\n{part}"


def _stripped(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


@every_day
def test_readme_takes_an_evening(day: Day) -> None:
    """Count the lines without the parts that the runner generates."""
    own = GENERATED.sub("", readme(day))
    assert len(own.splitlines()) <= MOST_LINES, "choose what the reader needs tonight"


@every_day
def test_readme_has_no_list_in_the_middle_of_a_sentence(day: Day) -> None:
    """A line of a formula, or of an exercise's task, that begins with a minus is shown as an item
    of a list."""
    formulas = re.findall(r"\$\$.*?\$\$", readme(day), re.DOTALL)
    exercises = re.findall(r"<!-- practice:begin -->.*?<!-- practice:end", readme(day), re.DOTALL)
    for text in (*formulas, *(re.sub(r"^- \*\*", "", part, flags=re.M) for part in exercises)):
        assert not re.search(r"^ *([-+*>]|\d+[.)]) ", text, re.MULTILINE), text


@every_day
def test_readme_links_lead_somewhere(day: Day) -> None:
    prose = re.sub(r"^```.*?^```$", "", readme(day), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", prose):
        assert (day.folder / target).exists(), f"{target} does not exist"


@every_day
def test_readme_links_the_days_before_and_after(day: Day) -> None:
    read_on = readme(day)[readme(day).index("## Read on") :]
    for neighbour in DAYS:
        if abs(neighbour.number - day.number) == 1:
            assert f"](../{neighbour.name}/README.md)" in read_on


def test_stored_results_agree_with_what_is_printed() -> None:
    assert stored.check() == []


def test_nothing_else_is_at_the_top() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    shown = {Path(name).parts[0] for name in tracked if not name.startswith(".")}
    allowed = {"days", "common", "tests", "run_day.py", "progress.md", "requirements.txt"}
    assert shown <= allowed | {"README.md", "pyproject.toml", "LICENSE", "CHANGELOG.md"}
