"""Stored results, the files generated from them, reports of runs, and disks that are full."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import resource
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from common.base import figures
from common.base.ceilings import Ceilings
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome, Timing
from common.base.paths import DAYS
from common.report import files, runs, stored
from common.report.evidence import Evidence, KernelCode
from common.report.files import ResultsError
from common.report.markdown import best_rung
from common.report.terminal import Report

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"

BLOCKS = ("python", "run", "practice", "neighbours")
NEIGHBOURS = "\n".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->" for name in BLOCKS)
README = f"# {{}}\n\n{BEGIN}\nold\n{END}\n\n{NEIGHBOURS}\nThe end.\n"
METADATA = """\
from common.day import Case, Problem, Rung

TITLE = "{}"
TEACHES = "{}"
TOPICS = ("t",)
SOURCE = "x.cu"
PROBLEMS = tuple(
    Problem(name, lambda *_: (), abs, tuple(Rung(r, "") for r in rungs), (Case((1,)),), timed=False)
    for name, rungs in {}.items()
)
"""
LADDER = ("add_v1", "add_v2")
H200 = {
    "device": "cuda",
    "gpu": "NVIDIA H200",
    "arch": "9.0a",
    "driver": "580.1",
    "driver_cuda": "13.0",
    "nvcc": "13.0",
    "torch": "2.13.0",
    "torch_cuda": "13.0",
    "compiler": "g++ 12",
    "python": "3.11.7",
    "processor": "",
    "date": "2026-01-02",
}
T4 = {**H200, "gpu": "Tesla T4", "arch": "7.5"}
CPU = {**H200, "device": "cpu", "gpu": "", "arch": "", "processor": "A CPU, 2 cores"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, title in ((1, "Hello"), (2, "Addition | with a bar")):
        folder = tmp_path / "days" / f"day{number:02d}"
        folder.mkdir(parents=True)
        (folder / "day.py").write_text(METADATA.format(title, f"Lesson {number}", {"add": LADDER}))
        (folder / "x.cu").touch()
        (folder / "README.md").write_text(README.format(title))
    return tmp_path


def declare(root: Path, **problems: Sequence[str]) -> None:
    """Make day 1 have these rungs, by problem."""
    text = METADATA.format("Hello", "Lesson 1", problems)
    (root / "days/day01/day.py").write_text(text)


def timing(**changes: Any) -> Timing:
    known: dict[str, Any]
    known = {"case": "1024 float32", "ms": 0.25, "spread": 0.01, "samples": 50, "gbs": 4000.0}
    known |= {"tflops": 1.0, "bound": "copy", "pytorch_ms": 0.5}
    return Timing(**(known | changes))


def store_ceilings(root: Path, copy: float) -> None:
    """Store the ceiling of the H200's copy, in GB/s."""
    folder = root / "days/day50/results/show"
    folder.mkdir(parents=True, exist_ok=True)
    known = Ceilings("NVIDIA H200", "2026-01-01", {"copy": copy})
    (folder / known.file_name).write_text(known.to_text())


def passed(number: int, at_least: str = "0.9") -> DayOutcome:
    rungs = [
        RungOutcome("add", "add_v1", "plain", PASS, checked=3, timing=timing(ms=0.5)),
        RungOutcome("add", "add_v2", "fast", PASS, checked=3, timing=timing(),
                    target=f"≥ {at_least} × copy"),
    ]  # fmt: skip
    return DayOutcome(number, f"day{number:02d}", "t", PASS, rungs=rungs)


def run(where: dict[str, str], *outcomes: DayOutcome, complete: bool = True) -> dict[str, Any]:
    return {"where": where, "complete": complete, "days": [o.to_json() for o in outcomes]}


def test_outcomes_survive_json() -> None:
    outcome = passed(1)
    assert DayOutcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome


def test_stored_results_and_generated_files_agree(root: Path) -> None:
    said = stored.store(run(H200, passed(1), passed(2)), root)
    talkative = passed(1)
    talkative.output = "peak memory:\n4.3 MB"
    stored.store(run(T4, talkative), root)
    file = root / "days/day01/results/tesla-t4.json"
    assert json.loads(file.read_text())["output"] == ["peak memory:", "4.3 MB"]
    assert "stored day 1-2 in days/dayNN/results/nvidia-h200.json" in said
    assert stored.check(root) == []
    assert sorted(p.relative_to(root).as_posix() for p in root.rglob("*.json")) == [
        "days/day01/results/nvidia-h200.json",
        "days/day01/results/tesla-t4.json",
        "days/day02/results/nvidia-h200.json",
    ]


