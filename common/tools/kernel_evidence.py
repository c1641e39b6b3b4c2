"""Gather the evidence of a day's kernels: machine code, which nvcc compiles without a GPU, and the
launches and accesses that `--profile` counts on the CPU backend."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from common.base.compiling import sources_of
from common.base.days import Day, load_lesson
from common.base.outcome import RungOutcome
from common.base.paths import ROOT
from common.base.toolchain import find_toolkit
from common.bench.counters import LAUNCH, SECTORS, WAVEFRONTS, Kernel
from common.build.machine_code import DEFAULT_ARCH, MachineCode, cuda_code, cuda_kernels
from common.cpu import models
from common.cpu.lexer import tokenize
from common.report.evidence import Evidence, KernelCode, KernelRun, base_name
from common.tools.nsight import kernel_name

REGISTERS = 65536  # of a multiprocessor, in four parts, of which each serves a quarter of the warps
SHARED_HEADERS = ROOT / "common" / "cuda"
_PER_WARP, _PER_BLOCK = 256, 128  # registers and bytes of shared memory are given out by as many


class EvidenceError(Exception):
    """A kernel of a run is not found in the machine code; the message names it."""


def sources_key(day: Day) -> str:
    """Return 16 hexadecimal digits for the code that becomes the day's kernels: its sources and the
    headers that they reach, without comments and blanks. Shared headers for the host do not count.
    """
    files = sorted({path for source in day.library_sources for path in sources_of(source)})
    codes = [_code_of(path) for path in files if not _for_host(path)]
    return hashlib.sha256("\0".join(codes).encode()).hexdigest()[:16]


def _for_host(path: Path) -> bool:
    """Return True for a shared header that calls PyTorch or the CUDA runtime and has no device
    code."""
    code = _code_of(path)
    return (
        path.parent == SHARED_HEADERS
        and re.search(r"\b(?:__device__|__global__)\b", code) is None
        and re.search(r"\bTensor\b|\bcuda[A-Z]", code) is not None
    )


@cache
def _code_of(path: Path) -> str:
    tokens = tokenize(path.read_text(encoding="utf-8"))
    return " ".join(token.text for token in tokens if token.is_code)


def compile_kernels(day: Day) -> None:
    """Compile the day's library for its evidence. Raise Skip without nvcc, BuildError."""
    for source in day.library_sources:
        cuda_code(source, DEFAULT_ARCH)


def gather(day: Day, outcomes: Sequence[RungOutcome], before: Evidence | None) -> Evidence:
    """Return the evidence of a day, including the part beyond its main line.

    outcomes: of its profile on the CPU backend; () for that of its last profile, if the code is the
    same. before: the stored evidence. Kernels of other days, in rungs that call their operators,
    are left out. Raise EvidenceError for a kernel whose instance is not found, Skip without nvcc or
    Triton, BuildError.
    """
    toolkit = find_toolkit()
    codes: dict[str, KernelCode] = {}
    for source in day.library_sources:
        further = source.parent != day.folder
        text = "".join(_code_of(path) for path in sources_of(source))
        kernels = cuda_kernels(source, DEFAULT_ARCH)
        named = {kernel_of(signature): signature for signature in kernels}
        for name in sorted(named, key=lambda name: (text.find(base_name(name)), name)):
            signature, compiled = named[name], kernels[named[name]]
            if "::" not in base_name(name):  # of a library, such as CUB
                codes.setdefault(name, _code(name, signature, compiled, further))
    key = sources_key(day)
    runs = before.runs if before and before.sources == key and not outcomes else []
    problems = {(one.name, one.further): one for one in load_lesson(day).problems}
    timed = any(problem.timed for problem in problems.values())
    for outcome in outcomes:
        problem = problems[outcome.problem, outcome.further]
        if timed and not problem.timed:
            continue
        for counted in (Kernel(**each) for each in outcome.kernels):
            instances = [name for name in codes if base_name(name) == base_name(counted.name)]
            if instances:
                code = codes[instance(counted.name, instances)]
                runs.append(_run(outcome, str(problem.timing_case("cpu")), counted, code))
    version = toolkit.version if toolkit else ""
    return Evidence(day.number, key, version, DEFAULT_ARCH, list(codes.values()), runs)


