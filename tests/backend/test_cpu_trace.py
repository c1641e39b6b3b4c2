"""The tracer of the CPU backend: planted races and unwritten reads, and counts of accesses.

`cpu_kernels/trace.cu` holds the kernels; the lines that must be named are marked in it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.base import compiling, toolchain
from common.base.cache import Entry, cached, digest
from common.base.outcome import FAIL, PASS, RungOutcome, Status
from common.base.paths import ROOT
from common.cpu import backend, findings
from common.cpu import libraries as shared
from common.process import worker
from common.tools import debugger
from common.tools.debugger import Pass
from tests import progress
from tests.compilations import FOLDER
from tests.kernel_files import ORDERS

SOURCE = FOLDER / "trace.cu"

# The kind of the finding, and its memory.
PLANTED = {
    "missing_barrier": ("race", "float row[64]"),
    "missing_barrier_in_graph": ("race", "float row[64]"),
    "missing_barrier_after": ("race", "float row[64]"),
    "missing_barrier_between_trips": ("race", "float part[128]"),
    "neighbour_without_syncwarp": ("race", "float lane[32]"),
    "volatile_warp_sum": ("race", "float part[64]"),
    "double_buffer": ("race", "float buffer[2][64]"),
    "copy_without_wait": ("copy", "float row[128]"),
    "copy_without_barrier": ("race", "float row[128]"),
    "copy_wait_for_too_few": ("copy", "float row[2][128]"),
    "named_barrier_too_small": ("race", "float row[96]"),
    "arrive_before_write": ("race", "float row[32]"),
    "bulk_copy_without_wait": ("copy", "float row[64]"),
    "ldmatrix_without_syncwarp": ("race", "tile[8][8]"),
    "wgmma_without_barrier": ("race", "tile[2][64][8]"),
    "stored_tile_overwritten": ("copy", "float tile[64]"),
    "tensor_tile_overwritten": ("copy", "float tile[8][8]"),
    "stored_result_read": ("copy", "global memory"),
    "tensor_load_without_wait": ("copy", "float tile[8][8]"),
    "narrow_box_without_wait": ("copy", "float tile[8][32]"),
    "multicast_without_wait": ("copy", "float tile[8][8]"),
    "cluster_read_without_barrier": ("race", "uint32_t row[32]"),
    "cluster_store_without_barrier": ("race", "uint32_t row[32]"),
    "async_store_without_wait": ("copy", "uint32_t row[32]"),
    "sent_tile_overwritten": ("copy", "float from[32]"),
    "stmatrix_without_barrier": ("race", "tile[2][8][8]"),
    "wgmma_tile_overwritten": ("copy", "tile[2][64][8]"),
    "second_warpgroup_without_wait": ("copy", "tile[2][64][8]"),
    "store_without_fence": ("fence", "float tile[64]"),
    "tensor_store_with_old_fence": ("fence", "float tile[8][8]"),
    "wgmma_without_fence": ("fence", "tile[2][64][8]"),
    "fence_by_another": ("fence", "float tile[64]"),
    "mbarrier_without_fence": ("mbarrier", "uint64_t full"),
    "mbarrier_after_fence": ("mbarrier", "uint64_t full"),
    "mbarrier_fenced_by_another": ("mbarrier", "uint64_t full"),
    "tile_with_mbarrier_fence": ("fence", "float tile[64]"),
    "mbarrier_begun_again": ("copy", "uint64_t full"),
    "tile_too_small": ("race", "float lane[32]"),
    "wide_tile_too_small": ("race", "float tile_row[128]"),
    "write_between_arrival_and_wait": ("race", "float row[64]"),
    "group_copy_without_wait": ("copy", "float row[128]"),
    "histogram_not_cleared": ("race", "int bins[4]"),
    "reset_after_atomics": ("race", "float sum"),
    "unwritten_tail": ("unwritten", "float row[40]"),
    "unwritten_dynamic": ("unwritten", "__shared__ memory, the dynamic part"),
    "unwritten_counter": ("unwritten", "int count"),
    "blocks_write_one_element": ("race", "global memory"),
    "plain_counter": ("race", "global memory"),
    "in_place_neighbour": ("race", "global memory"),
    "flag_without_fence": ("race", "global memory"),
    "flag_with_block_fence": ("race", "global memory"),
    "volatile_flag_without_fence": ("race", "global memory"),
    "last_block_without_fence": ("race", "global memory"),
    "lock_without_fence": ("race", "global memory"),
    "missing_grid_barrier": ("race", "global memory"),
    "store_not_released": ("race", "global memory"),
    "load_not_acquired": ("race", "global memory"),
    "scope_too_small": ("race", "global memory"),
    "reader_without_fence": ("race", "global memory"),
    "lock_not_released": ("race", "global memory"),
    "arrival_without_wait": ("race", "float row[64]"),
    "stage_without_wait": ("copy", "float row[128]"),
    "stage_not_acquired": ("race", "float row[64]"),
}
SOUND = (
    "node_of_a_graph",
    "bytes_of_a_word",
    "warp_sums",
    "float_atomics",
    "compare_and_swap",
    "producer_and_consumer",
    "wgmma_tile_replaced",
    "block_fences",
    "ordered_by_atomics",
    "copied_tile_sent_on",
    "mbarrier_of_many_copies",
    "copy_engine_at_cuda_barrier",
)

# For marked lines: kind, requests, lanes, sectors, bank conflicts.
Count = tuple[str, int, int, int, int]
COUNTED: dict[str, dict[str, Count]] = {
    "copy_stride_1": {
        "copy_stride: load": ("global load", 2, 64, 8, 0),
        "copy_stride: store": ("global store", 2, 64, 8, 0),
    },
    "copy_stride_2": {
        "copy_stride: load": ("global load", 2, 64, 16, 0),
        "copy_stride: store": ("global store", 2, 64, 16, 0),
    },
    "copy_stride_32": {
        "copy_stride: load": ("global load", 2, 64, 64, 0),
        "copy_stride: store": ("global store", 2, 64, 64, 0),
    },
    "copy_misaligned": {"copy_stride: load": ("global load", 2, 64, 10, 0)},
    "copy_float4": {
        "copy_float4: load": ("global load", 2, 64, 32, 0),
        "copy_float4: store": ("global store", 2, 64, 32, 0),
    },
    "broadcast": {
        "broadcast: single": ("global load", 1, 1, 1, 0),
        "broadcast: load": ("shared load", 2, 64, 0, 0),
    },
    "constants": {"constants: load": ("constant load", 2, 64, 2, 0)},
    "column_of_32": {
        "column: store": ("shared store", 32, 1024, 0, 0),
        "column: load": ("shared load", 32, 1024, 0, 32 * 31),
    },
    "column_of_33": {"column: load": ("shared load", 32, 1024, 0, 0)},
    "column_swizzled": {
        "column_swizzled: store": ("shared store", 32, 1024, 0, 0),
        "column_swizzled: load": ("shared load", 32, 1024, 0, 0),
    },
    "shared_float4": {"shared_float4: load": ("shared load", 1, 32, 0, 0)},
    "shared_double_stride_2": {"shared_double_stride_2: load": ("shared load", 1, 32, 0, 2)},
    "divergent": {
        "divergent: load": ("global load", 4, 32 + 24 + 16 + 8, 16, 0),
        "divergent: store": ("global store", 1, 16, 4, 0),
    },
    "count_atomics": {"count_atomics: atomic": ("global atomic", 2, 64, 2, 0)},
}


def lines_marked(mark: str) -> list[int]:
    """Return the numbers of the lines with this mark: "// <mark>" at their end."""
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    return [n for n, line in enumerate(lines, 1) if re.search(rf"// {re.escape(mark)}$", line)]


@pytest.fixture(scope="session")
def libraries() -> tuple[Path, Path]:
    """Return the runtime library and the kernels, built to be traced."""
    try:
        platform = replace(toolchain.detect("cpu"), variant="trace")
    except toolchain.ToolchainError as error:
        pytest.skip(str(error))
    runtime = shared.build_runtime(platform)
    files = compiling.sources_of(SOURCE)
    source = shared.rewritten("test-trace", SOURCE, files, [ROOT])
    command = [platform.compiler, "-shared", str(source), *shared.flags(platform), f"-I{ROOT}"]
    command += backend.ldflags(runtime, "trace")
    key = digest([platform.label(), *command], [*shared.texts(source), *backend.HEADERS])
    entry = Entry("test-trace-cpu-trace", key, "trace.so")
    library = cached(entry, lambda _: compiling.run_compiler([*command, "-o", str(entry.path)]))
    return runtime, library


Results = dict[tuple[str, bool, str], dict[str, Any]]


@pytest.fixture(scope="session")
def run(libraries: tuple[Path, Path]) -> Callable[[str, list[tuple[str, bool, str]]], Results]:
    """Return run(mode, [(case, fixed, "order,seed")]), which returns the tracer's findings in
    each."""

    def run(mode: str, cases: list[tuple[str, bool, str]]) -> Results:
        words = [f"{schedule}:{name},{int(fixed)}" for name, fixed, schedule in cases]
        paths = [str(path) for path in libraries]
        command = [sys.executable, "-m", "tests.trace_cases", *paths, mode, *words]
        done = progress.run(command, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-4000:]
        return dict(zip(cases, map(json.loads, done.stdout.splitlines()), strict=True))

    return run


SCHEDULES = [f"{order},{seed}" for order, seed in ORDERS]


@pytest.fixture(scope="session")
def races(run: Callable[..., Results]) -> Results:
    """Return the results of every planted fault, its fixed twin and every sound kernel, in all
    orders."""
    cases = [(name, fixed, s) for name in PLANTED for fixed in (False, True) for s in SCHEDULES]
    return run("races", cases + [(name, False, s) for name in SOUND for s in SCHEDULES])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found_in_every_order(races: Results, name: str, schedule: str) -> None:
    what, memory = PLANTED[name]
    findings = races[name, False, schedule]["findings"]
    assert len(findings) == 1, [finding["summary"] for finding in findings]
    finding = findings[0]
    assert finding["what"] == what
    assert memory in finding["memory"]
    assert finding["kernel"].split("<")[0] == name
    both = lines_marked(f"{name}: both")
    want = both * 2 or lines_marked(f"{name}: first") + lines_marked(f"{name}: second")
    got = [finding["first"]["line"], finding["second"]["line"]]
    assert sorted(got) == sorted(want if len(want) == 2 else want * 2)
    for side in ("first", "second"):
        assert finding[side]["file"] == "tests/cpu_kernels/trace.cu"
    if what != "unwritten" and len(set(want)) == 2:
        same = finding["first"]["block"] == finding["second"]["block"]
        assert (
            not same
            or finding["first"]["thread"] != finding["second"]["thread"]
            or what in ("copy", "fence", "mbarrier")
        )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", PLANTED)
def test_fixed_twins_are_silent_in_every_order(races: Results, name: str, schedule: str) -> None:
    assert [f["summary"] for f in races[name, True, schedule]["findings"]] == []


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", SOUND)
def test_sound_kernels_are_silent(races: Results, name: str, schedule: str) -> None:
    assert [f["summary"] for f in races[name, False, schedule]["findings"]] == []


def test_a_race_is_explained(races: Results) -> None:
    details = races["missing_barrier", False, "forward,0"]["findings"][0]["details"]
    first, second = (lines_marked(f"missing_barrier: {side}")[0] for side in ("first", "second"))
    assert details == [
        f"tests/cpu_kernels/trace.cu:{second}: thread (31,0,0) of block (0,0,0) reads 4 bytes: "
        "out[threadIdx.x] = row[63 - threadIdx.x];  // missing_barrier: second",
        f"tests/cpu_kernels/trace.cu:{first}: thread (32,0,0) of block (0,0,0) writes 4 bytes: "
        "row[threadIdx.x] = 1.0f;  // missing_barrier: first",
        "there is no barrier between them: either may come first; a __syncthreads() between the "
        "two lines, reached by all threads, would order them",
        details[3],
    ]
    assert re.fullmatch(
        r"in kernel missing_barrier<false>, launched at \S+trace.cu:\d+", details[3]
    )


@pytest.mark.parametrize("name", ["plain_counter", "missing_barrier_between_trips"])
def test_a_lost_update_is_no_missing_barrier(races: Results, name: str) -> None:
    """Both are one line that adds to what it reads."""
    advice = races[name, False, "forward,0"]["findings"][0]["details"][2]
    assert ("atomicAdd" in advice) is (name == "plain_counter"), advice


@pytest.mark.parametrize("name", ["lock_without_fence", "last_block_without_fence"])
def test_a_missing_fence_beside_an_atomic_is_named(races: Results, name: str) -> None:
    (finding,) = races[name, False, "forward,0"]["findings"]
    assert finding["summary"].endswith(", which atomics do not order without __threadfence()")
    assert "a fence stands before it" in finding["details"][2]


def test_a_missing_barrier_is_no_missing_fence(races: Results) -> None:
    for name in ("missing_barrier", "plain_counter", "reset_after_atomics"):
        (finding,) = races[name, False, "forward,0"]["findings"]
        assert "__threadfence()" not in finding["summary"], name


def test_a_missing_fence_of_an_mbarrier_is_explained(races: Results) -> None:
    (finding,) = races["mbarrier_without_fence", False, "forward,0"]["findings"]
    first, second = (
        f"tests/cpu_kernels/trace.cu:{lines_marked(f'mbarrier_without_fence: {side}')[0]}"
        for side in ("first", "second")
    )
    assert finding["summary"].startswith(
        f"no fence between the mbarrier's initialisation at {first} and the copy that completes at "
        f"it, {second}: "
    )
    assert "fence_mbarrier_init() or fence_proxy_async()" in finding["details"][2]


@pytest.fixture(scope="session")
def profiles(run: Callable[..., Results]) -> Results:
    return run("profile", [(name, False, s) for name in COUNTED for s in SCHEDULES])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", COUNTED)
def test_counts_of_known_patterns(profiles: Results, name: str, schedule: str) -> None:
    counts = profiles[name, False, schedule]["counts"]
    for mark, want in COUNTED[name].items():
        (line,) = lines_marked(mark)
        here = [c for c in counts if c["line"] == line and c["kind"] == want[0]]
        assert len(here) == 1, counts
        got = tuple(here[0][key] for key in ("kind", "requests", "lanes", "sectors", "conflicts"))
        assert got == want


ACCESS = findings.Access("a.cu", 3, "read", 4, (0, 0, 0), (1, 0, 0))
RACE = findings.Finding("race", "k", "a.cu:9", "x", ACCESS, replace(ACCESS, access="write", line=4))
UNWRITTEN = findings.Finding("unwritten", "k", "a.cu:9", "row", ACCESS, ACCESS)


def judged(listed: list[findings.Finding], status: Status) -> RungOutcome:
    """Return the outcome of a rung with this status and these findings."""
    found = findings.Trace(listed, [], ["a remark"])
    run: Any = SimpleNamespace(backend=SimpleNamespace(take_trace=lambda: found))
    outcome = RungOutcome("p", "r", "i", status, reason="" if status == PASS else "wrong")
    worker.take_findings(run, outcome)
    return outcome


def test_a_race_fails_a_rung_with_right_results() -> None:
    outcome = judged([RACE, UNWRITTEN], PASS)
    assert outcome.status == FAIL
    assert outcome.reason == f"{worker.ACCESSES_FOUND} race on x: a.cu:3 and a.cu:4"
    assert outcome.findings == [
        {
            "what": found.what,
            "places": found.places(),
            "summary": found.summary(),
            "details": found.details(),
        }
        for found in (RACE, UNWRITTEN)
    ]


def test_an_unwritten_read_fails_a_rung_with_right_results() -> None:
    outcome = judged([UNWRITTEN], PASS)
    assert outcome.status == FAIL
    assert outcome.reason.startswith(f"{worker.ACCESSES_FOUND} a.cu:3 reads row, which nothing has")


def test_an_unwritten_read_explains_wrong_results() -> None:
    outcome = judged([UNWRITTEN], FAIL)
    assert outcome.reason.startswith(worker.ACCESSES_FOUND)
    assert outcome.details[-1] == "wrong"


@pytest.mark.parametrize("what", sorted({what for what, _ in PLANTED.values()}))
def test_what_is_found_has_a_row_of_the_debugger(what: str) -> None:
    outcome = judged([replace(RACE, what=what)], FAIL)
    both = (findings.RACES, ("unwritten",))
    rows = [debugger.judge_trace(Pass([outcome]), kinds) for kinds in both]
    assert sorted(row.status for row in rows) == [FAIL, PASS]


def test_a_race_of_several_rungs_is_reported_once() -> None:
    swapped = replace(RACE, first=RACE.second, second=RACE.first)
    rungs = [judged([RACE], FAIL), judged([swapped], PASS), judged([RACE], PASS)]
    for rung, name in zip(rungs, ("v1", "v2", "v1"), strict=True):
        rung.rung = name
    row = debugger.judge_trace(Pass(rungs), findings.RACES)
    assert row.status == FAIL
    assert row.reason == f"v1, v2: {RACE.summary()}"
    assert row.details == RACE.details()


def test_a_rung_that_fails_only_while_it_is_traced_is_reported() -> None:
    wrong = judged([], FAIL)
    wrong.rung = "v1"
    right = replace(wrong, status=PASS, reason="")
    row = debugger.judge_trace(Pass([wrong]), findings.RACES, Pass([right]))
    assert (row.status, row.reason) == (FAIL, "v1: wrong")
    row = debugger.judge_trace(Pass([wrong, judged([RACE], FAIL)]), findings.RACES, Pass([right]))
    assert row.reason.endswith(RACE.summary()) and "v1: wrong" in row.details
    # The row "orders" has those that are wrong without a trace too.
    assert debugger.judge_trace(Pass([wrong]), findings.RACES, Pass([wrong])).status == PASS


def test_nothing_found_changes_nothing() -> None:
    assert judged([], PASS).status == PASS
    assert judged([], FAIL).reason == "wrong"


def test_faults_are_named_in_traced_builds_too() -> None:
    """Above all with their lines: compilers like to merge statements with equal ends."""
    tests = "tests/backend/test_cpu_cluster.py"
    command = [sys.executable, "-m", "pytest", "-q", "-k", "mistake", tests]
    environment = {**os.environ, toolchain.VARIANT_VARIABLE: "trace"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout[-4000:]
