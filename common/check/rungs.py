"""Check a rung on every declared case: its results, and its behaviour as an operator."""

from __future__ import annotations

import math
import os
import time
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from common.base.declaration import Case, Problem, Rung
from common.base.outcome import Skip
from common.base.paths import ROOT
from common.check.call import (
    Call,
    Failure,
    call_guarded,
    first_difference,
    judge,
    not_a_kernels,
    outputs_of,
    raised,
    side_effects,
)
from common.check.draw import NONFINITE_ROWS, Draw
from common.check.expected import (
    RAISED,
    Expected,
    Gradients,
    ProblemError,
    Signature,
    backward,
    check_same_in_both,
    evaluate,
    expectations,
    expected_gradients,
    map_tensors,
    message_of,
    rolled_samples,
    samples_needed,
    signature_of,
)
from common.check.guard import bits
from common.check.lacks import Lacking, lacking
from common.check.misread import misread
from common.check.patterns import ROUNDINGS, Behaviour, Look, habits, sizes
from common.check.random_case import SEED_VARIABLE, random_case, session_seed
from common.check.refusal import GAVE_UP, names_one_of
from common.check.tiny_case import tiny_case

if TYPE_CHECKING:
    from common.check.device import Backend, Schedule

# PyTorch then asks the driver for every tensor, which is not allowed while a graph is captured.
UNCACHED = bool(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"))
SLEEP_CYCLES = 20_000_000  # of the GPU, about 10 ms: longer than it takes to issue a launch


@dataclass
class CheckResult:
    """The outcome of a check. checked: number of cases tried, including a failing one. failure: the
    first one, after which no further case is tried. fallbacks: work that the launcher passed to
    another rung's kernel, and why, for each such case. remarks: checks skipped because something is
    missing, and why. asides: checks done differently, or skipped, as the day declares."""

    checked: int = 0
    failure: Failure | None = None
    fallbacks: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    asides: list[str] = field(default_factory=list)

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def aside(self, text: str) -> None:
        if text and text not in self.asides:
            self.asides.append(text)


class _CaseCheck:
    """All checks of one rung on one case."""

    def __init__(
        self,
        problem: Problem,
        rung: Rung,
        call: Callable[..., Any],
        case: Case,
        backend: Backend,
        schedules: Sequence[Schedule],
        result: CheckResult,
        explain: bool = False,
    ):
        self.problem = problem
        self.rung = rung
        self.call = call
        self.case = case
        self.backend = backend
        self.schedules = schedules
        self.result = result
        self.explain = explain
        self.wrong: Call | None = None  # the first call, if its values were wrong in each order
        self.wrong_values = False  # of the first call, in any order
        self.reading = ""  # how that call misread its input, in words
        self.lacks = ""  # what the card lacked in `right_or_refused`
        self.signature = signature_of(call, problem.reference)
        self.first = self._expected(0)
        self.second = self._expected(1)
        first, second = (_shapes(each.args) for each in (self.first, self.second))
        if first != second:
            raise ProblemError(
                f"the inputs of {problem.name!r} must have the same shapes for every seed, got "
                f"{first} and {second}"
            )
        result.aside(self.first.aside)

    def _expected(self, draw: int) -> Expected:
        """Return the expected results for the `draw`-th set of inputs of this case."""
        key = (self.case, self.signature.writes, draw)
        return expectations.get(
            self.problem, self.backend.device, key, lambda: self._evaluated(draw)
        )

    def _evaluated(self, draw: int) -> Expected:
        problem, names = self.problem, self.signature.names
        drawn = Draw(self.case, self.backend, zlib.crc32(str(self.case).encode()) + draw)
        args = problem.inputs(self.case, drawn)
        if not isinstance(args, tuple):
            raise ProblemError(
                f"the inputs of {problem.name!r} must be a tuple of arguments, "
                f"got {type(args).__name__}"
            )
        if len(args) > len(names):
            raise ProblemError(
                f"the inputs of {problem.name!r} are {len(args)} arguments, the rung takes "
                f"{len(names)}: {', '.join(names)}"
            )
        try:
            expected = evaluate(problem, args, self.signature.writes)
        except RAISED as error:
            raise ProblemError(
                f"the reference of {problem.name!r} raised {type(error).__name__}: "
                f"{message_of(error)}"
            ) from error
        if self.case.values == "normal":
            check_same_in_both(problem, expected)
        expected.on_host = drawn.on_host
        return expected

    def _samples(self) -> list[Expected]:
        """Return the results on further inputs of the case, for PyTorch's error."""
        return [
            self._expected(draw) for draw in range(1, 1 + samples_needed(self.problem, self.first))
        ]

    def _judge(
        self,
        expected: Expected,
        outputs: list[Tensor],
        names: list[str],
        looks: Sequence[Look] = (),
    ) -> Failure | None:
        return judge(
            self.problem, expected, outputs, names, self.signature, self._samples, looks=looks
        )

    def _judge_call(
        self, expected: Expected, done: Call, looks: Sequence[Look] = ()
    ) -> Failure | None:
        """Return the failure of a call that returned, or None; for wrong values, with the CPU
        backend's observations."""
        look = Look(done.watched.launches, explained=_undefined(done))
        looks = looks or [look] * len(done.outputs)
        failure = self._judge(expected, done.outputs, done.names, looks)
        if failure is None or not failure.values:
            return failure
        return _with_hints(failure, _seen(done))

    def _attempt(
        self,
        expected: Expected,
        variant: int = 0,
        compare_values: bool = True,
        into: Call | None = None,
        late: bool = False,
    ) -> tuple[Call | None, Failure | None]:
        """Return one guarded call and its failure; None for either. into, late: see
        `call_guarded`."""
        try:
            done = call_guarded(
                self.call,
                self.signature,
                expected.args,
                self.backend,
                variant,
                expected.on_host,
                into,
                late=late,
            )
        except Exception as error:
            return None, raised(error)
        failure = side_effects(done, expected.args, self.signature)
        if failure is None and compare_values:
            failure = self._judge_call(expected, done)
        if failure is None:
            failure = not_a_kernels(done, self.rung, self.backend, expected.on_host)
        return done, failure

    def first_call(self) -> Failure | None:
        """Return the failure of the first call alone, without the case's name."""
        self.backend.use(self.schedules[0])
        return self._attempt(self.first)[1]

    def run(self) -> Failure | None:
        """Return the first failure, without the case's name."""
        self.backend.use(self.schedules[0])
        done, failure = self._attempt(self.first)
        if failure is not None:
            return self._explained(done, failure)
        assert done is not None
        kept = [output.clone() for output in done.outputs]
        steps: list[Callable[[], Failure | None]] = [
            lambda: self._second_call(done, kept),
            lambda: self._same_again(kept),
            lambda: self._other_orders(kept),
        ]
        if self.case.values == "nonfinite":
            steps.append(self._further_rows)
        if self.problem.several_streams:
            steps.append(self._late_streams)
        if self.backend.name == "cuda":
            steps.append(self._side_stream)
            if not self.rung.not_captured and not UNCACHED:
                steps.append(self._graph)
        if self.problem.gradients:
            steps.append(self._gradients)
        for step in steps:
            failure = step()
            if failure is not None:
                return failure
        return None

    def _explained(self, done: Call | None, failure: Failure) -> Failure:
        """Return the first call's failure, with hints from other calls on the same input."""
        if done is None:
            return failure
        self.wrong_values = failure.values
        right = next((order for order in self._further_orders() if self.right(order)), None)
        if right is not None:
            orders = {str(self.schedules[0]): False, str(right): True}
            repeats = not self.right(self.schedules[0])
            seen = Behaviour(orders, repeats, undefined=_undefined(done))
            return _with_habits(self._explained_elsewhere(done, failure), seen)
        self.backend.use(self.schedules[0])
        if len(self.schedules) == 1 and not self.rung.not_repeatable:
            again, _ = self._attempt(self.first, compare_values=False)
            if again is not None and first_difference(done.outputs, again.outputs, done.names):
                hint = (
                    "a second run gives other values: is there a race, or is memory read unwritten?"
                )
                return _with_hints(self._explained_elsewhere(done, failure), [hint])
        if not failure.values:
            return failure
        self.wrong = done
        return self._looked_at(done) if self.explain else failure

    def _explained_elsewhere(self, done: Call, failure: Failure) -> Failure:
        """Return the failure without hints from the size of an error, since other calls explain
        it."""
        looks = [Look(explained=True)] * len(done.outputs)
        return (self._judge_call(self.first, done, looks) or failure) if failure.values else failure

    def _looked_at(self, done: Call) -> Failure:
        """Return the failure of wrong values, explained by further calls on the same input."""
        again, fault = self._attempt(self.first, variant=2)
        differ = self._differing_orders(done)
        self.reading = self.misread(done)
        known = Look(
            done.watched.launches, explained=bool(differ or self.reading or _undefined(done))
        )
        looks = [known] * len(done.outputs)
        if again is not None and len(again.outputs) == len(done.outputs):
            looks = [
                replace(known, again=output, untouched=again.memory.untouched(output))
                for output in again.outputs
            ]
        better = self._judge_call(self.first, done, looks)
        assert better is not None
        better = _with_hints(better, [self.reading])
        better = _with_habits(better, Behaviour(differ=differ, undefined=_undefined(done)))
        if again is None or fault is not None:
            return better
        fresh = (False, self.right()), (True, self.right(variant=2))
        return _with_habits(better, Behaviour(fresh=fresh))

    def misread(self, done: Call) -> str:
        """Return how a call with wrong outputs misread the first input, or "" if unknown."""
        return misread(
            self.problem, self.first, done.outputs, self.signature, done.watched.launches
        )

    def _differing_orders(self, done: Call) -> tuple[str, ...]:
        """Return the first order and another one with a different wrong result; () if there is
        none, or if the first order itself gives different results."""
        if self.rung.not_repeatable or not self._repeats(done.outputs):
            return ()
        for schedule in self._further_orders():
            self.backend.use(schedule)
            other, _ = self._attempt(self.first, compare_values=False)
            self.backend.use(self.schedules[0])
            if other and first_difference(done.outputs, other.outputs, done.names):
                return str(self.schedules[0]), str(schedule)
        return ()

    def _further_orders(self) -> Sequence[Schedule]:
        """Return the orders in which a wrong call is tried again: with `explain`, more than a right
        one needs."""
        return (self.backend.schedules() if self.explain else self.schedules)[1:]

    def right(self, schedule: Schedule | None = None, variant: int = 0) -> bool:
        """Return True if a call on the first input is right."""
        if schedule is not None:
            self.backend.use(schedule)
        return self._attempt(self.first, variant)[1] is None

    def _floating(self) -> list[tuple[Tensor, Tensor]]:
        """Return (output, truth) in float64 of the wrong call, for its floating outputs."""
        assert self.wrong is not None
        pairs = self.first.pairs(len(self.wrong.outputs)) or []
        return [
            (got.double(), truth.double())
            for got, (truth, _) in zip(self.wrong.outputs, pairs, strict=False)
            if got.dtype.is_floating_point and got.shape == truth.shape
        ]

    def not_finite(self) -> bool:
        """Return True if the first call gave infinities or NaN where finite numbers are
        expected."""
        return any(
            bool((truth.isfinite() & ~got.isfinite()).any()) for got, truth in self._floating()
        )

    def near(self) -> bool:
        """Return True if the first call's error is within what accumulated roundings in 16 bits
        explain."""
        if self.case.dtype not in ("float16", "bfloat16"):
            return False
        allowed = ROUNDINGS * torch.finfo(getattr(torch, self.case.dtype)).eps
        found = self._floating()
        return bool(found) and all(
            bool(((got - truth).abs() <= allowed * (truth.abs() + truth.norm() / size)).all())
            for got, truth in found
            if (size := max(truth.numel(), 1) ** 0.5)
        )

    def _repeats(self, kept: list[Tensor]) -> bool:
        """Return True if the first order gives these outputs again."""
        self.backend.use(self.schedules[0])
        again, _ = self._attempt(self.first)
        return again is not None and first_difference(kept, again.outputs, again.names) is None

    def _second_call(self, done: Call, kept: list[Tensor]) -> Failure | None:
        """Check other numbers in the same memory: the first call must leave nothing that changes
        them."""
        again, failure = self._attempt(self.second, into=done)
        if failure is not None:
            details = failure.details
            if again is not None and first_difference(kept, again.outputs, done.names) is None:
                details = [
                    "hint: it is the result of the call before, on other inputs in the same "
                    "memory: is a result kept by the address of its input?",
                    *details,
                ]
            summary = f"in a second call, on other inputs, {failure.summary}"
            second = replace(failure, summary=summary, details=details)
            if not self.explain:
                return second
            calls = (True, False, self.right(), self.right())
            return _with_habits(second, Behaviour(calls=calls))
        assert again is not None
        if again.memory is done.memory:  # arguments were rewritten for the second call
            pairs = zip(done.outputs, kept, done.names, strict=True)
            own = [(now, was, name) for now, was, name in pairs if not name.startswith("argument")]
            changed = first_difference(
                [was for _, was, _ in own], [now for now, _, _ in own], [name for *_, name in own]
            )
        else:
            changed = first_difference(kept, done.outputs, done.names)
        if changed is not None:
            return Failure(
                "a second call overwrote the result of the first",
                ["the two share a buffer: allocate the output in each call", changed],
            )
        return None

    def _same_again(self, kept: list[Tensor]) -> Failure | None:
        """Check the same input again, with other numbers in all unwritten memory."""
        again, failure = self._attempt(self.first, variant=1)
        if failure is not None:
            summary = f"with large numbers in fresh memory instead of NaN, {failure.summary}"
            fresh = (True, self.right()), (False, self.right(variant=1))
            seen = _with_habits(replace(failure, summary=summary), Behaviour(fresh=fresh))
            if seen.details != failure.details:
                return seen
            return _with_hints(seen, ["is memory read that was not written, or do runs differ?"])
        assert again is not None
        difference = first_difference(kept, again.outputs, again.names)
        if difference is None or self.rung.not_repeatable:
            return None
        return Failure(
            "two runs on the same input differ in bits",
            [
                difference,
                "does the order of the additions change (atomics), or is memory read unwritten? If "
                "it is meant, the rung says why in not_repeatable",
            ],
        )

    def _other_orders(self, kept: list[Tensor]) -> Failure | None:
        for schedule in self.schedules[1:]:
            self.backend.use(schedule)
            done, failure = self._attempt(self.first)
            orders = {str(self.schedules[0]): True, str(schedule): False}
            if failure is not None:
                wrong = failure if done is None else self._explained_elsewhere(done, failure)
                summary = f"with threads in {schedule} order, {wrong.summary}"
                wrong = replace(wrong, summary=summary)
                seen = Behaviour(orders, self._repeats(kept), undefined=_undefined(done))
                return _with_habits(wrong, seen)
            assert done is not None
            difference = first_difference(kept, done.outputs, done.names)
            if difference is not None and not self.rung.not_repeatable:
                cause = (
                    "the result depends on the order in which threads run: a race"
                    if self._repeats(kept)
                    else f"another call in {self.schedules[0]} order differs as well: it depends "
                    "on what ran before, on memory that is not written, or on chance"
                )
                if _undefined(done):
                    cause = "the result depends on the order in which threads run"
                differs = Failure(
                    f"with threads in {schedule} order, the result differs in bits",
                    [cause, f"{self.schedules[0]} order against {schedule} order: {difference}"],
                )
                return _with_hints(differs, _seen(done))
        self.backend.use(self.schedules[0])
        return None

    def _late_streams(self) -> Failure | None:
        """Check on the CPU backend with streams that run their work as late as legal."""
        for schedule in self.backend.late_schedules():
            self.backend.use(schedule)
            failure = self._attempt(self.first, late=True)[1]
            if failure is not None:
                hint = "does a stream lack an event that it has to wait for?"
                summary = f"with late streams ({schedule} order), {failure.summary}"
                return _with_hints(replace(failure, summary=summary), [hint])
        self.backend.use(self.schedules[0])
        return None

    def _further_rows(self) -> Failure | None:
        """Check further draws, so that every kind of row occurs, even if a case has only one
        row."""
        for draw in range(2, NONFINITE_ROWS):
            failure = self._attempt(self._expected(draw))[1]
            if failure is not None:
                return replace(failure, summary=f"on its draw {draw}, {failure.summary}")
        return None

    def leaks(self) -> Failure | None:
        """Call three times, and report memory that each call does not free as a leak."""
        memories, grown = [], []
        for _ in range(3):
            done, failure = self._attempt(self.first, compare_values=False)
            if failure is not None:
                return failure
            assert done is not None
            memories.append(done.memory)
            grown.append(done.watched.allocations)
            del done
        held = [memory.still_held() for memory in memories]
        if sum(map(bool, held)) > 1:
            return Failure(
                "a leak: tensors of earlier calls are still held",
                [f"{len(each)} after one call: {each[0]}" for each in held if each],
            )
        if min(grown[1:]) > 0:
            return Failure(
                "a leak: each call leaves memory allocated",
                [f"{grown[-1]} more allocations of cudaMalloc or its like after each call"],
            )
        return None

    def on_small_card(self, shared: bool = False) -> Failure | None:
        """Check on a card with few multiprocessors, little shared memory and small grids, so that
        this case takes the paths of a large one. The call may be refused for a reason. shared: keep
        the usual shared memory."""
        with self.backend.small_card(shared):
            failure = self.right_or_refused()
        if failure is None:
            return None
        memory = "" if shared else " 2 KB of shared memory to opt in to,"
        return replace(
            failure,
            summary=f"on a small card (2 multiprocessors with one block each,{memory} 3 blocks "
            f"along y), {failure.summary}",
        )

    def right_or_refused(self) -> Failure | None:
        """Check one call, which may also be refused by the name of an argument. Store in `lacks`
        what the card lacks."""
        self.backend.use(self.schedules[0])
        args = self.first.args
        try:
            done = call_guarded(
                self.call, self.signature, args, self.backend, on_host=self.first.on_host
            )
        except Exception as error:
            message = message_of(error)
            self.lacks = lacking(message)
            refused = self.lacks or names_one_of(message, self.signature.names)
            return None if refused and not GAVE_UP.search(message) else raised(error)
        failure = side_effects(done, args, self.signature)
        return failure or self._judge_call(self.first, done)

    def expanded_gradient(self) -> Failure | None:
        """Check with an upstream gradient of stride 0, as `y.sum().backward()` gives: one row for
        all."""
        self.backend.use(self.schedules[0])
        expected = expected_gradients(self.problem, self.first.args, self.signature, expanded=True)
        failure, _ = gradients_of(
            self.problem, self.call, self.first.args, self.signature, expected, self.backend
        )
        if failure is None:
            return None
        return replace(
            failure, summary=f"with an upstream gradient of one row, expanded, {failure.summary}"
        )

    def _side_stream(self) -> Failure | None:
        """Check on a busy stream, on which the true input arrives only after that work."""
        stale = map_tensors(torch.clone, self.second.args)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                torch.cuda._sleep(SLEEP_CYCLES)
                _fill(stale, self.first.args)
                result = self.call(*stale)
            torch.cuda.synchronize()
            outputs, names = outputs_of(result, stale, self.signature)
        except Exception as error:
            return raised(error, "on a side stream, ")
        failure = self._judge(self.first, outputs, names)
        if failure is None:
            return None
        hint = "is some work not on the current stream, so that it reads its input too early?"
        return _with_hints(replace(failure, summary=f"on a side stream, {failure.summary}"), [hint])

    def _graph(self) -> Failure | None:
        """Check a CUDA graph, captured with one input and replayed with another in the same
        memory."""
        static = map_tensors(torch.clone, self.first.args)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            result = self._capture(graph, static)
            outputs, names = outputs_of(result, static, self.signature)
            for output, name in zip(outputs, names, strict=True):
                if not name.startswith("argument") and output.numel():
                    bits(output).fill_(-1)
            _fill(static, self.second.args)
            graph.replay()
            torch.cuda.synchronize()
        except Exception as error:
            failure = raised(error, "captured in a CUDA graph, ")
            note = "if it cannot be captured, the rung says why in not_captured"
            return replace(failure, details=[*failure.details, note])
        wrong = self._judge(self.second, outputs, names)
        if wrong is None:
            return None
        hint = (
            "the graph was captured with other inputs: was something computed once, at capture, or "
            "on another stream?"
        )
        summary = f"replayed from a CUDA graph, {wrong.summary}"
        return _with_hints(replace(wrong, summary=summary), [hint])

    def _capture(self, graph: torch.cuda.CUDAGraph, args: tuple[Any, ...]) -> Any:
        """Return the call's result while it is captured."""
        # torch.cuda.graph would empty the allocator's cache each time, which would take longer
        # than everything else.
        stream = torch.cuda.Stream()
        with torch.no_grad(), warnings.catch_warnings(), torch.cuda.stream(stream):
            # A case without elements launches nothing.
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                result = self.call(*args)
            except BaseException:
                # The capture is invalid, and ending it raises; the call's exception has the cause.
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        return result

    def _gradients(self) -> Failure | None:
        expected = expected_gradients(self.problem, self.first.args, self.signature)
        before: list[Tensor] | None = None
        for schedule in self.schedules:
            self.backend.use(schedule)
            for _ in range(2):
                failure, found = gradients_of(
                    self.problem, self.call, self.first.args, self.signature, expected, self.backend
                )
                if failure is not None:
                    return replace(failure, summary=f"{failure.summary} ({schedule} order)")
                names = expected.names
                difference = first_difference(before, found, names) if before else None
                if difference is not None and not self.rung.not_repeatable:
                    return Failure("two backward passes on one input differ", [difference])
                before = found
        self.backend.use(self.schedules[0])
        return None


def _seen(done: Call) -> list[str]:
    """Return the CPU backend's observations of a call whose result is wrong."""
    said = []
    if done.watched.early_return:
        said.append(f"{done.watched.early_return}: was something left for them to do before it?")
    said.append(done.watched.undefined_shuffle)
    return [text.replace(f"{ROOT}/", "") for text in said]


def _undefined(done: Call | None) -> bool:
    return done is not None and bool(done.watched.undefined_shuffle)


def _with_hints(failure: Failure, hints: Sequence[str], last: bool = False) -> Failure:
    """Return the failure with the hints that are not "" before its details or, if `last`, after the
    hints that these begin with."""
    said = [f"hint: {text}" for text in hints if text]
    place = 0
    while last and place < len(failure.details) and failure.details[place].startswith("hint: "):
        place += 1
    details = [*failure.details[:place], *said, *failure.details[place:]]
    return replace(failure, details=details)


def _with_habits(failure: Failure, seen: Behaviour) -> Failure:
    """Return the failure with hints from the behaviour; those from sizes only if there are no
    others, and after the hints about the output."""
    said = habits(seen)
    return _with_hints(failure, said) if said else _with_hints(failure, sizes(seen), last=True)


def _shapes(args: tuple[Any, ...]) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]


