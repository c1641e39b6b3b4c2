"""`--sanitize` on a GPU: a day's checks under the four tools of NVIDIA's compute-sanitizer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

from common.child import Channel
from common.day import ROOT, Day, load_problems
from common.outcome import FAIL, PASS, SKIP, RungOutcome
from common.toolchain import Platform
from common.worker import Work

TOOLS = {
    "memcheck": "out-of-bounds and misaligned accesses",
    "racecheck": "shared memory shared without a barrier",
    "initcheck": "global memory read before it is written",
    "synccheck": "barriers that not all threads reach",
}
FOUND = 99  # exit code that the tool is told to use for an error that it found
REPORTED = 40  # lines of a tool's report that are shown
INSTALL = (
    "it comes with the CUDA toolkit, or by: python -m pip install 'cuda-toolkit[sanitizer]==13.0.*'"
)


def find_tool(name: str, platform: Platform) -> str | None:
    """A tool of the toolkit: beside the nvcc in use, else on PATH. None if it is in neither."""
    if platform.toolkit:
        for beside in (platform.toolkit.home / "bin" / name, platform.toolkit.home / name / name):
            if beside.is_file() and os.access(beside, os.X_OK):
                return str(beside)
    return shutil.which(name)


def rung_names(day: Day) -> list[str]:
    """The names of the day's rungs, with which the names of their kernels begin."""
    return [rung.name for problem in load_problems(day) for rung in problem.rungs]


def run_this(day: Day, work: Work, *options: str) -> list[str]:
    """A command line that runs the day in a single process."""
    command = [sys.executable, str(ROOT / "run_day.py"), str(day.number), "--device", "cuda"]
    return [*command, "--in-process", *work.arguments, *options]


def run_day(day: Day, platform: Platform, work: Work, channel: Channel) -> None:
    """Runs the day under each tool; each is told as if it were a rung."""
    channel.emit("rungs", rungs=[["sanitize", tool, what] for tool, what in TOOLS.items()])
    sanitizer = find_tool("compute-sanitizer", platform)
    reason = ""
    if platform.device == "cpu":
        reason = "compute-sanitizer needs a GPU; the CPU backend has no sanitizer yet"
    elif sanitizer is None:
        reason = f"compute-sanitizer is missing: {INSTALL}"
    kernels = [] if reason else rung_names(day)
    for tool, what in TOOLS.items():
        outcome = RungOutcome("sanitize", tool, what, PASS, checked=1)
        if reason:
            outcome.status, outcome.reason = SKIP, reason
        else:
            assert sanitizer
            channel.emit("stage", rung=tool, stage="watching the day's kernels")
            _run_tool(sanitizer, tool, kernels, day, work, outcome)
        channel.emit("rung", outcome=outcome.to_json())
    channel.emit("done")


def tool_command(sanitizer: str, tool: str, kernels: list[str]) -> list[str]:
    """The command line of a tool, without the program that it watches."""
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "10"]
    if tool == "memcheck":
        return [*command, "--leak-check", "no"]
    # PyTorch's own kernels are not ours to judge, and watching them takes minutes.
    only = [f"kernel_substring={name}" for name in dict.fromkeys(kernels)]
    return [*command, *(word for each in only for word in ("--kernel-name", each))]


def _run_tool(
    sanitizer: str, tool: str, kernels: list[str], day: Day, work: Work, outcome: RungOutcome
) -> None:
    environment = dict(os.environ)
    if tool in ("memcheck", "initcheck"):
        # A block of its own for every tensor, or the tool sees one large one.
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    command = [
        *tool_command(sanitizer, tool, kernels),
        *run_this(day, work, "--no-bench", "--quick"),
    ]
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    judge(tool, done.stdout, done.returncode, outcome)


def judge(tool: str, text: str, exit_code: int, outcome: RungOutcome) -> None:
    """Reads a tool's report into `outcome`. It passes only where the tool says it found nothing."""
    report = [line[10:].rstrip() for line in text.splitlines() if line.startswith("========= ")]
    summary = [line for line in report if re.search(r"(ERROR|RACECHECK) SUMMARY", line)]
    if exit_code == 0 and summary and re.search(r"SUMMARY: 0 ", summary[-1]):
        return
    outcome.status = FAIL
    if not summary:
        outcome.reason = f"{tool} gave no report (exit code {exit_code})"
        outcome.details = text.strip().splitlines()[-REPORTED:]
    elif exit_code not in (0, FOUND) and re.search(r"SUMMARY: 0 ", summary[-1]):
        outcome.reason = f"{tool} found nothing, but the day's checks failed under it"
        outcome.details = [line for line in text.splitlines() if not line.startswith("=====")]
        outcome.details = outcome.details[-REPORTED:]
    else:
        outcome.reason = summary[-1].partition("SUMMARY: ")[2]
        shown = [line for line in report if line and "Host Frame" not in line]
        outcome.details = [line for line in shown if line not in summary][:REPORTED]
