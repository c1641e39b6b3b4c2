"""Ctrl-C ends a run wherever Python happens to be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from common.base.paths import ROOT

# Ctrl-C while the destructor of an object runs, whose exceptions Python swallows.
SCRIPT = """
import os, signal, sys, time
from common.run.exit_status import Interrupted, signals_raise

class Slow:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        print("destroyed", flush=True)

try:
    with signals_raise():
        slow = Slow()
        del slow
        time.sleep(60)
except Interrupted as interrupted:
    sys.exit(f"ended by signal {interrupted.number}")
"""


def test_an_interrupt_that_python_swallows_is_sent_again() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=50
    )
    assert done.stderr.strip() == f"ended by signal {int(signal.SIGINT)}"
    assert "destroyed" not in done.stdout  # it was cut short there


# Ctrl-C when a script imports a module, before any code of its main function runs.
IMPORTING = """
import builtins, os, runpy, signal, sys

name, script, *sys.argv[1:] = sys.argv[1:]
script = os.path.abspath(script)
sys.argv[0] = script
real = builtins.__import__

def importing(module, *rest):
    if module == name:
        os.kill(os.getpid(), signal.SIGINT)
    return real(module, *rest)

builtins.__import__ = importing
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("argparse", ["run_day.py", "1"]),
        ("common.base.options", ["run_day.py", "1"]),
        ("common.run.direct_run", ["days/day01/day.py", "--device", "cpu"]),
        ("torch", ["days/day01/day.py", "--device", "cpu"]),
    ],
)
def test_an_interrupt_during_the_imports_shows_no_traceback(module: str, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, module, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
