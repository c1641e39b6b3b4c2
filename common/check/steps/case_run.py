"""One rung on one case: its expected results, guarded calls of it, and hints for a failure."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from common.base.declaration import Case, Problem, Rung
from common.base.paths import ROOT
from common.check.call import (
    Call,
    Failure,
    call_guarded,
    first_difference,
    judge,
    not_a_kernels,
    raised,
    side_effects,
)
from common.check.draw import Draw
from common.check.expected import (
    RAISED,
    Expected,
    ProblemError,
    check_same_in_both,
    evaluate,
    expectations,
    message_of,
    samples_needed,
    signature_of,
)
from common.check.lacks import lacking
from common.check.patterns import Behaviour, Look, habits, sizes
from common.check.refusal import GAVE_UP, names_one_of

if TYPE_CHECKING:
    from common.check.device import Backend, Schedule


class CaseRun:
    """A rung on one case, which each step of `common/check/steps` takes.

    first, second: expected results on two sets of inputs. explain: make further calls to find the
    cause of a failure. done: the first call, set if it was right, and kept: copies of its outputs.
    wrong: the first call, if its values were wrong in each order. wrong_values: True if they were
    wrong in any order. reading: how that call misread its input, in words. lacks: what the card
    lacked in `right_or_refused`. drawn: the case is none of the problem's, see `compare`.

    Raise ProblemError if the problem has no valid inputs or no valid reference for the case.
    """

    done: Call
    kept: list[Tensor]

    def __init__(
        self,
        problem: Problem,
        rung: Rung,
        call: Callable[..., Any],
        case: Case,
        backend: Backend,
        schedules: Sequence[Schedule],
        explain: bool = False,
    ):
        self.problem = problem
        self.rung = rung
        self.call = call
        self.case = case
        self.backend = backend
        self.schedules = schedules
        self.explain = explain
        self.wrong: Call | None = None
        self.wrong_values = False
        self.reading = ""
        self.lacks = ""
        self.drawn = False
        self.signature = signature_of(call, problem.reference)
        self.first = self.expected(0)
        self.second = self.expected(1)
        first, second = (_shapes(each.args) for each in (self.first, self.second))
        if first != second:
            raise ProblemError(
                f"the inputs of {problem.name!r} must have the same shapes for every seed, got "
                f"{first} and {second}"
            )

    def expected(self, draw: int) -> Expected:
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
            self.expected(draw) for draw in range(1, 1 + samples_needed(self.problem, self.first))
        ]

    def judge(
        self,
        expected: Expected,
        outputs: list[Tensor],
        names: list[str],
        looks: Sequence[Look] = (),
    ) -> Failure | None:
        """Return the failure of these outputs, or None."""
        return judge(
            self.problem,
            expected,
            outputs,
            names,
            self.signature,
            self._samples,
            looks=looks,
            drawn=self.drawn,
        )

    def judge_call(
        self, expected: Expected, done: Call, looks: Sequence[Look] = ()
    ) -> Failure | None:
        """Return the failure of a call that returned, or None; for wrong values, with the CPU
        backend's observations."""
        look = Look(done.watched.launches, explained=undefined(done))
        looks = looks or [look] * len(done.outputs)
        failure = self.judge(expected, done.outputs, done.names, looks)
        if failure is None or not failure.values:
            return failure
        return with_hints(failure, observed(done))

    def attempt(
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
                pinned=self.problem.several_streams,
            )
        except Exception as error:
            return None, raised(error)
        failure = side_effects(done, expected.args, self.signature)
        if failure is None and compare_values:
            failure = self.judge_call(expected, done)
        if failure is None:
            failure = not_a_kernels(done, self.rung, self.backend, expected.on_host)
        return done, failure

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
        return failure or self.judge_call(self.first, done)

    def right(self, schedule: Schedule | None = None, variant: int = 0) -> bool:
        """Return True if a call on the first input is right."""
        if schedule is not None:
            self.backend.use(schedule)
        return self.attempt(self.first, variant)[1] is None

    def repeats(self, outputs: list[Tensor]) -> bool:
        """Return True if the first order gives these outputs again."""
        self.backend.use(self.schedules[0])
        again, _ = self.attempt(self.first)
        return again is not None and first_difference(outputs, again.outputs, again.names) is None


def _shapes(args: tuple[Any, ...]) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]


def observed(done: Call) -> list[str]:
    """Return the CPU backend's observations of a call whose result is wrong."""
    said = []
    if done.watched.early_return:
        said.append(f"{done.watched.early_return}: was something left for them to do before it?")
    said.append(done.watched.undefined_shuffle)
    return [text.replace(f"{ROOT}/", "") for text in said]


def undefined(done: Call | None) -> bool:
    """Return True if a shuffle of the call read a lane that did not take part."""
    return done is not None and bool(done.watched.undefined_shuffle)


def with_hints(failure: Failure, hints: Sequence[str], last: bool = False) -> Failure:
    """Return the failure with the hints that are not "" before its details or, if `last`, after the
    hints that these begin with."""
    said = [f"hint: {text}" for text in hints if text]
    place = 0
    while last and place < len(failure.details) and failure.details[place].startswith("hint: "):
        place += 1
    details = [*failure.details[:place], *said, *failure.details[place:]]
    return replace(failure, details=details)


def with_habits(failure: Failure, seen: Behaviour) -> Failure:
    """Return the failure with hints from the behaviour; those from sizes only if there are no
    others, and after the hints about the output."""
    said = habits(seen)
    return with_hints(failure, said) if said else with_hints(failure, sizes(seen), last=True)
