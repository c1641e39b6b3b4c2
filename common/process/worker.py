"""One day's run, in a process of its own: load, check, try bad input, time; tells what happens.

The process is forked from one that has imported torch and never touched CUDA. What it tells are
events: see common/process/events.py.
"""

from __future__ import annotations

import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from common.base.cache import cache_directory
from common.base.days import Day, Lesson, load_lesson
from common.base.declaration import Problem, Rung
from common.base.figures import duration
from common.base.outcome import FAIL, PASS, SKIP, RungOutcome, Skip, Timing
from common.base.paths import ROOT
from common.base.toolchain import Platform, sm
from common.bench import ceilings
from common.bench.timing import Untimed, target_met, time_problem
from common.build import library, own_way
from common.check import bad_input, beyond, device, guard, rungs
from common.check.autograd import differentiable
from common.check.expected import message_of
from common.check.lacks import lacking
from common.cpu import models
from common.process.child import flush
from common.process.events import (
    AskTiming,
    Channel,
    Checked,
    Ended,
    Finished,
    Made,
    Over,
    Planned,
    Stage,
    Timed,
)

# How the reason of a rung begins that failed by its accesses, where these are traced.
ACCESSES_FOUND = "by its accesses:"


@dataclass(frozen=True)
class Work:
    """What a day's run. quick: fewer cases, shorter timing, and no bad input where the CPU backend
    plays a card that the user chose. bench: time the rungs.

    time_limit: seconds for the day, used by work that starts programs of its own. watched: a tool
    looks at every access: no bands around tensors, which would hide overruns from it, one thread
    order, and no bad input, which launches nothing and takes long under a tool; but tensors that
    are not aligned where addresses are watched.
    arguments: words that call the runner again for the same days, e.g. ("--days", "…").
    debug: on the CPU, check in more orders, and wait for threads that hang a second at most.
    rungs: run only these of the day, () for all. alone: time them beside PyTorch's call only, hold
    them against no target, and show nothing of the day. first_calls: check one call on each case,
    and no bad input. explain: make further calls of a rung that fails, to see why.
    """

    quick: bool = False
    bench: bool = True
    time_limit: float = 120.0
    watched: bool = False
    arguments: tuple[str, ...] = ()
    debug: bool = False
    rungs: tuple[str, ...] = ()
    alone: bool = False
    first_calls: bool = False
    explain: bool = False

    def of(self, lesson: Lesson) -> tuple[Problem, ...]:
        """The day's problems with the rungs that are to run."""
        problems = lesson.problems
        if self.alone:
            problems = tuple(
                replace(p, libraries=(), rungs=tuple(replace(r, target=None) for r in p.rungs))
                for p in problems
            )
        if not self.rungs:
            return problems
        chosen = [
            replace(problem, rungs=tuple(r for r in problem.rungs if r.name in self.rungs))
            for problem in problems
        ]
        return tuple(problem for problem in chosen if problem.rungs)


def run_this(day: Day, device: str, work: Work, *options: str) -> list[str]:
    """A command line that runs the day in a single process, for tools that watch one."""
    command = [sys.executable, str(ROOT / "run_day.py"), str(day.number), "--device", device]
    return [*command, "--in-process", *work.arguments, *options]


class BuiltOtherwise(Exception):
    """The sources are no longer those that were built; the message says what to do."""


@dataclass
class Run:
    """What the steps of a day's run share."""

    day: Day
    platform: Platform
    work: Work
    channel: Channel
    todo: library.Build
    backend: device.Backend
    fallback: Callable[[], str]
    ceilings: ceilings.Ceilings | None = None
    broken: str = ""

    def __post_init__(self) -> None:
        if self.work.watched:
            guard.BAND = 0

    def stage(self, rung: str, stage: str) -> None:
        flush()
        self.channel.emit(Stage(rung, stage))

    def tell(self, event: Checked | Finished) -> None:
        flush()
        self.channel.emit(event)


def explain(error: BaseException) -> tuple[str, list[str]]:
    """An exception as one line and as the lines of its traceback that lie in the repository."""
    text = message_of(error) if str(error).strip() else ""
    first = text.splitlines()[0] if text else ""
    reason = f"{type(error).__name__}: {first}" if first else type(error).__name__
    details = text.splitlines()[1:]
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(f"{ROOT}/")]
    days = [frame for frame in ours if not frame.filename.startswith(f"{ROOT}/common/")]
    for frame in days or ours or frames[-3:]:
        place = frame.filename.removeprefix(f"{ROOT}/")
        details.append(f"{place}:{frame.lineno} in {frame.name}: {frame.line}")
    return reason, details


