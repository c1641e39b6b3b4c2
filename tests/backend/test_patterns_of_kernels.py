"""Kernels that are wrong in a pattern (cpu_kernels/patterns.cu): the failing check says which, in
at most eight lines, and a right kernel says nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from common.base.declaration import Case, Problem, Rung, grid
from common.check.device import Backend
from common.check.rungs import CheckResult, check_rung
from common.cpu import backend
from tests.kernel_files import Libraries

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

# What the failure's text must match, and what it must not.
PATTERNS: dict[str, tuple[Problem, str, str]] = {
    "never_stores": (ADD_ONE, "nothing was written: every element still holds", "read and passed"),
    "one_block": (
        ADD_ONE,
        r"never written\n.*the tail .* all from flat index 64 to the end \(936\)\. The grid has as "
        r"many threads, 1 block of 64 threads: .* thread 0 of block 1 would be the next",
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
    "last_row_missing": (BY_ROWS, "never written\n.*only the last row, 4, is wrong", "tail"),
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
        "they are NaN, and other numbers when fresh memory holds other numbers: they are computed "
        "from memory that was not written",
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


@pytest.mark.parametrize("problem", [ADD_ONE, BY_ROWS], ids=["flat", "rows"])
def test_a_right_kernel_is_accepted(check: Any, problem: Problem) -> None:
    result = check("right", problem)
    assert result.failure is None and result.checked == len(problem.cases)
