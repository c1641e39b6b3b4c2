"""The recognisers of patterns: the outputs that each recognises, and near misses, which none
does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from common.base.declaration import Case
from common.check.guard import GuardedMemory
from common.check.patterns import (
    BEHAVIOUR,
    OUTPUT,
    SIZES,
    UNSET,
    Behaviour,
    Look,
    Wrong,
    habits,
    hints,
    sizes,
)
from common.cpu.backend import Launch

Change = Callable[[torch.Tensor], torch.Tensor]


def matrix(rows: int = 12, cols: int = 20) -> torch.Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(4)).double() + 3


def fresh(shape: tuple[int, ...], variant: int = 0) -> torch.Tensor:
    return GuardedMemory(torch.device("cpu"), variant).empty(shape, torch.float32)


def wrong(got: torch.Tensor, truth: torch.Tensor, look: Look | None = None) -> Wrong:
    different = (got.double() - truth).abs() > 1e-5
    places = (different | ~got.isfinite()).flatten().nonzero().flatten()
    return Wrong(
        got.float().contiguous().flatten(),
        truth.contiguous().flatten(),
        places,
        tuple(got.shape),
        look or Look(),
    )


def said(got: torch.Tensor, truth: torch.Tensor, look: Look | None = None) -> str:
    return "\n".join(hints(wrong(got, truth, look)))


def launched(grid: int, block: int) -> Look:
    return Look((Launch((grid, 1, 1), (block, 1, 1)),))


def launched_2d(grid: tuple[int, int], block: tuple[int, int]) -> Look:
    return Look((Launch((*grid, 1), (*block, 1)),))


def test_what_is_true_or_false_is_no_number() -> None:
    got, truth = torch.zeros(40, dtype=torch.bool), torch.ones(40, dtype=torch.bool)
    got[:32] = True
    places = torch.arange(32, 40)
    text = "\n".join(hints(Wrong(got, truth, places, (40,), Look())))
    assert text == "exactly the tail is wrong: all from flat index 32 to the end (8)"


def part(start: int) -> torch.Tensor:
    """Return a right matrix, written only before flat index `start`."""
    got = fresh((12, 20))
    got.flatten()[:start] = matrix().float().flatten()[:start]
    return got


def corner(rows: int, columns: int) -> torch.Tensor:
    """Return a right matrix, of which only `rows` rows and `columns` columns were written."""
    got = fresh((12, 20))
    got[:rows, :columns] = matrix().float()[:rows, :columns]
    return got


def known(look: Look, got: torch.Tensor) -> Look:
    """Return the look, with another call that left the same elements unwritten."""
    memory = GuardedMemory(torch.device("cpu"), 2)
    again = memory.empty(got.shape, torch.float32)
    untouched = got.isnan()
    again[~untouched] = got[~untouched]
    return replace(look, again=again, untouched=untouched)


# ---------------------------------------------------------------- one output


def test_memory_never_written_is_no_nan_that_was_passed_on() -> None:
    truth = matrix()
    memory = GuardedMemory(torch.device("cpu"), 2)
    once, other, again = fresh((12, 20)), *(memory.empty((12, 20), torch.float32) for _ in "12")
    text = said(once, truth, Look((), again, memory.untouched(again)))
    assert "nothing was written" in text and "passed on" not in text
    assert "(or it was read, and passed on)" in said(once, truth)
    again.copy_(other)  # written, with a value that was never written elsewhere
    assert "nothing" not in said(once, truth, Look((), again, memory.untouched(again)))
    again.copy_(again + 1)
    text = said(once + 1, truth, Look((), again, memory.untouched(again)))
    assert "computed from memory that was not written" in text and "never" not in text


def test_of_wrong_elements_some_may_be_unwritten() -> None:
    got = part(100)
    got[0, 0] = 7.0
    assert "140 of them were never written" in said(got, matrix(), known(Look(), got))


def test_a_nan_of_shared_memory_is_known_by_its_bits() -> None:
    got = matrix().float()
    got.view(torch.int32)[3] = -1
    assert "NaN with all bits set, which is what shared memory holds" in said(got, matrix())
    got[3, 0] = math.nan
    assert "shared memory" not in said(got, matrix())


def test_a_nan_is_put_down_to_an_operation_by_its_bits() -> None:
    truth = matrix()
    made = truth.float().clone()
    made[3] = torch.zeros(20) / torch.zeros(20)
    assert "NaN that an operation made" in said(made, truth)
    passed_on = truth.float().clone()
    passed_on[3] = math.nan
    text = said(passed_on, truth)
    assert "NaN" in text and "made" not in text and "or computed from memory" in text


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (
            launched(4, 32),
            "4 blocks of 32 threads: with one element per thread, thread 0 of block",
        ),
        (
            launched(1, 128),
            "1 block of 128 threads: with one element per thread, thread 0 of",
        ),
        (launched(8, 32), "that is thread 0 of block 4, and the grid has it"),
        (launched(2, 32), "That is 2 elements per thread of the grid"),
        (launched(5, 25), ""),
        (Look((Launch((4, 1, 1), (32, 1, 1)), Launch((1, 1, 1), (32, 1, 1)))), ""),
        (Look((Launch((2, 2, 1), (32, 1, 1)),)), ""),
        (Look(), ""),
    ],
)
def test_the_next_thread_is_named_where_the_launch_is_known(look: Look, words: str) -> None:
    text = said(part(128), matrix(), look)
    assert "from flat index 128 to the end (112)" in text
    assert words in text if words else "thread" not in text


@pytest.mark.parametrize(
    ("got", "look", "words"),
    [
        (part(32), launched(8, 32), "only the first 32 elements of 240 were written, the part of "
         "one of 8 blocks: does the index use blockIdx.x?"),
        (part(20), launched(12, 32), "only the first row of 12 was written, the part of one of 12"),
        (part(60), launched(4, 96), "only the first 3 rows of 12 were written, the part of one of"),
        (part(32), launched(9, 32), "the part of one of 9 blocks"),
        (part(64), launched(9, 32), ""),  # 4 would be enough
        (part(32), launched(1, 32), ""),
        (part(31), launched(8, 32), ""),
        (corner(12, 8), launched_2d((3, 3), (8, 4)), "only the first 8 columns of 20 were written, "
         "the part of one of 3 blocks along x: does the index use blockIdx.x?"),
        (corner(4, 20), launched_2d((3, 3), (8, 4)), "of one of 3 blocks along y: does the index "
         "use blockIdx.y?"),
        (corner(4, 20), launched_2d((3, 1), (8, 4)), "only the first 4 rows of 12 were written, as "
         "many as the grid has threads along y: are there blocks enough along y?"),
        (corner(12, 12), launched_2d((3, 3), (8, 4)), "of 12 × 20, only the first 12 × 12 were "
         "written, and the grid has 24 threads along x and 12 along y: are x and y, column and "
         "row, swapped?"),
        (corner(5, 7), launched_2d((3, 3), (8, 4)), ""),
    ],
)  # fmt: skip
def test_what_one_block_writes_is_seen_in_what_was_written(
    got: torch.Tensor, look: Look, words: str
) -> None:
    text = said(got, matrix(), known(look, got))
    assert words in text and not (words and "exclude" in text)
    assert words or "blockIdx" not in text
    assert "blockIdx" not in said(got, matrix(), look), "not known to be unwritten"


def test_a_condition_is_questioned_only_where_nothing_was_written() -> None:
    got = matrix().float()
    got.flatten()[128:] += 1
    text = said(got, matrix(), launched(8, 32))
    assert "exactly the tail is wrong" in text and "thread" not in text


def test_elements_taken_for_bytes() -> None:
    """A copy of n bytes where n elements are meant."""
    expected = torch.arange(257.0)
    got = expected.clone()
    got[64:] = 0
    text = said(got, expected)
    assert "257 bytes are right" in text and "is a size in bytes meant" in text
    got[65] = 65
    assert "bytes" not in said(got, expected)


def _with(change: Callable[[torch.Tensor], object]) -> torch.Tensor:
    got = matrix().float().clone()
    change(got)
    return got


def _set(where: Any, value: float) -> torch.Tensor:
    return _with(lambda got: got.__setitem__(where, value))


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (part(11 * 20), "only the last row, 11, is wrong"),
        (_set((slice(None), 19), 0.0), "the last column, 19, is wrong in every row"),
        (_set((3, 19), 0.0), "only column 19 of 20"),
        (_set((slice(9, None), slice(2, 4)), 0.0), "only rows 9 to 11 of 12"),
        (_set((11, slice(0, 4)), 0.0), "only row 11, the last one, of 12"),
        (matrix().float().roll(1, 1), "each row is what is expected, shifted one element"),
        (matrix().float().roll(-4, 1), "each row is what is expected, shifted 4 elements towards"),
        (matrix().float().flatten().roll(2).view(12, 20), "expected, shifted 2 elements towards"),
        (
            _with(lambda got: got.flatten()[1::3].mul_(7)),
            "one element in 3 is wrong: those whose index is 1 modulo 3",
        ),
        (matrix().t().reshape(12, 20).float(), ""),
    ],
)
def test_places(got: torch.Tensor, words: str) -> None:
    text = said(got, matrix())
    assert words in text


def test_rows_may_have_factors_of_their_own() -> None:
    factors = torch.linspace(1.1, 2.0, 12).double().unsqueeze(1)
    text = said((matrix() * factors).float(), matrix())
    assert "factor of its own (row 0: 1.1, row 1: 1.1818)" in text
    noisy = matrix() * factors * torch.linspace(0.99, 1.01, 20)
    assert "factor" not in said(noisy.float(), matrix())
    assert "of its own" not in said((matrix() * 2).float(), matrix())


def test_of_one_row_none_is_the_last() -> None:
    truth = matrix(1, 20)
    got = truth.float()
    got[0, ::7] = 0
    assert "row" not in said(got, truth)


def test_digits_that_are_lost_name_the_type_that_loses_them() -> None:
    truth = matrix(30, 1000).sum(1).view(5, 6)
    rounded = matrix(5, 6).to(torch.bfloat16)
    assert "bfloat16's rounding: is a value kept, or a sum added up, in 16 bits" in said(
        rounded.float(), matrix(5, 6)
    )
    text = said(_sum_in_half(matrix(30, 1000)).view(5, 6), truth)
    assert "or a sum added up, in 16 bits, although the result is float32?" in text
    assert "rounding" not in said((matrix() * torch.linspace(0.7, 1.3, 20)).float(), matrix())
    outlier = rounded.float()
    outlier[2, 3] *= 0.07
    assert "rounding" not in said(outlier, matrix(5, 6)), "far beyond what rounding does"
    assert said(rounded.float(), matrix(5, 6), Look(explained=True)) == ""


def test_what_other_calls_explain_leaves_what_is_sure() -> None:
    got = part(20)
    got[0, 0] = 7.0
    look = replace(known(launched(12, 32), got), explained=True)
    text = said(got, matrix(), look)
    assert "of them were never written" in text and "does the index use blockIdx.x" in text


def test_integers_never_set_are_known_by_what_they_add() -> None:
    truth = torch.arange(1, 41)
    got = truth + UNSET * (torch.arange(40) % 3)
    looked_at = Wrong(got, truth, (got != truth).nonzero().flatten(), (40,))
    assert "2^32 − 1, which an unsigned int of shared memory holds" in "".join(hints(looked_at))
    got = truth + 5
    looked_at = Wrong(got, truth, (got != truth).nonzero().flatten(), (40,))
    assert hints(looked_at) == ["got is what is expected +5"]


def _sum_in_half(rows: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(rows.shape[0], dtype=torch.half)
    for column in rows.t():
        total = (total.float() + column.float()).half()
    return total.float()


def test_a_matrix_of_each_batch_may_be_transposed() -> None:
    truth = torch.stack([matrix(6, 6), 2 * matrix(6, 6)])
    assert "transpose of each matrix" in said(truth.mT.float(), truth)


NEAR_MISSES = {
    "two rows, not the last": _set((slice(3, 5), 0), 9.0),
    "the last column but for one row": _set((slice(0, 11), 19), 9.0),
    "a factor that varies": (matrix() * torch.linspace(1.9, 2.1, 20)).float(),
    "an offset that varies": (matrix() + torch.linspace(0.9, 1.1, 20)).float(),
    "transposed but for one": _with(lambda g: g.copy_(matrix(20, 12).t().float())),
    "shifted by many": matrix().float().flatten().roll(29).view(12, 20),
    "shifted but for one": _with(
        lambda g: g.copy_(matrix().float().roll(1, 1)).select(1, 9).zero_()
    ),
}
CLAIMS = ("last", "times", "expected +", "transpose", "shifted", "tail", "reversed", "sign")


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_claim_nothing(name: str) -> None:
    text = said(NEAR_MISSES[name], matrix())
    assert not [claim for claim in CLAIMS if claim in text], text


def test_constants_and_single_elements_claim_nothing() -> None:
    """A constant output looks shifted, reversed and transposed."""
    ones = torch.ones(6, 6).double()
    text = said(torch.full((6, 6), 3.5), ones)
    assert "shifted" not in text and "transpose" not in text and "reversed" not in text
    alone = torch.tensor([2.0])
    assert hints(wrong(alone * 2, alone.double())) == []


def test_at_most_one_sentence_of_each_group() -> None:
    for got in NEAR_MISSES.values():
        assert len(hints(wrong(got, matrix()))) <= len(OUTPUT) == 3


# ---------------------------------------------------------------- other calls


def cases(right: list[int], bad: list[int]) -> Behaviour:
    both = [(n, True) for n in right] + [(n, False) for n in bad]
    return Behaviour(cases=tuple((Case((n,)), fine) for n, fine in both))


def by_dtype(**right: bool) -> Behaviour:
    return Behaviour(dtypes=right, not_finite=True)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Behaviour({"forward": True, "reverse": False}, True), "a race"),
        (Behaviour({"forward": True, "reverse": False}, False), "or on chance"),
        (
            Behaviour(differ=("forward", "reverse")),
            "in forward and in reverse order, and differently",
        ),
        (Behaviour(fresh=((True, True), (False, False))), "memory is read that was not written"),
        (Behaviour(calls=(True, False, False)), "right on the first call only"),
        (by_dtype(float32=True, float16=False, bfloat16=True), "float16 alone"),
        (
            replace(
                by_dtype(float32=True, float16=False, bfloat16=False), not_finite=False, near=True
            ),
            "right in float32, and in float16 and bfloat16 off by what roundings to 16 bits add up",
        ),
    ],
)
def test_behaviour(seen: Behaviour, words: str) -> None:
    (text,) = habits(seen)
    assert words in text


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (cases([64, 128], [1, 100]), "multiples of 8, 16, 32 or 64 were handled"),
        (cases([32, 96, 1000], [1, 100]), "multiples of 8 were handled"),
        (cases([1, 31, 64], [65, 100, 128]), "at most 64, wrong from 65 on"),
    ],
)
def test_sizes(seen: Behaviour, words: str) -> None:
    (text,) = sizes(seen)
    assert words in text


def test_an_undefined_value_is_no_race() -> None:
    (text,) = habits(Behaviour({"forward": True, "reverse": False}, True, undefined=True))
    assert "race" not in text
    assert habits(Behaviour(differ=("forward", "reverse"), undefined=True)) == []


@pytest.mark.parametrize(
    "seen",
    [
        Behaviour(),
        Behaviour({"forward": False, "reverse": False}, True),
        Behaviour(fresh=((True, False), (False, False))),  # by chance
        Behaviour(fresh=((True,), (False,))),  # tried once
        Behaviour(fresh=((False, False), (False, False))),
        Behaviour(calls=(True, False)),  # a second one on other inputs: it may be the inputs
        Behaviour(calls=(True, False, True, False)),
        Behaviour(calls=(False, False, False)),
        cases([64, 128], [1]),
        cases([64], [1, 100]),
        cases([64, 100], [1, 128]),
        cases([64, 128], [129, 131]),  # multiples, or at most 128?
        cases([1, 2, 3], [4]),
        cases([1, 64], [64, 65, 66]),
        by_dtype(float32=True, float16=False, bfloat16=False),
        by_dtype(float32=False, float16=False),
        by_dtype(float16=False),
        Behaviour(dtypes={"float32": True, "float16": False}),  # finite: no overflow
        # Two sizes that both explain it.
        Behaviour(cases=tuple((Case((n, n)), n % 8 == 0) for n in (8, 16, 9, 11))),
    ],
)
def test_behaviour_that_may_have_other_reasons(seen: Behaviour) -> None:
    assert habits(seen) == sizes(seen) == []


def test_every_recogniser_stands_in_a_list() -> None:
    import common.check.patterns as module

    listed = {function for group in OUTPUT for function in group} | {*BEHAVIOUR, *SIZES}
    defined = {
        function
        for name, function in vars(module).items()
        if callable(function)
        and getattr(function, "__module__", "") == module.__name__
        and not name.startswith("_")
        and function.__annotations__.get("return") == "str"
    }
    assert defined == listed