def run_day(day: Day, platform: Platform, work: Work, channel: Channel) -> None:
    """Checks and times every rung of a built day, telling `channel` as it goes."""
    channel.emit(Stage("", "loading the day"))
    try:
        lesson = load_lesson(day)
        problems = work.of(lesson)
        planned = [[p.name, rung.name, rung.idea] for p in problems for rung in p.rungs]
        channel.emit(Planned(planned))
        todo = library.plan(day, platform)
        if not todo.entry.ready:
            raise BuiltOtherwise(
                f"{day.source.name}, or what it is built with, changed after it was built; run the "
                "day again"
            )
        backend = device.make(platform, work.debug)
        operators = library.load(todo)
        run = Run(day, platform, work, channel, todo, backend, library.fallbacks(todo))
    except Skip as skip:
        channel.emit(Ended(SKIP, str(skip)))
        channel.emit(Over())
        return
    except Exception as error:
        reason, details = explain(error)
        channel.emit(Ended(FAIL, reason, details))
        channel.emit(Over())
        return
    for problem in problems:
        _run_problem(run, problem, operators)
        if run.broken:
            channel.emit(Ended(FAIL, run.broken))
            break
    else:
        _show(run, lesson, operators)
    flush()
    channel.emit(Over())


def _show(run: Run, lesson: Lesson, operators: Any) -> None:
    """Lets the day print what it has to show, and make its files; the runner passes both on."""
    if lesson.show is None or run.work.quick or run.work.rungs or run.work.alone:
        return
    run.stage("", "showing what it does")
    try:
        files = lesson.show(operators, run.backend.device)
        run.backend.synchronize()
    except Exception as error:
        if lacks := lacking(message_of(error)):
            print(f"nothing to show: {lacks}")
            return
        reason, details = explain(error)
        run.channel.emit(Ended(FAIL, f"show: {reason}", details))
    else:
        if files:
            run.channel.emit(Made(files))


def _run_problem(run: Run, problem: Problem, operators: Any) -> None:
    pending: dict[str, RungOutcome] = {}
    calls: dict[str, Callable[..., Any]] = {}
    for rung in problem.rungs:
        call, outcome = check_rung(run, problem, rung, operators)
        if outcome.status == PASS and problem.timed and rung.timed and run.work.bench:
            assert call is not None
            calls[rung.name], pending[rung.name] = call, outcome
            run.tell(Checked(outcome))
        else:
            run.tell(Finished(outcome))
        if outcome.status == FAIL and not _device_works(run, rung.name):
            break
    if calls and not run.broken:
        _time_problem(run, problem, calls, pending)


