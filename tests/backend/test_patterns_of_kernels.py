"""Kernels that are wrong in a pattern (cpu_kernels/patterns.cu): the failing check names it, in at
most eight lines, and a right kernel gets no message."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from common.base.declaration import Case, Problem, Rung, grid
from common.check.device import Backend
from common.check.rungs import CheckResult, check_rung
from common.check.tiny_case import NEVER
from common.cpu import backend
from tests.kernel_files import Libraries, names_line

KERNELS = "patterns"
FLAT = grid([(1000,), (100,), (3,), (33,), (64,), (128,)], ["float32"])
ROWS = grid([(5, 100), (7, 33), (3, 64)], ["float32"])
ADD_ONE = Problem(
    name="add one",
    inputs=lambda case, draw: (draw(*case.shape),),
    reference=lambda x: x + 1,
    rungs=(Rung("rung", "the test's own"),),
    cases=FLAT,
)
BY_ROWS = replace(ADD_ONE, cases=ROWS)
SAME = replace(
    ADD_ONE, reference=lambda x: x.clone(), cases=grid([(500,)], ["float32", "float16", "bfloat16"])
)
PLENTY = replace(ADD_ONE, cases=(Case((1000,)),))
SUMS = replace(
    ADD_ONE, reference=lambda x: x.sum(1), cases=grid([(9, 24), (7, 200)], ["float32", "float16"])
)

# Texts that the failure must match, and must not match.
PATTERNS: dict[str, tuple[Problem, str, str]] = {
    "never_stores": (ADD_ONE, "nothing was written: every element still holds", "read and passed"),
    "one_block": (
        ADD_ONE,
        r"never written: .*\n.*the tail .* all from flat index 64 to the end \(936\)\. The grid "
        r"has as many threads, 1 block of 64 threads: .* thread 0 of block 1 would be the next",
        "multiple",
    ),
    "blocks_rounded_down": (
        ADD_ONE,
        r"all from flat index 960 .* 15 blocks of 64 threads: .* thread 0 of block 15 would be",
        "at most",
    ),
    "bound_one_off": (
        ADD_ONE,
        r"from flat index 999 to the end \(1\)\. With one element per thread, that is thread 39 of "
        r"block 15, and the grid has it \(16 blocks of 64 threads\)",
        "multiple|at most",
    ),
    "whole_packs": (
        replace(ADD_ONE, cases=grid([(33,), (1000,), (7,), (102,), (64,)], ["float32"])),
        "right where the length is 64, 1000, wrong where it is 7, 33, 102, as if only multiples of "
        "4 or 8 were handled",
        "at most",
    ),
    "no_step_along_row": (
        BY_ROWS,
        "only columns 64 to 99 are wrong, the tail of each row of 100. A block has 64 threads: .* "
        "column 64 would be thread 64's",
        "flat index",
    ),
    "no_block_index": (
        ADD_ONE,
        "only the first 64 elements of 1,000 were written, the part of one of 16 blocks: does the "
        r"index use blockIdx\.x\?",
        "exclude",
    ),
    "rows_and_columns_swapped": (
        BY_ROWS,
        "of 5 × 100, only the first 5 × 8 were written, and the grid has 112 threads along x and 8 "
        "along y: are x and y, column and row, swapped",
        "tail",
    ),
    "last_tile_missing": (
        SUMS,
        "got is what comes out without the last 8 of the 24 elements along dimension 1 of x: does "
        "a loop end before them",
        "rounding",
    ),
    "sum_in_16_bits": (
        replace(SUMS, cases=grid([(40, 300)], ["float32", "float16"])),
        "right in float32, and in float16 off by what roundings to 16 bits add up to",
        "without the last|at most",
    ),
    "returned_before_barrier": (
        PLENTY,
        r"24 of 64 threads of block \(15,0,0\) had returned when the others met in __syncthreads "
        r"at tests/cpu_kernels/patterns\.cu:\d+, in kernel add_one_in_reverse: was something left",
        "race|inf − inf",
    ),
    "lane_that_returned": (
        replace(PLENTY, cases=(Case((1003,)),)),
        r"patterns\.cu:\d+: lane 10 reads lane 11 by __shfl_down_sync, which the mask 0x000007ff "
        "leaves out: the value is undefined",
        "race|shared memory",
    ),
    "last_row_missing": (BY_ROWS, r"never written: .*\n.*only the last row, 4, is wrong", "tail"),
    "last_column_missing": (BY_ROWS, "the last column, 99, is wrong in every row", "tail"),
    "factor_of_two": (ADD_ONE, "got is 2 times what is expected", "shifted"),
    "shifted_by_one": (ADD_ONE, "shifted one element towards the start", "times"),
    "transposed": (BY_ROWS, "got is the transpose of what is expected", "shifted"),
    "zero_over_zero": (PLENTY, "they are NaN that an operation made: 0/0, inf − inf", "written"),
    "infinity_minus_infinity": (PLENTY, "NaN that an operation made: 0/0, inf − inf", "written"),
    "overflows_in_half": (
        SAME,
        "right in float32 and bfloat16, infinite or NaN in float16 alone, whose largest number is "
        "65504",
        "multiple|at most|written",
    ),
    "no_barrier": (
        PLENTY,
        "right with threads in forward order, wrong in reverse order: .*: a race",
        "kept|first call",
    ),
    "wrong_in_every_order": (
        PLENTY,
        "wrong with threads in forward and in reverse order, and differently: .*: a race",
        "right with|written",
    ),
    "adds_into_fresh_memory": (
        PLENTY,
        "they are NaN, and other numbers when fresh memory holds other numbers: computed from "
        "memory that was not written",
        "never written|operation made",
    ),
    "maximum_with_fresh_memory": (
        PLENTY,
        "right where fresh memory holds NaN, wrong where it holds numbers: memory is read "
        "that was not written",
        "a race",
    ),
    "counter_never_reset": (
        PLENTY,
        "right on the first call only, wrong on the 3 after it: something is kept",
        "a race|other inputs in the same",
    ),
}


@pytest.fixture
def check(libraries: Libraries, cpu_runtime: backend.Runtime) -> Any:
    operators = libraries.operators(KERNELS)
    device = Backend("cpu", cpu_runtime)

    def check(name: str, problem: Problem) -> CheckResult:
        rung, call = Rung(name, "the test's own"), getattr(operators, name)
        return check_rung(problem, rung, call, device, explain=True)

    return check


@pytest.mark.parametrize("name", PATTERNS)
def test_the_pattern_is_recognised(check: Any, name: str) -> None:
    problem, expected, unexpected = PATTERNS[name]
    failure = check(name, problem).failure
    assert failure is not None, "accepted"
    said = "\n".join(line for line in failure.details if line.startswith("hint:"))
    assert re.search(expected, said), str(failure)
    assert not re.search(unexpected, said), str(failure)
    assert said.count("\n") < 4, said


# The beginning of a refused launch's message, before its place.
REFUSED = {
    "no_blocks": "invalid configuration argument: a grid of 0 blocks: at least 1 is needed",
    "negative_blocks": "a grid of 4294967291 blocks: at most 2147483647 are allowed; as a signed "
    "number it is -5: a negative size, or one that overflowed",
    "many_blocks_along_y": "a grid of 70000 blocks along y: at most 65535 are allowed",
    "threads_2048": "2048 threads per block: at most 1024 are allowed",
    "threads_32_32_2": "2048 threads per block, (32,32,2): at most 1024 are allowed",
    "shared_300000": "invalid argument: dynamic shared memory of 300000 bytes: compute capability "
    "9.0 allows 232448 per block",
    "shared_not_allowed": "dynamic shared memory of 60000 bytes: a kernel has at most 49152 until "
    "cudaFuncSetAttribute allows it more",
    "negative_shared": "as a signed number it is -8: a negative size, or one that overflowed",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_launch_says_what_is_allowed(check: Any, name: str) -> None:
    said = check(name, PLENTY).failure.summary
    assert said.startswith("1000 float32: it raised launch_as: "), said
    assert REFUSED[name] in said
    place = r", in add_one<<<\(\d+,\d+,1\), \(\d+,\d+,\d+\)(, \d+)?>>> at tests/.*patterns\.cu:\d+$"
    assert re.search(place, said), said


def test_a_mask_names_no_lanes_that_returned(check: Any, cpu_runtime: backend.Runtime) -> None:
    problem = replace(PLENTY, cases=(Case((1003,)),))
    assert check("mask_of_returned_lanes", problem).failure is None, "a GPU lets it pass"
    cpu_runtime.refuse_masks(True)
    failure = check("mask_of_returned_lanes", problem).failure
    assert "__shfl_sync: the mask 0xffffffff names lanes 11 to 31, which returned" in str(failure)
    assert "in kernel add_one_of_lane_zero, launched at" in str(failure)
    assert names_line(str(failure), KERNELS, "mask_of_returned_lanes")
    assert check("lane_that_returned", problem).failure is not None, "for its values"
    assert check("right", problem).failure is None


@pytest.mark.parametrize("problem", [ADD_ONE, BY_ROWS], ids=["flat", "rows"])
def test_a_right_kernel_is_accepted(check: Any, problem: Problem) -> None:
    result = check("right", problem)
    assert result.failure is None and result.checked == len(problem.cases)


def test_a_wrong_result_ends_with_a_tiny_case(check: Any) -> None:
    failure = check("bound_one_off", ADD_ONE).failure
    title, x, yours, expected, legend = failure.example
    assert title == "a tiny case in full, 5 float32:"
    assert legend.split() == ["*", "wrong", NEVER, "never", "written"]
    rows = [line.split()[1:] for line in (x, yours, expected)]
    assert rows[1] == [*rows[2][:-1], f"{NEVER}*"]
    assert [f"{float(number) + 1:.2f}" for number in rows[0]] == rows[2]


def test_what_is_right_on_each_tiny_case_shows_none(check: Any) -> None:
    assert check("one_block", ADD_ONE).failure.example == []  # of 64 threads
    assert check("right", ADD_ONE).failure is None
