"""The checker on rungs that are right and on rungs that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from common.base.declaration import Case, Cost, Problem, Rung, grid
from common.check.call import outputs_of
from common.check.cases import quick_cases
from common.check.device import SCHEDULES, Backend, Schedule, interpreted, of_rung
from common.check.draw import Draw
from common.check.expected import Expected, check_same_in_both, evaluate, signature_of
from common.check.rungs import CheckResult, check_outputs, check_rung

SHAPES = [(1, 1), (3, 257), (8, 64), (0, 5)]
FLOATS = ["float32", "float16", "bfloat16", "float64"]


class FakeBackend(Backend):
    """The CPU with thread orders that affect only a test's own function."""

    def __init__(
        self,
        name: str = "cpu",
        orders: tuple[Schedule, ...] = SCHEDULES,
        traces: bool = False,
    ) -> None:
        super().__init__("cpu")
        self.name, self.orders, self.order = name, orders, "forward"
        self._traces = traces

    def schedules(self, quick: bool = False) -> tuple[Schedule, ...]:
        return self.orders

    def use(self, schedule: Schedule) -> None:
        self.order = schedule.order

    def late_schedules(self, several: bool) -> tuple[Schedule, ...]:
        return ()

    @property
    def traces(self) -> bool:
        return self._traces


def softmax_problem(**changes: Any) -> Problem:
    problem = Problem(
        name="softmax",
        inputs=lambda case, draw: (draw(*case.shape),),
        reference=lambda x: torch.softmax(x, -1),
        rungs=(Rung("softmax", "the test's own"),),
        cases=(
            *grid(SHAPES, FLOATS),
            *grid([(4, 33)], FLOATS[:3], "large"),
            *grid([(4, 33)], FLOATS[:3], "nonfinite"),
        ),
        bench=Case((8, 64)),
        bench_cpu=Case((8, 64)),
        cost=lambda case: Cost(),
    )
    return replace(problem, **changes)


def check(
    call: Callable[..., object],
    problem: Problem | None = None,
    rung: Rung | None = None,
    quick: bool = False,
    backend: FakeBackend | None = None,
) -> CheckResult:
    chosen = rung or Rung("rung", "under test")
    return check_rung(
        problem or softmax_problem(), chosen, call, backend or FakeBackend(), quick=quick
    )


def rejected(call: Callable[..., object], *words: str, **options: Any) -> str:
    """Return the failure's text, which must contain the words."""
    result = check(call, **options)
    assert result.failure is not None, "a wrong rung was accepted"
    text = str(result.failure)
    for word in words:
        assert word in text, text
    return text


def softmax_in_parts(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax, by other operations in another order than PyTorch's."""
    wide = x if x.dtype == torch.float64 else x.float()
    top = wide.max(-1, keepdim=True).values if x.shape[-1] else wide
    powers = torch.exp(wide.flip(-1) - top)
    return (powers / powers.cumsum(-1)[..., -1:]).flip(-1).to(x.dtype).contiguous()


def test_pytorch_passes() -> None:
    result = check(lambda x: torch.softmax(x, -1))
    assert result.failure is None, str(result.failure)
    assert result.checked == len(softmax_problem().cases)


def test_another_order_of_operations_passes() -> None:
    result = check(softmax_in_parts)
    assert result.failure is None, str(result.failure)


def test_a_result_is_accepted_again_only_where_it_is_the_same() -> None:
    """Judging it again would give the same verdict; anything else is judged."""
    wide, narrow = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 4)
    expected = Expected((), [(wide, narrow)], [], [])
    right = torch.tensor([[0.0, 1.0, torch.nan, torch.inf]] * 3)
    assert not expected.accepts([right], "one way")
    expected.accept([right], "one way")
    right_then = right.clone()
    assert expected.accepts([right_then], "one way")
    assert not expected.accepts([right_then], "another way")
    assert not expected.accepts([right.t().contiguous().t()], "one way")
    assert not expected.accepts([right.half()], "one way")
    right[2, 0] = -0.0  # a write to the accepted output does not change the stored one
    assert expected.accepts([right_then], "one way")
    assert not expected.accepts([right], "one way")


