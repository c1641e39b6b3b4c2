"""A day's .cu files as a library of PyTorch operators, built once for each content and platform.

`torch.utils.cpp_extension.load` does the work. What it builds is kept (common.base.cache) under a
key that covers the day, platform, flags, versions and the content of every source reached.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
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
from common.cpu import libraries


@dataclass(frozen=True)
class Build:
    """What building a day comes to. sources: what the compiler gets. entry: its place in the
    cache; the product is the library."""

    day: Day
    platform: Platform
    sources: tuple[Path, ...]
    entry: Entry = field(repr=False)

    @property
    def library(self) -> Path:
        return self.entry.path


def kind(name: str, platform: Platform) -> str:
    """Return what entries of the cache are called that belong to this platform: "day05-cpu"."""
    words = [name, platform.device]
    if platform.device == "cuda":
        words.append(platform.arch)
    if platform.variant != "plain":
        words.append(platform.variant)
    return "-".join(words)


def compilers(platform: Platform) -> list[str]:
    """Return what builds on this platform depend on beside their sources: compilers, flags,
    versions."""
    parts = [platform.device, platform.compiler_version, platform.torch]
    if platform.device == "cuda":
        assert platform.toolkit
        parts += [str(platform.toolkit.home), platform.toolkit.version]
        return parts + nvcc.cuda_flags([platform.arch]) + nvcc.BINDING
    return [*parts, *libraries.flags(platform), str(libraries.runtime(platform).path)]


def plan(day: Day, platform: Platform) -> Build:
    """Return where the day's library is or will be. Compiles nothing.

    Raises OSError if a source cannot be read, BuildError for what the CPU backend does not have.
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
    """Return the builds of the days whose operators this one calls. Raises as `plan` does."""
    return [plan(read_day(DAYS / f"day{n:02d}"), todo.platform) for n in todo.day.uses]


def build_library(todo: Build) -> Path:
    """Build the day's library if it is not there yet and return its path.

    Loads the library into this process as a side effect, so call it in a process of its own.
    Raises BuildError with the compiler's message, OSError if the disk is full.
    """
    make = _make_cuda if todo.platform.device == "cuda" else _make_cpu
    return cached(todo.entry, lambda directory: make(todo, directory))


def _make_cuda(todo: Build, directory: Path) -> None:
    toolkit = todo.platform.toolkit
    assert toolkit
    _load(
        todo,
        directory,
        extra_cuda_cflags=quoted(
            *nvcc.cuda_flags([todo.platform.arch]),
            *nvcc.BINDING,
            f"-I{ROOT}",
        ),
        extra_ldflags=quoted(f"-L{nvcc.link_directory(toolkit)}"),
    )


def _make_cpu(todo: Build, directory: Path) -> None:
    # As "standalone" it is built and not loaded: the runtime may still be under construction.
    _load(
        todo,
        directory,
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

    torch.ops.load_library(str(directory / todo.entry.product))  # an undefined symbol shows here


def use_compilers(device: str) -> None:
    """Let PyTorch's own build tools in this process, cpp_extension and AOTInductor, use what the
    course builds with: the host's compiler and, on a GPU, the CUDA toolkit. device: as for
    `detect`.

    Raises ToolchainError if something needed is missing.
    """
    platform = detect(device)
    with_compilers(platform, lambda _: None)
    if platform.device == "cuda" and platform.toolkit is not None:
        os.environ["CUDA_HOME"] = str(platform.toolkit.home)


def quoted(*flags: str) -> list[str]:
    """Return flags for cpp_extension.load, which hands them to a shell as they are: a blank in a
    path splits none of them."""
    return [shlex.quote(flag) for flag in flags]


def _load(todo: Build, directory: Path, is_standalone: bool = False, **flags: list[str]) -> None:
    name = f"{todo.day.name}_build"
    sources = [str(source) for source in todo.sources]
    with_compilers(
        todo.platform,
        lambda load: load(
            name,
            sources,
            build_directory=str(directory),
            is_python_module=False,
            is_standalone=is_standalone,
            **flags,
        ),
    )
    built = directory / (name if is_standalone else f"{name}.so")
    os.replace(built, directory / todo.entry.product)


def with_compilers(platform: Platform, call: Callable[[Any], Any]) -> Any:
    """Return call(cpp_extension.load) with this platform's compilers; its result.

    Raises BuildError with the compiler's message.
    """
    from torch.utils import cpp_extension

    if platform.toolkit is not None:
        cpp_extension.CUDA_HOME = str(platform.toolkit.home)  # read once, when torch was imported
    # CC too: cpp_extension hands it to nvcc as the compiler of host code.
    os.environ["CXX"] = os.environ["CC"] = platform.compiler
    os.environ.setdefault("TORCH_DONT_CHECK_COMPILER_ABI", "1")  # two compiler starts saved
    try:
        return call(cpp_extension.load)
    except RuntimeError as error:
        raise BuildError(compiler_message(str(error))) from None


def load(todo: Build) -> Any:
    """Load a built day into this process; returns its operators, torch.ops.dayNN. The operators of
    the days that it uses are loaded too, and built where they are not there.

    A library that does not load is taken out of the cache, so that the next run builds it again.
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
        reason = error.__cause__ or error  # the loader's own words
        raise BuildError(
            f"{todo.library} does not load, and was removed; run the day again\n{reason}"
        ) from None
    return getattr(torch.ops, todo.day.name)


def operators_of(number: int, device: str = "auto") -> tuple[Any, str]:
    """Return torch.ops.dayNN and the device of its tensors, "cuda" or "cpu", for a program of that
    day's own: a command, or one process of several. The library is built where it is not there.

    device: "auto", "cuda", or "cpu" for the CPU backend. Raises ToolchainError if something needed
    is missing, BuildError and OSError as `build_library`.
    """
    platform = detect(device)
    todo = plan(read_day(DAYS / f"day{number:02d}"), platform)
    build_library(todo)
    return load(todo), platform.device


def fallbacks(todo: Build) -> Callable[[], str]:
    """Return what a launcher said by fell_back() since the last call (common/cuda/binding.cuh).

    Always "" for a library without that header.
    """
    function = getattr(ctypes.CDLL(str(todo.library)), "take_fallback", None)
    if function is None:
        return lambda: ""
    function.restype = ctypes.c_char_p
    return lambda: function().decode()


def unset_locals(day: Day, platform: Platform) -> list[str]:
    """Return local variables that may be read before they are set, as far as the compiler sees it:
    a line each, "file:line: variable 'sum' may be read before it is set". For the variant
    "address", whose compiler flags leave such reads as they stand."""
    found: dict[str, None] = {}
    for source in plan(day, platform).sources:
        command = [platform.compiler, "-c", str(source), "-o", os.devnull, STABLE_ABI]
        command += [*libraries.flags(platform), f"-I{ROOT}"]
        command += [f"-I{path}" for path in torch_includes()]
        command += ["-Wuninitialized", "-Wmaybe-uninitialized"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for place, variable in _UNSET.findall(done.stderr):
            if Path(place.split(":")[0]).is_relative_to(ROOT):
                place = place.removeprefix(f"{ROOT}/")
                found[f"{place}: variable {variable} may be read before it is set"] = None
    return list(found)


_UNSET = re.compile(
    r"^(.+?:\d+):\d+: warning: [‘'](.+?)[’'] (?:is|may be) used uninitialized", re.MULTILINE
)
