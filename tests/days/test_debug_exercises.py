"""Every day has three changes or more for its debug exercises. On the days that are taken
(tests/taken.py) three changes are planted, the checks reject them, and the last one is undone, and
the day's own version solves the write exercise."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.base.day_files import Step
from common.base.days import Day, discover
from common.base.paths import ROOT
from common.practice.challenge import write_challenge
from common.practice.debug import ENOUGH, candidates
from common.practice.planted_text import planted_text
from common.report.stored import read_scores
from tests import progress

DAYS, _ = discover()
LEAST = 3  # changes per day
SCORES = read_scores()
# Of the days whose mutants are counted: elsewhere it is not known how many survive, and each of
# these is passed over only after a check of the whole day.
TRIED = [day for day in DAYS if day.number in SCORES]

STEPS = [pytest.param(day, s, id=f"{day.name}-{s.name}") for day in DAYS for s in day.steps]
every_day = pytest.mark.parametrize("day", DAYS, ids=[day.name for day in DAYS])


@every_day
def test_there_are_enough_changes_to_plant(day: Day) -> None:
    """Different ones, each of which changes code, and few of which are known to survive."""
    found = candidates(day)
    known = SCORES.get(day.number)
    survivors = set(known.survived) if known else set[str]()
    fit = [mutant for mutant in found if mutant.identity not in survivors]
    assert len({mutant.identity for mutant in fit}) == len(fit)
    needed = LEAST if known and known.complete else ENOUGH
    assert len(fit) >= needed, f"{len(fit)} changes: {[mutant.identity for mutant in fit]}"
    texts = {text for mutant in fit if (text := planted_text(mutant))}
    assert len(texts) == len(fit)
    assert not texts & {source.read_text(encoding="utf-8") for source in day.library_sources}
    assert len({mutant.kind.name for mutant in fit[:LEAST]}) == min(
        LEAST, len({mutant.kind.name for mutant in fit})
    )


@pytest.mark.some_days("debug")
@pytest.mark.parametrize("day", TRIED, ids=[day.name for day in TRIED])
def test_what_is_planted_is_rejected(day: Day, tmp_path: Path) -> None:
    """By the command that a learner types, three times with --next; and the original text solves
    the exercise."""
    folder = tmp_path / "days" / day.name
    shutil.copytree(day.folder, folder, ignore=shutil.ignore_patterns("*.svg", "*.md", "further"))
    command = [sys.executable, "run_day.py", str(day.number), "--practice", "debug"]
    command += ["--device", "cpu", "--days", str(tmp_path / "days")]

    def runs(*more: str) -> subprocess.CompletedProcess[str]:
        return progress.run([*command, *more], cwd=ROOT)

    planted = []
    for _ in range(LEAST):
        run = runs("--next")
        shown = f"{run.stdout}\n{run.stderr}"
        said = " ".join(run.stdout.split())  # lines are wrapped
        assert run.returncode == 1 and " FAIL " in said, shown
        assert "one change is planted" in said, shown
        journal = json.loads((tmp_path / "practice" / "progress.json").read_text())
        planted.append(journal["days"][str(day.number)]["debug"]["planted"])
    assert len(set(planted)) == LEAST, planted
    source = next(s for s in day.library_sources if f"is planted in {s.name}. Find" in said)
    shutil.copy(source, tmp_path / "practice" / day.name / "debug.cu")
    run = runs()
    assert run.returncode == 0 and "\nsolved" in run.stdout, f"{shown}\n{run.stdout}"
    assert "planted " in run.stdout and "right " in run.stdout, run.stdout


@pytest.mark.some_days("write")
@pytest.mark.parametrize(("day", "step"), STEPS)
def test_what_the_day_has_solves_a_step(day: Day, step: Step, tmp_path: Path) -> None:
    """With all code that the checks need, gradients included."""
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / day.name).symlink_to(day.folder)  # a copy would include this one's headers
    challenge = write_challenge(day, tmp_path / "days", step)
    challenge.file.parent.mkdir(parents=True)
    challenge.file.write_text(challenge.solved, encoding="utf-8")
    command = [sys.executable, "run_day.py", str(day.number), "--practice", step.name]
    command += ["--device", "cpu", "--days", str(tmp_path / "days")]
    run = progress.run(command, cwd=ROOT)
    assert run.returncode == 0 and "\nsolved" in run.stdout, f"{run.stdout}\n{run.stderr}"
