"""Readings of an input by a wrong output: those that are found, and those that only look like
one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from common.base.declaration import Case, Problem, Rung
from common.check.expected import Signature, evaluate
from common.check.misread import misread
from common.cpu.backend import Launch

NAMES = Signature(("a", "b"))
PRODUCT = Problem(
    "product", lambda *_: (), torch.matmul, (Rung("r", ""),), (Case(()),), timed=False
)
SCALED = Problem(
    "scaled", lambda *_: (), lambda a, b: a * b, (Rung("r", ""),), (Case(()),), timed=False
)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def said(
    problem: Problem, a: Tensor, b: Tensor, got: Tensor, launches: tuple[Launch, ...] = ()
) -> str:
    return misread(problem, evaluate(problem, (a, b)), [got], NAMES, launches)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            lambda a, b: a[:, :64] @ b[:64],
            "without the last 6 of the 70 elements along dimension 1",
        ),
        (
            lambda a, b: a[:, :69] @ b[:69],
            "without the last of the 70 elements along dimension 1 of",
        ),
        (
            lambda a, b: a[:, 1:] @ b[1:],
            "without the first of the 70 elements along dimension 1 of",
        ),
        (lambda a, b: a @ b.contiguous().view(9, 70).t(), "if b is read by columns"),
        (lambda a, b: a[:, :3] @ b[:3], ""),
        (lambda a, b: a @ b * 1.01, ""),
        (lambda a, b: a @ b + drawn(12, 9) * 0.1, ""),
    ],
)
def test_products(wrong: Callable[[Tensor, Tensor], Tensor], words: str) -> None:
    a, b = drawn(12, 70), drawn(70, 9)
    text = said(PRODUCT, a, b, wrong(a, b))
    assert (words in text and text.endswith("?")) if words else text == "", text


def test_the_size_of_a_block_is_named_where_it_is_what_counts() -> None:
    a, b = drawn(12, 70), drawn(70, 9)
    got, launch = a[:, :16] @ b[:16], Launch((9, 1, 1), (16, 1, 1))
    text = said(PRODUCT, a, b, got, (launch,))
    assert "of the first 16 alone of the 70 elements" in text and "as many as a block has" in text
    assert said(PRODUCT, a, b, got) == ""


def test_arguments_left_out_or_read_backwards() -> None:
    a, b = drawn(5, 30), drawn(30)
    assert "if every element of b is 1: is b left out?" in said(SCALED, a, b, a)
    assert "if b is read from its end" in said(SCALED, a, b, a * b.flip(0))


def test_few_numbers_of_a_short_dtype_tell_nothing() -> None:
    a, b = drawn(1, 65), drawn(65, 1)
    short = (a[:, :64] @ b[:64]).to(torch.bfloat16)
    a, b = a.to(torch.bfloat16), b.to(torch.bfloat16)
    assert said(PRODUCT, a, b, short) == ""
