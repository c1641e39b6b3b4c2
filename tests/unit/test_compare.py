"""The comparison: the results that it accepts or rejects, and its messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from common.base.declaration import Case, Tolerance
from common.check.compare import Mismatch, compare, same_values
from common.check.device import Backend
from common.check.draw import NONFINITE_ROWS, VALUES, Draw
from common.check.expected import Expected, in_range
from common.check.guard import BAND, GuardedAllocations, GuardedMemory, is_poison, on_host

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
DEFAULT = Tolerance()


def judge(
    got: torch.Tensor, truth: torch.Tensor, own: torch.Tensor | None = None, exact: bool = False
) -> Mismatch | None:
    """Compare with a truth; PyTorch's result is the truth rounded unless given."""
    return compare(got, truth, truth.to(got.dtype) if own is None else own, DEFAULT, exact)


def rejected(got: torch.Tensor, truth: torch.Tensor, *words: str, exact: bool = False) -> Mismatch:
    found = judge(got, truth, exact=exact)
    assert found is not None, "a wrong output was accepted"
    for word in words:
        assert word in str(found), str(found)
    return found


def softmax(
    rows: int, columns: int, dtype: torch.dtype, seed: int = 0, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(rows, columns, generator=generator) * scale).to(dtype)
    return torch.softmax(x.double(), -1), torch.softmax(x, -1)


# ---------------------------------------------------------------- right results


