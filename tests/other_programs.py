"""Count how many public programs, written elsewhere, run on the CPU backend.

    python -m tests.other_programs FOLDER [--jobs 2] [--seconds 240] [PART ...]
    python -m tests.other_programs FOLDER --all-of cuda-samples

FOLDER contains clones of the repositories of other_programs.toml, each in a folder of its name, at
the commit that is named there. A line for each program shows its outcome: it ended with 0, it
ended with another code, the backend refused it or named a mistake, it did not build, or it did
not end in time. Programs known not to end with 0 are in the table with the reason, and are
counted separately. PART: only programs whose path contains one of these.

--all-of runs all programs of one repository that need no library beyond the CUDA runtime instead
of those of the table.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.base.compiling import sources_of
from common.base.paths import ROOT
from common.base.toolchain import detect

TABLE = Path(__file__).with_name("other_programs.toml")

# Libraries outside of the CUDA runtime, as a program includes them.
_LIBRARY = re.compile(
    r"cub/|thrust/|cutlass/|cute/|cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc|npp"
    r"|nvjpeg|nvgraph|nvml|cuda_gl_interop|cuda_egl|cudaEGL|cuda_d3d|helper_gl|helper_cuda_drvapi"
    r"|nvrtc_helper|nvvm|cuda/ptx|crt/"
)
_DRIVER_CALL = re.compile(r"\bcu(?:Init|Ctx|Module|Mem|Launch|Device|Link|Func|Graph)[A-Z]\w*\s*\(")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^">\n]+)[">]', re.MULTILINE)
_MAIN = re.compile(r"^\s*(?:int|void|auto)\s+main\s*\(|^main\s*\(", re.MULTILINE)
_OTHER_SYSTEM = re.compile(
    r"(?:windows|conio|intrin|direct|process|winsock\w*|io)\.h", re.IGNORECASE
)
_EXECUTABLE = re.compile(r"add_executable\(\s*\S+\s+([^)]*)\)")


@dataclass(frozen=True)
class Program:
    """A program of the table. sources: relative to the repository's folder, main() first."""

    repository: str
    sources: tuple[str, ...]
    apart: str = ""  # why it cannot end with 0

    @property
    def name(self) -> str:
        return f"{self.repository}/{self.sources[0]}"


@dataclass(frozen=True)
class Result:
    """The outcome of a program. last: the last line that it printed, errors before output."""

    program: str
    outcome: str
    seconds: float
    last: str
    apart: str = ""


def _table() -> list[dict[str, Any]]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))["repository"]


def missing(folder: Path) -> list[str]:
    """Return the obstacles to measuring the programs in `folder`, a line each."""
    problems = []
    for repository in _table():
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


def programs_of_table(folder: Path) -> Iterator[Program]:
    """Yield the programs of the table, in its order."""
    for repository in _table():
        name = repository["name"].rpartition("/")[2]
        apart = repository.get("apart", {})
        for path in repository["programs"]:
            more = _built_with(folder / name, path)
            if pattern := repository.get("sources", {}).get(path):
                clone = folder / name
                found = (file.relative_to(clone).as_posix() for file in clone.glob(pattern))
                more = sorted(set(found) - {path})
            yield Program(name, (path, *more), apart.get(path, ""))


def _built_with(clone: Path, path: str) -> list[str]:
    """Return the further sources of a program that its folder's CMake file names."""
    for words in _EXECUTABLE.findall(_cmake_of(clone / path)):
        names = [word for word in words.split() if word.endswith((".cu", ".cpp", ".cc", ".c"))]
        if Path(path).name in names:
            folder = Path(path).parent
            return [str(folder / name) for name in names if name != Path(path).name]
    return []


def _cmake_of(source: Path) -> str:
    lists = source.with_name("CMakeLists.txt")
    return lists.read_text(errors="replace") if lists.is_file() else ""


# ------------------------------------------------------------------ the programs


def candidates(clone: Path) -> Iterator[Program]:
    """Yield the programs of a repository that include no library beyond the CUDA runtime and call
    no driver API: each .cu with a main(), or whose CMakeLists.txt names one file with a main()."""
    system = _system_folders()
    for file in sorted(clone.rglob("*.cu")):
        path = file.relative_to(clone).as_posix()
        sources = (path, *_built_with(clone, path))
        if not all((clone / source).is_file() for source in sources):
            continue
        mains = [s for s in sources if _MAIN.search((clone / s).read_text(errors="replace"))]
        first = min(source for source in sources if source.endswith(".cu"))
        named = mains[0] if mains and mains[0].endswith(".cu") else first
        if len(mains) != 1 or path != named:
            continue
        if not any(_needs_more(clone / source, clone, system) for source in sources):
            yield Program(clone.name, sources)