def _fill(into: tuple[Any, ...], source: tuple[Any, ...]) -> None:
    """Copy the tensors of one set of arguments into another, on the current stream."""
    for mine, theirs in zip(tree_leaves(into), tree_leaves(source), strict=True):
        if isinstance(mine, Tensor):
            mine.copy_(theirs, non_blocking=True)


def gradients_of(
    problem: Problem,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    signature: Signature,
    expected: Gradients,
    backend: Backend,
) -> tuple[Failure | None, list[Tensor]]:
    """Return the failure of the rung's gradients, or None, and the gradients."""
    try:
        with backend.watching():
            found = backward(call, args, expected.places, expected.upstream)
        backend.synchronize()
    except Exception as error:
        return raised(error, "in the backward pass "), []
    # Any strides are accepted: PyTorch's gradient may be a view of something else.
    failure = judge(problem, expected.expected, found, expected.names, signature, strides=False)
    return failure, found


def _volume(case: Case) -> int:
    return math.prod(case.shape)


def quick_cases(cases: Sequence[Case]) -> list[Case]:
    """Return one case per dtype: a small one, with an odd size in its shape if there is one."""

    def rank(case: Case) -> tuple[bool, bool, bool, int]:
        volume = _volume(case)
        odd = any(size % 2 and size > 1 for size in case.shape)
        return (case.values != "normal", volume < 2, not odd, volume)

    best: dict[str, Case] = {}
    for case in cases:
        if case.dtype not in best or rank(case) < rank(best[case.dtype]):
            best[case.dtype] = case
    return list(best.values())