def _wide(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return result.to(like.dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pytorch_and_the_rounded_truth_pass_on_random_shapes(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: torch.softmax(x, -1),
        torch.exp,
        lambda x: x.sum(-1),
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        # In fp32, rounded: on CPUs that split products of 16-bit numbers, inf can become NaN.
        lambda x: _wide(x @ x.transpose(-1, -2) if x.itemsize > 2 else x.float() @ x.float().mT, x),
        lambda x: x.cumsum(-1),
    ]
    for trial in range(2 * len(VALUES)):
        dims = int(torch.randint(2, 4, (), generator=generator))
        shape = [int(torch.randint(1, 40, (), generator=generator)) for _ in range(dims)]
        values = list(VALUES)[trial % len(VALUES)]
        name = str(dtype).removeprefix("torch.")
        x = Draw(Case(tuple(shape), name, values), Backend("cpu"), trial)(*shape)
        for function in functions:
            truth, own = function(x.double()), function(x)
            assert compare(own, truth, own, DEFAULT) is None, (shape, values)
            assert compare(truth.to(dtype), truth, own, DEFAULT) is None, (shape, values)


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_other_ways_to_add_up_pass(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    for rows, columns in ((17, 1000), (64, 4097), (300, 33)):
        x = torch.randn(rows, columns, generator=generator).to(dtype)
        truth, own = x.double().sum(-1), x.sum(-1)
        wide = x.float()
        in_order = torch.zeros(rows)
        total, lost = torch.zeros(rows), torch.zeros(rows)
        for column in wide.unbind(-1):
            in_order = in_order + column
            term = column - lost
            lost = ((total + term) - total) - term
            total = total + term
        backwards = wide.flip(-1).view(rows, columns).sum(-1)
        by_chunks = torch.zeros(rows)
        for part in wide.chunk(7, -1):
            by_chunks = by_chunks + part.sum(-1)
        for name, result in (("kahan", total), ("reversed", backwards), ("chunks", by_chunks)):
            assert compare(result.to(dtype), truth, own, DEFAULT) is None, (name, rows)
        # One accumulator for all of a row is as much worse than PyTorch's tree as it looks; that
        # is for a day's Tolerance to define.
        loose = Tolerance(factor=64, why="one accumulator for a row")
        assert compare(in_order.to(dtype), truth, own, loose) is None


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool], ids=str
)
def test_integers_are_exact(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (5, 7)).to(dtype)
    assert judge(x.clone(), x) is None
    wrong = x.clone()
    wrong[3, 4] = 1 - wrong[3, 4].int()
    rejected(wrong, x, "1 of 35 elements is wrong", "(3, 4)")


def test_empty_and_scalar_outputs() -> None:
    assert judge(torch.empty(0, 5), torch.empty(0, 5).double()) is None
    assert judge(torch.tensor(1.5), torch.tensor(1.5).double()) is None
    rejected(torch.tensor(1.5), torch.tensor(2.5).double(), "the only element", "got")


def test_float8_is_compared() -> None:
    truth = torch.randn(40, generator=torch.Generator().manual_seed(1)).double()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        own = truth.to(dtype)
        assert compare(own, truth, own, DEFAULT) is None
        rejected((truth * 4).to(dtype), truth, "wrong")


class WithoutFloat8(TorchDispatchMode):
    """Refuse arithmetic of 8-bit floats, most of which PyTorch has on the CPU, but not on CUDA."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("abs", "sub", "mul", "lt", "isnan", "isinf"):
            for value in args:
                narrow = isinstance(value, torch.Tensor) and "float8" in str(value.dtype)
                assert not narrow, func
        return func(*args, **(kwargs or {}))


def test_float8_is_widened_before_it_is_computed_with() -> None:
    truth = torch.randn(40, generator=torch.Generator().manual_seed(1)).double()
    own = truth.to(torch.float8_e5m2)
    with WithoutFloat8():
        assert compare(own, truth, own, DEFAULT) is None
        assert compare((truth * 4).to(own.dtype), truth, own, DEFAULT) is not None
        assert in_range(Expected((own,), [(own.double(), own)], [], []))
        assert same_values(own, own.clone()) and not same_values(own, (-truth).to(own.dtype))


# ---------------------------------------------------------------- NaN and infinity


def test_nan_and_infinity_must_be_where_they_are() -> None:
    truth = torch.tensor([1.0, math.nan, math.inf, -math.inf, 0.0]).double()
    good = truth.float()
    assert judge(good.clone(), truth) is None
    changes = [(0, math.nan), (0, math.inf), (1, 1.0), (1, math.inf), (2, -math.inf)]
    changes += [(2, math.nan), (3, math.inf), (4, math.nan), (2, torch.finfo(torch.float32).max)]
    for place, value in changes:
        bad = good.clone()
        bad[place] = value
        found = rejected(bad, truth, "1 of 5")
        assert f"({place},)" in str(found)


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_overflow_of_the_dtype(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    beyond = torch.tensor([largest * 2.0, -largest * 2.0], dtype=torch.float64)
    infinite = torch.tensor([math.inf, -math.inf], dtype=dtype)
    assert judge(infinite, beyond) is None
    rejected(-infinite, beyond, "all 2 elements", "overflows")
    rejected(torch.tensor([largest, -largest], dtype=dtype), beyond, "overflows")
    # Right at the edge either may come out of a rounding.
    edge = torch.tensor([largest, largest], dtype=torch.float64)
    assert judge(torch.tensor([largest, math.inf], dtype=dtype), edge) is None
    rejected(infinite.abs(), edge / 2, "infinite")


def test_where_pytorch_itself_overflows_so_may_the_rung() -> None:
    truth = torch.tensor([1e30, 1.0, 2.0]).double()
    own = torch.tensor([math.inf, 1.0, 2.0])
    assert compare(own, truth, own, DEFAULT) is None
    assert compare(truth.float(), truth, own, DEFAULT) is None
    assert compare(torch.tensor([math.nan, 1.0, 2.0]), truth, own, DEFAULT) is not None
    assert compare(torch.tensor([-math.inf, 1.0, 2.0]), truth, own, DEFAULT) is not None


# ---------------------------------------------------------------- how far is too far


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_element_a_little_off_is_found_wherever_it_is(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    truth = torch.randn(33, 65, generator=generator, dtype=torch.float64).exp()
    own = truth.to(dtype)
    for _ in range(20):
        place = tuple(int(torch.randint(0, n, (), generator=generator)) for n in truth.shape)
        bad = own.clone()
        bad[place] = bad[place] * (1 + 6 * torch.finfo(dtype).eps)
        found = rejected(bad, truth, "1 of 2,145 elements is wrong")
        assert str(place) in str(found)


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_zeros_for_small_outputs_are_rejected(dtype: torch.dtype) -> None:
    # With a larger scale small outputs of float16 are rightly rounded to zero.
    for scale in (1.0,) if dtype == torch.float16 else (1.0, 3.0):
        truth, own = softmax(16, 500, dtype, scale=scale)
        smallest = truth.flatten().kthvalue(40).values
        flushed = torch.where(truth < smallest, 0, own)
        found = compare(flushed, truth, own, DEFAULT)
        assert found is not None
        assert found.wrong == 39, str(found)
        assert "zero" in str(found)


def test_one_lucky_element_does_not_make_the_bound_zero() -> None:
    # PyTorch's errors are about 20 ulp everywhere but in one element, which is exact by luck.
    generator = torch.Generator().manual_seed(2)
    truth = torch.randn(500, generator=generator, dtype=torch.float64)
    eps = torch.finfo(torch.float32).eps
    noise = 20 * eps * truth.abs().max()
    own = (truth + noise * torch.rand(500, generator=generator, dtype=torch.float64)).float()
    own[7] = truth[7].float()
    got = truth.float()
    got[7] += noise
    assert compare(got, truth, own, DEFAULT) is None
    got[7] += 10 * noise
    assert compare(got, truth, own, DEFAULT) is not None


def test_small_outputs_do_not_hide_behind_the_error_of_large_ones() -> None:
    truth = torch.cat([torch.full((100,), 1e6), torch.full((100,), 1e-3)]).double()
    own = truth.float()
    own[:100] += 0.5
    got = truth.float()
    got[150] += 1e-4
    assert compare(got, truth, own, DEFAULT) is not None
    got = truth.float()
    got[50] += 1.0
    assert compare(got, truth, own, DEFAULT) is None


def test_what_cancels_may_leave_as_much_as_is_said() -> None:
    # Half of the outputs are 0, and PyTorch gives them exactly.
    truth = torch.cat([torch.zeros(50), torch.full((50,), 0.1)]).double()
    own = truth.float() * (1 + 1e-6)
    got = truth.float()
    got[7] = 3e-9
    assert compare(got, truth, own, DEFAULT) is not None
    said = Tolerance(at_zero=1e-8, why="the terms of a sum cancel")
    assert compare(got, truth, own, said) is None
    got[8] = -2e-8
    assert compare(got, truth, own, said) is not None
    # Other elements do not get it.
    got[8], got[60] = 0, got[60] + 1e-5
    assert compare(got, truth, own, Tolerance(at_zero=1e-3, why=said.why)) is not None


def test_samples_make_up_for_few_elements() -> None:
    truth, own = torch.tensor([1.0]).double(), torch.tensor([1.0])
    got = torch.tensor([1.0 + 2e-6])
    assert compare(got, truth, own, DEFAULT) is not None
    noisy = [(truth, own + 1e-6)] * 15
    assert compare(got, truth, own, DEFAULT, samples=noisy) is None
    # In float64 PyTorch's own is the truth: its error is estimated from float32's, scaled down.
    wide = torch.tensor([1.0 + 4e-15], dtype=torch.float64)
    assert compare(wide, truth, truth, DEFAULT) is not None
    assert compare(wide, truth, truth, DEFAULT, samples=noisy) is None


def test_lower_precision_on_the_way_is_rejected() -> None:
    truth, own = softmax(16, 500, torch.float32)
    for narrow, word in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        found = compare(own.to(narrow).float(), truth, own, DEFAULT)
        assert found is not None
        assert f"the size of {word}" in str(found), str(found)


# ---------------------------------------------------------------- levels


def bytes_off(*errors: int, count: int = 200) -> Mismatch | None:
    """Compare bytes of which the first ones are off by `errors`, with one level and 1 % allowed."""
    truth = torch.full((count,), 100, dtype=torch.uint8)
    got = truth.clone()
    got[: len(errors)] += torch.tensor(errors, dtype=torch.int64).to(torch.uint8)
    return compare(got, truth, truth, Tolerance(levels=1, share=0.01, why="floor of a fraction"))


def test_a_share_of_integers_may_be_a_level_off() -> None:
    assert bytes_off() is None
    assert bytes_off(1, -1) is None
    found = bytes_off(1, -1, 1)
    assert found is not None and found.wrong == 3
    assert "at most 2 of 200 may differ" in str(found)


def test_a_share_of_few_integers_is_rounded_up() -> None:
    assert bytes_off(1, count=12) is None
    assert bytes_off(1, 1, count=12) is not None
    assert bytes_off(count=0) is None


def test_no_integer_is_further_off_than_the_levels() -> None:
    found = bytes_off(1, 2)
    assert found is not None and found.wrong == 2
    assert "+2" in str(found) and "may differ" not in str(found)
    wrapped = torch.tensor([255] + [0] * 199, dtype=torch.uint8)
    truth = torch.zeros_like(wrapped)
    assert compare(wrapped, truth, truth, Tolerance(levels=1, share=0.01)) is not None


def test_levels_do_not_loosen_what_is_exact() -> None:
    truth = torch.zeros(200, dtype=torch.int32)
    got = truth.clone()
    got[0] = 1
    assert compare(got, truth, truth, Tolerance(levels=1, share=0.01)) is None
    assert compare(got, truth, truth, Tolerance(levels=1, share=0.01), exact=True) is not None
    assert compare(got, truth, truth, Tolerance(levels=1)) is not None  # no share may differ


# ---------------------------------------------------------------- exact


def test_exact_means_bits() -> None:
    x = torch.tensor([1.0, -0.0, math.nan, math.inf])
    assert judge(x.clone(), x.double(), exact=True) is None
    next_up = x.clone()
    next_up[0] = next_up[0].nextafter(torch.tensor(2.0))
    rejected(next_up, x.double(), "1 of 4", exact=True)
    unsigned = x.clone()
    unsigned[1] = 0.0
    rejected(unsigned, x.double(), "1 of 4", exact=True)
    other_nan = x.clone()
    other_nan.view(torch.int32)[2] += 5
    assert judge(other_nan, x.double(), exact=True) is None
    assert same_values(other_nan, x)
    assert not same_values(unsigned, x)


# ---------------------------------------------------------------- metadata


def test_metadata() -> None:
    truth = torch.randn(3, 5).double()
    got = truth.float()
    for bad, kind in (
        (got.double(), "dtype"),
        (got[:2], "shape"),
        (got.t(), "shape"),
        (got.t().contiguous().t(), "strides"),
        (got.to("meta"), "device"),
    ):
        found = compare(bad, truth, got, DEFAULT)
        assert found is not None and found.kind == kind
    assert "swapped" in str(compare(got.t(), truth, got, DEFAULT))
    column = truth[:, :1].contiguous()
    odd = torch.empty_strided((3, 1), (1, 7)).copy_(column)
    assert compare(odd, column, column.float(), DEFAULT) is None  # a stride that is never used
    with pytest.raises(ValueError, match="truth"):
        compare(got, truth[:2], got, DEFAULT)


# ---------------------------------------------------------------- messages


def matrix() -> torch.Tensor:
    return torch.randn(32, 32, generator=torch.Generator().manual_seed(4)).double() + 3


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda t: t.t().contiguous(), "transpose"),
        (lambda t: t * 0.5, "0.5 times"),
        (lambda t: t + 2, "+2"),
        (lambda t: -t, "opposite sign"),
        (lambda t: t.flatten().roll(1).view(32, 32), "towards the end"),
        (lambda t: t.flatten().flip(0).view(32, 32), "reversed"),
        (lambda t: torch.zeros_like(t), "all zero"),
        (lambda t: torch.cat([t[:, :20], 0 * t[:, 20:]], 1), "columns 20 to 31"),
        (lambda t: torch.cat([t[:30], 0 * t[30:]]), "flat index 960 to the end (64)"),
        (lambda t: torch.where(t == t[3, 3], math.nan, t), "NaN"),
        (lambda t: torch.where(t == t[3, 3], math.inf, t), "infinite"),
        (lambda t: torch.cat([t[:5], t[5:6] + 1, t[6:]]), "only row 5"),
    ],
    ids=[
        "transposed", "halved", "offset", "negated", "shifted", "reversed", "zeros", "columns",
        "tail", "nan", "inf", "row",
    ],
)  # fmt: skip
def test_patterns_are_recognised(
    break_it: Callable[[torch.Tensor], torch.Tensor], words: str
) -> None:
    truth = matrix()
    if words == "towards the end":
        # The elements shifted in come from elsewhere.
        got = break_it(truth)
        got.view(-1)[0] = 99
    else:
        got = break_it(truth)
    rejected(got.float().contiguous(), truth, "hint", words)


def test_unwritten_memory_is_recognised() -> None:
    truth = matrix()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32):
        for variant in (0, 1):
            got = GuardedMemory(torch.device("cpu"), variant).empty((32, 32), dtype)
            got[:20] = truth[:20]
            found = judge(got, truth.to(dtype) if dtype == torch.int32 else truth)
            assert "never written" in str(found)
            assert "flat index 640 to the end" in str(found)


def test_the_worst_come_first_with_their_surroundings() -> None:
    truth = matrix()
    got = truth.float()
    got[4, 6] += 1
    got[9, 2] += 5
    got[30, 31] += 3
    text = str(rejected(got, truth, "3 of 1,024", "ulp", "around it, [9, 0:7]", "*"))
    assert text.index("(9, 2)") < text.index("(30, 31)") < text.index("(4, 6)")


def test_a_row_of_the_worst_fits_on_a_narrow_terminal() -> None:
    """80 columns, of which 6 are a margin. If a rounding error could explain a difference, it is
    given in ulps."""
    truth = 0.01 * matrix().abs()
    text = str(rejected((truth * 1.1).float(), truth, "difference"))
    assert max(len(line) for line in text.splitlines()[1:]) <= 74, text
    truth = torch.full((8, 8), 1 / 3, dtype=torch.float64)
    rejected(truth.float() * (1 + 1e-5), truth, "e-06 = 112 ulp", " ulp\n(0, 1)")


# ---------------------------------------------------------------- guarded memory and inputs


def test_a_copy_takes_values_whatever_the_stride_of_a_single_row() -> None:
    memory = GuardedMemory(torch.device("cpu"))
    row = torch.arange(6).view(2, 3)[:1, 1:]  # strides (3, 1), contiguous
    copy = memory.copy_of(row)
    assert memory.refill(copy, row + 1)
    assert memory.refill(copy, row)
    assert copy.tolist() == row.tolist()
    columns = torch.arange(12).view(3, 4)[:, ::2]
    assert not memory.refill(memory.copy_of(columns), columns.contiguous())


def test_bands_tell_who_was_overrun() -> None:
    memory = GuardedMemory(torch.device("cpu"))
    x = memory.empty((3, 5), torch.float16, name="argument x")
    memory.empty((0,), torch.float32, name="nothing")
    assert x.data_ptr() % 256 == 0
    assert x.is_contiguous()
    assert bool(is_poison(x).all())
    assert memory.violations() == []
    x.fill_(1)
    assert memory.violations() == []
    far = BAND // 2 - 1
    for place, words in ((-1, "1 element before its start"), (15 + far, f"{far + 1:,} elements")):
        torch.as_strided(x, (1,), (1,), x.storage_offset() + place).fill_(0)
        last = memory.violations()[-1].replace(str(far + 1), f"{far + 1:,}")
        assert "argument x" in last
        assert words in last, last


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_large_numbers_in_fresh_memory_have_both_signs(dtype: torch.dtype) -> None:
    """A minimum or maximum with memory that was not written shows one of the two."""
    memory = GuardedMemory(torch.device("cpu"), variant=1)
    x = memory.empty((3, 5), dtype)
    assert bool(is_poison(x).all())
    assert bool(memory.untouched(x).all())
    signs = torch.tensor([1 - 2 * (i % 2) for i in range(15)], dtype=dtype).view(3, 5)
    assert torch.equal(x.sign(), signs)
    assert bool((x.abs() > torch.finfo(dtype).max / 32).all())
    assert memory.violations() == []


def test_copies_keep_strides_and_misalignment() -> None:
    memory = GuardedMemory(torch.device("cpu"))
    base = torch.randn(6, 8)
    for tensor in (base, base.t(), base[:, ::2], base[:1].expand(6, 8), base.view(-1)[1:]):
        copy = memory.copy_of(tensor)
        assert torch.equal(copy, tensor)
        assert copy.stride() == tensor.stride()
        assert copy.data_ptr() % 16 == tensor.data_ptr() % 16
    assert memory.violations() == []


def test_allocations_inside_are_guarded() -> None:
    memory = GuardedMemory(torch.device("cpu"))
    x = torch.randn(4, 6)
    mode = GuardedAllocations(memory)
    with mode:
        fresh = [
            torch.empty(3, 2),
            torch.empty_like(x),
            torch.empty_like(x.t()),
            x.new_empty(3),
            torch.empty_strided((2, 3), (1, 2)),
            x.new_empty_strided((2, 3), (1, 2)),
            torch.empty(3, dtype=torch.int64),
        ]
        zeros = [torch.zeros(3), torch.zeros_like(x), x.new_zeros((2, 2), dtype=torch.int32)]
        filled = [torch.full((3,), 7), torch.full_like(x, 7), x.new_full((3,), 7.0), torch.ones(3)]
    assert mode.allocated == len(fresh) + len(zeros) + len(filled)
    assert all(bool(is_poison(tensor).all()) for tensor in fresh)
    assert fresh[2].stride() == torch.empty_like(x.t()).stride()
    assert fresh[4].stride() == fresh[5].stride() == (1, 2)
    assert fresh[6].dtype == torch.int64
    assert all(not bool(tensor.any()) for tensor in zeros)
    assert zeros[2].dtype == torch.int32
    assert [tensor.flatten()[0].item() for tensor in filled] == [7, 7, 7, 1]
    assert filled[0].dtype == torch.int64
    fresh[0].as_strided((1,), (1,), fresh[0].storage_offset() + 6).fill_(0)
    assert "tensor 1 that the operator allocates" in memory.violations()[0]


def test_draws() -> None:
    case = Case((3, 4), "float16", "nonfinite")
    draw = Draw(case, Backend("cpu"), seed=1)
    x, y = draw(1000), draw(1000)
    assert x.dtype == torch.float16
    assert not torch.equal(x.nan_to_num(), y.nan_to_num())
    again = Draw(case, Backend("cpu"), seed=1)
    assert same_values(again(1000), x)
    assert same_values(again(1000), y)
    uniform = draw(1000, dtype="bfloat16", low=2, high=3)
    assert uniform.min() >= 2 and uniform.max() < 3
    whole = draw(1000, dtype="int32", low=-2, high=3)
    assert sorted(set(whole.tolist())) == [-2, -1, 0, 1, 2]
    assert draw(1000, dtype=torch.bool).float().mean() < 0.9
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        limits, drawn = torch.iinfo(dtype), draw(1000, dtype=dtype).double()
        span = float(limits.max) - float(limits.min)
        assert drawn.min() < limits.min + span / 64 and drawn.max() > limits.max - span / 64
    assert Draw(case, Backend("cpu"), fast=True)(5, values="normal").dtype == torch.float16
    extreme = draw(1000, values="extreme")
    assert bool(extreme.isfinite().all()) and extreme.max() == torch.finfo(torch.float16).max
    for wrong, words in (
        ({"values": "norml"}, "normal"),
        ({"dtype": "flot32"}, "float32"),
        ({"low": 1}, "both or none"),
        ({"low": 1, "high": 1}, "less than"),
        ({"low": -1, "high": 3, "dtype": "uint8"}, "holds 0 to 255"),
    ):
        with pytest.raises(ValueError, match=words):
            draw(3, **wrong)
    with pytest.raises(ValueError, match="negative"):
        draw(-3)


def test_rows_that_are_not_finite_differ_in_what_they_hold() -> None:
    case = Case((8, 48), "float32", "nonfinite")
    kinds = set()
    for seed in range(NONFINITE_ROWS):
        rows = Draw(case, Backend("cpu"), seed=seed)(8, 48)
        alone = Draw(case, Backend("cpu"), seed=seed)(48)
        later = Draw(case, Backend("cpu"), seed=seed + NONFINITE_ROWS)(48)
        kinds.add(_kind(alone))
        assert _kind(alone) == _kind(later), "the seed says which kind comes first"
        assert sorted(map(_kind, rows)) == sorted(_KINDS), "eight rows have one of each kind"
    assert kinds == set(_KINDS)
    draw = Draw(case, Backend("cpu"), seed=1)
    first, second = draw(8, 48), draw(8, 48)
    assert not bool(first.isfinite().all()) and bool(second.isfinite().all())


_KINDS = (
    *("one NaN", "one +inf", "some -inf", "all -inf", "ordinary", "subnormal", "all three"),
    "both infinities",
)


def _kind(row: torch.Tensor) -> str:
    nan, up, down = (int(each.sum()) for each in (row.isnan(), row == math.inf, row == -math.inf))
    if nan and up and down:
        return "all three"
    if nan or (up == 1 and not down):
        return "one NaN" if nan == 1 and not up + down else "one +inf"
    if up and down:
        return "both infinities"
    if down:
        return "all -inf" if down == row.numel() else "some -inf"
    tiny = bool((row.abs() < torch.finfo(row.dtype).smallest_normal).float().mean() > 0.5)
    return "subnormal" if tiny else "ordinary"


def test_nearly_right_is_said_to_be() -> None:
    truth = matrix()
    eps = torch.finfo(torch.float32).eps
    rejected((truth * (1 + 8 * eps)).float(), truth, "may be rounding alone")
    assert "rounding alone" not in str(rejected((truth * (1 + 80 * eps)).float(), truth))


def test_an_operator_without_a_kernel_for_its_device_is_guarded() -> None:
    """Such a one has a kernel for all devices, which calling it by the device's key must find."""

    @torch.library.custom_op("test_guard::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x).copy_(2 * x)

    mode = GuardedAllocations(GuardedMemory(torch.device("cpu")))
    with mode:
        result = twice(torch.ones(3))
    assert result.tolist() == [2, 2, 2] and mode.allocated > 0


# ---------------------------------------------------------------- on average


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_small_constant_factor_is_seen_in_short_dtypes(dtype: torch.dtype) -> None:
    truth = torch.randn(40, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    own = truth.to(dtype)
    share = 1.5 * torch.finfo(dtype).eps
    for factor in (1 + share, 1 - share):
        found = compare((truth * factor).to(dtype), truth, own, Tolerance())
        assert found is not None and "lean away from zero or towards it" in found.summary
    assert compare((truth * (1 + share)).to(dtype), truth, own, Tolerance(ulps=64)) is None
    assert compare(own, truth, own, Tolerance()) is None
    # Twice rounded, as by an intermediate result in the same dtype: PyTorch's own does that too.
    third = (truth / 3).to(dtype) * 3
    assert compare(third, truth, own, Tolerance()) is None


def test_rows_may_share_an_error_where_those_of_pytorch_do() -> None:
    """A row's dot product that cancels: each row leans to one side, by chance."""
    truth = torch.rand(4, 513, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    share = 3 * torch.finfo(torch.float16).eps
    own = truth * (1 + share * torch.tensor([[1.0], [-1.0], [0.5], [-0.6]]))
    ours = (truth * (1 + share)).half()
    assert compare(ours, truth, own.half(), Tolerance()) is None
    found = compare(ours, truth, truth.half(), Tolerance())
    assert found is not None and "lean away from zero or towards it" in found.summary


def test_errors_of_equal_elements_say_nothing_on_average() -> None:
    truth = torch.full((64, 64), 1 / 3, dtype=torch.float64)
    nearest = truth.bfloat16()
    neighbour = torch.nextafter(nearest, torch.tensor(1.0, dtype=torch.bfloat16))
    assert compare(neighbour, truth, nearest, Tolerance()) is None


def test_errors_that_are_all_large_are_seen() -> None:
    truth = torch.randn(64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    signs = torch.randint(0, 2, truth.shape, generator=torch.Generator().manual_seed(3)) * 2 - 1
    eps = torch.finfo(torch.bfloat16).eps
    rough = (truth * (1 + 2 * eps * signs)).bfloat16()
    found = compare(rough, truth, truth.bfloat16(), Tolerance())
    assert found is not None and "root mean square" in found.summary


def test_tensors_are_packed_into_one_transfer() -> None:
    numbers = torch.arange(-12, 12)
    packed = [
        *(numbers.to(kind) for kind in (torch.float64, torch.bfloat16, torch.float8_e4m3fn)),
        numbers > 3,
        numbers.to(torch.int8).reshape(2, 3, 4).transpose(0, 2),
        numbers[:1].expand(5),
        torch.tensor(math.nan),
        torch.empty(0, 7, dtype=torch.int16),
    ]
    for got, before in zip(on_host(packed), packed, strict=True):
        assert got.is_contiguous() and same_values(got, before)


def test_of_millions_of_elements_a_few_sums_that_cancel_may_be_worse_than_pytorchs() -> None:
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(1 << 21, generator=generator, dtype=torch.float64)
    truth[:3] = 1e-9
    own = truth.bfloat16()
    for wrong, error, accepted in (
        (2, 1e-6, True),
        (2, 0.02, True),
        (3, 1e-6, False),  # more than the share
        (1, 0.05, False),  # not a rounding of numbers around 1
    ):
        got = own.clone()
        got[:wrong] += error
        assert judge(got, truth, own) is not None
        assert (compare(got, truth, own, DEFAULT, drawn=True) is None) == accepted, (wrong, error)


def test_more_of_pytorchs_error_is_allowed_on_inputs_that_were_drawn_in_the_run() -> None:
    truth = torch.randn(64, generator=torch.Generator().manual_seed(1)).double()
    own = (truth * (1 + 1e-5)).float()
    for times, known, drawn in ((3.5, True, True), (15.0, False, True), (18.0, False, False)):
        got = (truth * (1 + times * 1e-5)).float()
        assert (judge(got, truth, own) is None) == known
        assert (compare(got, truth, own, DEFAULT, drawn=True) is None) == drawn
