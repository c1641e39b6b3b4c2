"""The scoreboard: pairs of rungs in CUDA and in Triton or Numba, and lines of code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from common.base.days import Day, discover, read_day
from common.base.outcome import FAIL, PASS, RungOutcome, Status, Timing
from common.report.markdown import Stored, generated, scoreboard_block
from common.report.scoreboard import items_of, lines_of, pairs, twin_modules

CUDA = """// Day 61: a comment
#include "common/cuda/binding.cuh"
#define SEVERAL \\
  lines

constexpr int BLOCK = 256, UNUSED = 1;  // both names are of one line
constexpr float TABLE[2] = {1, 2};
struct alignas(2 * sizeof(int)) Two {
  int a, b;
};

template <typename T,
          int N>
__global__ void __launch_bounds__(BLOCK)
    add_kernel(T* x) {
  // a line that does not count
  x[0] += N;
}

Tensor add_v1_slow(const Tensor& x) {
  add_kernel<float, 2><<<1, BLOCK>>>(x);  // four lines, a constant, and six of the kernel
  return x;
}

Tensor add_v2_fast(const Tensor& x) {
  if (x.dim() != 1) return add_v1_slow(x);
  return TABLE[0] * x;
}

RUNG(day61, add_v1_slow, "(Tensor x) -> Tensor");
RUNG(day61, add_v2_fast, "(Tensor x) -> Tensor");
"""
TRITON = '''"""Add in Triton."""

import triton

BLOCK, STEPS = 1024, 4  # one line


@triton.jit
def add_kernel(
    x,
):
    """A docstring of
    # two lines."""
    return x + STEPS


def helper(x):
    return x


def add_v3_triton(x):
    return add_kernel[(1,)](x)