MORE_CASES = 4  # that a quick check adds if a rung has only fallen back so far


def _until_own_kernel(
    chosen: Sequence[Case], cases: Sequence[Case], result: CheckResult, lacks: Collection[str]
) -> Iterator[Case]:
    """Yield the chosen cases, then a few others, the smallest first, until the rung's own kernel
    computed one: the kernel of a fallback has a separate check."""
    yield from chosen
    others = dict.fromkeys(case for case in cases if case not in chosen)
    for case in sorted(others, key=_volume)[:MORE_CASES]:
        if lacks or len(result.fallbacks) < result.checked:
            return
        yield case


def check_rung(
    problem: Problem,
    rung: Rung,
    call: Callable[..., Any],
    backend: Backend,
    *,
    fallback: Callable[[], str] = str,
    quick: bool = False,
    one_order: bool = False,
    first_calls: bool = False,
    explain: bool = False,
) -> CheckResult:
    """Check a rung on all cases of its dtypes, until the first failure.

    call: an operator of torch.ops or a Python function. fallback: returns, after a case, the rung
    whose kernel did the work instead ("" for none). quick: use only the cases of `quick_cases`,
    with others if all of these fell back, and one thread order unless more were requested; if
    accesses are traced, also one case with several blocks. one_order: use one order, with all
    cases. first_calls: make one call on each case, and check only the first two items of this list.
    explain: make further calls of a failing rung to find the cause, and show a tiny case if its
    values are wrong. On each case, with the outputs and all memory that the operator allocates
    poisoned and between guard bands:

    - the result is compared with the reference in float64: values, shape, dtype, device, strides;
    - nothing is written outside of tensors, and no argument that the schema does not mark;
    - a second call on other inputs, then one on the first input with other poison, give equal bits;
    - on the CPU every thread order, and late streams if the problem uses several; on CUDA a busy
      side stream and a CUDA graph replayed with changed input; gradients if the problem has them;
    - unless quick, one case of a random shape (common/check/random_case.py).

    A case that the rung refuses because the card lacks something (common/check/lacks.py) is left
    out, with a remark. Raise Skip, naming what the card lacks, if this holds for all cases.
    """
    result = CheckResult()
    cases = problem.cases_of(rung)
    lacks: dict[str, Case] = {}
    if not cases:
        result.failure = Failure(
            f"no case to check: the problem's cases are of {_dtypes(problem.cases)}, "
            f"the rung takes {', '.join(rung.dtypes)}"
        )
        return result
    schedules = backend.schedules(quick or one_order)
    if quick:
        several = _several_blocks(problem, cases, backend) if backend.traces else []
        chosen = list(dict.fromkeys([*quick_cases(cases), *several]))
        others = [] if backend.traces else cases  # they may take minutes to trace
        walk = _until_own_kernel(chosen, others, result, lacks)
    else:
        walk = iter(cases)
    not_captured = rung.not_captured or (UNCACHED and "memory is not cached, so it would allocate")
    if not_captured and backend.name == "cuda":
        result.aside(f"not captured in a CUDA graph: {not_captured}")
    if rung.not_repeatable:
        result.aside(f"two runs are not compared bit for bit: {rung.not_repeatable}")
    tried: list[Case] = []
    for case in walk:
        result.checked += 1
        tried.append(case)
        try:
            check = _CaseCheck(problem, rung, call, case, backend, schedules, result, explain)
            failure = check.first_call() if first_calls else check.run()
            if explain and check.wrong is not None and failure is not None:
                failure = _with_habits(failure, _among_cases(check, tried[:-1]))
            if explain and check.wrong_values and failure is not None:
                backend.use(schedules[0])
                failure = replace(failure, example=tiny_case(problem, rung, call, case, backend))
        except Lacking as lacking:
            result.checked -= 1
            lacks.setdefault(str(lacking), case)
            fallback()  # clears this case's fallback before the next case
            continue
        except ProblemError as error:
            failure = Failure(str(error))
        if failure is not None:
            result.failure = failure.about(problem.case_words(case))
            return result
        if text := fallback():
            result.fallbacks.append(text)
    if lacks and result.checked == 0:
        raise Skip("; ".join(lacks))
    if result.checked and not first_calls:
        result.failure = _beyond_results(problem, rung, call, tried, backend, quick, not one_order)
    if result.failure is not None:
        return result
    for text, case in lacks.items():
        result.remark(f"not checked on every case: {case}: {text}")
    return result


