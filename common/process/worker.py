"""Run one day in a separate process: load, check, try bad input, time; send events.

The process is forked from one that has imported torch and never touched CUDA. Its events are
defined in common/process/events.py. A day first does everything that it can do while other days run
on the same device. Then it requests its turn, in which it has the device for itself, for the timing
and for the checks that need most of the memory.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from common.base.ceilings import Ceilings, ceilings_of
from common.base.days import Day, Lesson, Show, load_lesson
from common.base.declaration import Problem, Rung
from common.base.figures import duration, significant
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, SKIP, RungOutcome, Skip, Timing
from common.base.paths import ROOT
from common.base.targets import all_met
from common.base.toolchain import Platform, sm
from common.bench.timing import Untimed, time_problem, warm_up
from common.build import custom_build, library
from common.check import bad_input, beyond, device, guard, rungs
from common.check.autograd import differentiable
from common.check.expected import expectations, message_of, passed_on, places_of
from common.check.lacks import lacking
from common.check.replaced import record
from common.cpu import models
from common.process.child import flush
from common.process.events import (
    AskTurn,
    Channel,
    Checked,
    Ended,
    Finished,
    Made,
    Over,
    Planned,
    Stage,
    Table,
    TurnOver,
)
from common.report.columns import beside, untimed

# Beginning of the reason of a rung that failed by its traced accesses.
ACCESSES_FOUND = "by its accesses:"
MOST_FALLBACKS = 0.75  # of a rung's cases: more would check another rung
COSTLY = 1.25  # times the host's cost of PyTorch's call; above, a remark is added

# In messages of a rung that fails while other days take memory too.
MEMORY_FULL = re.compile(r"out of memory|OutOfMemoryError|ALLOC_FAILED", re.IGNORECASE)


def chosen_problems(lesson: Lesson, options: RunOptions) -> tuple[Problem, ...]:
    """Return the day's problems with the rungs to run."""
    problems = lesson.problems
    if options.rivals:
        problems = tuple(replace(p, libraries=(*p.libraries, *p.rivals)) for p in problems)
    if options.alone:
        problems = tuple(
            replace(p, libraries=(), rungs=tuple(replace(r, target=None) for r in p.rungs))
            for p in problems
        )
    if not options.rungs:
        return problems
    chosen = [
        replace(problem, rungs=tuple(r for r in problem.rungs if r.name in options.rungs))
        for problem in problems
    ]
    return tuple(problem for problem in chosen if problem.rungs)


class BuiltOtherwise(Exception):
    """The sources have changed since they were built; the message contains the fix."""


@dataclass
class Run:
    """Shared state of the steps of a day's run. rungs: names of the day's rungs. broken: why the
    device no longer works. last: no other day holds memory of the device. show_failed: a show of
    the day failed. own_threads: PyTorch's default number of threads. replaced: see
    `common.check.replaced.record`."""

    day: Day
    platform: Platform
    options: RunOptions
    channel: Channel
    todo: library.Build
    backend: device.Backend
    fallback: Callable[[], str]
    rungs: Collection[str]
    ceilings: Ceilings | None = None
    broken: str = ""
    last: bool = False
    show_failed: bool = False
    own_threads: int = field(default_factory=torch.get_num_threads)
    replaced: Callable[[], list[str]] = list

    def __post_init__(self) -> None:
        if self.options.watched:
            guard.BAND = 0
        if self.options.threads:
            torch.set_num_threads(self.options.threads)

    @property
    def goes_beyond(self) -> bool:
        """Return True if rungs are tried beyond 2^31 elements."""
        options, on_gpu = self.options, self.backend.name == "cuda"
        return on_gpu and not (options.quick or options.watched or options.first_calls)

    def stage(self, rung: str, stage: str, problem: str = "") -> None:
        flush()
        self.channel.emit(Stage(rung, stage, problem))

    def tell(self, event: Checked | Finished) -> None:
        flush()
        self.channel.emit(event)


def explain(error: BaseException) -> tuple[str, list[str]]:
    """Return an exception as one line, and the lines of its traceback that lie in the repository;
    for a SyntaxError, the faulty line."""
    if isinstance(error, SyntaxError) and error.filename:
        place = error.filename.removeprefix(f"{ROOT}/")
        line = f"{place}:{error.lineno}: {(error.text or '').strip()}"
        return f"{type(error).__name__}: {error.msg}", [line]
    error = passed_on(error)
    text = message_of(error) if str(error).strip() else ""
    first = text.splitlines()[0] if text else ""
    reason = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return reason, text.splitlines()[1:] + places_of(error)