def test_stored_results_name_no_folder_of_a_machine() -> None:
    """A launcher's message has the path of its source."""
    files = [*DAYS.glob("day*/results/*.json"), *DAYS.glob("day*/further/results/*.json")]
    assert len(files) > 100
    found = re.compile(r"[ (\"'](/\w+/[^\s\"']*\.(?:cuh?|py|h))")
    assert [match for file in files for match in found.findall(file.read_text())] == []


def test_the_readme_block(root: Path) -> None:
    store_ceilings(root, 4210.0)
    stored.store(run(H200, passed(1)), root)
    text = (root / "days/day01/README.md").read_text()
    assert text.startswith(f"# Hello\n\n{BEGIN}\n**NVIDIA H200**\n")
    assert text.endswith("\nThe end.\n")
    row = "| `add_v2` | fast | 0.250 ms | 4000 GB/s | 95% copy | 2.00× | ≥ 0.9 × copy ✓ |"
    assert row in text
    assert "× compile" not in text, "a column that no row fills is left out"
    assert "driver 580.1, nvcc 13.0, torch 2.13.0, 2026-01-02. Timed: 1024 float32." in text
    assert "1024 float32. Spread: ±1.0 % at most. " in text
    assert f"{BEGIN}\nNot measured yet.\n{END}" in (root / "days/day02/README.md").read_text()
    stored.store(run(T4, passed(1)), root)
    text = (root / "days/day01/README.md").read_text()
    assert text.index("**NVIDIA H200**") < text.index("**Tesla T4**")
    assert "- [Day 2: Addition | with a bar](../day02/README.md)" in text


def files_in(root: Path) -> dict[Path, bytes]:
    """Return all files below a folder, with their contents, except Python's cached modules."""
    found = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path: path.read_bytes() for path in found}


def test_kernels_have_a_table_below_the_results(root: Path) -> None:
    code = KernelCode("add_kernel<float>", 40, 0, 0, 0, 16, 4, False, 0, further=False)
    assert stored.store_evidence([Evidence(1, "", "13.0", "9.0a", [code])], root) == [
        "stored the evidence of day 1",
        *(
            f"wrote {name}"
            for name in ("progress.md", "days/day01/README.md", "days/day02/README.md")
        ),
    ]
    text = (root / "days/day01/README.md").read_text()
    block = text[text.index(BEGIN) : text.index(END)]
    assert block.index("Not measured yet.") < block.index("| `add_kernel` | 40 | 16 B | 4 B |")
    assert "add_kernel" not in (root / "days/day02/README.md").read_text()
    stored.store(run(H200, passed(1)), root)  # keeps it
    assert "| `add_kernel` | 40 |" in (root / "days/day01/README.md").read_text()
    assert stored.check(root) == []


def test_a_readme_without_its_block_stores_nothing(root: Path) -> None:
    """Everything is made before anything is written: the next --write finds the same state."""
    (root / "days/day02/README.md").write_text("# no block\n")
    before = files_in(root)
    with pytest.raises(ResultsError, match=r"day02/README\.md must hold"):
        stored.store(run(H200, passed(1)), root)
    assert files_in(root) == before


def test_a_rung_takes_one_line(root: Path) -> None:
    stored.store(run(H200, passed(1)), root)
    lines = (root / "days/day01/results/nvidia-h200.json").read_text().splitlines()
    assert len([line for line in lines if '"rung": "add_v' in line]) == 2 and len(lines) < 12