@dataclass(frozen=True)
class Once:
    """One call of a rung. arguments: their names. failure: None if the result is right. error: the
    largest difference of a finite element from the reference in float64."""

    arguments: tuple[str, ...]
    failure: Failure | None
    error: float = 0.0


def call_once(
    problem: Problem, rung: Rung, call: Callable[..., Any], case: Case, backend: Backend
) -> Once:
    """Call a rung on a case and compare its outputs with the reference, as `check_rung` does first.

    Raise Lacking if the card lacks something.
    """
    schedules = backend.schedules(quick=True)
    try:
        check = _CaseCheck(problem, rung, call, case, backend, schedules, CheckResult())
    except ProblemError as error:
        return Once((), Failure(str(error)))
    backend.use(schedules[0])
    done, failure = check._attempt(check.first)
    arguments = check.signature.names[: len(check.first.args)]
    if done is None or failure is not None:
        return Once(arguments, failure)
    pairs = check.first.pairs(len(done.outputs)) or []
    errors = [
        (got.double() - truth.double()).abs()
        for got, (truth, _) in zip(done.outputs, pairs, strict=True)
        if not got.is_complex()
    ]
    finite = [error[error.isfinite()] for error in errors]
    return Once(arguments, None, max((float(e.max()) for e in finite if e.numel()), default=0.0))


