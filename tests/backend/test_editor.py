"""gdb in a kernel on the CPU backend, as `--editor` lets VS Code start it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from common.base.paths import ROOT
from common.base.toolchain import VARIANT_VARIABLE
from tests.command_line import CommandLine

DAYS = ROOT / "tests/sanitize_days"
SOURCE, LINE = DAYS / "day01/twice.cu", "  if (i < n) y[i] = 2 * x[i];\n"
ARGUMENTS = ("1", "--rungs", "twice_right", "--no-bench", "--quick", "--in-process")
LIMIT = 300  # seconds
STOPPED = ["print i", "print threadIdx.x", "print *y", "kill"]


@pytest.mark.skipif(not shutil.which("gdb"), reason="no gdb on this machine: apt-get install gdb")
def test_gdb_stops_in_a_kernel_and_shows_its_variables() -> None:
    run = CommandLine(DAYS)
    line = SOURCE.read_text(encoding="utf-8").partition(LINE)[0].count("\n") + 1
    begin = ["set breakpoint pending on", f"break twice.cu:{line}", "run"]
    commands = [word for command in [*begin, *STOPPED] for word in ("-ex", command)]
    done = subprocess.run(
        ["gdb", "-q", "-batch", *commands, "--args", *run.command(*ARGUMENTS)],
        env={**os.environ, **run.environment, VARIANT_VARIABLE: "debug"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert f"twice.cu:{line}" in done.stdout.partition("Breakpoint 1")[2], done.stdout[-2000:]
    assert "$1 = 0\n$2 = 0\n$3 = " in done.stdout, done.stdout[-2000:]