@contextmanager
def without_advice() -> Iterator[None]:
    """Suppress warnings and logs of libraries: on calls for a check or a time, they are not the
    day's output."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def run_day(day: Day, platform: Platform, options: RunOptions, channel: Channel) -> None:
    """Check and time every rung of a built day, and send events to `channel`."""
    channel.emit(Stage("", "loading the day"))
    replaced = record()
    try:
        lesson = load_lesson(day)
        problems = chosen_problems(lesson, options)
        planned = [[p.name, rung.name, rung.idea] for p in problems for rung in p.rungs]
        channel.emit(Planned(planned))
        todo = library.plan(day, platform)
        if not todo.entry.ready:
            raise BuiltOtherwise(
                f"{day.source.name}, or what it is built with, changed after it was built; run the "
                "day again"
            )
        backend = device.make(platform, options.debug)
        operators = library.load(todo)
        names = {rung.name for problem in lesson.problems for rung in problem.rungs}
        run = Run(day, platform, options, channel, todo, backend, library.fallbacks(todo), names)
        run.replaced = replaced
    except Skip as skip:
        channel.emit(Ended(SKIP, str(skip)))
        channel.emit(Over())
        return
    except Exception as error:
        reason, details = explain(error)
        channel.emit(Ended(FAIL, reason, details))
        channel.emit(Over())
        return
    if found := replaced():
        channel.emit(Ended(FAIL, f"loading the day replaced {', '.join(found)}"))
        channel.emit(Over())
        return
    checked = []
    for problem in problems:
        checked.append(_check_problem(run, problem, operators))
        if run.broken:
            break
    else:
        _take_turn(run, lesson, operators, checked)
    if run.broken:
        channel.emit(Ended(FAIL, run.broken))
    if found := replaced():
        channel.emit(Ended(FAIL, f"the day replaced {', '.join(found)}"))
    flush()
    channel.emit(Over())


def _shows(run: Run) -> bool:
    return not (run.options.quick or run.options.rungs or run.options.alone)


def _show(run: Run, show: Show, operators: Any) -> bool:
    """Run a show of the day, whose output and files go to the runner. Return False if other days
    fill the memory."""
    run.stage("", "showing what it does")
    try:
        files = show(operators, run.backend.device) or {}
        run.backend.synchronize()
        texts = (*files, *files.values()) if isinstance(files, dict) else (None,)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"it returns texts by the names of their files, got {files!r:.60}")
    except Exception as error:
        message = message_of(error)
        if lacks := lacking(message):
            print(f"nothing to show: {lacks}")
        elif _others_fill_memory(run, message):
            return False
        else:
            reason, details = explain(error)
            run.channel.emit(Ended(FAIL, f"show: {reason}", details))
            run.show_failed = True
            _device_works(run, "show")
    else:
        if files:
            run.channel.emit(Made(files))
    return True


@dataclass
class _Checked:
    """A problem's rungs after their checks.

    pending: outcomes, by name, of passed rungs that continue in the day's turn; calls: their calls.
    again: rungs that found the memory full.
    """

    problem: Problem
    pending: dict[str, RungOutcome] = field(default_factory=dict)
    calls: dict[str, Callable[..., Any]] = field(default_factory=dict)
    again: list[Rung] = field(default_factory=list)

    def timed(self, run: Run, rung: Rung) -> bool:
        return self.problem.timed and rung.timed and run.options.bench

    def goes_beyond(self, run: Run, rung: Rung) -> bool:
        return run.goes_beyond and not beyond.why_not(self.problem, rung)

    def timed_calls(self, run: Run) -> dict[str, Callable[..., Any]]:
        """Return the calls to time, in the problem's order."""
        rungs = [r for r in self.problem.rungs if r.name in self.pending and self.timed(run, r)]
        return {rung.name: self.calls[rung.name] for rung in rungs}

    def on_host(self, run: Run) -> bool:
        """Return True if one of them is timed by the host's clock."""
        names = self.timed_calls(run)
        if run.platform.device == "cpu":
            return bool(names)
        return any(rung.host_timed for rung in self.problem.rungs if rung.name in names)


def _check_problem(run: Run, problem: Problem, operators: Any) -> _Checked:
    """Check the rungs as far as possible while other days run on the device."""
    found = _Checked(problem)
    for rung in problem.rungs:
        if not _check_one(run, found, rung, operators):
            break
    return found


