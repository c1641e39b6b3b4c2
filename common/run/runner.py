"""Runs days: builds them side by side, runs each in a process of its own, reports as it goes.

The parent imports torch once and never touches CUDA. Every build and every run is a forked child
(`common.process.child`), so a crash, a hang or a device left in error costs one day.
"""

from __future__ import annotations

import os
import re
import select as posix
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.base.compiling import BuildError
from common.base.days import Day
from common.base.figures import counted
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome, Skip
from common.base.toolchain import Platform, ToolchainError
from common.base.where import cores
from common.process.child import Child, describe_exit, fork
from common.process.events import (
    AskTiming,
    Channel,
    Event,
    Finished,
    Over,
    Progress,
    Table,
    Timed,
    Unbuilt,
)
from common.report.terminal import Report

BUILD_LIMIT = 900.0  # seconds
BUILD_GRACE = 1.0  # seconds a compiler driver gets to remove what is half-written
BUILD_MEMORY = 0.6e9  # bytes that one nvcc job of a stable-ABI source takes
POLL = 0.1  # seconds between looks at time limits


@dataclass
class _Task:
    """A day in progress. state: "waiting", "building", "ready", "running" or "over"."""

    day: Day
    progress: Progress
    state: str = "waiting"
    child: Child | None = None
    gpu: int = 0
    deadline: float = 0.0
    wants_timing: bool = False
    requested: float = 0.0  # when it requested timing
    waited: float = 0.0  # seconds that it waited for that
    timing: bool = False
    alone: bool = False

    @property
    def outcome(self) -> DayOutcome:
        return self.progress.outcome


Step = Callable[[Day, Platform, Any, Channel], None]  # see common.process.worker.run_day


def jobs_allowed(requested: int) -> int:
    """How many builds at a time: `requested`, or as many as cores and free memory allow."""
    if requested:
        return requested
    free = free_memory()
    return max(1, cores() if free is None else min(cores(), int(free / BUILD_MEMORY)))


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


