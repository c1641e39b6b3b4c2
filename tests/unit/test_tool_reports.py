"""The tools' reports and tables, without the tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.base.days import load_lesson, read_day
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, SKIP, RungOutcome
from common.base.paths import DAYS
from common.bench import counters
from common.bench.counters import LAUNCH, SECTORS, WAVEFRONTS, Kernel, NotCounted
from common.cpu import access_table
from common.cpu.findings import LineCounts, Trace
from common.process import worker
from common.process.events import Finished
from common.tools import access_profile, compute_sanitizer, nsight

LOAD = LineCounts("k", "a.cu", 3, "global load", 10, 320, 1280, 40)
OTHER_LOAD = LineCounts("k", "a.cu", 4, "global load", 10, 160, 640, 80)
STORE = LineCounts("k", "a.cu", 3, "global store", 4, 128, 512, 128)
SHARED = LineCounts("k", "a.cu", 5, "shared load", 2, 64, 256, 0, 64, 62)
SHARED_ATOMIC = LineCounts("other", "a.cu", 9, "shared atomic", 2, 64, 256)


def test_a_kernel_s_row_adds_up_its_lines() -> None:
    rows = access_table.kernel_rows([LOAD, OTHER_LOAD, STORE, SHARED, SHARED_ATOMIC])
    assert rows == [["k", "6.00", "32.00", "62"], ["other", "–", "–", "0"]]


def test_a_line_s_row() -> None:
    rows = access_table.line_rows([OTHER_LOAD, SHARED, SHARED_ATOMIC])
    assert [row[1:] for row in rows] == [
        ["global load", "10", "16.0", "8.00", "", ""],
        ["shared load", "2", "32.0", "", "32.00", "62"],
        ["shared atomic", "2", "32.0", "", "", ""],
    ]
    assert all(len(row) == len(access_table.LINE_HEADER) for row in rows)


# --- compute-sanitizer ------------------------------------------------------------------------

CLEAN = "========= COMPUTE-SANITIZER\n  1 twice PASS\n========= ERROR SUMMARY: 0 errors\n"
FOUND = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at twice_v1_kernel(const float *, float *, long)+0x110 in twice.cu:12
=========     by thread (1,0,0) in block (4,0,0)
=========     Host Frame: cudaLaunchKernel [0x1] in libcudart.so
=========
========= ERROR SUMMARY: 1 error
"""
OTHERS = FOUND.replace("twice_v1_kernel", "at::native::sort_kernel")
HAZARDS = "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n"
BROKEN = """========= COMPUTE-SANITIZER
 1 twice_v1                      PASS 3 cases
========= Internal Sanitizer Error: The Sanitizer failed to handle a hardware exception.
=========
========= Target application returned an error
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
NO_HAZARDS = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


@pytest.mark.parametrize(
    ("text", "code", "status", "reason"),
    [
        (CLEAN, 0, PASS, ""),
        (NO_HAZARDS, 0, PASS, ""),
        (FOUND, 99, FAIL, "1 error"),
        (FOUND, 0, FAIL, "1 error"),
        (OTHERS, 99, PASS, ""),
        (OTHERS + FOUND, 99, FAIL, "1 error"),
        (HAZARDS, 99, FAIL, "2 hazards"),
        (BROKEN, 99, FAIL, "itself failed"),
        (CLEAN, 1, FAIL, "checks failed"),
        ("Error: Device not supported\n", 1, FAIL, "no report"),
        ("", 0, FAIL, "no report"),
    ],
)
def test_sanitizer_reports_are_judged(text: str, code: int, status: str, reason: str) -> None:
    outcome = RungOutcome("sanitize", "memcheck", "", PASS)
    compute_sanitizer.judge("memcheck", text, code, ["twice_v1"], outcome)
    assert outcome.status == status
    assert reason in outcome.reason
    assert not any("Host Frame" in line for line in outcome.details)
    assert bool(outcome.remarks) == (text == OTHERS)
    if "1 error" in reason:
        assert any("twice.cu:12" in line for line in outcome.details)


def test_a_problem_that_the_tools_cannot_run_is_left_out_and_reported() -> None:
    problems = load_lesson(read_day(DAYS / "day20")).problems
    unwatched = [p for p in problems if p.unwatched]
    assert compute_sanitizer.left_out(read_day(DAYS / "day20")) == [
        f"left out: {problem.name}: {problem.unwatched}" for problem in unwatched
    ]
    problem = unwatched[0]
    under_tool = SimpleNamespace(
        options=RunOptions(watched=True), backend=SimpleNamespace(name="cuda")
    )
    call, outcome = worker.check_rung(under_tool, problem, problem.rungs[0], None)  # type: ignore[arg-type]
    assert call is None and outcome.status == SKIP and outcome.reason == problem.unwatched


def test_a_day_whose_problems_are_all_left_out_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    day = read_day(DAYS / "day32")
    assert len(compute_sanitizer.left_out(day)) == len(load_lesson(day).problems)
    monkeypatch.setattr(compute_sanitizer, "find_tool", lambda *_: "compute-sanitizer")
    reported: list[object] = []
    channel = SimpleNamespace(emit=reported.append)
    compute_sanitizer.run_day(day, None, RunOptions(), channel)  # type: ignore[arg-type]
    outcomes = [event.outcome for event in reported if isinstance(event, Finished)]
    assert {outcome.status for outcome in outcomes} == {SKIP}
    assert all("left out" in outcome.reason for outcome in outcomes)


@pytest.mark.parametrize("fails_on", [{"softmax_v2_two_kernels"}, set(), {"all"}])
def test_a_tool_that_fails_itself_runs_again_without_the_rung(
    monkeypatch: pytest.MonkeyPatch, fails_on: set[str]
) -> None:
    day = read_day(DAYS / "day04")
    names = compute_sanitizer.rung_names(day)
    if fails_on == {"all"}:
        fails_on = set(names)

    def run(command: list[str], **_: object) -> SimpleNamespace:
        text = "========= COMPUTE-SANITIZER\n"
        chosen = command[command.index("--rungs") + 1].split(",")
        for name in [name for name in names if name in chosen]:
            if name in fails_on:
                text += "========= Internal Sanitizer Error: no handler\n" + HAZARDS
                return SimpleNamespace(stdout=text, returncode=99)
            text += f"  4 {name:30}PASS 3 cases\n"
        return SimpleNamespace(stdout=text + NO_HAZARDS, returncode=0)

    monkeypatch.setattr(compute_sanitizer.subprocess, "run", run)
    outcome = RungOutcome("sanitize", "racecheck", "", PASS)
    compute_sanitizer._run_tool("sanitizer", "racecheck", names, day, RunOptions(), outcome)
    assert outcome.status == (SKIP if fails_on == set(names) else PASS)
    assert outcome.remarks == [
        f"left out: {name}: racecheck itself fails on it: no handler" for name in sorted(fails_on)
    ]
    outcome = RungOutcome("sanitize", "memcheck", "", PASS)
    compute_sanitizer._run_tool("sanitizer", "memcheck", names, day, RunOptions(), outcome)
    assert outcome.status == (FAIL if fails_on else PASS)


def test_findings_that_are_alike_are_reported_once() -> None:
    again = FOUND.replace("thread (1,0,0)", "thread (9,0,0)")
    elsewhere = FOUND.replace("twice.cu:12", "twice.cu:15")
    blocks, _ = compute_sanitizer.findings(FOUND + again + elsewhere, ["twice_v1"])
    lines = compute_sanitizer.condensed(blocks)
    assert sum("twice.cu:12" in line for line in lines) == 1
    assert sum("twice.cu:15" in line for line in lines) == 1
    assert [line.strip() for line in lines if "like it" in line] == ["and 1 more finding like it"]


# --- Nsight Compute ---------------------------------------------------------------------------


def raw_csv(*kernels: dict[str, str]) -> str:
    """Return ncu's raw CSV, a line per kernel with these values; every other counter is 7."""
    columns = [name for names, _ in nsight.METRICS.values() for name in names]
    lines = [["ID", "Kernel Name", *columns], [""] * (2 + len(columns))]
    for number, values in enumerate(kernels):
        name = "void twice_v1_kernel<float>(int)"
        lines.append([str(number), name, *(values.get(column, "7") for column in columns)])
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    return f"==PROF== noise\n{text}\n"