def _check_one(run: Run, found: _Checked, rung: Rung, operators: Any) -> bool:
    """Check a rung and file its outcome; return False if the device no longer works."""
    call, outcome = check_rung(run, found.problem, rung, operators)
    if outcome.status == PASS and (found.timed(run, rung) or found.goes_beyond(run, rung)):
        assert call is not None
        found.calls[rung.name], found.pending[rung.name] = call, outcome
        run.tell(Checked(outcome))
    elif outcome.status == FAIL and _others_fill_memory(run, outcome.reason, *outcome.details):
        found.again.append(rung)
    else:
        run.tell(Finished(outcome))
    return outcome.status != FAIL or _device_works(run, rung.name)


def _others_fill_memory(run: Run, *messages: str) -> bool:
    """Return True if one of a failure's messages reports that the GPU's memory is full while other
    days may hold some of it; once this day has it alone, that is its own failure."""
    shared = run.backend.name == "cuda" and not run.last
    return shared and any(MEMORY_FULL.search(text) for text in messages)


def _take_turn(run: Run, lesson: Lesson, operators: Any, checked: list[_Checked]) -> None:
    """Do the rest of the day, and what must not be disturbed with the device for itself."""
    show, times = (lesson.show, lesson.show_times) if _shows(run) else (None, None)
    if show and _show(run, show, operators):
        show = None
    if run.broken:
        return
    if not (show or times or any(each.pending or each.again for each in checked)):
        return
    if run.backend.name == "cuda":
        for each in checked:
            if calls := each.timed_calls(run):
                run.stage("", "warming up", each.problem.name)
                with without_advice():
                    culprit = warm_up(each.problem, calls, run.backend, quick=run.options.quick)
                if culprit and not _device_works(run, culprit):
                    return
    # Other days run while this one waits.
    expectations.clear()
    run.backend.release_memory()
    run.channel.wait(AskTurn(any(each.on_host(run) for each in checked)))
    torch.set_num_threads(run.own_threads)
    for each in checked:
        _finish_problem(run, each, operators)
        if run.broken:
            break
    else:
        for each_show in (show, times):
            if each_show and not run.show_failed and not _show(run, each_show, operators):
                _be_last(run)
                _show(run, each_show, operators)
    run.channel.emit(TurnOver())


def _be_last(run: Run) -> None:
    """Give the turn back until the days that wait, each of which holds memory, are over."""
    if not run.last:
        run.backend.release_memory()
        run.channel.emit(TurnOver())
        run.channel.wait(AskTurn(quiet=True, last=True))
        run.last = True


def _finish_problem(run: Run, checked: _Checked, operators: Any) -> None:
    """Do the part of a problem that needs exclusive use of the device."""
    problem, pending = checked.problem, checked.pending
    for rung in checked.again:
        _be_last(run)
        if not _check_one(run, checked, rung, operators):
            return
    for rung in problem.rungs:
        if rung.name in pending and checked.goes_beyond(run, rung):
            _go_beyond(run, problem, rung, checked.calls[rung.name], pending[rung.name])
            if pending[rung.name].status == FAIL:
                run.tell(Finished(pending.pop(rung.name)))
                if not _device_works(run, rung.name):
                    return
    if calls := checked.timed_calls(run):
        _time_problem(run, problem, calls, {name: pending[name] for name in calls})
    for outcome in pending.values():
        run.tell(Finished(outcome))
    timed = [outcome for outcome in pending.values() if outcome.timing is not None]
    if run.options.rivals and timed:
        run.channel.emit(Table(problem.name, *beside(timed[-1])))
        if missing := untimed(timed[-1]):
            run.channel.emit(Table("", ["not timed"], [[line] for line in missing]))


@without_advice()
def _go_beyond(
    run: Run, problem: Problem, rung: Rung, call: Callable[..., Any], outcome: RungOutcome
) -> None:
    run.stage(rung.name, "beyond 2^31 elements", problem.name)
    try:
        failure, reason = beyond.check_beyond(problem, rung, call, run.backend)
    except Exception as error:
        outcome.status = FAIL
        outcome.reason, outcome.details = explain(error)
        return
    if reason:
        outcome.asides.append(f"not tried beyond 2^31 elements: {reason}")
    _take(outcome, rungs.CheckResult(failure=failure))


