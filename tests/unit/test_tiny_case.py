"""One tiny case in full: its choice, and the format of its numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from common.base.declaration import Case, grid
from common.check.tiny_case import WIDTH, Result, picture, small_cases

SIZES = grid([(1,), (255,), (1024,), (0,)], ["float32"])


def result(got: Tensor, truth: Tensor, never: Tensor | None = None, name: str = "") -> Result:
    return Result(
        name, got, truth, got != truth, torch.zeros_like(got).bool() if never is None else never
    )


def test_numbers_stand_below_each_other_and_wrong_ones_are_marked() -> None:
    x, y = torch.tensor([1.54, -0.29, 12.5]), torch.tensor([0.66, 0.27, 0.06])
    got = torch.tensor([2.2, 0.5, float("nan")])
    never = torch.tensor([False, False, True])
    shown = picture([("x", x), ("y", y), ("bins", 3)], [result(got, x + y, never)])
    assert shown == [
        "  x           1.54  -0.29  12.50",
        "  y           0.66   0.27   0.06",
        "  yours       2.20   0.50*     —*",
        "  expected    2.20  -0.02  12.56",
        "  bins = 3",
        "  * wrong   — never written",
    ]


def test_a_matrix_is_a_matrix_and_a_column_a_row() -> None:
    a = torch.arange(6).reshape(2, 3)
    shown = picture([("a", a), ("s", torch.tensor([[7], [8]]))], [result(a.t(), a.t() + 1)])
    assert shown == [
        "  a (2×3)          0  1  2",
        "                   3  4  5",
        "  s (2×1)          7  8",
        "  yours (3×2)      0* 3*",
        "                   1* 4*",
        "                   2* 5*",
        "  expected (3×2)   1  4",
        "                   2  5",
        "                   3  6",
        "  * wrong",
    ]


def test_a_wrong_number_is_never_written_as_the_expected_one() -> None:
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    got = torch.tensor([1.0, 2.0000005])
    yours, expected, _ = picture([], [Result("", got, truth, got != truth, got.isnan())])
    assert yours.split() == ["yours", "1.0000000", "2.0000005*"]
    assert expected.split() == ["expected", "1.0000000", "2.0000000"]


def test_sixty_four_elements_fit_in_width() -> None:
    x = torch.linspace(-1e4, 1e4, 64)
    shown = picture([("x", x), ("m", x.reshape(2, 32))], [result(x, x + 1)])
    assert max(map(len, shown)) <= WIDTH
    numbers = [
        word for line in shown for word in line.split() if word.replace("-", "")[0].isdigit()
    ]
    assert len(numbers) == 4 * 64 + sum("(2×32)" in line for line in shown) - 1


def test_numbers_of_very_different_size_keep_their_digits() -> None:
    x = torch.tensor([1e-6, 123456.0, float("inf"), 0.0])
    (line, *_) = picture([("x", x)], [])
    assert line.split() == ["x", "1e-06", "1.235e+05", "inf", "0"]


def test_slices_of_three_dimensions_are_marked() -> None:
    x = torch.arange(8).reshape(2, 2, 2)
    assert picture([("x", x)], [])[:4] == [
        "  x (2×2×2)   0  1",
        "              2  3",
        "    [1]       4  5",
        "              6  7",
    ]


def test_a_list_of_tensors_and_several_outputs_have_their_names() -> None:
    x = torch.tensor([1, 2])
    outputs = [result(x, x, name="output 0"), result(x, x + 1, name="argument z")]
    words = " ".join(picture([("xs", [x, x]), ("f", "relu")], outputs)).split()
    assert " ".join(words).startswith("xs[0] 1 2 xs[1] 1 2 yours output 0 1 2 expected output 0")
    assert "f = relu" in " ".join(words)


def test_small_cases_are_the_declared_ones_and_some_made_like_them() -> None:
    cases = small_cases(SIZES, Case((255,)))
    assert cases[0] == Case((5,)) and cases[-1] == Case((1,))
    assert Case((255,)) in cases and Case((0,)) not in cases


def test_a_size_that_has_to_be_a_multiple_is_not_shrunk() -> None:
    cases = grid([(3, 64), (7, 128)], ["float16"], values="large")
    made = small_cases(cases, cases[0])
    assert {case.shape[1] for case in made} == {64, 128}
    assert all((case.dtype, case.values) == ("float16", "large") for case in made)
