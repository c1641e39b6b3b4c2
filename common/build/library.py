"""Build a day's .cu files into a library of PyTorch operators, once per content and platform.

`torch.utils.cpp_extension.load` does the work. The result is kept (common.base.cache) under a key
that covers the day, platform, flags, versions and the content of every source reached.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.base.cache import Entry, cached, digest
from common.base.compiling import (
    STABLE_ABI,
    BuildError,
    compiler_message,
    sources_of,
    torch_includes,
)
from common.base.days import Day, read_day
from common.base.paths import DAYS, ROOT
from common.base.toolchain import Platform, detect
from common.build import nvcc
from common.cpu import backend as cpu
from common.cpu import libraries, source_warnings


@dataclass(frozen=True)
class Build:
    """A day's build. sources: the compiler's input. entry: its place in the cache; the product is
    the library."""

    day: Day
    platform: Platform
    sources: tuple[Path, ...]
    entry: Entry = field(repr=False)

    @property
    def library(self) -> Path:
        return self.entry.path


def kind(name: str, platform: Platform) -> str:
    """Return the name of cache entries that belong to this platform: "day05-cpu"."""
    words = [name, platform.device]
    if platform.device == "cuda":
        words.append(platform.arch)
    if platform.variant != "plain":
        words.append(platform.variant)
    return "-".join(words)


def compilers(platform: Platform) -> list[str]:
    """Return everything except sources that builds on this platform depend on: compilers, flags,
    versions."""
    parts = [platform.device, platform.compiler_version, platform.torch]
    if platform.device == "cuda":
        assert platform.toolkit
        parts += [str(platform.toolkit.home), platform.toolkit.version]
        return parts + nvcc.cuda_flags([platform.arch]) + nvcc.BINDING
    return [*parts, *libraries.flags(platform), str(libraries.runtime(platform).path)]


def plan(day: Day, platform: Platform) -> Build:
    """Return the day's build and its place in the cache. Compiles nothing.

    Raise OSError if a source cannot be read, BuildError for features that the CPU backend lacks.
    """
    if platform.device == "cuda":
        sources = day.library_sources
        files = sorted({path for source in sources for path in sources_of(source)})
    else:
        sources = tuple(
            libraries.rewritten(
                f"{day.kind}-{source.stem}", source, sources_of(source), [ROOT], platform.model
            )
            for source in day.library_sources
        )
        files = [text for source in sources for text in libraries.texts(source)] + [*cpu.HEADERS]
    key = digest([str(day.folder), *compilers(platform)], files)
    return Build(day, platform, sources, Entry(kind(day.kind, platform), key, f"{day.name}.so"))


def used(todo: Build) -> list[Build]:
    """Return the builds of the days whose operators this one calls. Raise as `plan` does."""
    return [plan(read_day(DAYS / f"day{n:02d}"), todo.platform) for n in todo.day.uses]


def build_library(todo: Build) -> Path:
    """Build the day's library if it is missing and return its path.

    Loads the library into this process as a side effect, so call it in a separate process. Raise
    BuildError with the compiler's message, OSError if the disk is full.
    """
    make = _make_cuda if todo.platform.device == "cuda" else _make_cpu
    return cached(todo.entry, lambda directory: make(todo, directory))


def build_source(source: Path, platform: Platform) -> Path:
    """Return the library of a .cu that belongs to no day, for a GPU, built if it is missing.

    Raise as `build_library`.
    """
    name = source.stem
    key = digest(compilers(platform), sources_of(source))
    entry = Entry(kind(name, platform), key, f"{name}.so")
    return cached(entry, lambda made: _load_cuda(name, [source], platform, made / entry.product))


def _make_cuda(todo: Build, directory: Path) -> None:
    product = directory / todo.entry.product
    _load_cuda(todo.day.name, todo.sources, todo.platform, product)


def _load_cuda(name: str, sources: Sequence[Path], platform: Platform, product: Path) -> None:
    assert platform.toolkit
    _load(
        name,
        sources,
        platform,
        product,
        extra_cuda_cflags=quoted(
            *nvcc.cuda_flags([platform.arch]),
            *nvcc.BINDING,
            f"-I{ROOT}",
        ),
        extra_ldflags=quoted(f"-L{nvcc.link_directory(platform.toolkit)}"),
    )


def _make_cpu(todo: Build, directory: Path) -> None:
    # "standalone" builds without loading: the runtime may not be built yet.
    _load(
        todo.day.name,
        todo.sources,
        todo.platform,
        directory / todo.entry.product,
        is_standalone=True,
        extra_cflags=quoted(
            *libraries.prelude(todo.platform),
            "-std=c++20",
            STABLE_ABI,
            *libraries.flags(todo.platform),
            f"-I{ROOT}",
        ),
        extra_ldflags=quoted("-shared", *libraries.link_flags(todo.platform)),
    )
    libraries.build_runtime(todo.platform)
    import torch

    torch.ops.load_library(str(directory / todo.entry.product))  # fails on an undefined symbol


def use_compilers(device: str) -> None:
    """Make PyTorch's build tools in this process, cpp_extension and AOTInductor, use the course's
    host compiler and, on a GPU, its CUDA toolkit. device: as for `detect`.

    Raise ToolchainError if something needed is missing.
    """
    platform = detect(device)
    with_compilers(platform, lambda _: None)
    from torch._inductor import config

    config.cpp.cxx = (None, platform.compiler)  # from CXX when it was imported, perhaps long ago
    if platform.device == "cuda" and platform.toolkit is not None:
        os.environ["CUDA_HOME"] = str(platform.toolkit.home)


def quoted(*flags: str) -> list[str]:
    """Return flags quoted for a shell, to which cpp_extension.load passes them: a blank in a path
    does not split them."""
    return [shlex.quote(flag) for flag in flags]


def _load(
    name: str,
    sources: Sequence[Path],
    platform: Platform,
    product: Path,
    is_standalone: bool = False,
    **flags: list[str],
) -> None:
    name = f"{name}_build"
    with_compilers(
        platform,
        lambda load: load(
            name,
            [str(source) for source in sources],
            build_directory=str(product.parent),
            is_python_module=False,
            is_standalone=is_standalone,
            **flags,
        ),
    )
    os.replace(product.with_name(name if is_standalone else f"{name}.so"), product)


def with_compilers(platform: Platform, call: Callable[[Any], Any]) -> Any:
    """Return call(cpp_extension.load), run with this platform's compilers.

    Raise BuildError with the compiler's message.
    """
    from torch.utils import cpp_extension

    if platform.toolkit is not None:
        cpp_extension.CUDA_HOME = str(platform.toolkit.home)  # read once, when torch was imported
    # CC too: cpp_extension passes it to nvcc as the compiler of host code.
    os.environ["CXX"] = os.environ["CC"] = platform.compiler
    os.environ.setdefault("TORCH_DONT_CHECK_COMPILER_ABI", "1")  # saves two compiler starts
    try:
        return call(cpp_extension.load)
    except RuntimeError as error:
        raise BuildError(compiler_message(str(error))) from None


def load(todo: Build) -> Any:
    """Load a built day into this process; return its operators, torch.ops.dayNN. The operators of
    the days that it uses are loaded too, and built if missing.

    A library that does not load is removed from the cache, so that the next run builds it again.
    """
    import torch

    for other in used(todo):
        build_library(other)
        load(other)
    if todo.platform.device == "cpu":
        libraries.build_runtime(todo.platform)  # the library is linked with it, and may outlive it
    try:
        torch.ops.load_library(str(todo.library))
    except OSError as error:
        shutil.rmtree(todo.entry.directory, ignore_errors=True)
        reason = error.__cause__ or error  # the loader's message
        raise BuildError(
            f"{todo.library} does not load, and was removed; run the day again\n{reason}"
        ) from None
    return getattr(torch.ops, todo.day.name)


def operators_of(number: int, device: str = "auto") -> tuple[Any, str]:
    """Return torch.ops.dayNN and the device of its tensors, "cuda" or "cpu", for a separate program
    of that day: a command, or one process of several. The library is built if missing.

    device: "auto", "cuda", or "cpu" for the CPU backend. Raise ToolchainError if something needed
    is missing, BuildError and OSError as `build_library`.
    """
    platform = detect(device)
    todo = plan(read_day(DAYS / f"day{number:02d}"), platform)
    build_library(todo)
    return load(todo), platform.device


def fallbacks(todo: Build) -> Callable[[], str]:
    """Return a function for the last text passed to fell_back() (common/cuda/binding.cuh), "" if
    none.

    It always returns "" for a library without that header.
    """
    function = getattr(ctypes.CDLL(str(todo.library)), "take_fallback", None)
    if function is None:
        return lambda: ""
    function.restype = ctypes.c_char_p
    return lambda: function().decode()


def unset_locals(day: Day, platform: Platform) -> list[str]:
    """Return the lines of `source_warnings.unset_locals` for the day's sources."""
    flags = [STABLE_ABI, *libraries.flags(replace(platform, variant="address")), f"-I{ROOT}"]
    flags += [f"-I{path}" for path in torch_includes()]
    commands = [[platform.compiler, str(source), *flags] for source in plan(day, platform).sources]

    def shown(place: str) -> str:
        return place.removeprefix(f"{ROOT}/") if place.startswith(f"{ROOT}/") else ""

    return source_warnings.unset_locals(commands, shown)
