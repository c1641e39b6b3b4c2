"""Compile a CUDA kernel and its Triton twin without a GPU, and count registers, spills and
instructions of one architecture.

    python -m common.build.machine_code MODULE.py '[{"kernel": …}]' 90 FOLDER

compiles Triton kernels in a separate process: the interpreter is chosen once per process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from common.base.cache import Entry, cached, digest
from common.base.compiling import compiler_message, run_compiler, sources_of, torch_includes
from common.base.outcome import Skip
from common.base.paths import ROOT
from common.base.toolchain import find_compiler, find_gpus, find_toolkit, sm
from common.build.nvcc import BINDING, cuda_flags

DEFAULT_ARCH = "9.0a"  # without a GPU
_WIDTHS = {
    "128": 16,
    "64": 8,
    "U16": 2,
    "S16": 2,
    "U8": 1,
    "S8": 1,
}  # bytes; 4 for a name without these
_AT = r"^\s+/\*[0-9a-f]{4,}\*/\s+"  # an instruction's address, at the beginning of its line
_GUARD = r"(?:@!?U?P\w+ +)?"  # its optional predicate


def _all(of: str) -> re.Pattern[str]:
    """Return a regex that finds the instructions whose names begin with this pattern."""
    return re.compile(_AT + _GUARD + of, re.MULTILINE)


_ACCESS = _all(r"(LDGSTS|LDG|STG)((?:\.\w+)*) ([^;]*)")
_ADDRESS = re.compile(r"(\[R\d+[.\w]*)(?:\+(-?0x[0-9a-f]+))?\]")  # the last one of a load is global
_BULK = _all(r"(?:UTMALDG|UTMASTG|UTMAREDG|UBLKCP|UBLKRED)")
_WORK_OF_BLOCK = {
    "barriers": _all(r"BAR\.SYNC"),
    "shuffles": _all(r"SHFL\."),
    "copies": _all(r"(?:LDGSTS|UTMALDG)"),
    "ldmatrix": _all(r"LDSM\."),
    "products": _all(r"HG?MMA\."),
}
_INSTRUCTION = re.compile(_AT + r"(?!\s|NOP)", re.MULTILINE)


@dataclass(frozen=True)
class TritonKernel:
    """A kernel in Triton as it is launched.

    kernel: its name in the module. signature: the types of its arguments in order, such as {"x":
    "*fp32", "n": "i32"}. constants: the values of its constexpr arguments. multiples: the arguments
    that are multiples of 16, which Triton detects at each launch: addresses and sizes. stages: of
    loops that load the operands of a tl.dot. maxnreg: the limit on registers per thread of the
    launch, if any. A constant or a number may be the name of a variable of the kernel's module,
    such as "BLOCK".
    """

    kernel: str
    signature: Mapping[str, str]
    constants: Mapping[str, int | str]
    multiples: Sequence[str] = ()
    warps: int | str = 4
    stages: int = 3
    maxnreg: int | str | None = None


@dataclass(frozen=True)
class MachineCode:
    """A kernel's machine code: registers per thread, bytes of its stack frame per thread (mostly
    spilled registers), number of instructions; numbers of global loads and stores by the bytes that
    they move per thread, and of cp.async likewise; vectors of 16 bytes that are loaded in pieces of
    1, 2 or 4 bytes; numbers of barriers, warp shuffles, copies to shared memory (cp.async, TMA),
    bulk copies among them and back, ldmatrix, and tensor core products. Only of nvcc's kernels:
    bytes of registers that ptxas spills per thread, stores and loads together, and bytes of static
    shared memory."""

    registers: int
    stack: int
    instructions: int
    loads: Mapping[int, int] = field(default_factory=dict)
    stores: Mapping[int, int] = field(default_factory=dict)
    cp_async: Mapping[int, int] = field(default_factory=dict)
    split: int = 0
    bulk: int = 0
    spilled: int = 0
    shared: int = 0
    barriers: int = 0
    shuffles: int = 0
    copies: int = 0
    ldmatrix: int = 0
    products: int = 0


def architecture() -> str:
    """Return the architecture of the first GPU, or DEFAULT_ARCH."""
    return next(iter(find_gpus().archs), DEFAULT_ARCH)


def cuda_code(source: Path, arch: str) -> Path:
    """Return the cubin of a `.cu`, which lies next to ptxas's report. Raise Skip without nvcc,
    BuildError."""
    toolkit = find_toolkit()
    if toolkit is None:
        raise Skip("no nvcc: python -m pip install -r requirements.txt brings it")
    compiler = find_compiler()
    flags = [*cuda_flags([arch]), *BINDING, "-Xptxas", "-v", "-ccbin", compiler.path]
    key = digest([toolkit.version, compiler.version, *flags], sources_of(source))
    entry = Entry(f"{source.stem}-machine-code", key, "code.cubin")
    command: list[str | Path] = [toolkit.nvcc, "-cubin", source, *flags, f"-I{ROOT}"]
    command += [f"-I{path}" for path in torch_includes()]

    def make(directory: Path) -> None:
        said = run_compiler([*command, "-o", entry.path])
        (directory / PTXAS).write_text(said, encoding="utf-8")

    return cached(entry, make)


def cuda_kernels(source: Path, arch: str) -> dict[str, MachineCode]:
    """Return the machine code of all kernels of a `.cu` by their signatures, such as
    "void add_kernel<float>(float const*)". Raise Skip without nvcc or Triton, which contains the
    disassembler, BuildError."""
    cubin = cuda_code(source, arch)
    report = cubin.with_name(PTXAS).read_text(encoding="utf-8")
    listing = _cuobjdump("-sass", cubin)
    names = _PROPERTIES.findall(report)
    shown = subprocess.run(
        ["c++filt"], input="\n".join(found[0] for found in names), capture_output=True, text=True
    )
    return {
        signature: _with_ptxas(listing, *found)
        for signature, found in zip(shown.stdout.splitlines(), names, strict=True)
    }


PTXAS = "ptxas.txt"  # next to a cubin
_PROPERTIES = re.compile(
    r"Function properties for (\w+)\n +(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\n.*Used (\d+) registers(?:.*?, (\d+) bytes smem)?"
)


def _with_ptxas(
    listing: str, function: str, stack: str, stores: str, loads: str, registers: str, shared: str
) -> MachineCode:
    """Return a kernel's code from a listing, and from the numbers in ptxas's report."""
    return replace(
        _read_listing(listing, function, int(registers), int(stack)),
        spilled=int(stores) + int(loads),
        shared=int(shared or 0),
    )


def triton_code(module: Path, kernels: Sequence[TritonKernel], arch: str) -> list[Path]:
    """Return the cubins of a module's Triton kernels. Raise Skip without Triton, RuntimeError with
    its message if one does not compile."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise Skip("Triton is missing: python -m pip install triton") from None
    what = json.dumps([asdict(kernel) for kernel in kernels])
    capability = sm(arch).rstrip("af")
    entry = Entry(
        f"{module.stem}-machine-code", digest([version, what, capability], [module]), "0.cubin"
    )

    def make(directory: Path) -> None:
        command = [sys.executable, "-m", "common.build.machine_code", str(module), what, capability]
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        done = subprocess.run(
            [*command, str(directory)], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"Triton did not compile {module.name}\n{done.stderr[-2000:]}")

    first = cached(entry, make)
    return [first.with_name(f"{i}.cubin") for i in range(len(kernels))]


