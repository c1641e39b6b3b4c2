"""Run a program of a day, a .cu with a main(), directly and under each tool that watches.

For days on which kernels are to fail: a fault ends, or breaks, a separate process that does not
need PyTorch.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.base.cache import Entry, cached, digest
from common.base.compiling import run_compiler, sources_of
from common.base.paths import ROOT
from common.base.toolchain import Platform, Toolkit, detect
from common.build.nvcc import cuda_flags, link_directory
from common.cpu import backend, findings, program
from common.tools.nvidia import SANITIZERS, find_tool, sanitizer_command, sanitizer_findings

PLAIN = "plain"  # the way without a tool
TRACE_FILE = "CUDACPU_TRACE_FILE"


@dataclass(frozen=True)
class Way:
    """A way to run a built program: name, command before its arguments, environment.

    missing: why the machine cannot run it this way, "" if it can.
    """

    name: str
    command: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    missing: str = ""


@dataclass(frozen=True)
class Said:
    """The result of a run. code: its exit code, None if it reached its time limit; lines: the
    program's output; findings: of the tool, or of the CPU backend, one per line."""

    code: int | None
    lines: tuple[str, ...]
    findings: tuple[str, ...]


def ways_to_run(source: Path, device: str) -> list[Way]:
    """Build the program if necessary and return the ways to run it. On a GPU: plain, and under each
    of compute-sanitizer's four tools. On the CPU backend: plain, with late streams, with addresses
    watched and with every access traced. Raise BuildError if it does not build."""
    platform = replace(detect(device), variant="plain")
    if device == "cuda":
        built = str(_for_gpu(source, platform))
        tool = find_tool("compute-sanitizer", platform)
        missing = "" if tool else "compute-sanitizer is missing"
        return [Way(PLAIN, (built,))] + [
            Way(name, (*sanitizer_command(tool or "", name), built), missing=missing)
            for name in SANITIZERS
        ]
    built = str(program.executable([source], platform))
    found = [Way(PLAIN, (built,)), Way("late streams", (built,), {"CUDACPU_STREAMS": "late"})]
    try:
        variables = backend.preloaded(platform.compiler)
        watched = program.executable([source], replace(platform, variant="address"))
        found.append(Way("addresses", (str(watched),), variables))
    except FileNotFoundError as error:
        found.append(Way("addresses", missing=str(error)))
    traced = program.executable([source], replace(platform, variant="trace"))
    found.append(Way("trace", (str(traced),), {"CUDACPU_TRACE": "1", TRACE_FILE: ""}))
    return found


def _for_gpu(source: Path, platform: Platform) -> Path:
    """Return the program for the first GPU, linked with the toolkit's own runtime library."""
    toolkit = platform.toolkit
    assert isinstance(toolkit, Toolkit)
    flags = [*cuda_flags([platform.arch]), "-ccbin", platform.compiler]
    library = link_directory(toolkit)
    key = digest(
        [str(toolkit.home), toolkit.version, platform.compiler_version, *flags], sources_of(source)
    )
    entry = Entry(f"program-{source.stem}-cuda", key, source.stem)

    def make(directory: Path) -> None:
        code = directory / "code.o"
        run_compiler([toolkit.nvcc, "-c", source, *flags, f"-I{ROOT}", "-o", code])
        # With the host's compiler, since nvcc links a static runtime, which its wheels lack.
        place = (library / "libcudart.so").resolve().parent
        linking = [f"-L{library}", "-lcudart", f"-Wl,-rpath,{place}", "-pthread"]
        run_compiler([platform.compiler, code, *linking, "-o", entry.path])

    return cached(entry, make)


def run_program(way: Way, arguments: Sequence[str], seconds: float) -> Said:
    """Run the program this way for at most `seconds`, then kill it."""
    with tempfile.TemporaryDirectory() as folder:
        variables = dict(way.variables)
        trace = Path(folder) / "trace.json"
        if TRACE_FILE in variables:
            variables[TRACE_FILE] = str(trace)
        child = subprocess.Popen(
            [*way.command, *arguments],
            env={**os.environ, "CUDACPU_TIME_LIMIT": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            text, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(child)
            return Said(None, (), (f"no end after {seconds:g} s",))
        except BaseException:  # e.g. Ctrl-C
            _end(child)
            raise
        traced = trace.read_text(encoding="utf-8") if trace.is_file() else ""
    if way.name in SANITIZERS:
        return _of_sanitizer(child.returncode, text)
    lines = [line for line in text.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(findings.THROWN)]
    said += [line for line in lines if "ERROR: AddressSanitizer" in line or "Assertion" in line]
    own = [line for line in lines if not re.match(r"CUDA on CPU: |  |=|\s*#|.*Sanitizer", line)]
    if traced:
        said += [each.summary() for each in findings.read(traced).findings]
    if child.returncode < 0:
        said.append(f"killed by signal {-child.returncode}")
    return Said(child.returncode, _clean(own), _clean(said))


def _end(child: subprocess.Popen[str]) -> None:
    """Kill the program, and the tool that runs it as a child."""
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def _of_sanitizer(code: int, text: str) -> Said:
    """Return the output with the first lines of each finding."""
    own = [line for line in text.splitlines() if not line.startswith("=========")]
    said = [" ".join(map(str.strip, block[:2])) for block in sanitizer_findings(text)]
    return Said(code, _clean(own), _clean(said))


def _clean(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines without this machine's addresses and paths, each once."""
    found = []
    for line in lines:
        text = line.removeprefix(findings.THROWN).replace(f"{ROOT}/", "")
        text = re.sub(r"^=+\d+=+ERROR: ", "", text)
        found.append(re.sub(r"(?:address )?0x[0-9a-f]+", "…", text).strip())
    return tuple(dict.fromkeys(found))
