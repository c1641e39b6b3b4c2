"""Run whole programs on the CPU backend, and read the debugger's report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from common.base.paths import ROOT
from tests import progress

PROGRAMS = Path(__file__).resolve().parent / "programs"


def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m common.cpu` with these words, and further environment variables."""
    command = [sys.executable, "-m", "common.cpu", *map(str, words)]
    return progress.run(command, cwd=ROOT, env={**os.environ, **environment})


def debug(source: Path, *arguments: str) -> dict[str, tuple[str, str]]:
    """Return the rows of `--sanitize` of a program: the status of each, and its text with all
    details. The exit code must be 1 if a row fails, else 0."""
    done = run("--sanitize", source, "--", *arguments)
    rows: dict[str, tuple[str, str]] = {}
    name = ""
    for line in done.stdout.splitlines():
        if not line.startswith(" "):
            name, status, text = line.split(None, 2)
            rows[name] = (status, text)
        else:
            rows[name] = (rows[name][0], f"{rows[name][1]}\n{line.strip()}")
    failed = any(status == "FAIL" for status, _ in rows.values())
    assert done.returncode == int(failed), done.stdout + done.stderr
    return rows