TRYING = 2.0  # seconds for other cases of a rung that is wrong


def _among_cases(failed: _CaseCheck, right: Sequence[Case]) -> Behaviour:
    """Return which other cases are right, by size and by dtype. right: the cases known to be right.

    On the CPU backend only: on the next case the same mistake may be an illegal access, which would
    leave a GPU in error.
    """
    if not failed.backend.watches_calls:
        return Behaviour()
    case, rung = failed.case, failed.rung
    known = {each: True for each in right} | {case: False}
    mine = failed.problem.cases_of(rung)
    twins = [c for c in mine if (c.shape, c.values) == (case.shape, case.values)]
    alike = [c for c in mine if (c.dtype, c.values) == (case.dtype, case.values)]
    until = time.monotonic() + TRYING
    reading = ""
    for other in [*twins, *sorted(alike, key=_volume)]:
        if other in known or time.monotonic() > until:
            continue
        try:
            check = _CaseCheck(
                failed.problem, rung, failed.call, other, failed.backend, failed.schedules[:1],
                CheckResult(),
            )  # fmt: skip
            done, failure = check._attempt(check.first)
        except (Lacking, ProblemError):
            continue
        known[other] = failure is None
        if done and failure and failure.values and not (failed.reading or reading):
            reading = check.misread(done)
            reading = reading and f"in another case, {other}, {reading}"
    failed.backend.use(failed.schedules[0])
    return Behaviour(
        cases=tuple((c, known[c]) for c in alike if c in known and 0 not in c.shape),
        dtypes={c.dtype: known[c] for c in twins if c in known},
        not_finite=failed.not_finite(),
        near=failed.near(),
        reading=reading,
    )


