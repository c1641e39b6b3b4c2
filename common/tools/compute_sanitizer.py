"""Implement `--sanitize` on a GPU: a day's checks under NVIDIA's four compute-sanitizer tools."""

from __future__ import annotations

import os
import re
import subprocess

from common.base.days import Day, load_lesson
from common.base.figures import counted
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, SKIP, RungOutcome
from common.base.toolchain import Platform
from common.process.events import Channel, Finished, Over, Planned, Stage
from common.process.worker import chosen_problems
from common.tools.nvidia import SANITIZERS, find_tool, sanitizer_command, sanitizer_findings

BROKEN = re.compile(r"Internal Sanitizer Error: (.*)$", re.MULTILINE)
REPORTED = 40  # lines of a tool's report that are shown
INSTALL = (
    "it comes with the CUDA toolkit, or by: python -m pip install 'cuda-toolkit[sanitizer]==13.0.*'"
)


def rung_names(day: Day) -> list[str]:
    """Return the names of the day's rungs, which are prefixes of their kernels' names."""
    return [rung.name for problem in load_lesson(day).problems for rung in problem.rungs]


def left_out(day: Day) -> list[str]:
    """Return the name of each problem that the tools cannot run, and the reason."""
    problems = load_lesson(day).problems
    return [f"left out: {p.name}: {p.unwatched}" for p in problems if p.unwatched]


def run_day(day: Day, platform: Platform, options: RunOptions, channel: Channel) -> None:
    """Run the day under each tool; each is reported like a rung."""
    channel.emit(Planned([["sanitize", tool, what] for tool, what in SANITIZERS.items()]))
    sanitizer = find_tool("compute-sanitizer", platform)
    reason = ""
    if sanitizer is None:
        reason = f"compute-sanitizer is missing: {INSTALL}"
    kernels = [] if reason else rung_names(day)
    remarks = [] if reason else left_out(day)
    for tool, what in SANITIZERS.items():
        outcome = RungOutcome("sanitize", tool, what, PASS, remarks=list(remarks))
        if reason:
            outcome.status, outcome.reason = SKIP, reason
        elif len(remarks) == len(load_lesson(day).problems):
            outcome.status, outcome.reason = SKIP, "every problem is left out"
        else:
            assert sanitizer
            channel.emit(Stage(tool, "watching the day's kernels"))
            _run_tool(sanitizer, tool, kernels, day, options, outcome)
        channel.emit(Finished(outcome))
    channel.emit(Over())


def tool_command(sanitizer: str, tool: str, kernels: list[str]) -> list[str]:
    """Return the command line of a tool, without the program to watch.

    Errors reported by the CUDA API are left to the day's own checks: a launch that a day must
    refuse is one.
    """
    command = [*sanitizer_command(sanitizer, tool), "--report-api-errors", "no"]
    if tool in ("racecheck", "synccheck"):
        # PyTorch's own kernels are not judged here, and watching them takes minutes. The other
        # two tools must see them: a filtered initcheck would miss what they write.
        for name in dict.fromkeys(kernels):
            command += ["--kernel-name", f"kernel_substring={name}"]
    return command


def _run_tool(
    sanitizer: str,
    tool: str,
    kernels: list[str],
    day: Day,
    options: RunOptions,
    outcome: RungOutcome,
) -> None:
    """Run the day under the tool; repeat without any rung under which the tool itself fails, until
    it completes. Excluded rungs are remarked; if none remain, the tool is skipped."""
    environment = dict(os.environ)
    if tool in ("memcheck", "initcheck"):
        # A separate block for every tensor, since the tool would see cached ones as one block.
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    rungs = list(dict.fromkeys(kernels))
    while rungs:
        program = options.watched_command(
            day.number, "cuda", quick=True, bench=False, watched=True, rungs=tuple(rungs)
        )
        done = subprocess.run(
            [*tool_command(sanitizer, tool, kernels), *program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        # memcheck would name an access of the day that ends in a hardware exception; rungs on
        # which it fails are not left to the other tools.
        fault = BROKEN.search(done.stdout) if tool != "memcheck" else None
        culprit = fault and broke_at(day, rungs, done.stdout[: fault.start()])
        if not fault or not culprit:
            judge(tool, done.stdout, done.returncode, kernels, outcome)
            return
        rungs.remove(culprit)
        outcome.remarks.append(f"left out: {culprit}: {tool} itself fails on it: {fault[1]}")
    outcome.status, outcome.reason = SKIP, f"{tool} itself fails on every rung"


def broke_at(day: Day, rungs: list[str], text: str) -> str:
    """Return the rung that was running when a program that runs these rungs of the day ended: the
    first whose result is not in its output. "" if all are."""
    problems = chosen_problems(load_lesson(day), RunOptions(rungs=tuple(rungs)))
    running = [rung.name for problem in problems for rung in problem.rungs]
    over = re.findall(rf"^ *{day.number} (\w+) +(?:PASS|FAIL|SKIP)\b", text, re.MULTILINE)
    return next(iter(running[len(over) :]), "")


def findings(text: str, kernels: list[str]) -> tuple[list[list[str]], int]:
    """Return a tool's findings in our kernels, as lists of lines, and the number of findings in
    others. A finding that names no kernel of PyTorch's counts as ours."""
    ours, others = [], 0
    for block in sanitizer_findings(text):
        whole = "\n".join(block)
        if "at::native" in whole and not any(name in whole for name in kernels):
            others += 1
        else:
            ours.append(block)
    return ours, others


def judge(tool: str, text: str, exit_code: int, kernels: list[str], outcome: RungOutcome) -> None:
    """Read a tool's report into `outcome`. It passes only if the tool reports no findings, or
    findings only in PyTorch's kernels, which are remarked."""
    summary = re.findall(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (.*)$", text, re.MULTILINE)
    clean = bool(summary) and summary[-1].startswith("0 ")
    if exit_code == 0 and clean:
        return
    ours, others = findings(text, kernels)
    outcome.status = FAIL
    if broken := BROKEN.search(text):
        # The tool itself, not its fault handler, would have found an error of the day.
        outcome.reason = f"{tool} itself failed, after this had passed: {broken[1]}"
        outcome.details = text[: broken.start()].strip().splitlines()[-4:-1]
    elif not summary:
        outcome.reason = f"{tool} gave no report (exit code {exit_code})"
        outcome.details = text.strip().splitlines()[-REPORTED:]
    elif clean:
        outcome.reason = f"{tool} found nothing, but the day's checks failed under it"
        lines = [line for line in text.splitlines() if not line.startswith("=====")]
        outcome.details = lines[-REPORTED:]
    elif others and not ours:
        outcome.status = PASS
        outcome.remarks.append(f"{others} findings in PyTorch's own kernels are left out")
    else:
        outcome.reason = summary[-1]
        outcome.details = condensed(ours)[:REPORTED]


def condensed(blocks: list[list[str]]) -> list[str]:
    """Return the lines of all findings; those that differ only in numbers of hazards, threads and
    addresses are merged, with their count."""
    alike: dict[str, list[list[str]]] = {}
    for block in blocks:
        key = re.sub(r"0x[0-9a-f]+|\[\d+ hazards\]|\(\d+,\d+,\d+\)|\d+ bytes", "", "\n".join(block))
        alike.setdefault(key, []).append(block)
    lines = []
    for same in alike.values():
        lines += same[0]
        if len(same) > 1:
            lines.append(f"    and {counted(len(same) - 1, 'more finding')} like it")
    return lines
