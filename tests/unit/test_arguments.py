"""Arguments of launchers in Python are refused by their names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from common.check.arguments import INTERPRETERS, aligned, require, require_float


@pytest.mark.parametrize(
    ("tensor", "options", "error", "message"),
    [
        (3, {}, TypeError, "x: expected a tensor, got int"),
        (
            torch.zeros(2, dtype=torch.int64),
            {"dtypes": (torch.float32, torch.float16)},
            TypeError,
            "x: expected float32 or float16, got int64",
        ),
        (torch.zeros(2, 2), {"rank": 1}, ValueError, "x: expected 1 dimensions, got 2"),
        (torch.zeros(2), {"shape": (3,)}, ValueError, r"x: expected the shape \(3,\), got \(2,\)"),
        (torch.zeros(4, 2).T, {}, ValueError, r"x: expected a contiguous tensor, got strides"),
        (
            torch.zeros(2, device="meta"),
            {"like": torch.zeros(2)},
            ValueError,
            "x: expected a tensor on cpu, got one on meta",
        ),
        (torch.zeros(2), {"like": torch.zeros(3)}, ValueError, "x: expected the shape"),
    ],
)
def test_what_a_kernel_cannot_read_is_refused(
    tensor: object,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(INTERPRETERS[0], "1")
    require(torch.zeros(2), "x", dtypes=(torch.float32,), rank=1, shape=(2,))
    with pytest.raises(error, match=message):
        require(tensor, "x", **options)


def test_without_the_interpreter_a_tensor_has_to_be_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in INTERPRETERS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="x: expected a tensor on cuda, got one on cpu"):
        require(torch.zeros(2), "x")


def test_a_number_that_fp32_does_not_have_is_refused() -> None:
    require_float(float("inf"), "slope")
    with pytest.raises(ValueError, match=r"slope: expected a number of fp32, got 1e\+300"):
        require_float(1e300, "slope")


def test_a_tensor_that_is_not_aligned_is_copied() -> None:
    x = torch.arange(17.0)
    same, copy = aligned(x, x[1:])
    assert same is x
    assert copy.data_ptr() % 16 == 0 and torch.equal(copy, x[1:])
