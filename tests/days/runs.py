"""Run run_day.py over all days that tests use, with the command that a user types.

The runs start when the compilations that other tests wait for are done, one after the other, and
continue in parallel with the tests, which keep one core busy. Once a test waits for a run, a second
one continues too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common.base.days import Day, load_lesson
from common.base.paths import ROOT
from common.mutants.outline import trimmed
from common.practice.challenge import write_challenge
from common.practice.steps import linked_for
from tests.progress import finish

Outcomes = dict[int, dict[str, Any]]  # by the day's number

PER_DAY = 3600  # seconds: other tests run in parallel


class DayRuns:
    """A queue of runs, each started once."""

    def __init__(self, ready: Callable[[], object]):
        """Create the queue. ready: returns when the queue may start."""
        self._ready = ready
        self._queue = ThreadPoolExecutor(2)
        self._places = threading.Semaphore(1)  # for runs that go on at the same time
        self._waited_for = False
        self._begun: dict[str, Future[Outcomes]] = {}
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._closed = False

    def begin(self, name: str, days: Sequence[Day], *options: str) -> None:
        """Start a run of these days on the CPU backend; `name` is unique to it."""
        self._begun[name] = self._queue.submit(self._run, days, options)

    def begin_stubs(self, name: str, days: Sequence[Day]) -> None:
        """Start runs of quick checks of days of which a step is still the stub: the first step of
        all days as `name` 0, the second as `name` 1, and so on."""
        for number in range(max((len(day.steps) for day in days), default=0)):
            those = [day for day in days if number < len(day.steps)]
            self._begun[f"{name} {number}"] = self._queue.submit(self._run_stubs, those, number)

    def outcomes(self, name: str) -> Outcomes:
        """Return the outcomes, after waiting for the run. Raise AssertionError if its report or
        exit code is wrong."""
        if not self._waited_for:
            self._waited_for = True
            self._places.release()  # the core that the tests kept busy is free
        return self._begun[name].result()

    def close(self) -> None:
        """End running runs, and give up those that have not started."""
        with self._lock:
            self._closed = True
            for running in list(self._running):
                running.terminate()
        self._queue.shutdown(cancel_futures=True)

    def _run(self, days: Sequence[Day], options: Sequence[str]) -> Outcomes:
        self._ready()
        with self._places, tempfile.TemporaryDirectory(prefix="day-runs-") as folder:
            return self._run_into(Path(folder, "report.json"), days, options)

    def _run_into(self, report: Path, days: Sequence[Day], options: Sequence[str]) -> Outcomes:
        numbers = [str(day.number) for day in days]
        command = [sys.executable, "run_day.py", *numbers, "--device", "cpu"]
        command += ["--time-limit", str(PER_DAY), *options, "--json", str(report)]
        with self._lock:
            assert not self._closed
            running = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            self._running.add(running)
        try:
            said, _ = finish(running)
        finally:
            self._running.discard(running)
        assert report.is_file(), f"run_day.py wrote no report\n{said}"
        outcomes = json.loads(report.read_text())["days"]
        passed = all(day["status"] != "FAIL" for day in outcomes)
        some = any(day["status"] == "PASS" for day in outcomes)
        assert (running.returncode == 0) == (passed and some), said
        return {day["number"]: day for day in outcomes}

    def _run_stubs(self, days: Sequence[Day], number: int) -> Outcomes:
        with tempfile.TemporaryDirectory(prefix="day-stubs-") as folder:
            copies = Path(folder, "days")
            rungs = _write_stubs(days, number, copies)
            options = ["--days", str(copies), "--rungs", ",".join(rungs), "--quick", "--no-bench"]
            return self._run(days, options)


def _write_stubs(days: Sequence[Day], number: int, copies: Path) -> list[str]:
    """Write copies of the days with a step as a stub; return the rungs to check."""
    rungs: list[str] = []
    for day in days:
        challenge = write_challenge(day, ROOT / "days", day.steps[number])
        copy = copies / day.name
        shutil.copytree(day.folder, copy, ignore=shutil.ignore_patterns("*.svg", "*.md", "further"))
        text = challenge.start
        alone = len(day.library_sources) == 1 and not day.other_sources  # files call each other
        if challenge.rungs and alone:
            text = trimmed(text, challenge.rungs)  # only code that the rungs need is compiled
        for source in {*day.library_sources} - {*linked_for(day, challenge.rungs).library_sources}:
            (copy / source.name).write_text("// no rung of the step needs it\n", encoding="utf-8")
        (copy / challenge.original.name).write_text(text, encoding="utf-8")
        rungs += challenge.rungs or _rungs(day)
    return rungs


def _rungs(day: Day) -> list[str]:
    return [rung.name for problem in load_lesson(day).problems for rung in problem.rungs]
