"""Every day, by discovery: right on the CPU backend, compiled for GPUs, its README true.

Nothing here names a day. A folder that is no proper day is a failure, and so is finding none.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from common.base import toolchain
from common.base.days import Day, discover, load_lesson
from common.base.paths import ROOT
from common.build.narrowing import narrowed
from common.practice.challenge import write_challenge
from common.practice.mutants.outline import trimmed
from common.report import stored
from tests.compilations import Compilations

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

QUOTE = re.compile(r"^```(?:cuda|cpp)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

every_day = pytest.mark.parametrize("day", DAYS, ids=[day.name for day in DAYS])


@pytest.mark.uses_days("all")
def test_days_are_found_and_proper() -> None:
    assert DAYS, "no day was found"
    assert not ERRORS, "\n".join(str(error) for error in ERRORS)


Outcomes = dict[int, dict[str, Any]]  # by the day's number

MODELS = ["7.5", "8.6"]  # 9.0 is what an ordinary run plays


def _run_on_cpu(items: list[pytest.Item], folder: Path, *options: str) -> Outcomes:
    """Outcomes of these tests' days on the CPU backend, from one run of the command that a user
    types."""
    needed = sorted({item.callspec.params["day"].number for item in items})
    report = folder / "report.json"
    command = [sys.executable, "run_day.py", *map(str, needed), "--device", "cpu", "--no-bench"]
    run = subprocess.run(
        [*command, *options, "--json", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert report.is_file(), f"run_day.py wrote no report\n{run.stdout}\n{run.stderr}"
    days = json.loads(report.read_text())["days"]
    passed = all(day["status"] != "FAIL" for day in days)
    some = any(day["status"] == "PASS" for day in days)
    assert (run.returncode == 0) == (passed and some), run.stdout
    return {day["number"]: day for day in days}


def _selected(session: pytest.Session, test: object) -> list[pytest.Item]:
    """The items of a test that are to run."""
    return [
        item
        for item in session.items
        if getattr(item, "function", None) is test and not item.get_closest_marker("skip")
    ]


@pytest.fixture(scope="session")
def on_cpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Outcomes of the days that tests ask for on the CPU backend."""
    items = _selected(request.session, test_right_on_the_cpu)
    return _run_on_cpu(items, tmp_path_factory.mktemp("cpu"))


@pytest.fixture(scope="session")
def on_model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Outcomes]:
    """The same of quick checks on the card of a model: one run for each model."""

    @cache
    def run(model: str) -> Outcomes:
        items = [
            item
            for item in _selected(request.session, test_right_on_other_cards)
            if item.callspec.params["model"] == model
        ]
        folder = tmp_path_factory.mktemp(f"model-{model}")
        return _run_on_cpu(items, folder, "--quick", "--model", model)

    return run


@pytest.fixture(scope="session")
def on_stubs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Outcomes of quick checks of days whose exercise is still the stub."""
    items = _selected(request.session, test_the_stub_compiles_and_is_wrong)
    folder = tmp_path_factory.mktemp("stubs")
    rungs: list[str] = []
    for day in {item.callspec.params["day"] for item in items}:
        challenge = write_challenge(day, ROOT / "days")
        copy = folder / "days" / day.name
        shutil.copytree(day.folder, copy, ignore=shutil.ignore_patterns("*.svg", "*.md"))
        text = challenge.start
        if challenge.rungs and len(day.library_sources) == 1:  # files may call each other
            text = trimmed(text, challenge.rungs)  # what the rungs do not need is not compiled
        (copy / challenge.original.name).write_text(text, encoding="utf-8")
        rungs += challenge.rungs or _rungs(day)
    options = ["--days", str(folder / "days"), "--rungs", ",".join(rungs), "--quick"]
    return _run_on_cpu(items, folder, *options)


def _rungs(day: Day) -> list[str]:
    return [rung.name for problem in load_lesson(day).problems for rung in problem.rungs]


def _lines(outcome: dict[str, Any]) -> str:
    """What a day's run said, for a test that fails."""
    lines = [f"{outcome['status']} {outcome['reason']}", *outcome["details"]]
    for rung in outcome["rungs"]:
        lines += [f"{rung['rung']}: {rung['status']} {rung['reason']}", *rung["details"]]
    return "\n".join([*lines, outcome["output"]])


@every_day
def test_right_on_the_cpu(day: Day, on_cpu: Outcomes) -> None:
    outcome = on_cpu[day.number]
    assert outcome["status"] == "PASS", _lines(outcome)
    assert outcome["rungs"], "no rung ran"
    assert any(rung["status"] == "PASS" for rung in outcome["rungs"]), _lines(outcome)
    for rung in outcome["rungs"]:
        if rung["status"] == "SKIP":  # it needs what only a GPU has, or an optional tool
            assert rung["reason"], f"{rung['rung']} was skipped and does not say why"
            continue
        assert rung["status"] == "PASS", _lines(outcome)
        assert rung["checked"] > 0, f"{rung['rung']} was checked on no case"


