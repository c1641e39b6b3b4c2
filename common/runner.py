"""Runs days: builds them side by side, runs each in a process of its own, reports as it goes.

The parent imports torch once and never touches CUDA. Every build and every run is a forked child
(`common.child`), so a crash, a hang or a device left in error costs one day.
"""

from __future__ import annotations

import os
import re
import select as posix
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common import results
from common.child import Channel, Child, describe_exit, fork
from common.day import DAYS, ROOT, Day
from common.figures import counted
from common.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome, Skip
from common.report import Report
from common.select import Selection, SelectionError, select
from common.toolchain import Platform, ToolchainError, detect, leave_preload, sm

EXIT_PASSED, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

TIME_LIMIT = {"cuda": 120.0, "cpu": 300.0}  # seconds a day, of its own running
SANITIZER_SLOWDOWN = 10  # a tool may slow kernels so many times before the limit is too short
BUILD_LIMIT = 900.0  # seconds
BUILD_GRACE = 1.0  # seconds a compiler driver gets to remove what is half-written
BUILD_MEMORY = 0.6e9  # bytes that one nvcc job of a stable-ABI source takes
POLL = 0.1  # seconds between looks at time limits

# "profiled" is what a profiler runs: the rungs and nothing else, in one process.
MODES = ("run", "sanitize", "profile", "profiled", "compile")


@dataclass(frozen=True)
class Options:
    """What the command line asks for. mode: one of MODES. jobs: builds at a time, 0 for as many
    as cores and memory allow. time_limit: seconds a day, 0 for the device's default. archs: for
    mode "compile". days: where the days are. in_process: run in this process (for tools that
    watch one process). watched: such a tool looks at every access, see `common.worker.Work`."""

    wanted: tuple[str, ...]
    shard: str = ""
    device: str = "auto"
    mode: str = "run"
    quick: bool = False
    bench: bool = True
    jobs: int = 0
    time_limit: float = 0.0
    archs: tuple[str, ...] = ("8.0", "9.0a")
    json: Path | None = None
    write: bool = False
    colour: bool = True
    days: Path = DAYS
    in_process: bool = False
    watched: bool = False


