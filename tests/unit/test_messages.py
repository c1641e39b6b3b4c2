"""Messages of failures: day 1's lines, errors of helpers, mistakes of a day."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from common.base.outcome import Mistake
from common.base.paths import DAYS
from common.check.call import raised
from common.check.refusal import names_one_of


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DAYS / "day01"))
    monkeypatch.delitem(sys.modules, "facts", raising=False)
    return importlib.import_module("facts")


def printed(facts: ModuleType, blocks: int, threads: int) -> list[str]:
    return [facts.LINE.format(*row) for row in facts.rows_of(blocks, threads)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda lines: [],
            "no line of the form `hello from thread 3 of block 1: I am number 7 of 8` was printed\n"
            "nothing was printed\n8 lines are expected, one from each thread",
        ),
        (
            lambda lines: [
                f"Thread {i % 4} of block {i // 4} is number {i} of 8" for i in range(8)
            ],
            "no line of the form `hello from thread 3 of block 1: I am number 7 of 8` was printed\n"
            "the nearest line that was printed: `Thread 3 of block 1 is number 7 of 8`",
        ),
        (
            lambda lines: [*lines[:5], lines[5].replace("5 of 8", "5 of 4"), *lines[6:]],
            "`hello from thread 1 of block 1: I am number 5 of 8` was not printed\n"
            "the nearest line that was printed: `hello from thread 1 of block 1: I am number 5 of "
            "4`",
        ),
        (
            lambda lines: [*lines, lines[2]],
            "`hello from thread 2 of block 0: I am number 2 of 8` was printed too often",
        ),
    ],
)
def test_day_1_says_which_line_is_missing(facts: ModuleType, change, words: str) -> None:  # type: ignore[no-untyped-def]
    lines = printed(facts, 2, 4)
    assert facts.rows_in("\n".join(reversed(lines)), 2, 4) == facts.rows_of(2, 4)
    with pytest.raises(facts.Mistake) as caught:
        facts.rows_in("\n".join(change(lines)), 2, 4)
    assert words in str(caught.value)


def test_day_1_says_what_is_to_be_printed_where_the_learner_reads(facts: ModuleType) -> None:
    """In the comment above the kernel, and in the gap of the step."""
    source = (DAYS / "day01" / "hello_cuda.cu").read_text(encoding="utf-8")
    assert facts.LINE.format(3, 1, 7, 8) in source
    steps = (DAYS / "day01" / "exercises.toml").read_text(encoding="utf-8")
    assert facts.LINE.format("%u", "%u", "%d", "%u") in steps


@pytest.mark.parametrize(
    "said",
    [
        "invalid configuration argument: 1025 threads per block: at most 1024 are allowed, in "
        "k<<<(1,1,1), (1025,1,1)>>> at days/day01/x.cu:3",
        "invalid configuration argument: a grid of 0 blocks along x: at least 1 is needed",
        "invalid configuration argument: a grid has 1 to 2147483647 blocks along x and 1 to 65535 "
        "along y and z, a block 1 to 1024 threads in all",
        "invalid argument: dynamic shared memory of 300000 bytes: compute capability 9.0 allows "
        "232448 per block, in k<<<(1,1,1), (64,1,1), 300000>>> at x.cu:3",
        "invalid argument: shared memory is at most 49152 bytes per block, and after x: y",
        "too many resources requested for launch, in k<<<(1,1,1), (64,1,1)>>> at x.cu:3",
        "a grid of -5 blocks: did a size overflow?",
    ],
)
def test_a_refused_launch_names_no_argument(said: str) -> None:
    """A message about a launch must not count as a launcher's check of its arguments."""
    names = ("threads", "blocks", "grid", "block", "x", "y", "z", "bytes", "shared", "size", "k")
    for prefix in ("", "check_launch, common/cuda/tensor.cuh:85, "):
        assert not names_one_of(f"{prefix}launcher: {said}", names)
    assert names_one_of("threads: expected 1 to 1024, got 1025", names)


def test_a_mistake_is_the_failure_itself() -> None:
    failure = raised(Mistake("no line was printed\nnothing was printed"))
    assert failure.summary == "no line was printed" and failure.details == ["nothing was printed"]


def test_the_line_of_a_helper_is_not_shown() -> None:
    error = RuntimeError("check_launch, common/cuda/tensor.cuh:71, add: a grid of 0 blocks")
    assert raised(error).summary == "it raised add: a grid of 0 blocks"
    own = RuntimeError("add, days/day02/vec_add.cu:31, x: expected float32")
    assert raised(own).summary == f"it raised {own}"