def test_profiles_are_read() -> None:
    names = [name for names, _ in nsight.METRICS.values() for name in names]
    values = {"gpu__time_duration.sum": "12,345", "lts__t_sector_hit_rate.pct": "33.333"}
    values |= {name: "400" for name in names if "sectors" in name}
    values |= {name: "100" for name in names if "requests" in name}
    values |= {"memory_l1_wavefronts_shared": "1,054"}
    (row,) = nsight.parse(raw_csv(values))
    shown = dict(zip(["kernel", *nsight.METRICS], row, strict=True))
    assert shown["kernel"] == "twice_v1_kernel<float>"
    assert shown["µs"] == "12.3"
    assert shown["L2 hit %"] == "33.3"
    assert shown["sect/ld"] == "4.00"
    assert shown["bank confl."] == "1047"
    assert shown["regs"] == "7"


def test_a_profile_gives_the_counters_of_each_kernel() -> None:
    loads, stores = SECTORS["global load"], SECTORS["global store"]
    values = {loads[0]: "1,024", loads[1]: "128", **dict.fromkeys(stores, "n/a")}
    first, second = (Kernel(**kernel) for kernel in nsight.kernels(raw_csv(values, {})))
    assert first.name == second.name == "twice_v1_kernel<float>"
    assert first.ratio(*loads) == 8 and second.ratio(*loads) == 1
    assert second.counters["lts__t_sector_hit_rate.pct"] == 7
    with pytest.raises(NotCounted, match="global_op_st"):
        first.ratio(*stores)


