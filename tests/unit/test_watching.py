"""`--watch` on a terminal: its keys, at rest and during a check, and the processes that it
leaves."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.base.paths import ROOT
from tests.progress import QUIET

READY = "checked at every save"
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor
LONG = "// for 60 s\n"


class Watching:
    """A learner at a terminal, on which `--watch` runs."""

    def __init__(self, folder: Path):
        self.folder, self.said = folder, ""
        self.code: int | None = None
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            # It controls the terminal, so that Ctrl-C reaches it like a learner's process.
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
            worker = str(ROOT / "tests" / "watch_worker.py")
            os.execve(sys.executable, [sys.executable, worker, str(folder)], environment)
        self.before = self.attributes()

    @property
    def file(self) -> Path:
        (file,) = (self.folder / "practice" / "day02").glob("*.cu")
        return file

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self.terminal)

    def sees(self, words: str) -> str:
        """Wait until these words are shown; return all output up to them."""
        deadline = time.monotonic() + QUIET
        while words not in self.said:
            assert time.monotonic() < deadline, f"{words!r} is not in {self.said!r}"
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.said += self._read()
        before, _, self.said = self.said.partition(words)
        return before

    def _read(self) -> str:
        try:
            return os.read(self.terminal, 65536).decode()
        except OSError:  # the program has ended
            return ""

    def presses(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def saves(self, more: str) -> None:
        self.file.write_text(self.file.read_text() + more)

    def ends(self) -> int:
        """Wait for the end; return the exit code."""
        deadline = time.monotonic() + QUIET
        while self.code is None:
            assert time.monotonic() < deadline, f"it does not end: {self.said!r}"
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            if select.select([self.terminal], [], [], 0.05)[0]:
                self.said += self._read()
        return self.code

    def close(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.terminal)


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Watching]:
    found = Watching(tmp_path)
    yield found
    found.close()


def test_keys_and_saves_at_rest(watching: Watching) -> None:
    watching.sees("check 1 is over")
    assert "--hint" not in watching.sees(READY), "a key does it"
    watching.presses("x\x1b[A\x1bOQ")  # an unused key, an arrow, F2
    watching.presses("h")
    watching.sees("hint 1 of 3")
    watching.saves("// more\n")
    watching.sees("check 2 is over")
    watching.sees(READY)
    watching.presses("sx")
    watching.sees("show the day's own version?")
    watching.sees("not shown")
    watching.presses("sy")
    watching.sees("+++ days/day02/vec_add.cu")
    watching.presses("n")
    watching.sees("day 2, debug: ")
    watching.sees(READY)
    watching.presses("q")
    assert watching.ends() == 0
    assert watching.attributes() == watching.before


def test_keys_and_saves_while_a_check_runs(watching: Watching) -> None:
    watching.sees(READY)
    watching.saves(LONG)
    watching.sees("check 2 begins")
    watching.presses("hh")
    watching.sees("hint 1 of 3")
    watching.sees("hint 2 of 3")  # and the check continues
    watching.saves("// more\n")
    assert "is over" not in watching.sees("check 3 begins")
    watching.presses("s")
    watching.sees("show the day's own version?")
    watching.presses("x")
    assert "is over" not in watching.sees("check 4 begins")
    watching.presses("n")
    assert "check 4 is over" not in watching.sees("day 2, debug: ")
    watching.sees(READY)
    watching.presses("n")
    watching.sees("day 2, speed: ")
    watching.presses("q")
    assert watching.ends() == 0


def test_the_end_of_a_check_is_not_waited_for(watching: Watching) -> None:
    watching.sees(READY)
    watching.saves(LONG)
    watching.sees("check 2 begins")
    watching.presses("q")
    assert watching.ends() == 0
    assert "is over" not in watching.said
    assert watching.attributes() == watching.before


@pytest.mark.parametrize(
    ("way", "code", "running"),
    [
        ("\x03", 130, True),  # Ctrl-C
        ("\x1c", 143, False),  # Ctrl-\
        (signal.SIGTERM, 143, False),
        (signal.SIGTERM, 143, True),
        (signal.SIGHUP, 129, False),
        ("crash", 1, True),
    ],
)
def test_the_terminal_is_as_before(
    watching: Watching, way: str | signal.Signals, code: int, running: bool
) -> None:
    watching.sees(READY)
    if running:
        watching.saves(LONG)
        watching.sees("check 2 begins")
    assert watching.attributes() != watching.before
    if way == "crash":
        watching.file.write_text(watching.file.read_text().replace(LONG, "// crash\n"))
    elif isinstance(way, signal.Signals):
        os.kill(watching.pid, way)
    else:
        watching.presses(way)
    assert watching.ends() == code
    assert watching.attributes() == watching.before
    assert watching.said.rfind(HIDDEN) <= watching.said.rfind(SHOWN)


def test_keys_work_after_the_shell_had_the_terminal(watching: Watching) -> None:
    watching.sees(READY)
    # The actions of a shell at Ctrl-Z, and at `fg`.
    termios.tcsetattr(watching.terminal, termios.TCSANOW, watching.before)
    os.kill(watching.pid, signal.SIGCONT)
    deadline = time.monotonic() + QUIET
    while watching.attributes() == watching.before:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    watching.presses("h")
    watching.sees("hint 1 of 3")