@contextmanager
def without_advice() -> Iterator[None]:
    """Drops what libraries warn of and log: on calls made for a check or for a time, that is not
    the day's output."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


@without_advice()
def check_rung(
    run: Run, problem: Problem, rung: Rung, operators: Any
) -> tuple[Callable[..., Any] | None, RungOutcome]:
    target = " and ".join(map(str, rung.targets))
    outcome = RungOutcome(problem.name, rung.name, rung.idea, PASS, target=target)
    if run.work.watched and run.backend.name == "cuda" and problem.unwatched:
        outcome.status, outcome.reason = SKIP, problem.unwatched
        return None, outcome
    call = None
    try:
        run.stage(rung.name, "loading")
        call, outcome.build_s = load_rung(run.day, run.todo, rung, operators)
        if outcome.build_s is not None:
            outcome.remarks.append(f"built in {duration(outcome.build_s)}")
        run.stage(rung.name, "checking")
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
            quick=run.work.quick,
            one_order=run.work.watched,
            first_calls=run.work.first_calls,
            explain=run.work.explain,
        )
        outcome.checked = result.checked
        _take(outcome, result)
        _take_fallbacks(run, outcome, result)
        # Where addresses are watched, a vector access that is not aligned ends the launch.
        shifted = run.work.watched and run.platform.variant == "address"
        # What a launcher refuses does not depend on the card that is played.
        known = run.work.quick and bool(run.platform.model)
        more = not run.work.first_calls
        if outcome.status == PASS and more and (shifted or not (run.work.watched or known)):
            run.stage(rung.name, "trying bad input")
            tried = bad_input.check_bad_input(
                problem, tried_rung, call, backend, only_shifted=shifted
            )
            outcome.bad_inputs = tried.checked
            _take(outcome, tried)
        full = more and not run.work.quick and not run.work.watched and run.backend.name == "cuda"
        if outcome.status == PASS and full:
            run.stage(rung.name, "beyond 2^31 elements")
            failure, reason = beyond.check_beyond(problem, rung, call, run.backend)
            if reason not in ("", beyond.UNTIMED, beyond.UNLIMITED):
                outcome.remarks.append(f"not tried beyond 2^31 elements: {reason}")
            _take(outcome, rungs.CheckResult(failure=failure))
        take_findings(run, outcome)
    except Skip as skip:
        outcome.status, outcome.reason = SKIP, str(skip)
    except Exception as error:
        outcome.status = FAIL
        outcome.reason, outcome.details = explain(error)
    return call, outcome


def _take_fallbacks(run: Run, outcome: RungOutcome, result: rungs.CheckResult) -> None:
    """Tells of the cases for which another rung's kernel did the work. Where it did for all of
    them, on a card that lacks nothing, none has checked the rung's own kernel: that is a failure.
    """
    run.fallback()  # of what came after the cases
    if not result.fallbacks:
        return
    to = result.fallbacks[-1]
    outcome.remarks.append(
        f"falls back on {len(result.fallbacks)} of {result.checked} cases to {to}"
    )
    lacks_nothing = run.backend.name == "cpu" and not run.platform.model
    every = len(result.fallbacks) == result.checked and not run.work.quick
    if outcome.status == PASS and every and lacks_nothing:
        outcome.status = FAIL
        outcome.reason = f"no case checks the rung's own kernel: all fall back to {to}"


def load_rung(
    day: Day, todo: library.Build, rung: Rung, operators: Any
) -> tuple[Callable[..., Any], float | None]:
    """The callable of a rung and, if it was built in a way of its own, the seconds that took.

    Raises LookupError where the day registers no such operator.
    """
    if rung.load is not None:
        builder = own_way.Builder(todo)
        return rung.load(builder), builder.seconds
    if rung.in_python:
        builder = own_way.Builder(todo)
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
    if result.failure is not None:
        outcome.status = FAIL
        outcome.reason = result.failure.summary
        outcome.details = list(result.failure.details)


def take_findings(run: Run, outcome: RungOutcome) -> None:
    """Races fail a rung, whatever its results were. Reads of unwritten memory explain wrong ones;
    beside right ones they are remarked, for memory begins with NaN, and no result has it."""
    traced = run.backend.take_trace()
    outcome.remarks += traced.remarks
    shown = []
    for finding in traced.findings:
        if finding.what == "unwritten" and outcome.status == PASS:
            outcome.remarks.append(f"{finding.summary()}; no result shows it")
        else:
            shown.append(finding)
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
    """False where the failure has left the device in an error that no later call gets past."""
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
    on_host = run.platform.device == "cpu" or any(
        rung.host_timed for rung in problem.rungs if rung.name in calls
    )
    run.channel.wait(AskTiming(on_host))
    try:
        run.stage("", f"timing {problem.name}")
        if run.ceilings is None and run.platform.device == "cuda":
            run.ceilings = ceilings.ceilings(cache_directory())
        with without_advice():
            timings = time_problem(
                problem,
                calls,
                run.backend,
                run.ceilings,
                run.fallback,
                quick=run.work.quick,
                lesser_card=_is_lesser(run.platform),
            )
        for rung in problem.rungs:
            if rung.name in pending:
                _take_timing(run, rung, timings, pending[rung.name])
    except Exception as error:
        reason, details = explain(error)
        for outcome in pending.values():
            outcome.status, outcome.reason, outcome.details = FAIL, f"timing: {reason}", details
        _device_works(run, f"timing {problem.name}")
    run.channel.emit(Timed())
    for outcome in pending.values():
        run.tell(Finished(outcome))


def _is_lesser(platform: Platform) -> bool:
    """Whether the card has less than compute capability 9.0, for which timing cases are made."""
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
        if rung.targets and run.platform.device == "cuda":
            outcome.target_met = target_met(rung, timings, run.ceilings)
    else:
        first, *rest = timing.splitlines()
        outcome.status, outcome.reason, outcome.details = FAIL, first, rest