def test_a_rung_after_a_right_one_is_judged_by_its_own_result() -> None:
    problem = softmax_problem()
    assert check(softmax_in_parts, problem).failure is None

    def a_little_off(x: torch.Tensor) -> torch.Tensor:
        result = softmax_in_parts(x)
        if x.shape == (8, 64):
            result[7, 63] *= 1.5
        return result

    rejected(a_little_off, "(7, 63)", problem=problem)
    tight = replace(problem, outputs_exact=True)
    rejected(softmax_in_parts, "elements", problem=tight)


def test_only_the_dtypes_of_the_rung_are_counted() -> None:
    result = check(softmax_in_parts, rung=Rung("r", "i", dtypes=("float16",)))
    assert result.failure is None
    assert result.checked == len([c for c in softmax_problem().cases if c.dtype == "float16"])


def test_no_case_is_a_failure() -> None:
    text = rejected(softmax_in_parts, "no case", rung=Rung("r", "i", dtypes=("int32",)))
    assert "int32" in text and "float32" in text


def test_quick_keeps_each_dtype_and_an_odd_shape() -> None:
    chosen = quick_cases(softmax_problem().cases)
    assert sorted(case.dtype for case in chosen) == sorted(FLOATS)
    assert all(any(size % 2 and size > 1 for size in case.shape) for case in chosen)
    result = check(softmax_in_parts, quick=True)
    assert result.failure is None
    assert result.checked == len(chosen)


def scaled(
    cases: tuple[Case, ...], seen: list[tuple[int, ...]]
) -> tuple[Problem, Callable[..., torch.Tensor]]:
    """Return a problem with these cases, and a right rung that notes the shapes that it sees."""

    def call(xs: list[torch.Tensor], scale: float, flag: bool) -> torch.Tensor:
        seen.append(tuple(xs[0].shape))
        return xs[0] * scale

    problem = softmax_problem(
        inputs=lambda case, draw: ([draw(*case.shape)], 0.5, True),
        reference=lambda xs, scale, flag: xs[0] * scale,
        cases=cases,
    )
    return problem, call


def test_a_quick_check_goes_on_where_a_rung_only_fell_back() -> None:
    seen: list[tuple[int, ...]] = []
    problem, call = scaled(grid([(1, 5), (4, 6), (4, 8), (4, 10)], ["float32"]), seen)

    def checked(falls_back: Callable[[int], bool]) -> set[tuple[int, ...]]:
        def fallback() -> str:
            return "v1, an odd size" if falls_back(seen[-1][1]) else ""

        seen.clear()
        backend = FakeBackend()
        result = check_rung(problem, problem.rungs[0], call, backend, fallback=fallback, quick=True)
        assert result.failure is None
        return set(seen)

    assert checked(lambda columns: False) == {(1, 5)}
    assert checked(lambda columns: columns < 8) == {(1, 5), (4, 6), (4, 8)}
    assert checked(lambda columns: True) == {(1, 5), (4, 6), (4, 8), (4, 10)}


def test_a_traced_check_takes_a_case_of_several_blocks() -> None:
    """A race needs two blocks, and the quick case often has only one."""
    seen: list[tuple[int, ...]] = []
    problem, call = scaled(grid([(1, 5), (40, 100), (90, 100)], ["float32", "float16"]), seen)
    for traces in (False, True):
        seen.clear()
        backend = FakeBackend(traces=traces)
        result = check_rung(problem, problem.rungs[0], call, backend, quick=True)
        assert result.failure is None and result.checked == 2 + traces
        assert set(seen) == ({(1, 5), (40, 100)} if traces else {(1, 5)})


# ---------------------------------------------------------------- wrong values


def test_missing_maximum_is_rejected() -> None:
    rejected(lambda x: x.exp() / x.exp().sum(-1, keepdim=True), "NaN")


