"""A whole CUDA program, a `.cu` with a main(), built to run on the CPU.

Like a day, it is rewritten, with the headers that it includes by #include "…", and kept in the
cache until one of them, the backend or the compiler changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.base.cache import Entry, cached, digest
from common.base.compiling import run_compiler, sources_of
from common.base.toolchain import Platform
from common.cpu import backend, libraries, models

_SUPPORT = Path(backend.__file__).with_name("program.cpp")  # settings from the environment


def executable(source: Path, platform: Platform, flags: Sequence[str] = ()) -> Path:
    """Builds the program if necessary, and returns its path.

    flags: further ones for the compiler: -I (also where headers to be rewritten are looked for),
    -D, -l and their like. Raises BuildError with the compiler's message, or with the file and
    line of a feature that the CPU backend does not have; OSError if a source cannot be read.
    """
    source = source.resolve()
    roots = [source.parent, *(Path(f[2:]).resolve() for f in flags if f.startswith("-I"))]
    runtime = libraries.build_runtime(platform)
    cpp = libraries.rewritten(
        f"program-{source.stem}", source, sources_of(source, roots), roots, platform.model
    )
    command = [platform.compiler, *libraries.flags(platform)]
    command += [f"-I{source.parent}", "-pthread", *flags]
    command.append(f'-DCUDACPU_PROGRAM_MODEL="{models.chosen(platform.model)}"')  # in program.cpp
    linked = [flag for flag in flags if flag.startswith(("-l", "-L"))]  # again, after the objects
    parts = [platform.compiler_version, str(runtime), str(source), *command]
    files = [_SUPPORT, *libraries.texts(cpp), *backend.HEADERS]
    entry = Entry(f"program-{source.stem}", digest(parts, files), source.stem)

    def make(directory: Path) -> None:
        objects: list[str | Path] = [cpp, _SUPPORT, "-o", directory / entry.product]
        run_compiler([*command, *objects, *backend.ldflags(runtime), *linked])

    return cached(entry, make)