'''
DAY = 'TITLE = "{}"\nTEACHES = "l"\nTOPICS = ("t",)\nSOURCE = "x.cu"\nEXTRA_SOURCES = ("{}",)\n'
BLOCKS = ("python", "results", "run", "practice", "neighbours", "scoreboard")
README = "".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in BLOCKS)
WHERE = {"gpu": "NVIDIA H200", "arch": "9.0a", "nvcc": "13.0", "torch": "2.11.0"}
WHERE |= {"driver": "580", "date": "2026-01-02"}


def rung(name: str, ms: float | None, problem: str = "add", status: Status = PASS) -> RungOutcome:
    timing = None if ms is None else Timing("1024 float32", ms, 0.01, 50)
    return RungOutcome(problem, name, "", status, timing=timing)


@pytest.fixture
def day(tmp_path: Path) -> Day:
    folder = tmp_path / "days" / "day61"
    folder.mkdir(parents=True)
    (folder / "day.py").write_text(DAY.format("Addition", "add_triton.py"))
    (folder / "x.cu").write_text(CUDA)
    (folder / "add_triton.py").write_text(TRITON)
    (folder / "README.md").write_text(README)
    return read_day(folder)


def test_lines_are_those_of_what_a_rung_uses(day: Day) -> None:
    cuda, triton = list(items_of(day.source)), list(items_of(twin_modules(day)[0]))
    assert [item.names for item in cuda[:4]] == [
        {"BLOCK", "UNUSED"},
        {"TABLE"},
        {"Two"},
        {"add_kernel"},
    ]
    assert lines_of(cuda, "add_v1_slow") == 4 + 1 + 6
    assert lines_of(cuda, "add_v2_fast") == 4 + 1 + lines_of(cuda, "add_v1_slow"), "falls back"
    assert lines_of(triton, "add_v3_triton") == 2 + 5 + 1


def test_the_fastest_rungs_make_a_pair(day: Day) -> None:
    rungs = [rung("add_v1_slow", 4), rung("add_v2_fast", 2), rung("add_v3_triton", 1)]
    (pair,) = pairs(day, rungs)
    assert (pair.problem, pair.cuda.rung, pair.twin.rung) == ("add", "add_v2_fast", "add_v3_triton")
    assert (pair.cuda.lines, pair.twin.lines, pair.speed) == (16, 8, 2)
    # In another language, or in none: computed by PyTorch.
    assert pairs(day, [*rungs[:2], rung("of_pytorch", 1)]) == []
    assert pairs(day, [*rungs[:2], rung("add_v3_triton", 1, status=FAIL)]) == []
    assert pairs(day, [*rungs[:2], rung("add_v3_triton", None)]) == []
    assert pairs(day, [*rungs[:2], rung("add_v3_triton", 1, "another problem")]) == []
    assert pairs(day, [*rungs[:2], rung("add_v3_triton", 1, "add, Triton")]) == [pair]


def test_a_helper_of_the_same_name_makes_no_twin(day: Day) -> None:
    """Day 67 has a `cross_entropy` in both sources; the rung of this name is in CUDA."""
    day.source.write_text(CUDA + "Tensor helper(const Tensor& x) {\n  return x;\n}\n")
    (pair,) = pairs(day, [rung("helper", 1), rung("add_v3_triton", 2)])
    assert pair.cuda.rung == "helper"


def test_the_block(day: Day) -> None:
    other = day.folder.with_name("day62")
    other.mkdir()
    (other / "day.py").write_text(DAY.format("Later", "later_numba.py"))
    (other / "x.cu").touch()
    (other / "later_numba.py").touch()
    without = day.folder.with_name("day63")
    without.mkdir()
    (without / "day.py").write_text(DAY.format("CUDA alone", "x.cu"))
    (without / "x.cu").touch()
    days, errors = discover(day.folder.parent)
    assert not errors
    empty = scoreboard_block(days, {})
    assert empty.count("not measured yet") == 2 and "Measured on" not in empty
    rungs = [rung("add_v2_fast", 2), rung("add_v3_triton", 1)]
    text = scoreboard_block(days, {61: [Stored(61, WHERE, rungs)]})
    row = "| add | `add_v2_fast` | 2.00 ms | 16 | `add_v3_triton` | 1.00 ms | 8 | 2.00× |"
    assert f"| [61](../day61/README.md) {row}" in text
    assert "| [62](../day62/README.md) | not measured yet |  |" in text
    assert "day63" not in text
    assert "Measured on NVIDIA H200 (day 61): 1 pair, of which the twin is faster in 1." in text
    assert "2.00 × the speed of CUDA and 0.50 × its lines" in text
    # The twin was not timed on the first GPU.
    other_gpu = Stored(61, {**WHERE, "gpu": "NVIDIA H100"}, rungs)
    text = scoreboard_block(days, {61: [Stored(61, WHERE, rungs[:1]), other_gpu]})
    assert row in text and "Measured on NVIDIA H100 (day 61)" in text
    text = scoreboard_block(days, {61: [Stored(61, WHERE, rungs[:1])]})
    assert "| [61](../day61/README.md) | no pair is timed |" in text


def test_a_readme_that_has_its_place_gets_it(day: Day) -> None:
    root = day.folder.parents[1]
    text = generated(root, {}, {}, {})[day.folder / "README.md"]
    assert "<!-- scoreboard:begin -->\n| day | problem | CUDA |" in text
    (day.folder / "README.md").write_text(README.replace("scoreboard", "another"))
    assert "| day | problem |" not in generated(root, {}, {}, {})[day.folder / "README.md"]


def test_every_rung_of_the_days_is_found() -> None:
    """Each operator bound in the course's sources is an item with lines."""
    days = [day for day in discover()[0] if twin_modules(day)]
    assert len(days) > 8
    for day in days:
        items = [item for path in day.library_sources for item in items_of(path)]
        texts = [path.read_text(encoding="utf-8") for path in day.library_sources]
        bound = re.findall(r"^RUNG\(\w+, (\w+)", "".join(texts), re.MULTILINE)
        assert bound
        for name in bound:
            assert lines_of(items, name) > 2, f"{day.name}: {name}"