def test_a_device_is_written_to_not_replaced() -> None:
    with pytest.raises(ResultsError, match="cannot write /dev/full"):
        files.write_atomically(Path("/dev/full"), "text")
    assert Path("/dev/full").is_char_device()
    files.write_atomically(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()


def test_what_is_only_checked_takes_a_line(root: Path) -> None:
    outcome = passed(1)
    outcome.rungs[:0] = [RungOutcome("odd sizes", f"add_v{i}", "", PASS, checked=3) for i in (1, 2)]
    declare(root, add=LADDER, **{"odd sizes": LADDER})
    stored.store(run(H200, outcome), root)
    text = (root / "days/day01/README.md").read_text()
    assert "±1.0 % at most. Checked, not timed: odd sizes (2 rungs)." in text
    assert "| odd sizes |" not in text and "| problem |" not in text
    # A rung that was refused, or is alone, stays in the table.
    outcome.rungs[0].status, outcome.rungs[0].reason = SKIP, "needs sm_90"
    stored.store(run(H200, outcome), root)
    text = (root / "days/day01/README.md").read_text()
    assert "| odd sizes | `add_v1` |  | SKIP: needs sm_90 |" in text and "not timed" not in text
    outcome.rungs = [RungOutcome("add", "add_v1", "plain", PASS, checked=3)]
    declare(root, add=("add_v1",))
    stored.store(run(H200, outcome), root)
    assert "| `add_v1` | plain | checked |" in (root / "days/day01/README.md").read_text()


def test_progress(root: Path) -> None:
    store_ceilings(root, 4210.0)
    stored.store(run(T4, passed(1)), root)
    stored.store(run(H200, passed(1)), root)
    text = (root / "progress.md").read_text()
    assert "2 days: 1 passed on a GPU; 1 of 1 target met." in text
    assert "[Hello](days/day01/README.md) | passed | add | `add_v2` | 0.250 ms" in text
    assert "Addition \\| with a bar](days/day02/README.md) | not measured |" in text
    assert "- [a] NVIDIA H200: driver 580.1" in text


def test_the_best_rung_stands_for_a_day() -> None:
    """The fastest of the problem with the last target; within the spread, the later one."""

    def rung(name: str, ms: float, problem: str = "add", target: str = "") -> RungOutcome:
        return RungOutcome(problem, name, "", PASS, timing=timing(ms=ms), target=target)

    last = rung("v3", 0.5, target="≥ 1 × pytorch")
    others = [rung("small", 0.1, "small"), rung("v1", 0.4)]
    assert best_rung([*others, last, rung("twin", 0.6)]).rung == "v1"
    assert best_rung([*others, last, rung("twin", 0.3)]).rung == "twin"
    assert best_rung([rung("v1", 0.495), last]).rung == "v3"
    assert best_rung([last, rung("other", 0.1, "other")]).rung == "v3"
    assert best_rung([RungOutcome("add", "v1", "", PASS)]).rung == "v1"


def test_the_index_shows_the_gpu_with_most_days(root: Path) -> None:
    store_ceilings(root, 4210.0)
    stored.store(run({**H200, "gpu": "NVIDIA H100"}, passed(1)), root)
    assert "NVIDIA H100 [a]" in (root / "progress.md").read_text()
    stored.store(run(H200, passed(1, "0.96"), passed(2)), root)
    text = (root / "progress.md").read_text()
    assert "NVIDIA H100" not in text and "1 of 2 targets met." in text
    readme = (root / "days/day01/README.md").read_text()
    assert readme.index("**NVIDIA H200**") < readme.index("**NVIDIA H100**")


def test_a_change_by_hand_is_noticed(root: Path) -> None:
    stored.store(run(H200, passed(1)), root)
    for file in (root / "progress.md", root / "days/day01/README.md"):
        before = file.read_text()
        file.write_text(before.replace("0.250 ms", "0.100 ms"))
        (problem,) = stored.check(root)
        assert file.name in problem and "--write" in problem
        file.write_text(before)
    assert stored.check(root) == []
    (root / "progress.md").unlink()
    assert "missing" in stored.check(root)[0]


def test_a_readme_without_markers_is_an_error(root: Path) -> None:
    (root / "days/day01/README.md").write_text("# Hello\n")
    with pytest.raises(ResultsError, match=r"day01/README\.md must hold"):
        stored.store(run(H200, passed(1)), root)


def test_failed_and_skipped_days_keep_their_old_results(root: Path) -> None:
    stored.store(run(H200, passed(1), passed(2)), root)
    files = [root / f"days/day0{n}/results/nvidia-h200.json" for n in (1, 2)]
    before = [file.read_bytes() for file in files]
    failed = DayOutcome(1, "day01", "t", FAIL, "does not build")
    skipped = DayOutcome(2, "day02", "t", SKIP, "needs moonbeam")
    said = stored.store(run(H200, failed, skipped), root)
    assert said == [
        "day 1 is not stored: it failed",
        "day 2 is not stored: it was skipped (needs moonbeam)",
    ]
    assert [file.read_bytes() for file in files] == before


def test_incomplete_runs_are_not_stored(root: Path) -> None:
    with pytest.raises(ResultsError, match="--quick, --no-bench or --rungs"):
        stored.store(run(H200, passed(1), complete=False), root)
    assert not list(root.rglob("results"))


def test_times_of_the_cpu_backend_are_not_stored(root: Path) -> None:
    """They do not predict a GPU's; what a new day's files derive from its sources is written."""
    readme = root / "days/day01/README.md"
    before = readme.read_text()
    readme.write_text(before.replace("practice:begin -->", "practice:begin -->\nold", 1))
    said = stored.store(run(CPU, passed(1)), root)
    assert said[0] == "no times are stored: the run was on the CPU backend, not on a GPU"
    assert not list(root.rglob("results")) and "wrote progress.md" in said
    assert stored.check(root) == []


def test_files_that_a_day_makes_are_stored(root: Path) -> None:
    """Files made on the CPU backend too: its counts are not times."""
    measured, counted = passed(1), passed(2)
    measured.files = {"sweep.json": "{}\n", "sweep.svg": "<svg/>\n"}
    counted.files = {"counters.json": "[]\n"}
    said = stored.store(run(CPU, passed(1), counted), root)
    assert said[0] == "wrote days/day02/results/show/counters.json"
    assert not list(root.glob("days/*/results/*.json")), "no times are stored"
    said = stored.store(run(H200, measured), root)
    assert {f"wrote days/day01/results/show/sweep.{kind}" for kind in ("json", "svg")} <= {*said}
    assert (root / "days/day01/results/show/sweep.json").read_text() == "{}\n"
    again = stored.store(run(H200, measured), root)
    assert again == ["stored day 1 in days/dayNN/results/nvidia-h200.json"]
    measured.status = FAIL
    measured.files["sweep.json"] = "[]\n"
    stored.store(run(H200, measured), root)
    kept = (root / "days/day01/results/show/sweep.json").read_text()
    assert kept == "{}\n", "a failed day keeps its files"


@pytest.mark.parametrize("name", ["../x.json", "../mutants.json", "day.py", "x.cu", "README.md"])
def test_a_day_writes_no_other_file(root: Path, name: str) -> None:
    outcome = passed(1)
    outcome.files = {name: ""}
    with pytest.raises(ResultsError, match=r"day 1: its show made .* expected NAME\.json or"):
        stored.store(run(H200, outcome), root)
    assert not list(root.rglob("results"))


@pytest.mark.parametrize("step", ["write", "replace"])
def test_a_full_disk_leaves_the_old_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    stored.store(run(H200, passed(1)), root)
    file = root / "days/day01/results/nvidia-h200.json"
    before = files_in(root)

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync" if step == "write" else "replace", full)
    with pytest.raises(ResultsError, match=f"{file}, which is unchanged: No space left"):
        stored.store(run(H200, passed(1, "0.96")), root)
    assert files_in(root) == before


def test_a_folder_that_cannot_be_made(root: Path) -> None:
    (root / "days/day01/results").write_text("a file in the way")
    with pytest.raises(ResultsError, match="was not written"):
        stored.store(run(H200, passed(1)), root)


@pytest.mark.parametrize(
    "text",
    ['{"day": 1}', "5", "[" * 100_000, "\udcff", '{"format": 2, "day": "1"}', "folder", "pipe"],
)
def test_a_damaged_stored_result_is_named(root: Path, text: str) -> None:
    stored.store(run(H200, passed(1), passed(2)), root)
    for name, what in (
        ("nvidia-h200", "stored result"),
        ("mutants", "score of mutants"),
        ("evidence", "evidence"),
    ):
        file = root / f"days/day01/results/{name}.json"
        file.unlink(missing_ok=True)
        if text in ("folder", "pipe"):
            file.mkdir() if text == "folder" else os.mkfifo(file)
        else:
            file.write_text(text, errors="surrogateescape")
        assert f"{name}.json holds no {what}" in stored.check(root)[0]
        with pytest.raises(ResultsError, match=name):
            if name == "evidence":
                stored.regenerate(root)
            stored.read_scores(root) if name == "mutants" else stored.read_stored(root)
        assert stored.read_stored(root, "day02")[2], "another day's are read"
        file.rmdir() if text == "folder" else file.unlink()


def test_where_nothing_can_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, reason in (
        (f"{'x' * 300}.json", "File name too long"),
        (".", "Is a directory"),
        ("file/x.json", "File exists"),
    ):
        with pytest.raises(ResultsError, match=rf"cannot write .*: {reason}"):
            files.check_writable(tmp_path / name)
    files.check_writable(Path("/dev/null"))
    files.check_writable(tmp_path / "new" / f"{'x' * 250}.json")
    files.write_atomically(tmp_path / "new" / f"{'x' * 250}.json", "text")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)  # a full disk, for this process alone
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, before[1]))
    try:
        with pytest.raises(ResultsError, match="cannot write"):
            files.check_writable(tmp_path / "x.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_path_that_is_no_utf_8_costs_no_report(tmp_path: Path) -> None:
    files.write_atomically(tmp_path / "a", "caf\udce9")
    assert (tmp_path / "a").read_text() == "caf?"


def test_reports_are_merged(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.json" for i in range(3)]
    runs.write_json(paths[0], [run(H200, passed(2))])
    runs.write_json(paths[1], [run(H200, passed(1))])
    runs.write_json(paths[2], [run(CPU, passed(1))])
    merged = runs.merge(paths)
    assert [[day["number"] for day in one["days"]] for one in merged] == [[1, 2], [1]]
    whole = tmp_path / "whole.json"
    runs.write_json(whole, merged)
    assert runs.read_json(whole) == merged
    with pytest.raises(ResultsError, match="day 1 on nvidia-h200 is in both"):
        runs.merge([paths[1], whole])


def report_of(*outcomes: DayOutcome, **where: str) -> dict[str, Any]:
    """Return a report as --json writes it, as plain data."""
    days = [{"run": 0, **outcome.to_json()} for outcome in outcomes]
    heads = [{"where": {**H200, **where}, "complete": True}]
    return json.loads(json.dumps({"format": 2, "runs": heads, "days": days}))


def places_in(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything within plain data."""
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    return [path, *(place for key, value in items for place in places_in(value, (*path, key)))]


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of plain data with another value at this path."""
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy


OTHERS: list[Any] = [None, True, -1, 1.5, "../x", [[]], {"a": 1}, 10**400]


def test_a_report_changed_anywhere_is_taken_or_refused_by_its_field(tmp_path: Path) -> None:
    """Never another error: each single change of a value, or a field that is gone."""
    outcome = passed(1)
    del outcome.rungs[0]
    whole = report_of(outcome)
    file = tmp_path / "report.json"
    refused = 0
    for path in places_in(whole):
        for value in OTHERS:
            file.write_text(json.dumps(changed(whole, path, value)))
            try:
                runs.merge([file])
            except ResultsError as error:
                assert str(file) in str(error)
                refused += 1
    assert refused > 300
    file.write_text(json.dumps(whole).replace('"ms": 0.25', '"ms": Infinity'))
    with pytest.raises(ResultsError, match="Infinity is not a number of JSON"):
        runs.read_json(file)
    file.write_text(json.dumps(whole).replace("[]", "[" * 100_000 + "]" * 100_000, 1))
    with pytest.raises(ResultsError, match="nested too deeply"):
        runs.read_json(file)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("days", 0, "name"), "../../../x", r"days\[0\]\.name: expected the name of day 1"),
        (("days", 0, "name"), "/tmp/x", r"days\[0\]\.name: expected the name of day 1"),
        (("days", 0, "number"), 6, r"days\[0\]\.name: expected the name of day 6, got 'day01'"),
        (("runs", 0, "where", "gpu"), "mutants", r"gpu: 'mutants' is not the name of a GPU"),
        (("runs", 0, "where", "gpu"), "", r"gpu: '' is not the name of a GPU"),
        (("days", 0, "status"), "GREAT", r"days\[0\]\.status: expected 'PASS' or 'FAIL' or 'SKIP'"),
        (
            ("days", 0, "rungs", 1, "timing", "libraries"),
            {"x": -1},
            "x of add_v2: expected 1e-07 to",
        ),
        (("days", 0, "rungs", 1, "timing", "gbs"), -1, "gbs of add_v2: expected 0 to"),
        (("days", 0, "rungs", 1, "timing", "ms"), 5e-324, "ms of add_v2: expected 1e-07 to"),
        (("days", 0, "title"), "\ud800", "expected a text without lone surrogates"),
        (("runs", 0, "where", "arch"), "abc", "arch: expected one like '9.0a'"),
        (("runs", 0, "where", "torch"), "2\x1b[2J", r"torch: expected printable text"),
        (("days", 0, "rungs", 0, "checked"), "3", r"rungs\[0\]\.checked: expected a whole number"),
    ],
)
def test_a_crafted_report_is_refused(
    tmp_path: Path, path: tuple[Any, ...], value: Any, message: str
) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(changed(report_of(passed(1)), path, value)))
    with pytest.raises(ResultsError, match=message):
        runs.read_json(file)