def no_attention() -> None:
    """For a run that nothing from outside is to end, but a signal."""


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
        attend: Callable[[], None] = no_attention,
    ):
        """step: what runs a built day (None: building is all). build: builds a day, in a child.

        ready: whether there is nothing to build. work: handed to `step`. attend: called every
        POLL seconds at least; what it raises ends the run.
        """
        self._platform, self._step, self._work, self._report = platform, step, work, report
        self._build, self._ready = build, ready
        self._jobs, self._time_limit, self._attention = jobs, time_limit, attend
        self._tasks = [
            _Task(day, Progress(DayOutcome(day.number, day.name, day.title, PASS))) for day in days
        ]
        self._free_gpus = list(range(self._workers()))

    def _workers(self) -> int:
        """How many days run at a time: one per GPU; a single day has all GPUs. Where the user chose
        GPUs, one, on the first. On the CPU one, whose kernels use all cores: what is printed is the
        same every time."""
        if self._platform.device == "cpu" or "CUDA_VISIBLE_DEVICES" in os.environ:
            return 1
        return max(1, min(self._platform.gpus, len(self._tasks)))

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
                self._attention()
                for task in self._tasks:
                    if task.child is not None:
                        self._attend(task)
        finally:
            for task in self._tasks:
                if task.child is not None:
                    task.child.kill(BUILD_GRACE if task.state == "building" else 0.0)
                    for event in task.child.read():
                        task.progress.take(event)
                    task.child.close()
                    task.child = None

    def break_off(self) -> None:
        """After something ended `run`: of the days that were running, those with a rung that has an
        outcome, or has passed its checks, are over, and skipped for what is missing."""
        for task in self._in("running"):
            progress, outcome = task.progress, task.outcome
            if outcome.rungs or progress.checked:
                task.state = "over"
                outcome.status, outcome.reason = SKIP, f"interrupted, while {progress.doing()}"
                for rung in progress.complete():
                    if rung.status == PASS:
                        self._show_rung(task, rung)
                progress.conclude()
                self._report.day(outcome)

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
                waited = time.monotonic() - task.requested
                task.waited, task.deadline = task.waited + waited, task.deadline + waited
                task.child.go()

    def _start_build(self, task: _Task) -> None:
        day, build = task.day, self._build

        def work(channel: Channel) -> None:
            try:
                build(day)
            except (BuildError, ToolchainError) as error:
                channel.emit(Unbuilt("does not build", str(error).splitlines()))
            except Skip:
                channel.emit(Over())  # the run says what is missing
            except Exception as error:
                from common.process.worker import explain

                reason, details = explain(error)
                channel.emit(Unbuilt(f"does not build: {reason}", details))
            else:
                channel.emit(Over())

        task.state = "building"
        task.child = fork(work)
        task.deadline = task.child.started + BUILD_LIMIT

    def _start_run(self, task: _Task) -> None:
        step, day, platform, work = self._step, task.day, self._platform, self._work
        assert step
        task.gpu = self._free_gpus.pop(0)
        chosen = {} if self._workers() == 1 else {"CUDA_VISIBLE_DEVICES": str(task.gpu)}
        task.state = "running"
        task.progress = Progress(task.outcome, stage="starting")
        task.child = fork(lambda channel: step(day, platform, work, channel), chosen)
        task.deadline = task.child.started + self._time_limit

    def _show(self) -> None:
        parts = []
        if building := self._in("building"):
            parts.append("building day " + ", ".join(str(t.day.number) for t in building))
        for task in self._in("running"):
            what = "waiting for builds, to time" if task.wants_timing else task.progress.doing()
            parts.append(f"running day {task.day.number}: {what}")
        if left := len(self._in("waiting")) + len(self._in("ready")):
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

    def _handle(self, task: _Task, event: Event) -> None:
        """What an event asks of the runner; what it says of the day is `Progress`'s to know."""
        task.progress.take(event)
        match event:
            case Finished(outcome):
                self._show_rung(task, outcome)
            case AskTiming(alone):
                task.wants_timing, task.alone = True, alone
                task.requested = time.monotonic()
            case Timed():
                task.timing = False
            case Table(title, header, rows):
                self._report.table(title, header, rows)
            case _:
                pass  # nothing to do for it

    def _show_rung(self, task: _Task, outcome: RungOutcome) -> None:
        several = len({problem for problem, _, _ in task.progress.planned}) > 1
        self._report.rung(
            task.day.number,
            outcome,
            problem=outcome.problem if several else "",
            remarks=len(self._tasks) == 1,
        )

    def _end_build(self, task: _Task, child: Child, took: float, late: bool) -> None:
        task.outcome.build_s = took
        if unbuilt := task.progress.unbuilt:
            self._fail_day(task, unbuilt.reason, unbuilt.details)
        elif late:
            self._fail_day(task, f"the build took more than {BUILD_LIMIT:.0f} s and was ended")
        elif not task.progress.over:
            last = child.output().strip().splitlines()[-20:]
            self._fail_day(task, f"the build ended without a result: {_ending(child)}", last)
        elif self._step is None:
            compiled = RungOutcome("compile", task.day.source.name, "compiles", PASS)
            task.progress.finish(compiled)
            self._show_rung(task, compiled)
            task.state = "over"
        else:
            task.state = "ready"

    def _end_run(self, task: _Task, child: Child, took: float, late: bool) -> None:
        task.outcome.run_s = took - task.waited
        task.wants_timing = task.timing = False
        self._free_gpus.append(task.gpu)
        self._free_gpus.sort()
        task.state = "over"
        progress, outcome = task.progress, task.outcome
        if not progress.over:
            if late:
                cause = f"no end after {self._time_limit:.0f} s, killed (--time-limit S changes it)"
            else:
                cause = f"the process died: {_ending(child)}"
            self._fail_rest(task, cause)
        elif outcome.status != PASS:
            self._report.day(outcome)
            if outcome.status == FAIL:
                self._complete(task)
        elif not outcome.rungs:
            progress.conclude()  # it fails: no rung ran
            self._report.day(outcome)
        progress.conclude()
        outcome.output = readable(child.output())
        if outcome.status == FAIL or len(self._tasks) == 1:
            self._report.output(task.day, outcome.output)

    def _fail_rest(self, task: _Task, cause: str) -> None:
        """Puts an untimely end down to the rung that ran, and says so of the others."""
        progress = task.progress
        task.outcome.status = FAIL
        task.outcome.reason = f"{cause}, while {progress.doing()}"
        if progress.rung:
            self._complete(task, f"{cause}, while {progress.stage}")
        else:
            self._report.day(task.outcome)
            self._complete(task)

    def _complete(self, task: _Task, cause: str = "") -> None:
        for outcome in task.progress.complete(cause):
            self._show_rung(task, outcome)

    def _fail_day(self, task: _Task, reason: str, details: Sequence[str] = ()) -> None:
        task.state = "over"
        task.outcome.status, task.outcome.reason = FAIL, reason
        task.outcome.details = list(details)
        self._report.day(task.outcome)


def readable(output: str) -> str:
    """A child's output without what a crash report of Python says of the runner itself."""
    ours = re.compile(r'^(Extension modules: |  File ".*/(common/\w+/\w+|run_day)\.py", line )')
    return "\n".join(line for line in output.splitlines() if not ours.match(line))


def _ending(child: Child) -> str:
    assert child.exit_code is not None
    words = describe_exit(child.exit_code)
    if child.exit_code == -signal.SIGKILL:
        return f"{words}, for want of memory?"
    return f"{words}; --doctor looks for the cause" if child.exit_code < 0 else words
