"""Bad input: rungs that handle it well pass, those that handle it badly in one way each do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from common.base.declaration import Case, Cost, Problem, Rung, grid
from common.check.bad_input import (
    QUICK,
    _place,
    bad_inputs,
    check_bad_input,
    good_case,
    names_one_of,
)
from common.check.draw import Draw
from common.check.expected import signature_of
from common.check.rungs import CheckResult
from tests.unit.test_check import FakeBackend

FLOATS = (torch.float32, torch.float16, torch.bfloat16)

ADD = Problem(
    name="add",
    inputs=lambda case, draw: (draw(*case.shape), draw(*case.shape), 2.0),
    reference=lambda x, y, factor: x + factor * y,
    rungs=(Rung("add", "the test's own"),),
    cases=grid([(1, 1), (4, 4), (3, 5), (0, 5)], ["float32", "float16"]),
    bench=Case((8, 64)),
    bench_cpu=Case((8, 64)),
    cost=lambda case: Cost(),
)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def add(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
    """Return x + factor * y like a day's launcher: with checks, each naming the argument."""
    for name, t in (("x", x), ("y", y)):
        require(t.device.type == "cpu", f"{name}: expected a CPU tensor, got {t.device}")
        require(t.dtype in FLOATS, f"{name}: expected float32 or float16, got {t.dtype}")
        require(t.is_contiguous(), f"{name}: expected a contiguous tensor")
        require(t.dim() == 2, f"{name}: expected 2 dimensions, got {t.dim()}")
    require(x.dtype == y.dtype, f"y: expected the dtype of x, got {y.dtype}")
    require(x.shape == y.shape, f"y: expected shape {tuple(x.shape)}, got {tuple(y.shape)}")
    return x + factor * y


def check(call: Callable[..., object], problem: Problem = ADD) -> CheckResult:
    return check_bad_input(problem, Rung("rung", "under test"), call, FakeBackend())


def rejected(call: Callable[..., object], *words: str, problem: Problem = ADD) -> str:
    result = check(call, problem)
    assert result.failure is not None, "a rung that takes bad input badly was accepted"
    text = str(result.failure)
    for word in words:
        assert word in text, text
    return text


def but(change: Callable[[torch.Tensor, torch.Tensor, float], object]) -> Callable[..., object]:
    """Return `add`, changed where `change` returns something (a result, or an exception)."""

    def call(x: torch.Tensor, y: torch.Tensor, factor: float) -> object:
        answer = change(x, y, factor)
        return add(x, y, factor) if answer is None else answer

    return call


def test_careful_rung_passes() -> None:
    result = check(add)
    assert result.failure is None, str(result.failure)
    assert result.checked > 50