def test_zeros_for_small_outputs_are_rejected() -> None:
    def flush(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)
        return torch.where(y < 1e-3, 0, y)

    rejected(flush, "zero")


def test_low_precision_on_the_way_is_rejected() -> None:
    cases = grid([(3, 257)], ["float32"])
    for narrow in (torch.bfloat16, torch.float16):
        text = rejected(
            lambda x, narrow=narrow: torch.softmax(x, -1).to(narrow).to(x.dtype),
            "rounding",
            problem=softmax_problem(cases=cases),
        )
        assert "16" in text


def matmul_problem(dtype: str, *shapes: tuple[int, ...]) -> Problem:
    return softmax_problem(
        name="matmul",
        inputs=lambda case, draw: (
            draw(case.shape[0], case.shape[1]),
            draw(case.shape[1], case.shape[2]),
        ),
        reference=lambda a, b: a @ b,
        cases=grid(list(shapes), [dtype]),
    )


def test_half_accumulator_is_rejected_and_a_wide_one_passes() -> None:
    def narrow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
        for k in range(a.shape[1]):
            c = c + a[:, k : k + 1] * b[k : k + 1]
        return c

    def wide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return narrow(a.float(), b.float()).to(a.dtype)

    for dtype in ("float16", "bfloat16"):
        problem = matmul_problem(dtype, (17, 511, 33))
        rejected(narrow, "wrong", problem=problem)
        assert check(wide, problem).failure is None
    assert check(narrow, matmul_problem("float32", (17, 511, 33))).failure is None
    assert check(narrow, matmul_problem("float64", (17, 511, 33))).failure is None


