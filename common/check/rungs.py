"""Check a rung on every declared case: what is tried, and in which order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from common.base.declaration import Case, Problem, Rung
from common.base.outcome import Skip
from common.check.call import Failure, judge, outputs_of
from common.check.cases import largest, quick_cases, several_blocks, until_own_kernel
from common.check.expected import (
    RAISED,
    Expected,
    ProblemError,
    in_range,
    signature_of,
)
from common.check.lacks import Lacking
from common.check.random_case import SEED_VARIABLE, random_cases, session_seed
from common.check.steps.captured import graph
from common.check.steps.case_run import CaseRun
from common.check.steps.causes import explained, with_further_causes
from common.check.steps.gradients import expanded_gradient, gradients
from common.check.steps.leaks import leaks
from common.check.steps.orders import other_orders
from common.check.steps.repeats import further_rows, same_again, second_call
from common.check.steps.small_card import on_small_card
from common.check.steps.streams import late_streams, side_stream

if TYPE_CHECKING:
    from common.check.device import Backend

# PyTorch then asks the driver for every tensor, which is not allowed while a graph is captured.
UNCACHED = bool(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"))
SMALL_CARD_ELEMENTS = 1 << 18  # of a case's shape: larger ones take long on two multiprocessors
# The same for kernels whose tiles need much shared memory: products, of shapes like (M, N, K).
SMALL_CARD_PRODUCTS = 1 << 24

# One thing that is tried with a rung on a case; it returns the failure without the case's name.
Step = Callable[[CaseRun], Failure | None]


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


def _steps(run: CaseRun) -> list[Step]:
    """Return what is tried on a case whose first call was right, in this order."""
    problem, on_gpu = run.problem, run.backend.name == "cuda"
    tried: tuple[tuple[Step, bool], ...] = (
        (second_call, True),
        (same_again, True),
        (other_orders, True),
        (further_rows, run.case.values == "nonfinite"),
        (late_streams, not on_gpu and (run.rung.of_library or problem.several_streams)),
        (side_stream, on_gpu),
        (graph, on_gpu and not run.rung.not_captured and not UNCACHED),
        (gradients, problem.gradients),
    )
    return [step for step, applies in tried if applies]


def _first_call(run: CaseRun, explain: bool = True) -> Failure | None:
    """Call once. explain: after a failure, make further calls to find the cause."""
    run.backend.use(run.schedules[0])
    done, failure = run.attempt(run.first)
    if failure is not None:
        return explained(run, done, failure) if explain else failure
    assert done is not None
    run.done = done
    run.kept = [output.clone() for output in done.outputs]
    return None


def _tried(run: CaseRun) -> Failure | None:
    """Return the first failure of a rung on a case."""
    failure = _first_call(run)
    if failure is not None:
        return failure
    return next((failure for step in _steps(run) if (failure := step(run)) is not None), None)


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
    - on the CPU every thread order, and late streams; on CUDA a busy side stream and a CUDA graph
      replayed with changed input; gradients if the problem has them;
    - unless quick, cases of random shapes (common/check/random_case.py).

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
        several = several_blocks(problem, cases, backend) if backend.traces else []
        chosen = list(dict.fromkeys([*quick_cases(cases), *several]))
        others = [] if backend.traces else cases  # they may take minutes to trace
        walk = until_own_kernel(
            chosen, others, lambda: bool(lacks) or len(result.fallbacks) < result.checked
        )
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
            run = CaseRun(problem, rung, call, case, backend, schedules, explain)
            result.aside(run.first.aside)
            failure = _first_call(run, explain=False) if first_calls else _tried(run)
            if explain and failure is not None:
                failure = with_further_causes(run, failure, tried[:-1])
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
        run = CaseRun(problem, rung, call, case, backend, schedules)
    except ProblemError as error:
        return Once((), Failure(str(error)))
    backend.use(schedules[0])
    done, failure = run.attempt(run.first)
    arguments = run.signature.names[: len(run.first.args)]
    if done is None or failure is not None:
        return Once(arguments, failure)
    pairs = run.first.pairs(len(done.outputs)) or []
    errors = [
        (got.double() - truth.double()).abs()
        for got, (truth, _) in zip(done.outputs, pairs, strict=True)
        if not got.is_complex()
    ]
    finite = [error[error.isfinite()] for error in errors]
    return Once(arguments, None, max((float(e.max()) for e in finite if e.numel()), default=0.0))


def _beyond_results(
    problem: Problem,
    rung: Rung,
    call: Callable[..., Any],
    cases: Sequence[Case],
    backend: Backend,
    quick: bool,
    find_leaks: bool,
) -> Failure | None:
    """Run the checks made once per rung, on few cases, after all results were right. find_leaks:
    False under a tool that watches kernels, which leaves that to the plain run."""

    def run_of(case: Case) -> CaseRun:
        return CaseRun(problem, rung, call, case, backend, backend.schedules(quick=True))

    once: tuple[tuple[Step, bool], ...] = (
        (leaks, find_leaks),
        (expanded_gradient, problem.gradients),
    )
    for case in quick_cases(cases)[:1]:
        for step in [step for step, applies in once if applies]:
            try:
                failure = step(run_of(case))
            except Lacking:
                continue
            if failure is not None:
                return failure.about(problem.case_words(case))
    if quick:
        return None
    found = _random_cases(problem, run_of, cases)
    if found is not None or not backend.watches_calls:
        return found
    return _small_cards(problem, run_of, cases)


def _random_cases(
    problem: Problem, run_of: Callable[[Case], CaseRun], cases: Sequence[Case]
) -> Failure | None:
    """Check cases of random shapes, each of which must be right, or refused by name."""
    for case in random_cases(cases, f"{problem.name} {session_seed()}"):
        try:
            run = run_of(case)
            run.drawn = True
        except (ProblemError, *RAISED):
            continue  # a shape that the problem's inputs or its reference do not support
        if case.values == "huge" and not in_range(run.first):
            continue  # the values overflow on the way to the result, also in PyTorch
        failure = run.right_or_refused()
        if failure is not None:
            again = f"{SEED_VARIABLE}={session_seed()} repeats it"
            return failure.about(f"{problem.case_words(case)}, a random case ({again})")
    return None


def _small_cards(
    problem: Problem, run_of: Callable[[Case], CaseRun], cases: Sequence[Case]
) -> Failure | None:
    """Check on a small card the quick cases and the largest ones; with the usual shared memory too
    if the rung is refused without it."""
    # A case without sizes has no paths for large inputs either.
    sized = [case for case in cases if case.shape]
    refused = False
    for case in dict.fromkeys([*quick_cases(sized), *largest(sized, SMALL_CARD_ELEMENTS)]):
        run = run_of(case)
        failure = on_small_card(run)
        if failure is not None:
            return failure.about(problem.case_words(case))
        refused = refused or "shared memory" in run.lacks
    for case in largest(sized, SMALL_CARD_PRODUCTS) if refused else ():
        failure = on_small_card(run_of(case), shared=True)
        if failure is not None:
            return failure.about(problem.case_words(case))
    return None


def check_outputs(
    problem: Problem,
    call: Callable[..., Any],
    expected: Callable[[tuple[int, ...]], Expected],
    samples: Callable[[tuple[int, ...]], Sequence[Expected]],
    after: tuple[Any, ...],
    result: Any,
) -> Failure | None:
    """Judge the result of a call made elsewhere, e.g. after timing it.

    expected: returns, for the positions of the arguments that the call writes, the expected results
    for the original arguments (see `evaluate`); samples: those of further inputs, for PyTorch's
    error. after: the arguments after the call.
    """
    signature = signature_of(call, problem.reference)
    outputs, names = outputs_of(result, after, signature)
    truth = expected(signature.writes)
    more = partial(samples, signature.writes)
    return judge(problem, truth, outputs, names, signature, more, drawn=True)


def _dtypes(cases: Sequence[Case]) -> str:
    return ", ".join(dict.fromkeys(case.dtype for case in cases))