def read_code(cubin: Path, function: str) -> MachineCode:
    """Return the machine code of the first kernel whose name contains `function`. Raise Skip
    without Triton, which contains the disassembler; LookupError if there is no such kernel."""
    usage, listing = (_cuobjdump(option, cubin) for option in ("-res-usage", "-sass"))
    return parsed(usage, listing, function)


def _cuobjdump(option: str, cubin: Path) -> str:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise Skip("Triton is missing: python -m pip install triton")
    tool = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    done = subprocess.run([tool, option, cubin], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{tool} {option} {cubin}: {compiler_message(done.stderr)}")
    return done.stdout


def parsed(usage: str, listing: str, function: str) -> MachineCode:
    """Return a kernel's code from cuobjdump. usage: output of -res-usage. listing: output of
    -sass."""
    used = re.search(rf"Function (\S*{function}\S*):\s+REG:(\d+) STACK:(\d+)", usage)
    if used is None:
        others = re.findall(r"Function (\S+):", usage)
        raise LookupError(f"no kernel {function}, but {', '.join(others)}")
    return _read_listing(listing, used[1], int(used[2]), int(used[3]))


def _read_listing(listing: str, function: str, registers: int, stack: int) -> MachineCode:
    """Return the code of the kernel of this mangled name from cuobjdump's listing."""
    code = listing.partition(f"Function : {function}\n")[2].partition("Function :")[0]
    moved = {name: Counter[int]() for name in ("LDG", "STG", "LDGSTS")}
    pieces: dict[tuple[str, int], set[int]] = defaultdict(set)  # offsets by base and width
    for name, suffixes, operands in _ACCESS.findall(code):
        widths = [_WIDTHS[part] for part in suffixes.split(".") if part in _WIDTHS]
        width = widths[0] if widths else 4
        moved[name][width] += 1
        address = _ADDRESS.search(operands)
        if name == "LDG" and width <= 4 and address:
            pieces[address[1], width].add(int(address[2] or "0", 16))
    return MachineCode(
        registers,
        stack,
        len(_INSTRUCTION.findall(code)),
        dict(moved["LDG"]),
        dict(moved["STG"]),
        dict(moved["LDGSTS"]),
        sum(_vectors(offsets, width) for (_, width), offsets in pieces.items()),
        len(_BULK.findall(code)),
        **{what: len(pattern.findall(code)) for what, pattern in _WORK_OF_BLOCK.items()},
    )


def _vectors(offsets: set[int], width: int) -> int:
    """Return the number of 16-byte vectors that loads of `width` bytes at these offsets, from one
    register, cover."""
    first = min(offsets)
    parts = Counter((offset - first) // 16 for offset in offsets if (offset - first) % width == 0)
    return sum(count == 16 // width for count in parts.values())


def lines_of(source: Path, name: str) -> int:
    """Return the number of lines of a kernel in its source, without comments and blank lines. Raise
    LookupError if it is missing."""
    lines = source.read_text(encoding="utf-8").splitlines()
    at = next((i for i, line in enumerate(lines) if re.search(rf"\b{name}\(", line)), None)
    if at is None:
        raise LookupError(f"{source.name} has no {name}")
    first = at
    while first > 0 and lines[first - 1].strip():
        first -= 1
    in_python = source.suffix == ".py"
    last = at + 1
    while last < len(lines) and not (
        lines[last] == "}" or (in_python and lines[last] and lines[last][0] not in " )")
    ):
        last += 1
    body = lines[first : last + (not in_python)]
    return sum(1 for line in body if line.strip() and not re.match(r"\s*(//|#)", line))


def _compile(module: Path, kernels: list[dict[str, Any]], capability: int, out: Path) -> None:
    compiler = importlib.import_module("triton.compiler")
    backends = importlib.import_module("triton.backends.compiler")
    spec = importlib.util.spec_from_file_location(module.stem, module)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module.stem] = loaded  # Triton looks for the source there
    spec.loader.exec_module(loaded)
    target = backends.GPUTarget("cuda", capability, 32)

    def value(given: Any) -> Any:
        return getattr(loaded, given) if isinstance(given, str) else given

    for i, what in enumerate(kernels):
        kernel = getattr(loaded, what["kernel"])
        names = kernel.arg_names
        signature = {name: what["signature"].get(name, "constexpr") for name in names}
        attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in what["multiples"]}
        constants = {name: value(given) for name, given in what["constants"].items()}
        source = compiler.ASTSource(kernel, signature, constants, attributes)
        options = {"num_warps": value(what["warps"]), "num_stages": what["stages"]}
        options["maxnreg"] = value(what["maxnreg"])
        built = compiler.compile(source, target=target, options=options)
        (out / f"{i}.cubin").write_bytes(built.asm["cubin"])


if __name__ == "__main__":
    _compile(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