@without_advice()
def check_rung(
    run: Run, problem: Problem, rung: Rung, operators: Any
) -> tuple[Callable[..., Any] | None, RungOutcome]:
    target = " and ".join(map(str, rung.targets))
    outcome = RungOutcome(problem.name, rung.name, rung.idea, PASS, target=target)
    outcome.further = problem.further
    if run.options.watched and run.backend.name == "cuda" and problem.unwatched:
        outcome.status, outcome.reason = SKIP, problem.unwatched
        return None, outcome
    call = None
    try:
        run.stage(rung.name, "loading", problem.name)
        call, outcome.build_s = load_rung(run.day, run.todo, rung, operators)
        if outcome.build_s is not None:
            outcome.asides.append(f"built in {duration(outcome.build_s)}")
        run.stage(rung.name, "checking", problem.name)
        run.fallback()
        tried_rung, backend = device.of_rung(problem, rung, run.backend)
        if backend is not run.backend:
            outcome.remarks.append(device.interpreted(rung))
        result = rungs.check_rung(
            problem,
            tried_rung,
            call,
            backend,
            fallback=run.fallback,
            quick=run.options.quick,
            one_order=run.options.watched,
            first_calls=run.options.first_calls,
            explain=run.options.explain and not run.options.watched,
        )
        outcome.checked = result.checked
        _take(outcome, result)
        _take_fallbacks(run, outcome, result, rung, operators)
        # If addresses are watched, an unaligned vector access ends the launch.
        shifted = run.options.watched and run.platform.variant in ("address", "zeroed")
        # A launcher's refusals do not depend on the simulated card.
        known = run.options.quick and bool(run.platform.model)
        more = not run.options.first_calls
        if outcome.status == PASS and more and (shifted or not (run.options.watched or known)):
            run.stage(rung.name, "trying bad input", problem.name)
            tried = bad_input.check_bad_input(
                problem,
                tried_rung,
                call,
                backend,
                only_shifted=shifted,
                quick=run.options.quick and not run.options.watched,
            )
            outcome.bad_inputs = tried.checked
            _take(outcome, tried)
        if outcome.status == PASS and run.goes_beyond:
            why_not = beyond.why_not(problem, rung)
            if why_not not in ("", beyond.UNTIMED, beyond.UNLIMITED):
                outcome.asides.append(f"not tried beyond 2^31 elements: {why_not}")
        take_findings(run, outcome)
    except Skip as skip:
        outcome.status, outcome.reason = SKIP, str(skip)
    except Exception as error:
        outcome.status = FAIL
        outcome.reason, outcome.details = explain(error)
    if found := run.replaced():
        outcome.status, outcome.details = FAIL, []
        outcome.reason = f"it replaced {', '.join(found)}"
    return call, outcome


def _take_fallbacks(
    run: Run, outcome: RungOutcome, result: rungs.CheckResult, rung: Rung, operators: Any
) -> None:
    """Record the cases on which another rung's kernel did the work. Fail if that kernel does not
    belong to a rung of the day, or if it did nearly all cases on a full card, since these hardly
    check the rung's own kernel."""
    run.fallback()  # clears fallbacks of calls after the cases
    if not result.fallbacks:
        return
    to, count = result.fallbacks[-1], len(result.fallbacks)
    outcome.asides.append(f"falls back on {count} of {result.checked} cases to {to}")
    if outcome.status != PASS:
        return
    for text in result.fallbacks:
        name = text.partition(":")[0]
        if not (_is_rung(name, run.rungs) or hasattr(operators, name)):
            outcome.status = FAIL
            outcome.reason = f"it falls back to {name!r}, which is no rung of the day"
            return
    if run.backend.name == "cuda" or run.platform.model or run.options.quick:
        return
    share = count / result.checked
    if share == 1 or (share > MOST_FALLBACKS and not rung.falls_back):
        few = "no case checks" if share == 1 else "hardly any case checks"
        them = "all" if share == 1 else f"{count} of {result.checked}"
        outcome.status = FAIL
        outcome.reason = f"{few} the rung's own kernel: {them} fall back to {to}"
        if share < 1:
            outcome.details = ["add cases that it takes, or say why in the rung's falls_back"]


def _is_rung(name: str, rungs: Collection[str]) -> bool:
    """Return True for a rung's name, for the end of one (a kernel shared by several operators), and
    for words with blanks, which describe a kernel that is not a rung."""
    return " " in name or any(f"_{rung}".endswith(f"_{name}") for rung in rungs)


def load_rung(
    day: Day, todo: library.Build, rung: Rung, operators: Any
) -> tuple[Callable[..., Any], float | None]:
    """Return the callable of a rung, and the seconds of its build if the rung has a custom `load`.

    Raise LookupError if the day does not register such an operator.
    """
    if rung.load is not None:
        builder = custom_build.Builder(todo)
        return rung.load(builder), builder.seconds
    if rung.in_python:
        builder = custom_build.Builder(todo)
        module = builder.triton(rung.triton) if rung.triton else builder.numba(rung.numba)
        if not hasattr(module, rung.name):
            raise LookupError(f"{rung.triton or rung.numba}.py has no function {rung.name}")
        return getattr(module, rung.name), None
    try:
        operator = getattr(operators, rung.name)
        if rung.backward is not None:
            differentiable(day.name, rung)
        return operator, None
    except AttributeError:
        raise LookupError(
            f"{day.source.name} registers no operator {rung.name!r} in {day.name}; "
            f'add RUNG({day.name}, {rung.name}, "(Tensor x) -> Tensor") with its schema'
        ) from None