def test_further_counters_are_a_table() -> None:
    header, rows = nsight.further(
        ("a__x.sum", "a__y.sum"),
        [{"name": "f", "counters": {"a__x.sum": 1234.5}}, {"name": "g", "counters": {}}],
    )
    assert header == ["counter", "f", "g"]
    assert rows == [["a__x.sum", "1234", "–"], ["a__y.sum", "–", "–"]]


def test_the_cpu_backend_counts_by_the_same_names() -> None:
    counts = [LOAD, OTHER_LOAD, STORE, SHARED, SHARED_ATOMIC]
    launches = {"k": [(32, 0), (256, 64), (128, 96)], "other": [(64, 0)]}
    one, other = (
        Kernel(**kernel) for kernel in access_profile.kernels(Trace([], counts, [], launches))
    )
    assert (one.name, other.name) == ("k", "other")
    assert [one.counters[name] for name in LAUNCH] == [256, 64]
    assert [one.ratio(*SECTORS[kind]) for kind in SECTORS] == [6, 32]
    assert [one.counters[name] for name in WAVEFRONTS] == [64, 2]
    assert other.ratio(*WAVEFRONTS) == 0


def test_the_column_of_a_device_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the GPU's counters cannot be read, the stored column stays; the CPU's must be there."""

    def rows(kernels: Sequence[Kernel]) -> dict[str, float]:
        return {kernel.name: kernel.counters["n"] for kernel in kernels}

    def columns(device: str) -> dict[str, dict[str, float]]:
        found = counters.counted_columns(tmp_path, device, rows)
        (text,) = counters.columns_file(found).values()
        stored = tmp_path / "results" / "show" / counters.STORED
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(text)
        assert json.loads(text) == found
        return found

    def denied(*_: object) -> list[Kernel]:
        raise NotCounted("no permission")

    monkeypatch.setattr(counters, "profiled", lambda *_: [Kernel("f", {"n": 1})])
    assert columns("cuda") == {"ncu": {"f": 1}}
    monkeypatch.setattr(counters, "profiled", lambda *_: [Kernel("f", {"n": 2})])
    assert columns("cpu") == {"CPU backend": {"f": 2}, "ncu": {"f": 1}}
    monkeypatch.setattr(counters, "profiled", denied)
    assert columns("cuda") == {"CPU backend": {"f": 2}, "ncu": {"f": 1}}
    assert "stored one, if there is one: no permission" in capsys.readouterr().out
    with pytest.raises(NotCounted):
        columns("cpu")


@pytest.mark.parametrize("text", ["", '"ID","Kernel Name"\n"",""\n'])
def test_a_profile_of_nothing_is_an_error(text: str) -> None:
    for read in (nsight.parse, nsight.kernels):
        with pytest.raises(nsight.ProfileError):
            read(text)


def test_names_of_kernels() -> None:
    assert nsight.kernel_name("f(int)") == "f"
    assert nsight.kernel_name("void ns::f<(int)4, float>(int *)") == "ns::f<(int)4, float>"
    assert nsight.kernel_name("void (anonymous namespace)::f<int>(int)") == "f<int>"
