"""Waiting in tests: a process is given up only without progress, and no process outlives the
tests."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from common.base.paths import ROOT
from tests.command_line import alive


def _own_copy() -> ModuleType:
    """Return a second copy of the module `tests.progress`, so that changes to it do not affect
    threads of this process that wait for other processes."""
    spec = importlib.util.spec_from_file_location("progress_under_test", ROOT / "tests/progress.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


progress = _own_copy()
Stuck, finish, run, wait_for = progress.Stuck, progress.finish, progress.run, progress.wait_for

FOREVER = "sleep 1234.5 & wait"  # in a separate child, like compilers
SPINNING = "while :; do :; done"


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a variable that identifies the processes started by a test."""
    value = uuid.uuid4().hex
    monkeypatch.setenv("WAITING_TEST", value)
    yield f"WAITING_TEST={value}"


def test_what_ends_is_waited_for() -> None:
    done = run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    with pytest.raises(subprocess.CalledProcessError):
        run(["false"], check=True)


class Clock:
    """Replace the time and the processor time of a process, for `Progress`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = self.used = 0.0
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(progress, "seconds_used", lambda _: self.used)

    def advance(self, seconds: float, used: float) -> None:
        self.now, self.used = self.now + seconds, self.used + used


def test_what_prints_or_works_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    looked_at = progress.Progress(1)
    for printed in range(1, 20):
        clock.advance(0.9 * progress.QUIET, used=0)
        looked_at.look(printed)
    for _ in range(20):
        clock.advance(0.5 * progress.QUIET, used=0.6 * progress.LEAST)
        looked_at.look(printed)
    clock.advance(0.9 * progress.QUIET, used=-1)  # a child is gone that was not waited for
    looked_at.look(printed)
    with pytest.raises(Stuck, match="no progress"):
        for _ in range(20):
            clock.advance(0.5 * progress.QUIET, used=0.1 * progress.LEAST)
            looked_at.look(printed)


def test_what_works_without_a_word_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    looked_at = progress.Progress(1)
    for printed in range(20):
        clock.advance(progress.QUIET, used=0.9 * progress.MOST)
        looked_at.look(printed + 1)
    with pytest.raises(Stuck, match="without an end"):
        for _ in range(2):
            clock.advance(progress.QUIET, used=0.9 * progress.MOST)
            looked_at.look(20)


def test_descendants_count() -> None:
    """Ended ones count as well."""
    working = "import time\nwhile time.process_time() < 0.5: pass"
    before = progress.seconds_used(os.getpid())
    shell = f'"{sys.executable}" -c "{working}"; echo done; sleep 1234.5'
    process = subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "done\n"
    assert progress.seconds_used(process.pid) >= 0.3
    assert progress.seconds_used(os.getpid()) - before >= 0.3
    progress.kill(process.pid)
    assert finish(process) == ("", None)


def test_what_waits_in_vain_is_ended_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, marker: str
) -> None:
    monkeypatch.setattr(progress, "POLL", 0.05)
    monkeypatch.setattr(progress, "QUIET", 0.3)
    with pytest.raises(Stuck, match=r"(?s)no progress.*sleep 1234.*begun"):
        run(["sh", "-c", f"echo begun; {FOREVER}"])
    wait_for(lambda: not alive(marker))
    with pytest.raises(Stuck, match="no progress"):
        wait_for(lambda: False, subprocess.Popen(["sh", "-c", FOREVER], text=True))
    wait_for(lambda: not alive(marker))


def test_a_loop_without_end_is_ended(monkeypatch: pytest.MonkeyPatch, marker: str) -> None:
    monkeypatch.setattr(progress, "POLL", 0.05)
    monkeypatch.setattr(progress, "MOST", 0.2)
    with pytest.raises(Stuck, match="without an end"):
        run(["sh", "-c", SPINNING])
    assert not alive(marker)


def test_a_condition_that_its_process_leaves_false() -> None:
    with pytest.raises(Stuck, match="has ended before"):
        wait_for(lambda: False, subprocess.Popen(["true"], text=True))


def test_an_interrupt_ends_what_is_waited_for(monkeypatch: pytest.MonkeyPatch, marker: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    process = subprocess.Popen(["sh", "-c", FOREVER], text=True)
    monkeypatch.setattr(progress.Progress, "look", interrupt)
    with pytest.raises(KeyboardInterrupt):
        finish(process)
    wait_for(lambda: not alive(marker))


COMPILING = """
import subprocess, time
from tests.compilations import Compilations

def main():
    compilations = Compilations()
    for seconds in ("1234.1", "1234.2", "1234.3"):
        compilations.begin(subprocess.call, ("sleep", seconds))
    print("begun", flush=True)
    try:
        compilations.wait()
    finally:
        compilations.close()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("numbers", [[signal.SIGINT, signal.SIGINT], [signal.SIGKILL]])
def test_compilations_end_with_the_tests(
    tmp_path: Path, marker: str, numbers: list[signal.Signals]
) -> None:
    """The tests are interrupted, twice by an impatient user, or killed."""
    script = tmp_path / "compiling.py"
    script.write_text(COMPILING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: sum("sleep 1234" in line for line in alive(marker)) >= 1, process)
    for number in numbers:
        process.send_signal(number)
    finish(process)
    assert process.returncode != 0
    wait_for(lambda: not alive(marker))
