"""A whole CUDA program, a `.cu` with a main(), built to run on the CPU.

As a day, it is rewritten, with the headers that it includes by #include "…", and kept in the cache
until one of them, the backend or the compiler changes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from common import build
from common.cpu import backend
from common.cpu.rewrite import RewriteError, rewrite_tree
from common.toolchain import Platform

_SUPPORT = Path(backend.__file__).with_name("program.cpp")  # settings from the environment


def executable(source: Path, platform: Platform, flags: Sequence[str] = ()) -> Path:
    """Builds the program if need be, and returns it.

    flags: further ones for the compiler: -I (also where headers to be rewritten are looked for),
    -D, -l and their like. Raises build.BuildError with the compiler's message, or with the file and
    line of a feature that the CPU backend does not have; OSError if a source cannot be read.
    """
    source = source.resolve()
    runtime = build.build_runtime(platform)
    command = [platform.compiler, *backend.cflags(platform.cuda_include, platform.compiler)]
    command += [f"-I{source.parent}", "-pthread", *flags]
    roots = [source.parent, *(Path(f[2:]).resolve() for f in flags if f.startswith("-I"))]
    digest = hashlib.sha256("\0".join([platform.compiler_version, str(runtime), *command]).encode())
    for file in [_SUPPORT, *build.sources_of(source, roots)]:
        digest.update(f"\0{file}\0".encode() + file.read_bytes())
    directory = build.cache_directory() / f"program-{source.stem}-{digest.hexdigest()[:16]}"
    program = directory / source.stem
    if program.is_file():
        return program
    directory.mkdir(parents=True, exist_ok=True)
    try:
        rewritten = rewrite_tree(source, directory / "rewritten", roots)
    except RewriteError as error:
        raise build.BuildError(str(error)) from None
    partial = program.with_suffix(f".{os.getpid()}")
    command += [str(rewritten), str(_SUPPORT), "-o", str(partial), *backend.ldflags(runtime)]
    command += [flag for flag in flags if flag.startswith(("-l", "-L"))]  # again, after their users
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise build.BuildError(build.compiler_message(done.stderr))
    os.replace(partial, program)
    return program
