"""Build the shared parts of the CPU backend once: the runtime library, and precompiled headers that
nearly every file includes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from common.base.cache import Entry, cached, digest
from common.base.compiling import STABLE_ABI, BuildError, run_compiler, torch_includes
from common.base.toolchain import Platform
from common.cpu import backend, models
from common.cpu.conditions import Macros
from common.cpu.rewrite import RewriteError, rewrite_tree

_KEPT_PRELUDES = 2  # of 105 MB each
_KEPT_REWRITTEN = 2 * len(models.cards())  # for two states of a file


def flags(platform: Platform) -> list[str]:
    """Return the compiler's flags for a rewritten file on this platform."""
    return backend.cflags(platform.cuda_include, platform.compiler, platform.variant)


def runtime(platform: Platform) -> Entry:
    """Return the CPU backend's runtime library for this platform, built or not. The variants
    "address" and "zeroed" share one."""
    if platform.variant == "zeroed":
        platform = replace(platform, variant="address")
    parts = [platform.compiler_version, *flags(platform)]
    key = digest(parts, backend.RUNTIME_SOURCES)
    return Entry(f"runtime-{platform.variant}", key, "libcudacpu.so")


def build_runtime(platform: Platform) -> Path:
    """Build the runtime library if it is missing; return its path. Raise BuildError."""
    entry = runtime(platform)

    def make(directory: Path) -> None:
        compiles, link = backend.runtime_commands(
            platform.compiler, platform.cuda_include, directory / entry.product, platform.variant
        )
        with ThreadPoolExecutor(len(compiles)) as pool:
            list(pool.map(_compile_runtime, compiles))
        _compile_runtime(link)
        for unit in directory.glob("*.o"):
            unit.unlink()
        if platform.variant == "trace":
            # Linking with the flags of compiling requests the thread sanitizer's own library. An
            # empty one in the folder of ours is found first.
            (directory / "libtsan.a").write_bytes(b"!<arch>\n")

    return cached(entry, make)


def _compile_runtime(command: list[str]) -> None:
    run_compiler(command, "the CPU backend's runtime did not build")


def build_prelude(platform: Platform, for_variants: bool = False) -> list[str]:
    """Return flags for a file to use the precompiled headers that nearly every day includes.

    Compiles the headers first if necessary, which takes as long as two days, and 105 MB. There are
    no flags for clang, and none for the variants unless `for_variants`: a day is rarely built as
    one of them, but its mutants are more often. Raise BuildError.
    """
    ordinary = platform.variant == "plain" or for_variants
    if not ordinary or "clang" in Path(platform.compiler).name:
        return []
    own = _prelude_flags(platform)
    kind = "prelude" if platform.variant == "plain" else f"prelude-{platform.variant}"
    name = "prelude.h.gch"  # g++ looks for that
    entry = Entry(kind, _prelude_key(platform), name, _KEPT_PRELUDES)

    def make(directory: Path) -> None:
        header = directory / "prelude.h"
        header.write_text('#include "cudacpu/prelude.h"\n', encoding="utf-8")
        includes = [word for path in torch_includes() for word in ("-isystem", str(path))]
        command: list[str | Path] = [platform.compiler, *own, *includes, "-x", "c++-header", header]
        run_compiler([*command, "-o", entry.path], "the CPU backend's headers did not build")

    return ["-include", str(cached(entry, make).with_suffix(""))]


def _prelude_flags(platform: Platform) -> list[str]:
    return ["-fPIC", STABLE_ABI, *flags(platform)]


def _prelude_key(platform: Platform) -> str:
    parts = [platform.compiler_version, platform.torch, *_prelude_flags(platform)]
    return digest(parts, backend.HEADERS)


def prelude(platform: Platform) -> list[str]:
    """Return the flags of `build_prelude` from the second file on; none for the first, since
    compiling the headers costs more than they save one file. Raise BuildError."""
    entry = Entry("first-file", _prelude_key(platform), "compiled")
    if entry.ready:
        return build_prelude(platform)
    cached(entry, lambda _: entry.path.touch())
    return []


def link_flags(platform: Platform) -> list[str]:
    """Return linker flags for a library loaded together with the runtime, which may not be built
    yet.

    Such a library contains only the file name of the runtime, so an empty one with that name
    suffices for the linker. A variant's is built first: the linker needs the files in its folder.
    Raise BuildError.
    """
    entry = runtime(platform)
    flags = backend.ldflags(entry.path, platform.variant)
    if platform.variant != "plain":
        build_runtime(platform)
        return flags
    empty = Entry("runtime-name", digest([platform.compiler_version]), entry.product)
    command = [platform.compiler, "-shared", "-x", "c", "/dev/null", "-o", str(empty.path)]
    cached(empty, lambda _: _compile_runtime(command))
    return [f"-L{empty.directory}", *flags]


def rewritten(
    name: str,
    source: Path,
    files: list[Path],
    roots: list[Path],
    model: str = "",
    macros: Macros | None = None,
) -> Path:
    """Return the `.cpp` that the rewriter makes of a `.cu`, in a folder with its rewritten headers.

    name: of its entry in the cache. files: `source` and all headers that it reaches. roots: folders
    to search for headers. model: the simulated card. The text, and its builds, are the same for all
    models unless one of the files uses __CUDA_ARCH__. macros: knowledge of macros. Raise BuildError
    with the line of a missing feature.
    """
    model = models.chosen(model)
    parts = [model, *(str(file) for file in (*files, *roots))]
    if macros:
        parts += [repr(sorted(macros.given.items())), repr(sorted(macros.possible or ()))]
    entry = Entry(
        f"{name}-rewritten",
        digest(parts, [*files, *backend.REWRITER, models.TABLE]),
        f"{source.stem}.cpp",
        _KEPT_REWRITTEN,
    )

    def make(directory: Path) -> None:
        try:
            rewrite_tree(source, directory, roots, model, macros)
        except RewriteError as error:
            raise BuildError(str(error)) from None

    return cached(entry, make)


def texts(rewritten_source: Path) -> list[Path]:
    """Return all files of a rewritten tree, on which its build depends."""
    found = rewritten_source.parent.rglob("*")
    return sorted(path for path in found if path.suffix in (".cpp", ".h", ".cuh", ".hpp", ".cu"))
