"""How many public programs, written elsewhere, run on the CPU backend.

    python -m tests.other_programs FOLDER [--jobs 2] [--seconds 240] [--json REPORT]

FOLDER holds clones of the repositories of other_programs.toml, each in a folder of its own name,
at the commit that is named there. A line for each program says what became of it: it ended with 0,
it ended with another code, the backend refused it or named a mistake, it did not build, or it did
not end in time. A program that nvcc does not take, and one that needs arguments or files, cannot
end with 0: judge by the last line of what it printed, which is shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from common.base.paths import ROOT

TABLE = Path(__file__).with_name("other_programs.toml")


@dataclass(frozen=True)
class Result:
    """What became of a program. last: the last line that it printed, errors before output."""

    program: str
    outcome: str
    seconds: float
    last: str


def missing(folder: Path) -> list[str]:
    """What keeps the programs in `folder` from being measured, a line each."""
    problems = []
    for repository in tomllib.loads(TABLE.read_text(encoding="utf-8"))["repository"]:
        clone = folder / repository["name"].rpartition("/")[2]
        if not clone.is_dir():
            problems.append(f"{clone} is not there: a clone of {repository['name']}")
            continue
        done = subprocess.run(
            ["git", "-C", str(clone), "rev-parse", "HEAD"], capture_output=True, text=True
        )
        if done.stdout.strip() != repository["commit"]:
            problems.append(f"{clone} is not at {repository['commit']}")
    return problems


def run(folder: Path, jobs: int, seconds: float) -> list[Result]:
    """Builds and runs every program of the table, in its order."""
    programs = [
        folder / repository["name"].rpartition("/")[2] / path
        for repository in tomllib.loads(TABLE.read_text(encoding="utf-8"))["repository"]
        for path in repository["programs"]
    ]

    def one(program: Path) -> Result:
        return _run(program, program.relative_to(folder).as_posix(), folder, seconds)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, programs))


def _run(program: Path, name: str, folder: Path, seconds: float) -> Result:
    headers = [folder / name.partition("/")[0] / "Common", program.parent]
    command = [sys.executable, "-m", "common.cpu", str(program), "--time-limit", "0"]
    command += [f"-I{path}" for path in headers if path.is_dir()]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return Result(name, "did not end in time", time.monotonic() - began, "")
    took = time.monotonic() - began
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    last = lines[-1].strip() if lines else ""
    if "Traceback" in done.stderr:
        outcome = "ended in our own traceback"
    elif done.returncode == 2 and "the CPU backend" in done.stderr:
        outcome = "refused"
    elif done.returncode == 2:
        outcome = "not built"
    elif "CUDA on CPU" in done.stderr:
        outcome = "a mistake named"
    else:
        outcome = "ended with 0" if done.returncode == 0 else f"ended with {done.returncode}"
    return Result(name, outcome, took, last)


def main(words: list[str]) -> int:
    """Prints a line for each program and the sums."""
    parser = argparse.ArgumentParser(prog="python -m tests.other_programs", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=240, help="for one program")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    args = parser.parse_args(words)
    if problems := missing(args.folder):
        print("\n".join(problems), file=sys.stderr)
        return 2
    results = run(args.folder, args.jobs, args.seconds)
    for result in results:
        print(
            f"{result.outcome:20} {result.seconds:6.1f} s  {result.program}  | {result.last[:90]}"
        )
    for outcome, count in Counter(result.outcome for result in results).most_common():
        print(f"{count:4} {outcome}")
    if args.json:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
