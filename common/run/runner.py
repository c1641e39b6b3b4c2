"""Run days: build them side by side, run each in a separate process, report results as they come.

The parent imports torch once and never touches CUDA. Every build and every run is a forked child
(`common.process.child`), so a crash, a hang or a device left in error costs one day.

Several days are checked side by side on one device. Then each waits for its turn, in which it has
the device for itself, to be timed. Turns begin when no day is being checked on the device; until
then, further days are started while `Capacity` allows it. So no day is paused in the middle of a
check, and days take their turns one after another.
"""

from __future__ import annotations

import os
import re
import select as posix
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.base.compiling import BuildError
from common.base.days import Day
from common.base.figures import counted
from common.base.machine_faults import obstacle
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome, Skip
from common.base.toolchain import Platform, ToolchainError
from common.base.where import cores
from common.process.child import Child, describe_exit, end_all, fork
from common.process.events import (
    AskTurn,
    Channel,
    Event,
    Finished,
    Over,
    Progress,
    Step,
    Table,
    TurnOver,
    Unbuilt,
)
from common.report.terminal import Report

BUILD_LIMIT = 900.0  # seconds
TOOL_SLOWDOWN = 10  # factor on a day's time limit: a tool may slow kernels this much
BUILD_GRACE = 1.0  # seconds a compiler driver gets to remove half-written files
BUILD_MEMORY = 0.6e9  # bytes that one nvcc job of a stable-ABI source takes
POLL = 0.1  # seconds between checks of the time limits
INDUCTOR_JOBS = "TORCHINDUCTOR_COMPILE_THREADS"  # read when torch.compile is first used
MOST_NAMED = 4  # days in a part of the live line

# Names for the time that a day's run spends, where they differ from the stage's name.
WAITING = "waiting"
WARMING_UP = "warming up"
PARTS = {"starting": "loading", "loading the day": "loading"}


@dataclass(frozen=True)
class Capacity:
    """Limits on the days of one device. checked: days that are checked at a time. alive: these and
    the days that wait for their turns; at least `checked`."""

    checked: int = 1
    alive: int = 1


ONE_BY_ONE = Capacity()


@dataclass
class _Task:
    """A day in progress. state: "waiting", "building", "ready", "running" or "over".

    gpu: the GPU that runs it. used: seconds that count for its time limit; until: time of the last
    count. queued: it waits for its turn; turn: it has its turn. quiet: no build may run during the
    turn. last: no other day may hold memory of the GPU during it. lines: calls that show its
    results when it is over.
    """

    day: Day
    progress: Progress
    state: str = "waiting"
    child: Child | None = None
    gpu: int = 0
    used: float = 0.0
    until: float = 0.0
    queued: bool = False
    turn: bool = False
    quiet: bool = False
    last: bool = False
    lines: list[Callable[[], None]] = field(default_factory=list)

    @property
    def outcome(self) -> DayOutcome:
        return self.progress.outcome

    @property
    def checked(self) -> bool:
        """Return True if the day runs, and neither waits for its turn nor has it."""
        return self.state == "running" and not (self.queued or self.turn)


def jobs_allowed(requested: int) -> int:
    """Return the number of parallel builds: `requested`, or what cores and free memory allow."""
    if requested:
        return requested
    free = free_memory()
    return max(1, cores() if free is None else min(cores(), int(free / BUILD_MEMORY)))


def free_memory() -> int | None:
    """Return the bytes of memory that this process may still allocate, None if unknown."""
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


def devices(platform: Platform, days: int) -> int:
    """Return the number of devices that run days side by side: one per GPU, at most one per day;
    1 on the CPU or if the user chose the GPUs. A single day may use every GPU."""
    if platform.device == "cpu" or "CUDA_VISIBLE_DEVICES" in os.environ:
        return 1
    return max(1, min(platform.gpus, days))