def _take(outcome: RungOutcome, result: rungs.CheckResult) -> None:
    outcome.remarks += result.remarks
    outcome.asides += result.asides
    if result.failure is not None:
        outcome.status = FAIL
        outcome.reason = result.failure.summary
        outcome.details = list(result.failure.details)
        outcome.example = list(result.failure.example)


def take_findings(run: Run, outcome: RungOutcome) -> None:
    """Fail a rung with races, or with reads of unwritten memory, even if its results are right."""
    traced = run.backend.take_trace()
    outcome.remarks += traced.remarks
    shown = traced.findings
    outcome.findings = [
        {
            "what": found.what,
            "places": found.places(),
            "summary": found.summary(),
            "details": found.details(),
        }
        for found in shown
    ]
    if not shown:
        return
    before = [outcome.reason, *outcome.details] if outcome.status == FAIL else []
    outcome.status = FAIL
    outcome.reason = f"{ACCESSES_FOUND} {shown[0].summary()}"
    outcome.details = shown[0].details()
    for finding in shown[1:]:
        outcome.details += [finding.summary(), *finding.details()]
    outcome.details += before


def _device_works(run: Run, culprit: str) -> bool:
    """Return False if the failure left the device in an error that affects all later calls."""
    try:
        run.backend.synchronize()
    except RuntimeError as error:
        run.broken = f"{culprit} left the device in error: {str(error).splitlines()[0]}"
        return False
    return True


def _time_problem(
    run: Run,
    problem: Problem,
    calls: dict[str, Callable[..., Any]],
    pending: dict[str, RungOutcome],
) -> None:
    run.stage("", "timing", problem.name)
    full = False
    try:
        if run.ceilings is None and run.platform.device == "cuda":
            run.ceilings = ceilings_of(run.platform.gpu)
        with without_advice():
            timings = time_problem(
                problem,
                calls,
                run.backend,
                run.ceilings,
                run.fallback,
                quick=run.options.quick,
                lesser_card=_is_lesser(run.platform),
                stage=lambda name: run.stage("", name, problem.name),
            )
        if found := run.replaced():
            fault = f"a rung of this problem replaced {', '.join(found)} while it was timed"
            timings = dict.fromkeys(timings, fault)
        for rung in problem.rungs:
            if rung.name in pending:
                _take_timing(run, rung, timings, pending[rung.name])
    except Exception as error:
        full = _others_fill_memory(run, str(error))
        if not full:
            reason, details = explain(error)
            for outcome in pending.values():
                outcome.status, outcome.reason, outcome.details = FAIL, f"timing: {reason}", details
            _device_works(run, f"timing {problem.name}")
    if full:  # the error is gone, and with it what it held
        _be_last(run)
        _time_problem(run, problem, calls, pending)


def _is_lesser(platform: Platform) -> bool:
    """Return True if the card has less than compute capability 9.0, the target of timing cases."""
    if platform.device == "cpu":
        return models.architecture(platform.model) < 900
    return int(sm(platform.arch).rstrip("af")) < 90


def _take_timing(
    run: Run, rung: Rung, timings: dict[str, Timing | str], outcome: RungOutcome
) -> None:
    timing = timings[rung.name]
    if isinstance(timing, Untimed):
        outcome.remarks.append(f"not timed: {timing}")
    elif isinstance(timing, Timing):
        outcome.timing = timing
        remark_host_time(outcome)
        if run.platform.device == "cuda":
            times = {name: each for name, each in timings.items() if isinstance(each, Timing)}
            outcome.target_met = all_met(rung.targets, timing, times, run.ceilings)
    else:
        first, *rest = timing.splitlines()
        outcome.status, outcome.reason, outcome.details = FAIL, first, rest


def remark_host_time(outcome: RungOutcome) -> None:
    """Add a remark with the host's cost of a call if it far exceeds that of PyTorch's."""
    timing = outcome.timing
    ours, theirs = (timing.host_us, timing.pytorch_host_us) if timing else (None, None)
    if ours and theirs and ours > COSTLY * theirs:
        outcome.remarks.append(
            f"a call costs the host {significant(ours)} µs, PyTorch's {significant(theirs)} µs"
        )
