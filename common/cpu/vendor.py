"""Provide NVIDIA's libraries as far as programs use them here: each is a folder of `vendor/` with
headers, and with kernels that run like a program's own.

A program that includes one of the headers is linked with the folder's compiled `.cu` files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.base.cache import Entry, cached, digest
from common.base.compiling import run_compiler, sources_of
from common.base.toolchain import Platform
from common.cpu import backend, libraries

FOLDERS = sorted(path for path in Path(__file__).with_name("vendor").iterdir() if path.is_dir())


def linked(name: str) -> bool:
    """Return True if `-l` of this name is one of these libraries, or the runtime, which are always
    present: "cublasLt", "cudart"."""
    stem = name.removesuffix("_static")
    return stem in ("cudart", "cudadevrt", "cuda") or any(
        stem.lower().startswith(folder.name) for folder in FOLDERS
    )


def objects(files: Sequence[Path], platform: Platform) -> list[Path]:
    """Return the object files to link with a program of these files, headers included.

    Raise BuildError with the compiler's message.
    """
    used = [folder for folder in FOLDERS if any(folder in file.parents for file in files)]
    return [
        _compiled(source, platform) for folder in used for source in sorted(folder.glob("*.cu"))
    ]


def _compiled(source: Path, platform: Platform) -> Path:
    roots = [source.parent]
    files = sources_of(source, roots)
    name = f"vendor-{source.stem}"
    cpp = libraries.rewritten(name, source, files, roots, platform.model)
    command = [platform.compiler, *libraries.flags(platform), "-O3", "-c", str(cpp)]
    parts = [platform.compiler_version, *command]
    key = digest(parts, [*libraries.texts(cpp), *backend.HEADERS])
    entry = Entry(f"{name}-{platform.variant}", key, f"{source.stem}.o")

    def make(directory: Path) -> None:
        run_compiler([*command, "-o", directory / entry.product])

    return cached(entry, make)
