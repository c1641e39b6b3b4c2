"""Build a whole CUDA program, one or several `.cu` files with a main(), to run on the CPU.

Like a day, it is rewritten, together with its own headers, and kept in the cache until one of them,
the backend or the compiler changes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.base.cache import Entry, cached, digest
from common.base.compiling import BuildError, run_compiler, sources_of
from common.base.toolchain import Platform
from common.cpu import backend, features, libraries, models, source_warnings, vendor
from common.cpu.conditions import Macros
from common.cpu.rewrite import device_lines

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


@dataclass(frozen=True)
class Plan:
    """The build of a program. command: the compiler and its flags, without sources. sources: the
    .cpp that is made of each .cu. hosts: sources of other kinds. own: these and the program's
    headers. vendors: the files of libraries that they reach. files: all that decide the build."""

    command: list[str]
    sources: list[Path]
    hosts: list[Path]
    own: list[Path]
    vendors: list[Path]
    files: list[Path]


def plan(sources: Sequence[Path], platform: Platform, flags: Sequence[str] = ()) -> Plan:
    """Rewrite the sources if necessary, and return how to compile them.

    sources: files that end in .cu are rewritten, others compiled unchanged. flags: further ones for
    the compiler: -I (also searched for headers to rewrite), -D, -l and similar ones. Raise
    BuildError with the file and line of a feature that the CPU backend lacks; OSError if a source
    cannot be read.
    """
    sources = [source.resolve() for source in sources]
    folders = list(dict.fromkeys(source.parent for source in sources))
    roots = [*folders, *(Path(f[2:]).resolve() for f in flags if f.startswith("-I"))]
    roots += vendor.FOLDERS
    command = [platform.compiler, *libraries.flags(platform), _STANDARD]
    command += [*(f"-I{folder}" for folder in folders), "-pthread", _RETURNS, *flags]
    reached = {source: sources_of(source, roots) for source in sources}
    everything = sorted({file for files in reached.values() for file in files})
    if any(name.startswith(b"thrust/") for name in _system_includes(everything)):
        command += _THRUST
    command.append(f'-DCUDACPU_PROGRAM_MODEL="{models.chosen(platform.model)}"')  # in program.cpp
    files: list[Path] = []
    rewritten: list[Path] = []
    hosts = [source for source in sources if source.suffix != ".cu"]
    for source in sources:
        if source in hosts:
            files += reached[source]
        else:
            cpp = _rewritten(source, reached[source], roots, platform, command)
            files += libraries.texts(cpp)
            rewritten.append(cpp)
    vendors = [file for file in everything if any(map(file.is_relative_to, vendor.FOLDERS))]
    own = [file for file in everything if file not in vendors]
    return Plan(command, rewritten, hosts, own, vendors, files)


def executable(sources: Sequence[Path], platform: Platform, flags: Sequence[str] = ()) -> Path:
    """Build the program if necessary, and return its path.

    sources, flags: see `plan`. Raise BuildError also with the compiler's message.
    """
    stem = sources[0].stem
    flags = [f for f in flags if not (f.startswith("-l") and vendor.linked(f[2:]))]
    runtime = libraries.build_runtime(platform)
    planned = plan(sources, platform, flags)
    command = planned.command
    compiled = [*planned.sources, *vendor.objects(planned.vendors, platform)]
    linked = [flag for flag in flags if flag.startswith(("-l", "-L"))]  # again, after the objects
    parts = [platform.compiler_version, str(runtime), *(str(s.resolve()) for s in sources)]
    parts += [*command, *map(str, compiled)]
    key = digest(parts, [_SUPPORT, *planned.files, *backend.HEADERS])
    entry = Entry(f"program-{stem}", key, stem)

    def make(directory: Path) -> None:
        objects: list[str | Path] = [*compiled, _SUPPORT]
        for number, host in enumerate(planned.hosts):
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


def unset_locals(
    sources: Sequence[Path], platform: Platform, flags: Sequence[str] = ()
) -> list[str]:
    """Return the lines of `source_warnings.unset_locals` for a program. Raise BuildError."""
    planned = plan(sources, replace(platform, variant="address"), flags)
    own = {str(file) for file in planned.own}
    commands = [[*planned.command, str(source)] for source in planned.sources]
    return source_warnings.unset_locals(
        commands, lambda place: place if place.rpartition(":")[0] in own else ""
    )


def narrowed(sources: Sequence[Path], platform: Platform, flags: Sequence[str] = ()) -> list[str]:
    """Return the lines of `source_warnings.narrowed` for the device code of a program, compiled as
    C++20. Raise BuildError, also if it is not C++20."""
    planned = plan(sources, platform, flags)
    device = {str(file): device_lines(file, platform.model) for file in planned.own}

    def shown(place: str) -> str:
        file, _, line = place.rpartition(":")
        return place if int(line) in device.get(file, ()) else ""

    command = [*planned.command, "-std=c++20"]
    found = [source_warnings.narrowed(each, command, shown) for each in planned.sources]
    return list(dict.fromkeys(line for lines in found for line in lines))


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