SMALL_CARD_ELEMENTS = 1 << 18  # of a case's shape: larger ones take long on two multiprocessors
# The same for kernels whose tiles need much shared memory: products, of shapes like (M, N, K).
SMALL_CARD_PRODUCTS = 1 << 24


def _beyond_results(
    problem: Problem,
    rung: Rung,
    call: Callable[..., Any],
    cases: Sequence[Case],
    backend: Backend,
    quick: bool,
    leaks: bool,
) -> Failure | None:
    """Run the checks made once per rung, on few cases, after all results were right. leaks: look
    for leaks; a run under a tool that watches kernels leaves that to the plain run."""

    def check_of(case: Case) -> _CaseCheck:
        orders = backend.schedules(quick=True)
        return _CaseCheck(problem, rung, call, case, backend, orders, CheckResult())

    for case in quick_cases(cases)[:1]:
        steps = [check_of(case).leaks] if leaks else []
        if problem.gradients:
            steps.append(check_of(case).expanded_gradient)
        for step in steps:
            try:
                failure = step()
            except Lacking:
                continue
            if failure is not None:
                return failure.about(problem.case_words(case))
    if quick:
        return None
    found = _random_case(problem, rung, check_of, cases)
    if found is not None or not backend.watches_calls:
        return found
    # A case without sizes has no paths for large inputs either.
    sized = [case for case in cases if case.shape]
    refused = False
    for case in dict.fromkeys([*quick_cases(sized), *_largest(sized, SMALL_CARD_ELEMENTS)]):
        check = check_of(case)
        failure = check.on_small_card()
        if failure is not None:
            return failure.about(problem.case_words(case))
        refused = refused or "shared memory" in check.lacks
    for case in _largest(sized, SMALL_CARD_PRODUCTS) if refused else ():
        failure = check_of(case).on_small_card(shared=True)
        if failure is not None:
            return failure.about(problem.case_words(case))
    return None


