"""The evidence of kernels: how it is gathered and shown, and that of each day."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from common.base.days import Day, discover, load_lesson
from common.base.paths import ROOT
from common.report import evidence
from common.report.evidence import Evidence, KernelCode, KernelRun, evidence_block
from common.report.files import ResultsError
from common.report.markdown import read_evidence
from common.tools import kernel_evidence
from common.tools.kernel_evidence import (
    EvidenceError,
    instance,
    kernel_of,
    resident_blocks,
    sources_key,
)

DAYS = [day.with_further() for day in discover()[0] if read_evidence(day)]
each_day = pytest.mark.parametrize("day", DAYS, ids=[day.name for day in DAYS])

CODE = KernelCode("scan_v1_kernel<float, 4>", 40, 0, 0, 1024, 16, 16, False, 0, False)
SPILLS = replace(CODE, name="scan_v1_kernel<double, 2>", registers=255, spilled=48)
HELPER = replace(CODE, name="add_kernel", shared=0, load=4, store=2, bulk=True, split=2)
RUN = KernelRun("scan", "scan_v1", "5×7 float32", CODE.name, 256, 512, 6, 16.0, 2.0, False)
ADDED = replace(RUN, kernel="add_kernel", dynamic=0, sectors=None, passes=None)


def stored(*runs: KernelRun) -> Evidence:
    return Evidence(5, "0123", "13.0", "9.0a", [CODE, SPILLS, HELPER], list(runs))


# --- every day --------------------------------------------------------------------------------


def test_days_have_evidence() -> None:
    assert DAYS


@each_day
def test_the_evidence_is_that_of_the_day_as_it_stands(day: Day) -> None:
    """The code, without comments, is the one that was compiled, by the version of nvcc that
    requirements.txt brings; the rungs and cases are those that were counted. Needs no nvcc."""
    found = read_evidence(day)
    assert found
    fix = f"python run_day.py {day.number} --profile --device cpu --write makes it anew"
    assert found.sources == sources_key(day), f"the code has changed: {fix}"
    requirements = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    pinned = re.search(r"^cuda-toolkit.*<=(\d+\.\d+)", requirements, re.MULTILINE)
    assert pinned and found.nvcc == pinned[1], f"compiled by nvcc {found.nvcc}: {fix}"
    problems = {(one.name, one.further): one for one in load_lesson(day).problems}
    for run in found.runs:
        problem = problems.get((run.problem, run.further))
        assert problem and run.rung in [rung.name for rung in problem.rungs], fix
        assert run.case == str(problem.timing_case("cpu")), fix


@each_day
def test_kernels_neither_spill_nor_load_vectors_in_pieces(day: Day) -> None:
    """Unless evidence.toml gives the reason; a reason that no kernel needs goes."""
    found = read_evidence(day)
    assert found
    faults = found.faults()
    wrong = [line for kernel in faults if kernel not in day.excused for line in faults[kernel]]
    assert not wrong, "\n".join([*wrong, "fix it, or give the reason in evidence.toml"])
    assert set(day.excused) <= set(faults), "evidence.toml names kernels that need no reason"


# --- gathering --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("add_kernel(float const*, long)", "add_kernel"),
        ("void scan<float, (int)4, (bool)1>(float const*)", "scan<float, 4, 1>"),
        ("void (anonymous namespace)::f<Pack<float> >(Pack<float>*)", "f<Pack<float>>"),
        ("void f<(Mode)1, 16u>(void (*)(int))", "f<1, 16u>"),
        ("void cub::detail::f<int>(int)", "cub::detail::f<int>"),
    ],
)
def test_a_kernel_is_named_by_its_signature(signature: str, name: str) -> None:
    assert kernel_of(signature) == name


@pytest.mark.parametrize(
    ("counted", "names", "expected"),
    [
        ("f<long int, true>", ["f<int, 1>", "f<long, 0>", "f<long, 1>"], "f<long, 1>"),
        ("f<unsigned int, 4>", ["f<unsigned, 4u>", "f<int, 4>"], "f<unsigned, 4u>"),
        ("f<Mode::ROWS, 4>", ["f<1, 4>", "f<1, 8>"], "f<1, 4>"),
        ("f<int, unsigned int>", ["f<float>", "f<int>"], "f<int>"),
        ("f<T>", ["f<float>"], "f<float>"),
    ],
)
def test_the_two_compilers_name_one_instance(counted: str, names: list[str], expected: str) -> None:
    assert instance(counted, names) == expected


@pytest.mark.parametrize("counted", ["f<Mode::ROWS>", "f<2>"])
def test_an_instance_that_is_not_clear_is_an_error(counted: str) -> None:
    with pytest.raises(EvidenceError, match=r"is none, or several, of f<0>, f<1>"):
        instance(counted, ["f<0>", "f<1>"])


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "blocks"),
    [
        (16, 32, 0, 32),  # blocks per multiprocessor
        (32, 1024, 0, 2),  # threads
        (49, 1024, 128, 1),  # registers: 56 per thread are given out
        (49, 128, 128, 9),
        (168, 384, 0, 1),
        (40, 512, 64 * 1024 + 128, 3),  # shared memory, with 1 KB of the system
    ],
)
def test_resident_blocks_have_four_limits(
    registers: int, threads: int, shared: int, blocks: int
) -> None:
    assert resident_blocks(registers, threads, shared) == blocks


def test_comments_do_not_make_evidence_stale(tmp_path: Path) -> None:
    day = DAYS[0]
    other = tmp_path / day.source.name

    def key(text: str) -> str:
        other.write_text(text, encoding="utf-8")
        kernel_evidence._code_of.cache_clear()
        return sources_key(replace(day.with_source(day.source, other), further=None))

    text = "#include <x>\nint a = 1;"
    assert key(text) == key("#include <x>\n// why\nint  a = /* 1 */ 1;\n")
    assert key(text) != key("#include <x>\nint a = 2;")


def test_shared_headers_for_the_host_do_not_make_evidence_stale() -> None:
    names = {
        path.name
        for path in (ROOT / "common/cuda").glob("*.cuh")
        if kernel_evidence._for_host(path)
    }
    assert {"kernel_queries.cuh", "tensor.cuh"} <= names
    assert not names & {"pack.cuh", "chunk.cuh", "warp_reduce.cuh", "tree_reduce.cuh"}


# --- the file and the table -------------------------------------------------------------------


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / evidence.EVIDENCE
    path.write_text(evidence.to_text(stored(RUN, ADDED)), encoding="utf-8")
    assert evidence.from_text(path) == stored(RUN, ADDED)
    path.write_text('{"format": 1, "day": 5}', encoding="utf-8")
    with pytest.raises(ResultsError, match=r"evidence.json holds no evidence: .*missing"):
        evidence.from_text(path)


def test_faults_are_named_by_kernel() -> None:
    faults = stored(RUN).faults()
    assert faults == {
        "scan_v1_kernel": ["scan_v1_kernel<double, 2> spills registers, 48 bytes per thread"],
        "add_kernel": ["add_kernel loads vectors of 16 bytes in pieces: 2"],
    }


def test_the_table_has_a_row_for_each_kernel_of_a_rung() -> None:
    text = evidence_block(stored(RUN, ADDED), further=False)
    assert "| `scan_v1` |  | 40 | 1.5 KB | 256 | 6 | 16 B | 16 B | 16 | 2.00× |" in text
    assert "| `scan_v1` | `add_kernel` | 40 |  | 256 | 6 | bulk 4 B | 2 B |  |  |" in text
    assert "problem" not in text, "there is only one"
    assert "none of them spilled" in text and "Cases: 5×7 float32." in text


def test_a_kernel_that_differs_among_problems_has_a_row_for_each() -> None:
    small = replace(RUN, problem="small", threads=32, resident=32)
    text = evidence_block(stored(RUN, replace(RUN, problem="again"), small), further=False)
    assert "| scan; again | `scan_v1` | 40 | 1.5 KB | 256 | 6 |" in text
    assert "| small | `scan_v1` | 40 | 1.5 KB | 32 | 32 |" in text


def test_without_launches_the_table_has_ranges() -> None:
    text = evidence_block(stored(), further=False)
    assert "| `scan_v1_kernel` | 40–255 | 48 B | 1 KB | 16 B | 16 B |" in text
    assert "| `add_kernel` | 40 |  |  | bulk 4 B | 2 B |" in text
    assert "bytes of them spilled" in text


@pytest.mark.parametrize("found", [None, stored(RUN)])
def test_a_part_without_kernels_has_no_table(found: Evidence | None) -> None:
    assert evidence_block(found, further=True) == ""
