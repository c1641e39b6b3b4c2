"""Wait for processes as long as they make progress, on a machine with any load.

A process is given up when it and all that it started have printed nothing for long and, meanwhile,
used almost no processor time, or very much of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

QUIET = 600.0  # seconds in which a process must print something, or use the processor for
LEAST = 5.0  # seconds: polling uses less, working gets more at a load of 100
MOST = 3600.0  # seconds of the processor without output: one day takes less, an endless loop more
POLL = 0.5

TICKS = os.sysconf("SC_CLK_TCK")


class Stuck(AssertionError):
    """A process makes no progress."""


def run(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as `subprocess.run` does, and return its exit code and output.

    Raises Stuck if it makes no progress, CalledProcessError with `check=True` if it fails.
    """
    check = options.pop("check", False)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **pipes | options)
    output, errors = finish(process)
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the output and the errors of a process once it has ended.

    Raise Stuck if it makes no progress. Any exception, Ctrl-C included, ends the process and those
    that it started.
    """
    progress = Progress(process.pid)
    try:
        while True:
            try:
                return process.communicate(timeout=POLL)
            except subprocess.TimeoutExpired as waiting:
                progress.look(len(waiting.output or b"") + len(waiting.stderr or b""))
    except BaseException as error:
        kill(process.pid)
        output, errors = process.communicate()
        if isinstance(error, Stuck):
            raise Stuck(f"{error}: {process.args!r}\n{output}\n{errors}") from None
        raise


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Return as soon as the condition holds.

    process: the process that makes it true. Raise Stuck if it ends before, or makes no progress;
    without a process, after QUIET seconds.
    """
    progress = Progress(process.pid) if process else None
    deadline = time.monotonic() + QUIET
    try:
        while not condition():
            if progress:
                progress.look()
            elif time.monotonic() > deadline:
                raise Stuck("the condition did not come true")
            if process and process.poll() is not None and not condition():
                raise Stuck("the process has ended before the condition came true")
            time.sleep(0.02)
    except BaseException:
        if process:
            kill(process.pid)
            process.communicate()
        raise


class Progress:
    """The output and the processor time of a process and its descendants."""

    def __init__(self, pid: int):
        self._pid = pid
        self._printed = 0
        self._looked = self._since = time.monotonic()
        self._used = self._used_quietly = seconds_used(pid)

    def look(self, printed: int = 0) -> None:
        """Raise Stuck if there was no progress for long. printed: bytes so far."""
        now = time.monotonic()
        if now - self._looked < POLL:
            return
        self._looked, used = now, seconds_used(self._pid)
        if printed > self._printed:
            self._printed, self._used_quietly = printed, used
            self._since, self._used = now, used
        elif used < self._used or used > self._used + LEAST:  # less: a child is gone unwaited
            self._since, self._used = now, used
        if now - self._since > QUIET:
            raise Stuck(f"no progress for {QUIET:.0f} s")
        if used - self._used_quietly > MOST:
            raise Stuck(f"without an end after {MOST:.0f} s of the processor")


def seconds_used(pid: int) -> float:
    """Return the seconds of the processor that a process and its descendants used, those included
    that have ended and were waited for."""
    return sum(used for _, used in _with_descendants(pid).values())


def kill(pid: int) -> None:
    """End a process and its descendants."""
    for each in _with_descendants(pid):
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _with_descendants(pid: int) -> dict[int, tuple[int, float]]:
    """Return parent and seconds of the processor by process, for this one and its descendants."""
    known = _processes()
    found = {pid: known[pid]} if pid in known else {}
    grown = True
    while grown:
        more = {each: at for each, at in known.items() if at[0] in found and each not in found}
        found |= more
        grown = bool(more)
    return found


def _processes() -> dict[int, tuple[int, float]]:
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        found[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / TICKS)
    return found