def test_quick_checks_of_several_rungs_try_all_together() -> None:
    """A mistake for any one bad input is met by one of QUICK rungs, and a share costs a share."""
    rungs = tuple(Rung(f"add_v{number}", "one of several") for number in range(QUICK))
    problem = replace(ADD, rungs=rungs, cases=grid([(3, 5)], ["float32"]))

    def tried(rung: Rung, quick: bool) -> list[str]:
        calls: list[str] = []

        def call(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
            calls.append(f"{[(t.dtype, t.shape, t.stride(), t.device) for t in (x, y)]} {factor}")
            return add(x, y, factor)

        result = check_bad_input(problem, rung, call, FakeBackend(), quick=quick)
        assert result.failure is None, str(result.failure)
        return calls

    everything = tried(rungs[0], quick=False)
    shares = [tried(rung, quick=True) for rung in rungs]
    assert set().union(*shares) == set(everything)
    assert all(len(share) < len(everything) / 2 for share in shares)


def test_quick_checks_of_problems_of_one_rung_begin_differently() -> None:
    rung = Rung("add", "the only one")
    problems = [replace(ADD, name=f"add {number}", rungs=(rung,)) for number in range(16)]
    assert {_place(problem, rung) % QUICK for problem in problems} == set(range(QUICK))


def test_tensors_of_a_list_are_changed() -> None:
    def summed(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(tensors).sum(0)

    args = ([torch.ones(3, 5), torch.ones(3, 5), torch.ones(3, 5)],)
    tried = [str(bad) for bad in bad_inputs(args, signature_of(summed), FakeBackend())]
    assert len(set(tried)) == len(tried)
    for words in (
        "tensors with tensor 0 as float64",
        "tensors with tensor 2 with dimension 1 one longer",
        "tensors with tensor 2 not contiguous, every second element",
        "tensors with tensor 2 not aligned",
        "tensors with tensor 2 not contiguous, one row expanded",
        "tensors with its last tensor on the device meta, with the others' kernel called",
    ):
        assert any(words in bad for bad in tried), words

    # In a list that is written, no tensor has elements that share their memory.
    summed.writes = ("tensors",)  # type: ignore[attr-defined]
    tried = [str(bad) for bad in bad_inputs(args, signature_of(summed), FakeBackend())]
    assert any("not contiguous" in bad for bad in tried)
    assert not any("expanded" in bad for bad in tried)


def test_what_is_tried() -> None:
    args = ADD.inputs(Case((3, 5)), Draw(Case((3, 5)), FakeBackend(), 0))
    tried = [str(bad) for bad in bad_inputs(args, signature_of(add), FakeBackend())]
    assert len(set(tried)) == len(tried)
    for words in (
        "x as int64",
        "y as float64",
        "x with a dimension added",
        "x flattened",
        "y as a scalar tensor",
        "x with dimension 0 one longer, (4, 5)",
        "y with dimension 1 one shorter, (3, 4)",
        "x with dimension 1 of size 0",
        "every dimension of size 3 made 0",
        "x not contiguous, the transpose",
        "x not contiguous, every second",
        "x not contiguous, one row expanded",
        "not aligned to 16 bytes",
        "x on the device meta",
        "all on the wrong device",
        "factor = nan",
        "factor = -1.0",
    ):
        assert any(words in text for text in tried), words


def test_a_tensor_on_another_device_reaches_the_kernel() -> None:
    """On a GPU, PyTorch calls the kernel if one of the tensors is there: each has to be checked."""

    def registered(name: str, implementation: Callable[..., torch.Tensor]) -> Callable[..., object]:
        library.define(f"{name}(Tensor x, Tensor y, float factor) -> Tensor")
        library.impl(name, implementation, "CPU")
        return getattr(torch.ops.test_bad_input, name)

    def unchecked(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
        require(y.device.type == "cpu", "y: expected a CPU tensor")
        return add(x, y, factor) if x.device.type == "cpu" else torch.zeros(y.shape, dtype=y.dtype)

    library = torch.library.Library("test_bad_input", "DEF")
    assert check(registered("checked", add)).failure is None
    rejected(registered("unchecked", unchecked), "x on the device meta, with the others' kernel")


def test_the_cases_that_a_problem_refuses_are_tried() -> None:
    small = replace(ADD, refused=(Case((9, 9)),))
    rejected(add, "9×9", "lists it as refused", problem=small)

    def limited(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
        require(x.numel() < 81, f"x: at most 80 elements, got {x.numel()}")
        return add(x, y, factor)

    assert check(limited, small).failure is None


def test_refused_arguments_that_share_memory_do_so_in_the_call() -> None:
    def inputs(case: Case, draw: Draw) -> tuple[object, ...]:
        rows, columns = case.shape
        memory = draw(rows + 2, columns)
        return memory[:rows], memory[2:], 2.0

    overlapping = replace(ADD, inputs=inputs, cases=(Case((2, 5)),), refused=(Case((3, 5)),))
    rejected(add, "3×5", "lists it as refused", problem=overlapping)

    def careful(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
        apart = abs(x.data_ptr() - y.data_ptr()) >= x.numel() * x.element_size()
        require(apart or x.numel() == 0, "y: shares memory with x")
        return add(x, y, factor)

    assert check(careful, overlapping).failure is None


def test_good_case_is_small_with_distinct_sizes() -> None:
    assert good_case(list(ADD.cases)) == Case((3, 5))


def test_refusal_without_a_name_is_rejected() -> None:
    def nameless(x: torch.Tensor, y: torch.Tensor, factor: float) -> object:
        require(x.shape == y.shape, "the shapes differ")
        return None

    rejected(but(nameless), "does not name x or y", "the shapes differ")


def test_wrong_dtype_read_as_another_is_rejected() -> None:
    def reinterpret(x: torch.Tensor, y: torch.Tensor, factor: float) -> object:
        if x.dtype == torch.int64:
            return x.float() * 0 + factor * y
        return None

    rejected(but(reinterpret), "x as int64", "accepted", "wrong")


def test_strides_ignored_is_rejected() -> None:
    def ignore(x: torch.Tensor, y: torch.Tensor, factor: float) -> object:
        if x.dim() == 2 and x.dtype == y.dtype and x.shape == y.shape and not x.is_contiguous():
            wrong = torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset())
            return wrong.contiguous() + factor * y
        return None

    rejected(but(ignore), "not contiguous", "accepted")


def test_strides_honoured_passes() -> None:
    result = check(lambda x, y, factor: add(x.contiguous(), y.contiguous(), factor))
    assert result.failure is None, str(result.failure)


def test_accepted_although_the_reference_refuses_is_rejected() -> None:
    def lenient(x: torch.Tensor, y: torch.Tensor, factor: float) -> object:
        if x.dim() == 2 and x.shape[0] == 4 and y.shape[0] == 3:
            return add(x[:3].contiguous(), y, factor)
        return None

    rejected(but(lenient), "one longer", "reference itself refuses it")


def test_broken_by_misalignment_is_rejected() -> None:
    def fault(x: torch.Tensor, y: torch.Tensor, factor: float) -> object:
        require(x.data_ptr() % 16 == 0, "x: CUDA error: misaligned address")
        return None

    rejected(but(fault), "not aligned", "broke on the way")


def test_fault_in_a_kernel_is_no_refusal() -> None:
    def fault(x: torch.Tensor, y: torch.Tensor, factor: float) -> object:
        where = "block (0,0,0) thread (3,0,0)"
        require(x.numel() == y.numel(), f"kernel add: illegal access to x\n  {where}")
        return None

    rejected(but(fault), "broke on the way")


def test_too_many_blocks_in_a_launch_are_no_refusal() -> None:
    """Even if the runtime's message happens to name an argument."""

    def fault(x: torch.Tensor, y: torch.Tensor, factor: float) -> object:
        require(x.numel() == y.numel(), "x and y: too many blocks in cooperative launch")
        return None

    rejected(but(fault), "broke on the way")


def test_write_outside_for_bad_input_is_rejected() -> None:
    def overrun(x: torch.Tensor, y: torch.Tensor, factor: float) -> object:
        if x.dim() == 2 and x.numel() == 0 and y.numel() == 0:
            z = torch.empty_like(x)
            torch.as_strided(z, (1,), (1,), z.storage_offset()).fill_(1.0)
            return z
        return None

    rejected(but(overrun), "made 0", "memory outside")


def test_broken_good_case_is_found() -> None:
    rejected(lambda x, y, factor: x, "3×5", "before any bad input was tried")

    refused: list[int] = []

    def sulking(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
        if len(refused) > 20:
            x = x + 1
        try:
            return add(x, y, factor)
        except RuntimeError:
            refused.append(1)
            raise

    rejected(sulking)


def test_scalars() -> None:
    def whole(x: torch.Tensor, y: torch.Tensor, factor: float) -> object:
        return add(x, y, float(int(factor)))

    text = rejected(whole, "factor")
    assert "does not name factor" in text

    repeat = replace(
        ADD,
        inputs=lambda case, draw: (draw(*case.shape), 3),
        reference=lambda x, count: x.repeat(count, 1, 1),
    )

    def right(x: torch.Tensor, count: int) -> torch.Tensor:
        require(x.device.type == "cpu", "x: expected a CPU tensor")
        require(x.dim() == 2, "x: expected 2 dimensions")
        require(0 <= count < 1000, f"count: expected 0 to 1000, got {count}")
        return torch.stack([x.contiguous()] * count) if count else x.new_zeros((0, *x.shape))

    def clamped(x: torch.Tensor, count: int) -> torch.Tensor:
        return right(x, max(count, 0))

    assert check(right, repeat).failure is None
    rejected(clamped, "count = -1", "reference itself refuses it", problem=repeat)


def test_a_rung_after_a_right_one_is_judged_by_its_own_result() -> None:
    assert check(add).failure is None
    rejected(
        but(lambda x, y, factor: x + y if factor == -1.0 else None), "factor = -1.0", "accepted"
    )


@pytest.mark.parametrize(
    ("message", "names", "found"),
    [
        ("x: expected float32", ("x",), True),
        ("expected x to be contiguous", ("x",), True),
        ("at 0x7f00: max exceeded", ("x",), False),
        ("expected a contiguous tensor", ("a",), False),
        ("a: expected a contiguous tensor", ("a",), True),
        ("argument 'a' has the wrong shape", ("a",), True),
        ("expected weights", ("weight",), False),
        ("sizes of b and weight differ", ("a", "weight"), True),
    ],
)
def test_what_names_an_argument(message: str, names: tuple[str, ...], found: bool) -> None:
    assert names_one_of(message, names) is found