def _largest(cases: Sequence[Case], most: int) -> list[Case]:
    """Return the three largest cases with at most `most` elements in their shape."""
    fitting = [case for case in cases if _volume(case) <= most]
    return sorted(fitting, key=_volume)[-3:]


TRACED_ELEMENTS = 8400  # of all arguments: a product of larger ones takes minutes to trace


def _several_blocks(problem: Problem, cases: Sequence[Case], backend: Backend) -> list[Case]:
    """Return the largest case that can be traced in seconds, if any: a race needs two blocks, and
    the smallest case may have only one."""
    elements = {}
    for case in cases:
        if case.values == "normal":
            args = tree_leaves(problem.inputs(case, Draw(case, backend)))
            drawn = sum(arg.numel() for arg in args if isinstance(arg, Tensor))
            if drawn <= TRACED_ELEMENTS:
                elements[case] = drawn
    return sorted(elements, key=elements.__getitem__)[-1:]


def _random_case(
    problem: Problem,
    rung: Rung,
    check_of: Callable[[Case], _CaseCheck],
    cases: Sequence[Case],
) -> Failure | None:
    """Check a case of a random shape, which must be right, or refused by name."""
    case = random_case(cases, f"{problem.name} {session_seed()}")
    if case is None:
        return None
    try:
        check = check_of(case)
    except (ProblemError, *RAISED):
        return None  # a shape that the problem's inputs or its reference do not support
    failure = check.right_or_refused()
    if failure is None:
        return None
    again = f"{SEED_VARIABLE}={session_seed()} repeats it"
    return failure.about(f"{problem.case_words(case)}, a random case ({again})")


def check_outputs(
    problem: Problem,
    call: Callable[..., Any],
    expected: Callable[[tuple[int, ...]], Expected],
    after: tuple[Any, ...],
    result: Any,
) -> Failure | None:
    """Judge the result of a call made elsewhere, e.g. after timing it.

    expected: returns, for the positions of the arguments that the call writes, the expected results
    for the original arguments (see `evaluate`). after: the arguments after the call.
    """
    signature = signature_of(call, problem.reference)
    outputs, names = outputs_of(result, after, signature)
    truth = expected(signature.writes)

    def samples() -> list[Expected]:
        return rolled_samples(problem, truth, signature.writes)

    return judge(problem, truth, outputs, names, signature, samples)


def _dtypes(cases: Sequence[Case]) -> str:
    return ", ".join(dict.fromkeys(case.dtype for case in cases))