def test_a_report_of_other_rungs_replaces_none(root: Path) -> None:
    stored.store(run(H200, passed(1)), root)
    before = (root / "progress.md").read_text()
    shorter, other, unknown, twice, filed = (passed(n) for n in (1, 1, 3, 1, 1))
    twice.rungs.append(twice.rungs[0])
    filed.files = {"further/x.svg": "<svg/>"}
    del shorter.rungs[0]
    other.rungs[0].rung = "add_v9"
    said = stored.store(run(H200, shorter, other, unknown, twice, filed), root)
    assert said == [
        "day 1 is not stored: the report lacks add_v1",
        "day 1 is not stored: the report lacks add_v1",
        "day 3 is not stored: there is no day03 here",
        "day 1 is not stored: the day has no add_v1, or has it once",
        "day 1 is not stored: it has files of a folder further, and the day has none",
    ]
    assert (root / "progress.md").read_text() == before


def test_what_goes_beyond_the_main_line_stands_in_its_own_readme(root: Path) -> None:
    folder = root / "days/day01/further"
    folder.mkdir()
    (folder / "x.cu").touch()
    (folder / "README.md").write_text(f"# Further\n\n{BEGIN}\n{END}\n")
    text = METADATA.format("Hello", "Lesson 1", {"add": ["add_v3"]})
    (folder / "day.py").write_text(text)
    assert "stored day 1" not in " ".join(stored.store(run(H200, passed(1)), root)), "not whole"
    whole = passed(1)
    extra = RungOutcome("add", "add_v3", "i", PASS, checked=3, timing=timing(), further=True)
    whole.rungs.append(extra)
    whole.output = "of the main line\nfurther:\nof further"
    stored.store(run(H200, whole), root)
    main, beyond = (path.joinpath("README.md").read_text() for path in (folder.parent, folder))
    assert "`add_v2`" in main and "add_v3" not in main
    assert "`add_v3`" in beyond and "add_v2" not in beyond
    assert "of the main line" in main and "of further" not in main
    assert "\n| of further\n" in beyond and "of the main line" not in beyond
    assert "`add_v2`" in (root / "progress.md").read_text(), "the main line stands for the day"
    assert stored.check(root) == []