class Interrupted(BaseException):
    """A signal asked this process to end. number: the signal."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


@dataclass
class _Task:
    """A day on its way. state: "waiting", "building", "ready", "running" or "over"."""

    day: Day
    outcome: DayOutcome
    state: str = "waiting"
    child: Child | None = None
    gpu: int = 0
    rung: str = ""
    stage: str = ""
    deadline: float = 0.0
    wants_timing: bool = False
    asked: float = 0.0
    waited: float = 0.0
    timing: bool = False
    alone: bool = False
    done: bool = False
    expected: list[list[str]] = field(default_factory=list)
    checked: dict[tuple[str, str], RungOutcome] = field(default_factory=dict)

    def last(self) -> str:
        """What it was doing, in words."""
        return " ".join(filter(None, (self.rung, self.stage)))


Step = Callable[[Day, Platform, Any, Channel], None]  # see common.worker.run_day


def jobs_allowed(asked: int) -> int:
    """How many builds at a time: `asked`, or as many as cores and free memory allow."""
    if asked:
        return asked
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    free = free_memory()
    return max(1, cores if free is None else min(cores, int(free / BUILD_MEMORY)))


def free_memory() -> int | None:
    """Bytes of memory that this process may still take; None where the system does not say."""
    found = []
    info = Path("/proc/meminfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file():
        text = limit.read_text().strip()
        if text != "max":
            found.append(int(text) - int(used.read_text()))
    return min(found) if found else None


class Runner:
    """One run over some days."""

    def __init__(
        self,
        days: Sequence[Day],
        platform: Platform,
        step: Step | None,
        build: Callable[[Day], object],
        ready: Callable[[Day], bool],
        work: Any,
        report: Report,
        jobs: int,
        time_limit: float,
    ):
        """step: what runs a built day (None: building is all). build: builds a day, in a child.

        ready: whether there is nothing to build. work: handed to `step`.
        """
        self._platform, self._step, self._work, self._report = platform, step, work, report
        self._build, self._ready = build, ready
        self._jobs, self._time_limit = jobs, time_limit
        self._tasks = [
            _Task(day, DayOutcome(day.number, day.name, day.title, PASS)) for day in days
        ]
        self._free_gpus = list(range(self._workers()))

    def _workers(self) -> int:
        """How many days run at a time: one a GPU. Where the user chose GPUs, one, on the first."""
        if self._platform.device == "cpu" or "CUDA_VISIBLE_DEVICES" in os.environ:
            return 1
        return max(1, self._platform.gpus)

    @property
    def outcomes(self) -> list[DayOutcome]:
        """What is known so far of days that are over, in order."""
        return [task.outcome for task in self._tasks if task.state == "over"]

    def run(self) -> None:
        """Builds and runs all days. Whatever ends it, no child is left."""
        for task in self._tasks:
            self._enter(task)
        try:
            while any(task.state != "over" for task in self._tasks):
                self._start()
                self._show()
                self._wait()
                for task in self._tasks:
                    if task.child is not None:
                        self._attend(task)
        finally:
            for task in self._tasks:
                if task.child is not None:
                    task.child.kill(BUILD_GRACE if task.state == "building" else 0.0)
                    task.child.close()
                    task.child = None

    def _enter(self, task: _Task) -> None:
        try:
            if self._ready(task.day):
                task.state = "ready" if self._step else "over"
        except OSError as error:
            self._fail_day(task, f"cannot be read: {error}")

    def _in(self, state: str) -> list[_Task]:
        return [task for task in self._tasks if task.state == state]

    def _start(self) -> None:
        # A build beside it would spoil a timing by the host's clock: the two take turns.
        if not any(t.alone and (t.wants_timing or t.timing) for t in self._tasks):
            for task in self._in("waiting")[: max(0, self._jobs - len(self._in("building")))]:
                self._start_build(task)
        for task in self._in("ready")[: len(self._free_gpus)]:
            self._start_run(task)
        for task in self._tasks:
            if task.wants_timing and not (task.alone and self._in("building")):
                assert task.child is not None
                task.wants_timing, task.timing = False, True
                waited = time.monotonic() - task.asked
                task.waited, task.deadline = task.waited + waited, task.deadline + waited
                task.child.go()

    def _start_build(self, task: _Task) -> None:
        day, build = task.day, self._build

        def work(channel: Channel) -> None:
            from common.build import BuildError

            try:
                build(day)
            except (BuildError, ToolchainError) as error:
                details = str(error).splitlines()
                channel.emit("unbuilt", reason="does not build", details=details)
            except Skip:
                channel.emit("done")  # the run says what is missing
            except Exception as error:
                from common.worker import explain

                reason, details = explain(error)
                channel.emit("unbuilt", reason=f"does not build: {reason}", details=details)
            else:
                channel.emit("done")

        task.state = "building"
        task.child = fork(work)
        task.deadline = task.child.started + BUILD_LIMIT

    def _start_run(self, task: _Task) -> None:
        step, day, platform, work = self._step, task.day, self._platform, self._work
        assert step
        task.gpu = self._free_gpus.pop(0)
        chosen = {} if self._workers() == 1 else {"CUDA_VISIBLE_DEVICES": str(task.gpu)}
        task.state, task.done, task.rung, task.stage = "running", False, "", "starting"
        task.child = fork(lambda channel: step(day, platform, work, channel), chosen)
        task.deadline = task.child.started + self._time_limit

    def _show(self) -> None:
        parts = []
        if building := self._in("building"):
            parts.append("building day " + ", ".join(str(t.day.number) for t in building))
        for task in self._in("running"):
            what = "waiting for builds, to time" if task.wants_timing else task.last()
            parts.append(f"running day {task.day.number}: {what}")
        left = len(self._in("waiting")) + len(self._in("ready"))
        parts.append(f"{counted(left, 'day')} left")
        self._report.status(" · ".join(parts))

    def _wait(self) -> None:
        readers = [fd for task in self._tasks if task.child for fd in task.child.readers]
        if readers:
            posix.select(readers, [], [], POLL)
        elif any(task.child for task in self._tasks):
            time.sleep(0.005)  # it has closed everything and is about to be gone

    def _attend(self, task: _Task) -> None:
        """Takes a child's events and notices its end."""
        child = task.child
        assert child
        over = child.finished()
        for event in child.read():
            self._handle(task, event)
        now = time.monotonic()
        late = not over and now > task.deadline and not task.wants_timing
        if late:
            child.kill(BUILD_GRACE if task.state == "building" else 0.0)
            for event in child.read():
                self._handle(task, event)
        if over or late:
            task.child = None
            took = now - child.started
            child.close()
            if task.state == "building":
                self._end_build(task, child, took, late)
            else:
                self._end_run(task, child, took, late)

    def _handle(self, task: _Task, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "rungs":
            task.expected = event["rungs"]
        elif kind == "stage":
            task.rung, task.stage = event["rung"], event["stage"]
        elif kind == "checked":
            outcome = RungOutcome.from_json(event["outcome"])
            task.checked[outcome.problem, outcome.rung] = outcome
        elif kind == "rung":
            self._add(task, RungOutcome.from_json(event["outcome"]))
        elif kind == "timing":
            task.wants_timing, task.alone = True, event["alone"]
            task.asked = time.monotonic()
        elif kind == "timed":
            task.timing = False
        elif kind == "table":
            self._report.table(event["title"], event["header"], event["rows"])
        elif kind == "unbuilt":
            task.outcome.reason, task.outcome.details = event["reason"], event["details"]
        elif kind in ("failed", "broken"):
            task.outcome.status, task.outcome.reason = FAIL, event["reason"]
            task.outcome.details = event.get("details", [])
        elif kind == "skipped":
            task.outcome.status, task.outcome.reason = SKIP, event["reason"]
        else:
            assert kind == "done", event
            task.done = True

    def _add(self, task: _Task, outcome: RungOutcome) -> None:
        task.checked.pop((outcome.problem, outcome.rung), None)
        task.outcome.rungs.append(outcome)
        several = len({problem for problem, _, _ in task.expected}) > 1
        self._report.rung(
            task.day.number,
            outcome,
            problem=outcome.problem if several else "",
            remarks=len(self._tasks) == 1,
        )

    def _end_build(self, task: _Task, child: Child, took: float, late: bool) -> None:
        task.outcome.build_s = took
        if task.outcome.reason:
            self._fail_day(task, task.outcome.reason)
        elif late:
            self._fail_day(task, f"the build took more than {BUILD_LIMIT:.0f} s and was ended")
        elif not task.done:
            task.outcome.details = child.output().strip().splitlines()[-20:]
            self._fail_day(task, f"the build ended without a result: {_ending(child)}")
        elif self._step is None:
            name = task.day.source.name
            self._add(task, RungOutcome("compile", name, "compiles", PASS))
            task.state = "over"
        else:
            task.state = "ready"

    def _end_run(self, task: _Task, child: Child, took: float, late: bool) -> None:
        task.outcome.run_s = took - task.waited
        task.wants_timing = task.timing = False
        self._free_gpus.append(task.gpu)
        self._free_gpus.sort()
        task.state = "over"
        outcome = task.outcome
        if not task.done:
            if late:
                cause = f"no end after {self._time_limit:.0f} s, killed (--time-limit S changes it)"
            else:
                cause = f"the process died: {_ending(child)}"
            self._fail_rest(task, cause)
        elif outcome.status == FAIL:
            self._report.day(outcome)
            self._complete(task)
        elif outcome.status == SKIP:
            self._report.day(outcome)
        if any(rung.status == FAIL for rung in outcome.rungs):
            outcome.status = FAIL
            failed = [rung.rung for rung in outcome.rungs if rung.status == FAIL]
            outcome.reason = outcome.reason or f"failed: {', '.join(failed)}"
        elif outcome.rungs and all(rung.status == SKIP for rung in outcome.rungs):
            if outcome.status == PASS:
                outcome.status, outcome.reason = SKIP, "every rung was skipped"
        elif not outcome.rungs and outcome.status == PASS:
            outcome.status, outcome.reason = FAIL, "the day ran no rung"
            self._report.day(outcome)
        # As the day lists them: a rung that is timed is finished later than one that is not.
        place = {(problem, name): i for i, (problem, name, _) in enumerate(task.expected)}
        outcome.rungs.sort(key=lambda rung: place[rung.problem, rung.rung])
        outcome.output = readable(child.output())
        if outcome.status == FAIL or len(self._tasks) == 1:
            self._report.output(task.day, outcome.output)

    def _fail_rest(self, task: _Task, cause: str) -> None:
        """Puts an untimely end down to the rung that ran, and says so of the others."""
        task.outcome.status = FAIL
        task.outcome.reason = f"{cause}, while {task.last()}"
        if task.rung:
            self._complete(task, f"{cause}, while {task.stage}")
        else:
            self._report.day(task.outcome)
            self._complete(task)

    def _complete(self, task: _Task, cause: str = "") -> None:
        """Gives each rung without an outcome one: the one that ran has failed by `cause`, those
        that had passed their checks go untimed, the others were never reached."""
        finished = {(rung.problem, rung.rung) for rung in task.outcome.rungs}
        for problem, name, idea in task.expected:
            if (problem, name) in finished:
                continue
            if passed := task.checked.get((problem, name)):
                passed.remarks.append("not timed: the day ended before")
                self._add(task, passed)
            elif cause and name == task.rung:
                self._add(task, RungOutcome(problem, name, idea, FAIL, cause))
                cause = ""
            else:
                reason = "not run: the day ended before"
                self._add(task, RungOutcome(problem, name, idea, SKIP, reason))

    def _fail_day(self, task: _Task, reason: str) -> None:
        task.state = "over"
        task.outcome.status, task.outcome.reason = FAIL, reason
        self._report.day(task.outcome)


def readable(output: str) -> str:
    """A child's output without what a crash report of Python says of the runner itself."""
    ours = re.compile(r'^(Extension modules: |  File ".*/(common/\w+|run_day)\.py", line )')
    return "\n".join(line for line in output.splitlines() if not ours.match(line))


def _ending(child: Child) -> str:
    assert child.exit_code is not None
    words = describe_exit(child.exit_code)
    return f"{words}, for want of memory?" if child.exit_code == -signal.SIGKILL else words


def exit_code(outcomes: Sequence[DayOutcome]) -> int:
    """0 if nothing failed and something passed, else 1."""
    if any(outcome.status == FAIL for outcome in outcomes):
        return EXIT_FAILED
    return EXIT_PASSED if any(o.status == PASS for o in outcomes) else EXIT_FAILED


@contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise Interrupted, once: a second one does not cut cleaning up."""

    def interrupt(number: int, _frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Import(threading.Thread):
    """Imports torch, and what of ours needs it, beside other work."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            import common.worker  # noqa: F401
        except Exception as error:
            self.error = error

    def wait(self) -> None:
        """Returns when the import is over; raises what it raised."""
        self.join()
        if self.error is not None:
            raise self.error


def run(options: Options) -> int:
    """Runs what the command line asks for and returns the exit code."""
    report = Report(colour=options.colour)
    try:
        selection = select(options.wanted, options.days, options.shard)
    except SelectionError as error:
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        for arch in options.archs:
            sm(arch)
    except ToolchainError as error:
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_USAGE
    if options.in_process:
        leave_preload()
    with _signals_raise():
        try:
            return _run(options, selection, report)
        except Interrupted as interrupted:
            report.close()
            return 128 + interrupted.number
        finally:
            report.close()


def _run(options: Options, selection: Selection, report: Report) -> int:
    began = time.monotonic()
    importing = _Import()
    report.status("importing PyTorch")
    try:
        platform = detect(options.device)
    except ToolchainError as error:
        report.close()
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    if options.mode == "profile" and platform.device == "cpu":
        platform = replace(platform, variant="trace")
    for note in selection.notes:
        report.text(note, "yellow")
    try:
        importing.wait()
    except (ImportError, OSError) as error:
        report.close()
        print(
            f"run_day.py: {type(error).__name__}: {error}\n"
            "PyTorch, or something beside it, cannot be imported; "
            "python run_day.py --doctor says more",
            file=sys.stderr,
        )
        return EXIT_FAILED
    broken = [
        DayOutcome(number, f"day{number:02d}", "", FAIL, str(error).replace(f"{ROOT}/", ""))
        for number, error in selection.broken.items()
    ]
    report.text(title(options, platform))
    for outcome in broken:
        report.day(outcome)
    if options.in_process:
        step = _steps()[options.mode]
        assert step
        outcomes = in_process(selection.days, platform, step, _work(options, platform), report)
    else:
        runner = _runner(options, selection.days, platform, report)
        try:
            runner.run()
        except Interrupted:
            report.text("interrupted; what is known so far:", "yellow")
            report.summary(broken + runner.outcomes, time.monotonic() - began)
            _store(options, platform, broken + runner.outcomes, report, write=False)
            raise
        outcomes = runner.outcomes
    outcomes = sorted(broken + outcomes, key=lambda outcome: outcome.number)
    report.summary(outcomes, time.monotonic() - began)
    stored = _store(options, platform, outcomes, report, options.write)
    return exit_code(outcomes) if stored else EXIT_FAILED


def title(options: Options, platform: Platform) -> str:
    """The first line of a run."""
    if options.mode == "compile":
        toolkit = platform.toolkit
        version = toolkit.version if toolkit else "missing"
        return f"compiling for {', '.join(options.archs)} with nvcc {version}, running nothing"
    return platform.label()


def _work(options: Options, platform: Platform) -> Any:
    from common.worker import Work

    limit = options.time_limit or TIME_LIMIT[platform.device]
    arguments = () if options.days == DAYS else ("--days", str(options.days))
    return Work(options.quick, options.bench, limit, options.watched, arguments)


def _steps() -> dict[str, Step | None]:
    from common import profile, sanitize, worker

    return {
        "run": worker.run_day,
        "sanitize": sanitize.run_day,
        "profile": profile.run_day,
        "profiled": profile.run_rungs,
        "compile": None,
    }


def _runner(options: Options, days: Sequence[Day], platform: Platform, report: Report) -> Runner:
    from common import build

    work = _work(options, platform)
    if options.mode == "compile":
        archs = list(options.archs)
        return Runner(
            days,
            platform,
            None,
            lambda day: build.compile_only(day, archs),
            lambda day: False,
            work,
            report,
            jobs_allowed(options.jobs),
            work.time_limit,
        )
    limit = work.time_limit * (1 if options.mode == "run" else SANITIZER_SLOWDOWN)
    return Runner(
        days,
        platform,
        _steps()[options.mode],
        lambda day: build.build(day, platform),
        lambda day: build.plan(day, platform).ready,
        work,
        report,
        jobs_allowed(options.jobs),
        limit,
    )


class _Direct(Channel):
    """A channel whose events are handled at once, in the process that emits them."""

    def __init__(self, handle: Callable[[dict[str, Any]], None]):
        self._handle = handle

    def emit(self, event: str, **fields: Any) -> None:
        self._handle({"event": event, **fields})

    def wait(self, event: str, **fields: Any) -> None:
        self.emit(event, **fields)


def in_process(
    days: Sequence[Day], platform: Platform, step: Step, work: Any, report: Report
) -> list[DayOutcome]:
    """Runs days in this very process, unprotected, for tools that watch a single process."""
    from common import build

    outcomes = []
    for day in days:
        outcome = DayOutcome(day.number, day.name, day.title, PASS)

        def handle(event: dict[str, Any], day: Day = day, outcome: DayOutcome = outcome) -> None:
            kind = event["event"]
            if kind == "rung":
                rung = RungOutcome.from_json(event["outcome"])
                outcome.rungs.append(rung)
                report.rung(day.number, rung)
                if rung.status == FAIL:
                    outcome.status = FAIL
            elif kind in ("failed", "broken", "skipped"):
                outcome.status = SKIP if kind == "skipped" else FAIL
                outcome.reason = event["reason"]
                report.day(outcome)

        build.build(day, platform)
        step(day, platform, work, _Direct(handle))
        outcomes.append(outcome)
    return outcomes


def _store(
    options: Options,
    platform: Platform,
    outcomes: Sequence[DayOutcome],
    report: Report,
    write: bool,
) -> bool:
    """Writes what --json and --write ask for; False, with the reason told, where that failed."""
    if not options.json and not write:
        return True
    complete = options.mode == "run" and options.bench and not options.quick
    run = results.describe(platform, outcomes, complete)
    try:
        if options.json:
            results.write_json(options.json, [run])
        if write:
            for text in results.store(run, options.days.parent):
                report.text(text)
    except results.ResultsError as error:
        report.text(str(error), "red")
        return False
    return True


def use_reports(
    reports: Sequence[Path], store_in: Path | None, json: Path | None, colour: bool
) -> int:
    """Shows reports written by --json as one, writes them as one to `json`, and stores their
    results under `store_in` (without reports: writes the generated files anew)."""
    report = Report(colour=colour)
    try:
        runs = results.merge(reports)
        outcomes = results.outcomes_of(runs)
        for outcome in outcomes:
            for rung in outcome.rungs:
                report.rung(outcome.number, rung)
            if outcome.status != PASS and not outcome.rungs:
                report.day(outcome)
        if outcomes:
            report.summary(outcomes, sum(o.build_s + o.run_s for o in outcomes))
        if json:
            results.write_json(json, runs)
        if store_in:
            told = [text for run in runs for text in results.store(run, store_in)]
            for text in told if runs else results.regenerate(store_in):
                report.text(text)
    except results.ResultsError as error:
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    return exit_code(outcomes) if reports else EXIT_PASSED
