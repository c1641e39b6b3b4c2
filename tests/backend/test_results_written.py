"""Results written by the command line, on fixture days."""

from __future__ import annotations

import json
import subprocess

from common.report import stored
from tests.command_line import CommandLine
from tests.unit.test_results import BEGIN, END, NEIGHBOURS


def test_write_from_another_machine(run_copy: CommandLine) -> None:
    """The whole way: a run, its JSON, stored elsewhere, shown again; a second run changes all."""
    root = run_copy.days.parent
    for folder in (run_copy.days / "day01", run_copy.days / "day11"):
        (folder / "README.md").write_text(f"{BEGIN}\n{END}\n{NEIGHBOURS}\n")
    report = root / "report.json"
    assert run_copy("1,11", "--json", str(report)).returncode == 0
    done = run_copy("--write", "--from", str(report))
    assert done.returncode == 0 and "the run was on the CPU backend" in done.stdout
    assert not (root / "days/day01/results").exists()
    reported = json.loads(report.read_text())
    on_gpu = {"device": "cuda", "gpu": "NVIDIA H200", "arch": "9.0a"}
    reported["runs"][0]["where"] |= on_gpu  # as if from there
    report.write_text(json.dumps(reported))
    done = run_copy("--write", "--from", str(report))
    assert done.returncode == 0, done.stdout
    assert "stored day 1, 11 in days/dayNN/results/nvidia-h200.json" in done.stdout
    assert stored.check(root) == []
    assert "twice_v2" in (run_copy.days / "day01/README.md").read_text()
    assert str(root) not in (root / "days/day01/results/nvidia-h200.json").read_text()
    assert "SKIP" in (run_copy.days / "day11/README.md").read_text()
    (root / "progress.md").write_text("typed by hand")
    assert run_copy("--write").returncode == 0
    assert stored.check(root) == []


def test_scores_of_mutants_from_another_machine(run_copy: CommandLine) -> None:
    """A report of --mutants --json is recognised by its content, and stored with its own date."""
    root = run_copy.days.parent
    kinds = {"identity": "a: b: `c` -> `d`", "kind": "b", "source": "a.cu", "line": 3}
    verdicts = [
        {**kinds, "status": "killed", "by": "result"},
        {**kinds, "status": "killed", "by": "narrowing"},
        {**kinds, "status": "survived"},
        {**kinds, "status": "equivalent", "by": "declared"},
        {**kinds, "status": "stillborn"},
    ]
    day = {"day": 1, "error": "", "problems": [], "complete": True, "verdicts": verdicts}
    report = root / "mutants.json"

    def write(**changed: object) -> subprocess.CompletedProcess[str]:
        data = {"format": 2, "date": "2026-01-31", "mutants": [day | changed]}
        report.write_text(json.dumps(data))
        return run_copy("--write", "--from", str(report))

    done = write(complete=False)
    assert done.returncode == 1 and "not all of its standard mutants were tried" in done.stdout
    done = write(error="the day does not build")
    assert done.returncode == 1 and "the day does not build" in done.stdout
    done = write(verdicts=[{"identity": "alone"}])
    assert done.returncode == 1 and "is no report of --mutants" in done.stdout
    assert stored.read_scores(root) == {}
    done = write()
    assert done.returncode == 0, done.stdout
    score = stored.read_scores(root)[1]
    assert (score.made, score.counted, score.date) == (4, 3, "2026-01-31") and score.complete
    assert score.killed == {"narrowing": 1, "result": 1} and len(score.survived) == 1
    assert stored.check(root) == []
    assert "67 %" in (root / "progress.md").read_text()


def test_a_report_that_cannot_be_written_is_said_before_the_run(run_day: CommandLine) -> None:
    done = run_day("1", "--no-bench", "--json", "/dev/full/report.json")
    assert done.returncode == 1
    assert "cannot write /dev/full/report.json" in done.stdout
    assert "passed" not in done.stdout