def test_unwritten_tail_is_rejected() -> None:
    def tail(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        flat = torch.softmax(x, -1).flatten()
        y.flatten()[: flat.numel() // 32 * 32].copy_(flat[: flat.numel() // 32 * 32])
        return y

    cases = grid([(3, 257)], FLOATS)
    rejected(tail, "never written", "tail", problem=softmax_problem(cases=cases))


def test_unwritten_memory_that_loses_its_nan_is_rejected() -> None:
    def by_fmax(x: torch.Tensor) -> torch.Tensor:
        top = torch.empty(x.shape[0], 1, dtype=x.dtype)  # fmax(NaN, x) is x
        top = torch.fmax(top, x.max(-1, keepdim=True).values)
        return torch.softmax(x - top, -1)

    cases = grid([(3, 257)], ["float32"])
    rejected(by_fmax, "not written", problem=softmax_problem(cases=cases))


def test_wrong_metadata_is_rejected() -> None:
    rejected(lambda x: torch.softmax(x, -1).double(), "float64, expected float32")
    rejected(lambda x: torch.softmax(x, -1).t().contiguous(), "expected (3, 257)")
    rejected(lambda x: torch.softmax(x, -1).t().contiguous().t(), "strides")
    rejected(lambda x: torch.softmax(x, -1).to("meta"), "meta, expected on cpu")
    rejected(lambda x: (x * 1, x * 1), "2 tensors")
    rejected(lambda x: 3.0, "float")


def test_swapped_outputs_are_named() -> None:
    problem = softmax_problem(reference=lambda x: (x * 2, x * 3), cases=grid([(5, 7)], ["float32"]))
    assert check(lambda x: (x + x, x + x + x), problem).failure is None
    rejected(lambda x: (x * 3, x * 2), "output 0", "swapped", problem=problem)


def test_an_unchanged_argument_is_recognised() -> None:
    cases = grid([(3, 257)], FLOATS)
    rejected(lambda x: x.clone(), "argument x unchanged", problem=softmax_problem(cases=cases))


def test_an_exception_is_a_failure() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a barrier that 3 of 32 threads never reach\nblock 0")

    rejected(broken, "1×1 float32", "barrier", "block 0")


def test_a_reference_that_depends_on_the_default_dtype_is_rejected() -> None:
    """Its error in float32 would allow any result."""

    def weighted(x: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        return x * torch.randn(x.shape[-1], generator=generator).to(x.dtype)

    problem = softmax_problem(reference=weighted, cases=grid([(4, 33)], ["float32"]))
    rejected(torch.zeros_like, "not compute the same in float32 and in float64", problem=problem)


def test_a_reference_whose_terms_cancel_is_the_same_in_both_dtypes() -> None:
    """A gradient of a norm of one element is 0, except for rounding."""
    problem = softmax_problem(reference=lambda x: x / 3 * 3 - x)
    check_same_in_both(problem, evaluate(problem, (torch.randn(4, 33),)))


# ---------------------------------------------------------------- wrong conduct


def test_modified_input_is_rejected() -> None:
    def mutate(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)
        if x.numel() > 5:
            x[1, 2] = 5
        return y

    rejected(mutate, "argument x was modified", "(1, 2)")


def test_an_argument_may_be_copied_onto_itself_and_not_be_restored() -> None:
    """Triton's interpreter copies each argument back to its place."""

    def restored(x: torch.Tensor, what: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        y = torch.softmax(x, -1)
        x.copy_(what(x))
        return y

    rejected(lambda x: restored(x, torch.clone), "argument x", "aten.copy_")
    assert check(lambda x: restored(x, lambda same: same)).failure is None


def test_a_rung_in_triton_is_checked_by_the_interpreter_without_bfloat16() -> None:
    problem = softmax_problem(cases=grid([(2, 3)], ["float32", "bfloat16"]))
    plain, twin = Rung("plain", ""), Rung("twin", "", triton="softmax_triton")
    backend = Backend("cpu")
    assert of_rung(problem, plain, backend) == (plain, backend)
    rung, other = of_rung(problem, twin, backend)
    assert rung.dtypes == ("float32",)
    assert other is not backend and not other.watches_calls
    on_gpu = Backend("cuda")
    assert of_rung(problem, twin, on_gpu) == (twin, on_gpu)


def test_a_rung_in_numba_is_checked_by_the_simulator() -> None:
    problem = softmax_problem(cases=grid([(2, 3)], ["float32"]))
    twin = Rung("twin", "", numba="softmax_numba")
    rung, other = of_rung(problem, twin, Backend("cpu"))
    assert rung == twin and not twin.of_library and "simulator" in interpreted(twin)
    assert not other.watches_calls


def test_input_as_output_is_rejected() -> None:
    problem = softmax_problem(reference=lambda x: x.clone(), cases=grid([(5, 7)], ["float32"]))
    rejected(lambda x: x, "shares its memory", problem=problem)


@pytest.mark.parametrize(("offset", "side"), [(1, "past its end"), (-1, "before its start")])
def test_write_outside_the_output_is_rejected(offset: int, side: str) -> None:
    def outside(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        place = y.numel() if offset > 0 else -1
        torch.as_strided(y, (1,), (1,), y.storage_offset() + place).fill_(1.0)
        return y.copy_(torch.softmax(x, -1))

    rejected(outside, "the output", f"1 element {side}")


def test_write_outside_an_input_is_rejected() -> None:
    def outside(x: torch.Tensor) -> torch.Tensor:
        torch.as_strided(x, (1,), (1,), x.storage_offset() + x.numel()).fill_(1.0)
        return torch.softmax(x, -1)

    rejected(outside, "argument x", "past its end")


def test_copying_the_band_of_the_input_is_seen() -> None:
    def copy(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        n = x.numel() + 1
        longer = torch.as_strided(y, (n,), (1,), y.storage_offset())
        longer.copy_(torch.as_strided(x, (n,), (1,), x.storage_offset()))
        return y

    for dtype in (*FLOATS, "int8", "int32"):
        problem = softmax_problem(reference=lambda x: x.clone(), cases=grid([(5, 7)], [dtype]))
        rejected(copy, "past its end", problem=problem)


def test_an_index_beyond_the_end_is_no_other_number_to_be_left_out() -> None:
    """In one of the calls, valid indices surround those of an argument."""

    def gathered(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(index.numel(), dtype=x.dtype)
        for place, i in enumerate(index.tolist()):
            if 0 <= i < x.numel():
                y[place] += x[i]
        return y

    def too_many(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        more = torch.as_strided(index, (index.numel() + 1,), (1,), index.storage_offset())
        found = gathered(x, more)
        return found[:-1] + 0 * found[0] + found[-1]

    problem = softmax_problem(
        inputs=lambda case, draw: (
            draw(*case.shape),
            draw(9, dtype="int64", low=0, high=case.shape[0]),
        ),
        reference=lambda x, index: x[index],
        cases=grid([(7,)], ["float32"]),
    )
    assert check(gathered, problem).failure is None
    rejected(too_many, "with large numbers in fresh memory", problem=problem)

    def writes(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        torch.as_strided(index, (1,), (1,), index.storage_offset() + index.numel()).fill_(-1)
        return gathered(x, index)

    rejected(writes, "argument index", "1 element written after it", problem=problem)


def test_stale_output_is_rejected() -> None:
    cache: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    def stale(x: torch.Tensor) -> torch.Tensor:
        key = (x.shape, x.dtype)
        if key not in cache:
            cache[key] = torch.softmax(x, -1)
        return cache[key].clone()

    rejected(stale, "second call", "the call before")

    def shared_buffer(x: torch.Tensor) -> torch.Tensor:
        key = (x.shape, x.dtype)
        if key not in cache:
            cache[key] = torch.empty_like(x)
        return cache[key].copy_(torch.softmax(x, -1))

    cache.clear()
    rejected(shared_buffer, "share a buffer", problem=softmax_problem(cases=grid([(3, 9)], FLOATS)))


def test_results_that_do_not_repeat_are_rejected_unless_declared() -> None:
    calls = []

    def drifting(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        y = torch.softmax(x, -1)
        return y.nextafter(torch.tensor(2.0)) if len(calls) % 3 == 0 else y

    problem = softmax_problem(cases=grid([(3, 257)], ["float32"]))
    rejected(drifting, "two runs on the same input differ in bits", problem=problem)
    calls.clear()
    result = check(drifting, problem, Rung("r", "i", not_repeatable="atomics"))
    assert result.failure is None
    assert any("atomics" in aside for aside in result.asides)


def test_race_between_orders_is_named() -> None:
    backend = FakeBackend()

    def race(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)
        return y + 0.25 if backend.order == "reverse" else y

    rejected(race, "reverse order", "a race", backend=backend)

    def small_race(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)
        return y.nextafter(torch.tensor(2.0)) if backend.order == "reverse" else y

    one = softmax_problem(cases=grid([(3, 257)], ["float32"]))
    rejected(small_race, "order in which threads run: a race", backend=backend, problem=one)

    def wrong_forward(x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x, -1)
        return y + 0.25 if backend.order == "forward" else y

    rejected(wrong_forward, "right with threads in reverse order", "a race", backend=backend)


# ---------------------------------------------------------------- written arguments


def test_written_arguments_are_outputs() -> None:
    problem = softmax_problem(
        inputs=lambda case, draw: (draw(*case.shape), draw(*case.shape)),
        reference=lambda out, x: out.copy_(x * 2),
        cases=grid(SHAPES, FLOATS),
    )

    def twice(out: torch.Tensor, x: torch.Tensor) -> None:
        out.copy_(x + x)

    def nothing(out: torch.Tensor, x: torch.Tensor) -> None:
        pass

    rejected(twice, "argument out was modified", problem=problem)
    for call in (twice, nothing):
        vars(call)["writes"] = ("out",)
    assert check(twice, problem).failure is None
    rejected(nothing, "argument out", "wrong", "nothing was written", problem=problem)
    # A reference that returns nothing but writes like the rung is equivalent.
    writing = replace(problem, reference=lambda out, x: (out.copy_(x * 2), None)[1])
    assert check(twice, writing).failure is None


def test_each_tensor_of_a_written_list_is_an_output() -> None:
    def inputs(case: Case, draw: Draw) -> tuple[list[torch.Tensor], torch.Tensor]:
        return [draw(*case.shape), draw(*case.shape)], draw(*case.shape)

    def reference(outs: list[torch.Tensor], x: torch.Tensor) -> None:
        outs[0].copy_(x * 2)
        outs[1].copy_(x * 3)

    problem = softmax_problem(inputs=inputs, reference=reference, cases=grid(SHAPES, FLOATS))

    def both(outs: list[torch.Tensor], x: torch.Tensor) -> None:
        outs[0].copy_(x + x)
        outs[1].copy_(x + x + x)

    def first(outs: list[torch.Tensor], x: torch.Tensor) -> None:
        outs[0].copy_(x + x)

    rejected(both, "argument outs was modified", problem=problem)
    for call in (both, first):
        vars(call)["writes"] = ("outs",)
    assert check(both, problem).failure is None
    rejected(first, "argument outs, tensor 1", "wrong", problem=problem)
    signature = signature_of(both)
    outs = [torch.zeros(2), torch.ones(2)]
    _, names = outputs_of(None, (outs, torch.ones(2)), signature)
    assert names == ["argument outs, tensor 0", "argument outs, tensor 1"]
    _, names = outputs_of(outs[1], (outs, torch.ones(2)), signature)
    assert names == ["argument outs, tensor 1, returned", "argument outs, tensor 0"]


# ---------------------------------------------------------------- gradients


class _Square(torch.autograd.Function):
    factor = 2.0

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return grad * x * _Square.factor


def test_gradients() -> None:
    problem = softmax_problem(
        reference=lambda x: x.square(), gradients=True, cases=grid([(5, 7), (1, 1)], FLOATS)
    )
    assert check(lambda x: _Square.apply(x), problem).failure is None
    _Square.factor = 2.01
    try:
        rejected(lambda x: _Square.apply(x), "the gradient of x", problem=problem)
    finally:
        _Square.factor = 2.0
    rejected(lambda x: (x * x).detach(), "no backward", problem=problem)


def test_a_gradient_may_have_other_strides_than_pytorchs() -> None:
    class Transposed(_Square):
        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return _Square.backward(ctx, grad).t().contiguous().t()

    problem = softmax_problem(
        reference=lambda x: x.square(), gradients=True, cases=grid([(5, 7)], ["float32"])
    )
    assert check(lambda x: Transposed.apply(x), problem).failure is None


def test_a_gradient_is_written_inside_its_memory() -> None:
    class Beyond(_Square):
        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            right = _Square.backward(ctx, grad)
            given = torch.empty_like(right).copy_(right)
            given.as_strided((1,), (1,), given.storage_offset() + given.numel()).zero_()
            return given

    problem = softmax_problem(
        reference=lambda x: x.square(), gradients=True, cases=grid([(5, 7)], ["float32"])
    )
    words = ("in the backward pass, memory", "1 element past its end")
    rejected(lambda x: Beyond.apply(x), *words, problem=problem)


# ---------------------------------------------------------------- references


def test_few_outputs_get_a_bound_that_is_not_luck() -> None:
    def in_order(x: torch.Tensor) -> torch.Tensor:
        lanes = x.view(64, -1)
        total = torch.zeros(64)
        for column in range(lanes.shape[1]):
            total = total + lanes[:, column]
        while total.numel() > 1:
            half = total.numel() // 2
            total = total[:half] + total[half:]
        return total.reshape(())

    problem = softmax_problem(reference=lambda x: x.sum(), cases=grid([(1 << 14,)], ["float32"]))
    assert check(in_order, problem).failure is None
    rejected(lambda x: x[:-1].sum(), "the only element is wrong", problem=problem)


def test_reference_that_leaves_float64_is_refused() -> None:
    problem = softmax_problem(reference=lambda x: torch.softmax(x.float(), -1))
    rejected(softmax_in_parts, "promote_types", problem=problem)


def test_reference_that_raises_is_a_failure_of_the_day() -> None:
    problem = softmax_problem(reference=lambda x: torch.softmax(x, 7))
    rejected(softmax_in_parts, "reference of 'softmax' raised", problem=problem)


def test_missing_kernel_of_pytorch_falls_back_to_float32() -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float16:
            raise RuntimeError("\"softmax\" not implemented for 'Half'")
        return torch.softmax(x, -1)

    result = check(softmax_in_parts, softmax_problem(reference=reference))
    assert result.failure is None, str(result.failure)
    assert any("float16" in aside for aside in result.asides)


def test_integer_problem() -> None:
    problem = softmax_problem(
        reference=lambda x: x + 1, cases=grid(SHAPES, ["int32", "uint8", "int64"])
    )
    assert check(lambda x: 1 + x, problem).failure is None
    rejected(lambda x: x + 1 + (x == x.max()), "wrong", problem=problem)


def test_outputs_of_somebody_else_are_judged() -> None:
    problem = softmax_problem()
    args = (Draw(Case((3, 9)), FakeBackend(), 1)(3, 9),)
    call = softmax_in_parts
    expected = partial(evaluate, problem, args)

    def judged(result: torch.Tensor) -> Any:
        return check_outputs(problem, call, expected, lambda writes: [], args, result)

    assert judged(call(*args)) is None
    assert judged(call(*args) * 2) is not None


# ---------------------------------------------------------------- features of a GPU


class FakeGraph:
    """A graph that replays by calling again on the same arguments and copying into the same
    outputs."""

    current: FakeGraph | None = None

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., torch.Tensor], tuple[object, ...], torch.Tensor]] = []

    def capture_begin(self, capture_error_mode: str) -> None:
        FakeGraph.current = self

    def capture_end(self) -> None:
        FakeGraph.current = None

    def replay(self) -> None:
        for call, args, output in self.calls:
            output.copy_(call(*args))


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """Replace the functions of torch.cuda that the checker calls, so that its steps run without a
    GPU."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    return FakeBackend(name="cuda", orders=(Schedule("hardware"),))


def on_gpu(kernel: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a rung whose launches a FakeGraph records."""

    def call(x: torch.Tensor) -> torch.Tensor:
        output = kernel(x)
        if FakeGraph.current is not None:
            FakeGraph.current.calls.append((kernel, (x,), output))
        return output

    return call


def test_captured_and_replayed(fake_gpu: FakeBackend) -> None:
    result = check(on_gpu(softmax_in_parts), backend=fake_gpu)
    assert result.failure is None, str(result.failure)

    def baked(x: torch.Tensor) -> torch.Tensor:
        """Read a value on the host at capture; the replay does not see another one."""
        y = torch.softmax(x, -1)
        if FakeGraph.current is not None:
            then = y.clone()
            FakeGraph.current.calls.append((lambda x: then, (x,), y))
        return y

    problem = softmax_problem(cases=grid([(3, 257)], FLOATS))
    rejected(baked, "replayed from a CUDA graph", backend=fake_gpu, problem=problem)

    def refuses(x: torch.Tensor) -> torch.Tensor:
        if FakeGraph.current is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return torch.softmax(x, -1)

    rejected(refuses, "captured in a CUDA graph", "not_captured", backend=fake_gpu, problem=problem)
    assert FakeGraph.current is None
    excused = check(refuses, problem, Rung("r", "i", not_captured="it waits"), backend=fake_gpu)
    assert excused.failure is None
    assert excused.asides == ["not captured in a CUDA graph: it waits"]


def test_work_on_another_stream(fake_gpu: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # The copy of the true input is still waiting while the rung already reads.
    monkeypatch.setattr("common.check.steps.streams.fill", lambda into, source: None)
    problem = softmax_problem(cases=grid([(3, 257)], FLOATS))
    rejected(
        on_gpu(softmax_in_parts), "on a side stream", "current stream",
        backend=fake_gpu, problem=problem,
    )  # fmt: skip
