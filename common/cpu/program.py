"""Build a whole CUDA program, one or several `.cu` files with a main(), to run on the CPU.

Like a day, it is rewritten, together with its own headers, and kept in the cache until one of them,
the backend or the compiler changes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from common.base.cache import Entry, cached, digest
from common.base.compiling import BuildError, run_compiler, sources_of
from common.base.toolchain import Platform
from common.cpu import backend, features, libraries, models, vendor
from common.cpu.conditions import Macros

_SUPPORT = Path(backend.__file__).with_name("program.cpp")  # settings from the environment
_STANDARD = "-std=c++17"  # nvcc's own
_RETURNS = "-fsanitize=return"  # ends with a message of program.cpp

# Thrust's algorithms as loops of host code, which uses device memory then (see program.cpp).
_THRUST = (
    "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP",
    "-DTHRUST_HOST_SYSTEM=THRUST_HOST_SYSTEM_CPP",
)

_DEFINE = re.compile(rb"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_UNDEFINED = re.compile(r"undefined reference to [`']([^'`]+)'")
_SYSTEM_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", re.MULTILINE)


def executable(sources: Sequence[Path], platform: Platform, flags: Sequence[str] = ()) -> Path:
    """Build the program if necessary, and return its path.

    sources: files that end in .cu are rewritten, others compiled unchanged. flags: further ones for
    the compiler: -I (also searched for headers to rewrite), -D, -l and similar ones. Raise
    BuildError with the compiler's message, or with the file and line of a feature that the CPU
    backend lacks; OSError if a source cannot be read.
    """
    sources = [source.resolve() for source in sources]
    stem = sources[0].stem
    folders = list(dict.fromkeys(source.parent for source in sources))
    roots = [*folders, *(Path(f[2:]).resolve() for f in flags if f.startswith("-I"))]
    roots += vendor.FOLDERS
    flags = [f for f in flags if not (f.startswith("-l") and vendor.linked(f[2:]))]
    runtime = libraries.build_runtime(platform)
    command = [platform.compiler, *libraries.flags(platform), _STANDARD]
    command += [*(f"-I{folder}" for folder in folders), "-pthread", _RETURNS, *flags]
    reached = {source: sources_of(source, roots) for source in sources}
    everything = sorted({file for files in reached.values() for file in files})
    if any(name.startswith(b"thrust/") for name in _system_includes(everything)):
        command += _THRUST
    command.append(f'-DCUDACPU_PROGRAM_MODEL="{models.chosen(platform.model)}"')  # in program.cpp
    files: list[Path] = []
    compiled: list[Path] = []
    hosts = [source for source in sources if source.suffix != ".cu"]
    for source in sources:
        if source in hosts:
            files += reached[source]
        else:
            cpp = _rewritten(source, reached[source], roots, platform, command)
            files += libraries.texts(cpp)
            compiled.append(cpp)
    compiled += vendor.objects(everything, platform)
    linked = [flag for flag in flags if flag.startswith(("-l", "-L"))]  # again, after the objects
    parts = [platform.compiler_version, str(runtime), *map(str, sources), *command]
    key = digest([*parts, *map(str, compiled)], [_SUPPORT, *files, *backend.HEADERS])
    entry = Entry(f"program-{stem}", key, stem)

    def make(directory: Path) -> None:
        objects: list[str | Path] = [*compiled, _SUPPORT]
        for number, host in enumerate(hosts):
            compiled_host = directory / f"host{number}.o"
            run_compiler([*_of_host_file(command, host), "-c", host, "-o", compiled_host])
            objects.append(compiled_host)
        objects += ["-o", directory / entry.product]
        linking = backend.ldflags(runtime, platform.variant)
        try:
            run_compiler([*command, *objects, *linking, *linked])
        except BuildError as error:
            raise BuildError(_explained(error.text)) from None

    return cached(entry, make)


def _of_host_file(command: Sequence[str], source: Path) -> list[str]:
    """Return the command for a file that is not a .cu: nvcc passes it to the host's compiler
    unchanged."""
    words = ["cudacpu/symbols.h" if word == "cuda_runtime.h" else word for word in command]
    if source.suffix == ".c":
        words = [*(word for word in words if not word.startswith("-std=")), "-x", "c"]
    return [*words, "-DCUDACPU_HOST_FILE"]


def _system_includes(files: Iterable[Path]) -> set[bytes]:
    """Return the names that these files include by <…>, under any condition."""
    return {name for file in files for name in _SYSTEM_INCLUDE.findall(file.read_bytes())}


def _explained(message: str) -> str:
    """Return the linker's message in terms of the program's sources."""
    missing = dict.fromkeys(_UNDEFINED.findall(message))
    if not missing:
        return message
    if all(name.startswith(("omp_", "GOMP_")) for name in missing):
        return f"{', '.join(missing)}: OpenMP needs -Xcompiler -fopenmp, as with nvcc"
    return (
        f"no source defines {', '.join(missing)}\n  a program of several files needs them all on "
        "the command line, and libraries as -l: python -m common.cpu main.cu other.cu -lm"
    )


def _rewritten(
    source: Path,
    files: list[Path],
    roots: list[Path],
    platform: Platform,
    command: Sequence[str],
) -> Path:
    """Return the `.cpp` of a `.cu`; files: all that it reaches, including itself. Raise BuildError.

    A refused name may be under a condition that only the preprocessor can decide: then the
    preprocessor is run to list the macros, which takes about half a second.
    """
    name = f"program-{source.stem}"
    given = _given(command)
    try:
        return libraries.rewritten(name, source, files, roots, platform.model, Macros(given))
    except BuildError:
        possible = _possible(files, command)
        if possible is None:
            raise
        macros = Macros(given, possible)
        return libraries.rewritten(name, source, files, roots, platform.model, macros)


def _given(command: Sequence[str]) -> dict[str, int | None]:
    """Return the macros that a compile command defines by -D, with the values that are numbers."""
    given: dict[str, int | None] = {}
    for flag in command:
        if flag.startswith("-D"):
            name, equals, value = flag[2:].partition("=")
            try:
                given[name] = int(value, 0) if equals else 1
            except ValueError:
                given[name] = None
    return given


def _possible(files: Sequence[Path], command: Sequence[str]) -> frozenset[str] | None:
    """Return all macros that these files, or the system headers that they include, may define; None
    if the preprocessor fails on a header."""
    texts = [file.read_bytes() for file in files]
    headers = {name.decode(errors="replace") for name in _system_includes(files)}
    lines = [  # <windows.h>, under a condition that no compiler here meets, is in no folder
        f"#if __has_include(<{name}>)\n#include <{name}>\n#endif"
        for name in sorted(headers)
        if not features.missing_header(name)
    ]
    done = subprocess.run(
        [*command, "-dM", "-E", "-x", "c++", "-"],
        input="\n".join([*lines, ""]),
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        return None
    own = {name.decode() for text in texts for name in _DEFINE.findall(text)}
    return frozenset(
        own.union(line.split()[1].partition("(")[0] for line in done.stdout.splitlines())
    )
