"""Run the command line in a separate process, on fixture days, and find the processes that it
leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

from common.base.cache import cache_directory
from common.base.paths import ROOT
from tests.progress import finish

FIXTURE_DAYS = ROOT / "tests" / "fixture_days"


class CommandLine:
    """Run `run_day.py` in a separate process.

    days: folder of its days. environment: added to the process's variables.
    """

    def __init__(self, days: Path):
        self.days = days
        self.marker = f"RUN_DAY_TEST={uuid.uuid4().hex}"
        name, _, value = self.marker.partition("=")
        self.environment = {name: value, "HUNDRED_DAYS_CACHE": str(cache_directory())}

    def command(self, *arguments: str) -> list[str]:
        script = str(ROOT / "run_day.py")
        return [sys.executable, script, *arguments, "--days", str(self.days), "--device", "cpu"]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        output, _ = finish(process)
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def alive(self) -> list[str]:
        """Return the command lines of all processes that this object's runs have started and left
        running."""
        return alive(self.marker)


def alive(marker: str) -> list[str]:
    """Return the command lines of all processes with "NAME=value" among their variables."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or belongs to another user
    return found
