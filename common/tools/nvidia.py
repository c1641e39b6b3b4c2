"""Find NVIDIA's tools, compute-sanitizer and ncu, and read the sanitizer's findings."""

from __future__ import annotations

import os
import re
import shutil

from common.base.toolchain import Platform

SANITIZERS = {
    "memcheck": "no access out of bounds or misaligned",
    "racecheck": "no shared memory touched by two threads without a barrier",
    "initcheck": "no global memory read before it is written",
    "synccheck": "no barrier that some threads miss",
}
FOUND = 99  # exit code of compute-sanitizer for findings


def find_tool(name: str, platform: Platform) -> str | None:
    """Return a tool's path: in the folder of the nvcc in use, else on PATH, else None."""
    if platform.toolkit:
        for beside in (platform.toolkit.home / "bin" / name, platform.toolkit.home / name / name):
            if beside.is_file() and os.access(beside, os.X_OK):
                return str(beside)
    return shutil.which(name)


def sanitizer_command(path: str, tool: str) -> list[str]:
    """Return the words of compute-sanitizer with one of SANITIZERS, before those of the program."""
    return [path, "--tool", tool, "--error-exitcode", str(FOUND)]


def sanitizer_findings(text: str) -> list[list[str]]:
    """Return the findings in the sanitizer's output, each a list of lines, without host frames."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("========="):
            content = line[9:].rstrip()
            if not content:
                blocks.append([])
            elif not re.search(r"Host Frame|COMPUTE-SANITIZER|SUMMARY|Saved host", content):
                blocks[-1].append(content[1:])
    return [block for block in blocks if block]