def kernel_of(signature: str) -> str:
    """Return a kernel's name with its template arguments from its signature:
    "void scan<float, (int)4>(float const*)" -> "scan<float, 4>"."""
    text = re.sub(r"\((?:unsigned |long |short )*[A-Za-z_][\w:]*\)(?=-?\d)", "", signature)
    return kernel_name(text).replace("> >", ">>").strip()


def instance(counted: str, names: Sequence[str]) -> str:
    """Return the name among `names` that nvcc gives to the kernel that gcc calls `counted`.

    The two write types and enumerators in different ways, and the CPU backend leaves some arguments
    out. Raise EvidenceError if no single name fits.
    """
    if len(names) == 1:
        return names[0]
    words = _words(counted)
    best = [name for name in names if _words(name) == words]
    best = best or [name for name in names if _fits(words, _words(name))]
    if len(best) != 1:
        raise EvidenceError(f"{counted} is none, or several, of {', '.join(names)}")
    return best[0]


def _words(name: str) -> list[str]:
    """Return the template arguments as words and numbers, in one spelling."""
    arguments = name.partition("<")[2]
    for gcc, plain in (
        *(("long long int", "long long"), ("long int", "long"), ("short int", "short")),
        *(("long unsigned int", "unsigned long"), ("unsigned int", "unsigned")),
        *(("true", "1"), ("false", "0")),
    ):
        arguments = re.sub(rf"\b{gcc}\b", plain, arguments)
    arguments = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", arguments)
    return re.findall(r"[\w:]+", arguments)


def _fits(counted: Sequence[str], compiled: Sequence[str]) -> bool:
    """Return True if the lists are equal, except that an enumerator stands for a number, and that
    `counted` ends earlier, or later, with the types that names within the kernel stand for."""
    return all(
        one == other or (other.isdigit() and not one[0].isdigit())
        for one, other in zip(counted, compiled, strict=False)
    )


def _run(outcome: RungOutcome, case: str, counted: Kernel, code: KernelCode) -> KernelRun:
    threads, dynamic = (int(counted.counters[counter]) for counter in LAUNCH)

    def over(above: str, under: str) -> float | None:
        return round(counted.ratio(above, under), 3) if counted.counters[under] else None

    return KernelRun(
        outcome.problem,
        outcome.rung,
        case,
        code.name,
        threads,
        dynamic,
        resident_blocks(code.registers, threads, code.shared + dynamic),
        over(*SECTORS["global load"]),
        over(*WAVEFRONTS),
        outcome.further,
    )


def resident_blocks(registers: int, threads: int, shared: int) -> int:
    """Return the blocks that are resident on a multiprocessor of the default architecture at one
    time. registers: per thread. threads, shared: per block; the second in bytes."""
    card = models.cards()[models.default()]
    warps = math.ceil(threads / 32)
    of_warp = math.ceil(registers * 32 / _PER_WARP) * _PER_WARP
    by_registers = 4 * (REGISTERS // 4 // of_warp) // warps
    of_block = math.ceil(shared / _PER_BLOCK) * _PER_BLOCK + card.shared_reserved
    return min(card.blocks, card.threads // (32 * warps), by_registers, card.shared // of_block)


def _code(name: str, signature: str, code: MachineCode, further: bool) -> KernelCode:
    whole = 16 in {*code.loads, *code.stores, *code.cp_async}
    in_vectors = whole or re.search(r"\b(?:Chunk|Pack)<", signature) is not None
    return KernelCode(
        name,
        code.registers,
        code.stack,
        code.spilled,
        code.shared,
        max((*code.loads, *code.cp_async), default=0),
        max(code.stores, default=0),
        code.bulk > 0,
        code.split if in_vectors else 0,
        further,
    )