class Runner:
    """A run over a sequence of days."""

    def __init__(
        self,
        days: Sequence[Day],
        platform: Platform,
        options: RunOptions,
        step: Step | None,
        build: Callable[[Day], object],
        ready: Callable[[Day], bool],
        report: Report,
        capacity: Capacity = ONE_BY_ONE,
    ):
        """Prepare a run of `days`, which are built and run in this order.

        step: runs a built day (None: only build). build: builds a day, in a child process. ready:
        returns True if the day needs no build. capacity: of each GPU, or of the CPU. The options'
        `attend` is called at least every POLL seconds.
        """
        self._platform, self._options, self._report = platform, options, report
        self._step, self._build, self._ready = step, build, ready
        self._jobs = jobs_allowed(options.jobs)
        self._time_limit = options.limit(platform.device)
        if options.mode != "run":
            self._time_limit *= TOOL_SLOWDOWN
        self._tasks = [
            _Task(day, Progress(DayOutcome(day.number, day.name, day.title, PASS))) for day in days
        ]
        self._capacity = capacity
        self._gpus = devices(platform, len(days))
        # Lines of several days must not interleave. On the CPU, the output is the same every time;
        # on a GPU the order of the days depends on how long they took.
        self._by_day = len(days) > 1 and capacity.alive * self._gpus > 1
        self._in_order = platform.device == "cpu"

    @property
    def outcomes(self) -> list[DayOutcome]:
        """Return the outcomes of the days that are over, in order."""
        return [task.outcome for task in self._tasks if task.state == "over"]

    def run(self) -> None:
        """Build and run all days. No child outlives the call, even after an exception."""
        for task in self._tasks:
            self._enter(task)
        try:
            while any(task.state != "over" for task in self._tasks):
                self._start()
                self._show()
                self._wait()
                self._options.attend()
                for task in self._tasks:
                    if task.child is not None:
                        self._attend(task)
        finally:
            builds = [t.child for t in self._in("building") if t.child is not None]
            end_all(builds, BUILD_GRACE)
            end_all([t.child for t in self._tasks if t.child is not None])
            for task in self._tasks:
                if task.child is not None:
                    for event in task.child.read():
                        task.progress.take(event)
                    task.child.close()
                    task.child = None

    def break_off(self) -> None:
        """Conclude the days after an exception ended `run`: a running day with a rung that has an
        outcome, or passed its checks, is over, and the rest of it is skipped."""
        for task in self._in("running"):
            progress, outcome = task.progress, task.outcome
            if outcome.rungs or progress.checked:
                doing = "waiting for its turn" if task.queued else progress.doing()
                outcome.status, outcome.reason = SKIP, f"interrupted, while {doing}"
                for rung in progress.complete():
                    if rung.status == PASS:
                        self._show_rung(task, rung)
                progress.conclude()
                self._show_day(task)
                task.state = "over"
        for task in self._in("over"):
            self._show_lines(task)

    def _enter(self, task: _Task) -> None:
        try:
            if self._ready(task.day):
                task.state = "ready" if self._step else "over"
        except Exception as error:  # the other days still run
            self._fail_day(task, f"cannot be read: {type(error).__name__}: {error}")

    def _in(self, state: str) -> list[_Task]:
        return [task for task in self._tasks if task.state == state]

    def _on(self, gpu: int) -> list[_Task]:
        return [task for task in self._in("running") if task.gpu == gpu]

    def _start(self) -> None:
        for gpu in range(self._gpus):
            self._give_turn(gpu)
        if not self._builds_wait():
            for task in self._in("waiting")[: max(0, self._jobs - len(self._in("building")))]:
                self._start_build(task)
        for task in self._in("ready"):
            free = self._free_gpu()
            if free is None:
                break
            self._start_run(task, free)

    def _give_turn(self, gpu: int) -> None:
        """Give the next day its turn, unless a day is being checked on the GPU or has its turn.

        A parallel build would disturb a time by the host's clock: a day timed so waits until
        everything is built, or the GPU is full. A day that found the memory full waits until the
        others are over.
        """
        days = self._on(gpu)
        if any(not task.queued for task in days):
            return
        full = len(days) >= self._capacity.alive
        builds = self._in("building") or (self._in("waiting") and not full)
        alone = all(task.last for task in days) and (full or not self._in("ready"))
        for task in days:
            if not (task.quiet and builds) and (alone or not task.last):
                assert task.child is not None
                self._count(task, time.monotonic())
                task.queued, task.turn = False, True
                task.child.go()
                return

    def _builds_wait(self) -> bool:
        """Return True if no build may start: a day is timed by the host's clock, or days that wait
        for such a turn fill a GPU."""
        running = self._in("running")
        if any(task.turn and task.quiet for task in running):
            return True
        on = [self._on(gpu) for gpu in range(self._gpus)]
        return any(
            len(days) >= self._capacity.alive and all(t.queued and t.quiet for t in days)
            for days in on
        )

    def _free_gpu(self) -> int | None:
        """Return the GPU with the fewest days among those with room for another one, or None."""
        found = []
        for gpu in range(self._gpus):
            days = self._on(gpu)
            has_room = len(days) < self._capacity.alive
            has_room = has_room and sum(task.checked for task in days) < self._capacity.checked
            if has_room and not any(task.turn for task in days):
                found.append((len(days), gpu))
        return min(found)[1] if found else None

    def _count(self, task: _Task, now: float) -> None:
        """Add the seconds since the last count to the day's current stage, and to the seconds used
        of its time limit: if days share a device, each uses its share of them. The warm-up has the
        limit of a build, because it compiles the libraries' functions."""
        elapsed, task.until = now - task.until, now
        doing = WAITING if task.queued else PARTS.get(task.progress.stage, task.progress.stage)
        task.outcome.spent[doing] = task.outcome.spent.get(doing, 0.0) + elapsed
        if doing not in (WAITING, WARMING_UP):
            sharing = 1 if task.turn else sum(other.checked for other in self._on(task.gpu))
            task.used += elapsed / max(1, sharing)

    def _start_build(self, task: _Task) -> None:
        day, build = task.day, self._build

        def work(channel: Channel) -> None:
            try:
                build(day)
            except (BuildError, ToolchainError) as error:
                channel.emit(_unbuilt("does not build", str(error).splitlines()))
            except Skip:
                channel.emit(Over())  # the run reports what is missing
            except Exception as error:
                from common.process.worker import explain

                reason, details = explain(error)
                channel.emit(_unbuilt(f"does not build: {reason}", details))
            else:
                channel.emit(Over())

        task.state = "building"
        task.child = fork(work)

    def _start_run(self, task: _Task, gpu: int) -> None:
        step, day, platform, options = self._step, task.day, self._platform, self._options
        assert step
        task.gpu = gpu
        chosen = {} if self._gpus == 1 else {"CUDA_VISIBLE_DEVICES": str(gpu)}
        if self._capacity.checked > 1:  # or inductor starts as many processes as there are cores
            threads = max(1, cores() // (self._gpus * self._capacity.checked))
            chosen[INDUCTOR_JOBS] = os.environ.get(INDUCTOR_JOBS, str(threads))
        task.state = "running"
        task.progress = Progress(task.outcome, stage="starting")
        task.child = fork(lambda channel: step(day, platform, options, channel), chosen)
        task.until = task.child.started

    def _show(self) -> None:
        parts = []
        if building := self._in("building"):
            parts.append(f"building {_days(building)}")
        running = self._in("running")
        alone = [task for task in running if not task.queued]
        if len(alone) == 1:
            parts.append(f"running day {alone[0].day.number}: {alone[0].progress.doing()}")
        elif alone:
            parts.append(f"running {_days(alone)}")
        if waiting := [task for task in running if task.queued]:
            parts.append(f"{_days(waiting)} to be timed")
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
        """Take a child's events and notice its end."""
        child = task.child
        assert child
        over = child.finished()
        for event in child.read():
            self._handle(task, event)
        now = time.monotonic()
        late = 0.0  # the limit that has passed
        if task.state == "building":
            late = BUILD_LIMIT * (now > child.started + BUILD_LIMIT)
        else:
            self._count(task, now)
            if task.outcome.spent.get(WARMING_UP, 0.0) > BUILD_LIMIT:
                late = BUILD_LIMIT
            elif task.used > self._time_limit:
                late = self._time_limit
        if late and not over:
            child.kill(BUILD_GRACE if task.state == "building" else 0.0)
            for event in child.read():
                self._handle(task, event)
        if over or late:
            task.child = None
            child.close()
            if task.state == "building":
                self._end_build(task, child, now - child.started, late > 0 and not over)
            else:
                self._end_run(task, child, now - child.started, 0.0 if over else late)

    def _handle(self, task: _Task, event: Event) -> None:
        """Act on an event, after `Progress` has recorded what it reports about the day."""
        if task.state == "running":
            self._count(task, time.monotonic())
        task.progress.take(event)
        match event:
            case Finished(outcome):
                self._show_rung(task, outcome)
            case AskTurn(quiet, last):
                task.queued, task.quiet, task.last = True, quiet, last
            case TurnOver():
                task.turn = False
            case Table(title, header, rows):
                self._tell(task, lambda: self._report.table(title, header, rows))
            case _:
                pass  # nothing to do for it

    def _tell(self, task: _Task, show: Callable[[], None]) -> None:
        """Show something of a day, now or when it is over."""
        if self._by_day:
            task.lines.append(show)
        else:
            show()

    def _end(self, task: _Task) -> None:
        """End a day and show its results; on the CPU only after the days before it have ended."""
        task.state = "over"
        for each in self._tasks:
            if each.state == "over":
                self._show_lines(each)
            elif self._in_order:
                break

    def _show_lines(self, task: _Task) -> None:
        for show in task.lines:
            show()
        task.lines.clear()

    def _show_day(self, task: _Task) -> None:
        self._tell(task, lambda: self._report.day(task.outcome))

    def _show_rung(self, task: _Task, outcome: RungOutcome) -> None:
        several = len({problem for problem, _, _ in task.progress.planned}) > 1
        problem, remarks = outcome.problem if several else "", len(self._tasks) == 1
        number = task.day.number
        self._tell(task, lambda: self._report.rung(number, outcome, problem, remarks))

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
            self._end(task)
        else:
            task.state = "ready"

    def _end_run(self, task: _Task, child: Child, took: float, late: float) -> None:
        progress, outcome = task.progress, task.outcome
        outcome.run_s = took - outcome.spent.get(WAITING, 0.0)
        outcome.spent = {what: round(seconds, 3) for what, seconds in outcome.spent.items()}
        task.queued = task.turn = False
        if not progress.over:
            if late:
                changes = "" if late == BUILD_LIMIT else " (--time-limit S changes it)"
                cause = f"no end after {late:.0f} s, killed{changes}"
            else:
                cause = f"the process died: {_ending(child)}"
            self._fail_rest(task, cause)
        elif outcome.status != PASS:
            self._show_day(task)
            if outcome.status == FAIL:
                self._complete(task)
        elif not outcome.rungs:
            progress.conclude()  # it fails: no rung ran
            self._show_day(task)
        progress.conclude()
        outcome.output = readable(child.output())
        if outcome.status == FAIL or len(self._tasks) == 1:
            self._tell(task, lambda: self._report.output(task.day, outcome.output))
        self._end(task)

    def _fail_rest(self, task: _Task, cause: str) -> None:
        """Fail the rung that ran with `cause`, and mark the remaining rungs as not run."""
        progress = task.progress
        task.outcome.status = FAIL
        task.outcome.reason = f"{cause}, while {progress.doing()}"
        if progress.rung:
            self._complete(task, f"{cause}, while {progress.stage}")
        else:
            self._show_day(task)
            self._complete(task)

    def _complete(self, task: _Task, cause: str = "") -> None:
        for outcome in task.progress.complete(cause):
            self._show_rung(task, outcome)

    def _fail_day(self, task: _Task, reason: str, details: Sequence[str] = ()) -> None:
        task.outcome.status, task.outcome.reason = FAIL, reason
        task.outcome.details = list(details)
        self._show_day(task)
        self._end(task)


def _unbuilt(reason: str, details: list[str]) -> Unbuilt:
    """Return the event of a failed build; if the machine is the cause, with that and its fix."""
    if wrong := obstacle("\n".join([reason, *details])):
        return Unbuilt(f"does not build: {wrong.what}", [wrong.fix, *details])
    return Unbuilt(reason, details)


def _days(tasks: Sequence[_Task]) -> str:
    """Return "day 5", "day 5, 7" or "5 days"."""
    if len(tasks) > MOST_NAMED:
        return counted(len(tasks), "day")
    return "day " + ", ".join(str(task.day.number) for task in tasks)


def readable(output: str) -> str:
    """Return a child's output without the runner's own frames in a crash report of Python."""
    ours = re.compile(r'^(Extension modules: |  File ".*/(common/\w+/\w+|run_day)\.py", line )')
    return "\n".join(line for line in output.splitlines() if not ours.match(line))


def _ending(child: Child) -> str:
    assert child.exit_code is not None
    words = describe_exit(child.exit_code)
    if child.exit_code == -signal.SIGKILL:
        return f"{words}, for want of memory?"
    if child.exit_code < 0:
        return f"{words}; --sanitize looks for a bad address, --doctor at the machine"
    return words
