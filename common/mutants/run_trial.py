"""Run one trial in a separate process: some of a day's rungs, from a library that may be wrong."""

from __future__ import annotations

import itertools
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from common.base.cache import Entry
from common.base.days import Day, Further, load_lesson, read_day
from common.base.options import RunOptions
from common.base.outcome import FAIL
from common.base.toolchain import Platform
from common.build import library
from common.check import device
from common.cpu import libraries
from common.cpu.backend import Runtime
from common.mutants.trial import Trial
from common.process import worker
from common.process.events import Channel, Finished, Over, Planned, Ran, Stage

# Seconds that one thread may run without reaching a barrier or its end, and that all may wait in
# loops. Longer than in the debugger, since trials share the machine with compilers.
STUCK_LIMIT, SPIN_LIMIT = 5.0, 2.0
# Seconds of one call of an operator. Only an endless loop of the launcher takes as long: the
# runtime ends kernels. SIGALRM then ends the process.
CALL_LIMIT = 200.0


@dataclass(frozen=True)
class _Placed(Entry):
    """A library at the place that the trial names, not in the cache."""

    place: Path = Path()

    @property
    def directory(self) -> Path:
        return self.place

    @property
    def seconds(self) -> float:
        return 0.0


class _Calls:
    """Record the names of the operators that are called. A call without an end ends the process."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        packet: Any = torch._ops.OpOverloadPacket
        call, names = packet.__call__, self.names

        def noting(this: Any, /, *args: Any, **kwargs: Any) -> Any:
            names.add(this._qualified_op_name)
            signal.setitimer(signal.ITIMER_REAL, CALL_LIMIT)
            try:
                return call(this, *args, **kwargs)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

        packet.__call__ = noting

    def take(self, namespace: str) -> list[str]:
        """Return the operators of a namespace that were called since the last call of `take`."""
        prefix = f"{namespace}::"
        found = sorted(name.removeprefix(prefix) for name in self.names if name.startswith(prefix))
        self.names.clear()
        return found


def run_trial(trial: Trial, platform: Platform, channel: Channel) -> None:
    """Check the rungs until one fails, and send to `channel` the outcome and the operators of each.
    Without rungs, send only those that the day has."""
    day = read_day(Path(trial.day)).with_further()
    platform = replace(platform, model=trial.model or platform.model)
    lesson = load_lesson(day)
    if not trial.rungs:
        rungs = [[p.name, rung.name, rung.idea] for p in lesson.problems for rung in p.rungs]
        channel.emit(Planned(rungs))
        channel.emit(Over())
        return
    if trial.folder:
        day = _moved(day, Path(trial.folder))
    path = Path(trial.library)
    entry = _Placed("trial", path.parent.name, path.name, place=path.parent)
    todo = library.Build(day, platform, (), entry)
    backend = device.make(platform, trial.debug)
    runtime = Runtime(libraries.build_runtime(platform))  # the one that `make` has loaded
    runtime.set_threads(trial.threads)
    if platform.variant == "plain":
        runtime.set_stuck_limit(STUCK_LIMIT)
        runtime.set_spin_limit(SPIN_LIMIT)
    channel.emit(Stage("", "loading the library"))
    operators = library.load(todo)
    options = RunOptions(
        quick=trial.quick, bench=False, watched=trial.watched, debug=trial.debug, explain=False
    )
    names = {rung.name for problem in lesson.problems for rung in problem.rungs}
    whole = worker.Run(
        day, platform, options, channel, todo, backend, library.fallbacks(todo), names
    )
    once = replace(whole, options=replace(options, first_calls=True))
    calls = _Calls()
    found = {(p.name, rung.name): (p, rung) for p in lesson.problems for rung in p.rungs}
    runs = (once, whole) if trial.once_first else (whole,)
    for run, pair in itertools.product(runs, trial.rungs):
        problem, rung = found[pair]
        began = time.monotonic()
        _, outcome = worker.check_rung(run, problem, rung, operators)
        seconds = time.monotonic() - began
        left_out = 0 if trial.quick else len(problem.cases_of(rung)) - outcome.checked
        channel.emit(Ran(*pair, outcome.status, seconds, calls.take(day.name), left_out))
        channel.emit(Finished(outcome))
        if outcome.status == FAIL:
            break
    channel.emit(Over())


def _moved(day: Day, folder: Path) -> Day:
    """Return the day with its sources in another folder with the same structure."""

    def moved(path: Path) -> Path:
        return folder / path.relative_to(day.folder)

    further = day.further and Further(
        moved(day.further.folder), tuple(map(moved, day.further.sources))
    )
    return replace(
        day,
        folder=folder,
        source=moved(day.source),
        extra_sources=tuple(map(moved, day.extra_sources)),
        further=further,
    )