@every_day
def test_the_stub_compiles_and_is_wrong(day: Day, on_stubs: Outcomes) -> None:
    """A learner who has written nothing sees a result that is wrong, not a compiler's error."""
    outcome = on_stubs[day.number]
    assert outcome["status"] == "FAIL"
    assert outcome["rungs"], _lines(outcome)
    assert outcome["reason"].startswith("failed: "), _lines(outcome)
    for rung in outcome["rungs"]:
        if rung["status"] == "FAIL":
            assert rung["details"] or rung["reason"], "it does not say what is wrong"


@every_day
@pytest.mark.parametrize("model", MODELS)
def test_right_on_other_cards(day: Day, model: str, on_model: Callable[[str], Outcomes]) -> None:
    """Right, or refused by a launcher that says what the card lacks; nothing else is left out."""
    outcome = on_model(model)[day.number]
    assert outcome["status"] in ("PASS", "SKIP"), _lines(outcome)
    assert outcome["rungs"], _lines(outcome)
    for rung in outcome["rungs"]:
        assert rung["status"] in ("PASS", "SKIP"), _lines(outcome)
        if rung["status"] == "PASS":
            assert rung["checked"] > 0, f"{rung['rung']} was checked on no case"
        else:
            assert rung["reason"], f"{rung['rung']} was skipped and does not say why"


@every_day
def test_compiles_for_gpus(day: Day, compilations: Compilations) -> None:
    for source in day.library_sources:
        compilations.nvcc(day.name, source).result()


def begin(compilations: Compilations, day: Day) -> None:
    """Begins the compilations that the test waits for."""
    for source in day.library_sources:
        compilations.nvcc(day.name, source)


test_compiles_for_gpus.begin = begin  # type: ignore[attr-defined]


def readme(day: Day) -> str:
    return (day.folder / "README.md").read_text(encoding="utf-8")


@every_day
def test_sizes_and_indices_keep_their_64_bits(day: Day) -> None:
    """What no input that fits a check can show: the row "indices" of `--sanitize`."""
    try:
        platform = toolchain.detect("cpu")
    except toolchain.ToolchainError as error:
        pytest.skip(str(error))
    assert not narrowed(day, platform)


@every_day
def test_readme_has_the_headings_in_order(day: Day) -> None:
    found = re.findall(r"^## (.+)$", readme(day), re.MULTILINE)
    assert found == HEADINGS


@every_day
def test_readme_quotes_are_verbatim(day: Day) -> None:
    """Every block of code stands in the day's sources as it is, but for indentation."""
    own = [path for path in day.folder.iterdir() if path.suffix in (".cuh", ".py")]
    sources = [day.source, *day.extra_sources, *own]
    texts = [_stripped(path.read_text(encoding="utf-8")) for path in sources]
    quotes = re.findall(
        r"^```(?:cuda|cpp|c\+\+|python|cmake)\n(.*?)^```$", readme(day), re.DOTALL | re.MULTILINE
    )
    assert quotes, "the walk-through quotes no code"
    for quote in quotes:
        # A line of nothing but … stands for lines left out.
        for part in re.split(r"^\s*…\s*$", quote, flags=re.MULTILINE):
            assert any(_stripped(part) in text for text in texts), f"not in the sources:\n{part}"


def _stripped(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


@every_day
def test_readme_links_lead_somewhere(day: Day) -> None:
    prose = re.sub(r"^```.*?^```$", "", readme(day), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", prose):
        assert (day.folder / target).exists(), f"{target} does not exist"


@pytest.mark.uses_days("all")
@every_day
def test_readme_links_the_days_before_and_after(day: Day) -> None:
    read_on = readme(day)[readme(day).index("## Read on") :]
    for neighbour in DAYS:
        if abs(neighbour.number - day.number) == 1:
            assert f"](../{neighbour.name}/README.md)" in read_on


@pytest.mark.uses_days("all")
def test_stored_results_agree_with_what_is_printed() -> None:
    assert stored.check() == []


@pytest.mark.uses_days("all")
def test_nothing_else_is_at_the_top() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    shown = {Path(name).parts[0] for name in tracked if not name.startswith(".")}
    allowed = {"days", "common", "tests", "run_day.py", "progress.md", "requirements.txt"}
    assert shown <= allowed | {"README.md", "pyproject.toml"}