def _needs_more(source: Path, clone: Path, system: Sequence[Path]) -> bool:
    """Return True if it includes a library, or a header that is neither its own nor the
    system's."""
    folders = [source.parent, clone / "Common"]
    own = sources_of(source, folders)
    for file in own:
        text = file.read_text(errors="replace")
        if _DRIVER_CALL.search(text) and file.parent.name != "Common":
            return True
        for name in _INCLUDE.findall(text):
            if _LIBRARY.match(name):
                return True
            mine = any((folder / name).is_file() for folder in (file.parent, *folders))
            there = any((folder / name).is_file() for folder in system)
            if not mine and not there and not _OTHER_SYSTEM.fullmatch(name):
                return True
    return False


def _system_folders() -> list[Path]:
    """Return the folders in which the compiler and the backend look for headers."""
    platform = detect("cpu")
    done = subprocess.run(
        [platform.compiler, "-xc++", "-E", "-v", "-"], input="", capture_output=True, text=True
    )
    words = [Path(line.strip()) for line in done.stderr.splitlines() if line.startswith(" /")]
    cuda = platform.cuda_include
    return [*words, cuda, cuda / "cccl", ROOT / "common" / "cpu" / "include"]


# ------------------------------------------------------------------ running them


def run(folder: Path, programs: Sequence[Program], jobs: int, seconds: float) -> Iterator[Result]:
    """Build and run these programs; yield the results in their order."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda program: _run(program, folder, seconds), programs)


def _run(program: Program, folder: Path, seconds: float) -> Result:
    clone = folder / program.repository
    sources = [clone / source for source in program.sources]
    headers = [clone / "Common", sources[0].parent]
    command = [sys.executable, "-m", "common.cpu", *map(str, sources)]
    command += [f"-I{path}" for path in headers if path.is_dir()]
    if "OpenMP" in _cmake_of(sources[0]):
        command += ["-Xcompiler", "-fopenmp"]
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "program"
        done = subprocess.run(
            [*command, "-o", str(built)], cwd=ROOT, capture_output=True, text=True, errors="replace"
        )
        if not built.exists():
            outcome = "refused" if "the CPU backend" in done.stderr else "not built"
            if "Traceback" in done.stderr:
                outcome = "ended in our own traceback"
            return Result(program.name, outcome, 0, _last(done.stderr), program.apart)
        began = time.monotonic()
        try:
            done = subprocess.run(
                [str(sources[0].with_suffix(""))],
                executable=built,
                cwd=sources[0].parent,
                env={**os.environ, "CUDACPU_TIME_LIMIT": "0"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return Result(program.name, "did not end in time", seconds, "", program.apart)
    took = time.monotonic() - began
    if "CUDA on CPU" in done.stderr:
        outcome = "a mistake named"
    else:
        outcome = "ended with 0" if done.returncode == 0 else f"ended with {done.returncode}"
    return Result(program.name, outcome, took, _last(done.stdout + done.stderr), program.apart)


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def main(words: list[str]) -> int:
    """Print a line for each program and the sums."""
    parser = argparse.ArgumentParser(prog="python -m tests.other_programs", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", nargs="*", help="only programs whose path contains one of these")
    parser.add_argument("--all-of", metavar="REPOSITORY", help="in place of the table's programs")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=240, help="for one program")
    args = parser.parse_intermixed_args(words)
    if problems := missing(args.folder):
        print("\n".join(problems), file=sys.stderr)
        return 2
    table = list(programs_of_table(args.folder))
    if args.all_of:
        reasons = {
            f"{repository['name'].rpartition('/')[2]}/{path}": reason
            for repository in _table()
            for path, reason in repository.get("apart", {}).items()
        }
        table = [
            replace(program, apart=reasons.get(program.name, ""))
            for program in candidates(args.folder / args.all_of)
        ]
    chosen = [p for p in table if not args.part or any(part in p.name for part in args.part)]
    results = []
    for result in run(args.folder, chosen, args.jobs, args.seconds):
        results.append(result)
        what = f"apart: {result.apart}" if result.apart else result.last
        row = f"{result.outcome:20} {result.seconds:6.1f} s  {result.program}  | {what[:90]}"
        print(row, flush=True)
    counted = [result for result in results if not result.apart]
    print(f"{len(counted)} programs, and {len(results) - len(counted)} counted apart:")
    for outcome, count in Counter(result.outcome for result in counted).most_common():
        print(f"{count:4} {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