def test_texts_of_a_report_stay_texts(root: Path, tmp_path: Path) -> None:
    """In Markdown they add no tag, cell or line; on a terminal no escape."""
    bad = "<script>x</script>|a\nb\x1b]0;title\x07<img onerror=x>"
    outcome = passed(1)
    outcome.rungs[1].idea = bad
    stored.store(run({**H200, "torch": bad}, outcome), root)
    for name in ("progress.md", "days/day01/README.md"):
        text = (root / name).read_text()
        outside_code = re.sub(r"^```text$.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        assert "<script" not in outside_code and "<img" not in outside_code
        assert "\x1b" not in text and "\x07" not in text
    row = next(line for line in text.splitlines() if "`add_v2`" in line and line.startswith("|"))
    assert r"&lt;script>x&lt;/script>\|a\nb\x1b]0;title\x07&lt;img onerror=x>" in row
    stream = io.StringIO()
    report = Report(stream)
    outcome.rungs[1].status, outcome.rungs[1].reason = FAIL, bad
    report.rung(1, outcome.rungs[1])
    report.text(bad)
    assert "\x1b" not in stream.getvalue() and r"\x1b]0;title" in stream.getvalue()


def test_no_temporary_file_stays(tmp_path: Path) -> None:
    files.write_atomically(tmp_path / "a", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    assert Path(tempfile.gettempdir()).is_dir()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (1.234e-6, "1.23 µs"),
        (9.9949e-5, "99.9 µs"),
        (1e-4, "0.100 ms"),
        (2.5e-4, "0.250 ms"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9999, "1.00 s"),
        (125.4, "125 s"),
        (4321.0, "4321 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text


def test_rates() -> None:
    assert figures.rate(timing()) == "4000 GB/s"
    assert figures.rate(timing(bound="tensor", tflops=671.4)) == "671 TFLOP/s"
    assert figures.rate(timing(bound="int8", tflops=671.4)) == "671 TOP/s"
    assert figures.rate(timing(bound="", gbs=None, tflops=0.0123)) == "12.3 GFLOP/s"
    assert figures.rate(timing(bound="", gbs=None, tflops=None)) == ""
    assert figures.share(timing()) == ""
    assert figures.ratio(None, 1.0) == ""
    assert figures.ratio(1.0, 0.01) == "100×"
    assert figures.numbers([3, 1, 2, 7]) == "1-3, 7"
