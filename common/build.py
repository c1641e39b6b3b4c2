"""Builds a day's .cu files into a library of PyTorch operators, once for each content and platform.

`torch.utils.cpp_extension.load` does the work. Around it: a directory that is unique to the day,
platform, flags, versions and the content of every source reached; a lock that dies with its
holder; and the compiler's message without the noise.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.cpu import backend as cpu
from common.cpu.rewrite import RewriteError, rewrite, rewrite_tree
from common.day import ROOT, Day, load_lesson
from common.toolchain import Platform, ToolchainError, Toolkit, find_toolkit, sm

# The oldest PyTorch whose stable ABI the days use: 2.11.
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020b000000000000"

# PyTorch switches the operators of half types off for its own code; a course wants `a + b`.
HALF_OPERATORS = [
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
]
BINDING = [STABLE_ABI, "-DUSE_CUDA"]
# Lambdas marked __device__ can be handed to kernels, and device code calls constexpr functions.
CUDA_FLAGS = [
    *("-O3", "-std=c++20", "-lineinfo", "--extended-lambda", "--expt-relaxed-constexpr"),
    *HALF_OPERATORS,
]

KEPT_PRELUDES = 2  # of 137 MB each
KEPT_BUILDS = 3  # of one day on one platform: going back to yesterday's flags builds nothing


class BuildError(Exception):
    """A day did not build. text: the compiler's own message, without the build tool's noise."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text


@dataclass(frozen=True)
class Build:
    """What building a day comes to: the library's path and the content it stands for."""

    day: Day
    platform: Platform
    key: str
    directory: Path

    @property
    def library(self) -> Path:
        return self.directory / f"{self.day.name}.so"

    @property
    def ready(self) -> bool:
        """True where there is nothing to do."""
        return self.library.is_file() and (self.extras is None or self.extras.is_file())

    @property
    def extras(self) -> Path | None:
        """Stamp of a day whose rungs build something of their own; None for the others."""
        if not self.day.other_sources:
            return None
        files = [self.day.folder / "day.py", *self.day.other_sources]
        return self.directory / f"extras-{_digest([], files)}"


def cache_directory() -> Path:
    """Where builds are kept: HUNDRED_DAYS_CACHE, else the user's cache directory."""
    if given := os.environ.get("HUNDRED_DAYS_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hundred-days-of-cuda"


_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def sources_of(file: Path, roots: Sequence[Path] = (ROOT,)) -> list[Path]:
    """`file` and every project header that it reaches by #include "…", sorted.

    A header is looked for beside the including file, then from `roots`, by default the repository.
    What is in no such place belongs to the toolkit or to torch, whose versions are in the key.
    """
    found: set[Path] = set()
    todo = [file.resolve()]
    while todo:
        current = todo.pop()
        if current in found:
            continue
        found.add(current)
        for name in _INCLUDE.findall(current.read_bytes()):
            for base in (current.parent, *roots):
                candidate = (base / os.fsdecode(name)).resolve()
                if candidate.is_file():
                    todo.append(candidate)
                    break
    return sorted(found)


def _digest(parts: list[str], files: Sequence[Path]) -> str:
    digest = hashlib.sha256("\0".join(parts).encode())
    for file in files:
        digest.update(f"\0{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _cpu_flags(platform: Platform) -> list[str]:
    return cpu.cflags(platform.cuda_include, platform.compiler, platform.variant)


def cuda_flags(archs: list[str]) -> list[str]:
    """nvcc's flags for these architectures, e.g. ["8.0", "9.0a"]."""
    codes = [f"-gencode=arch=compute_{sm(arch)},code=sm_{sm(arch)}" for arch in archs]
    return [*CUDA_FLAGS, *codes]


def plan(day: Day, platform: Platform) -> Build:
    """Where the day's library is or will be. Reads sources; builds nothing.

    Raises OSError if a source cannot be read.
    """
    sources = sorted({path for source in day.library_sources for path in sources_of(source)})
    parts = [platform.device, platform.compiler_version, platform.torch, str(day.folder)]
    if platform.device == "cuda":
        assert platform.toolkit
        parts += [str(platform.toolkit.home), platform.toolkit.version]
        parts += cuda_flags([platform.arch]) + BINDING
    else:
        parts += _cpu_flags(platform)
        sources += cpu.RUNTIME_SOURCES
    key = _digest(parts, sources)
    kind = f"cuda-{platform.arch}" if platform.device == "cuda" else "cpu"
    if platform.variant != "plain":
        kind += f"-{platform.variant}"
    return Build(day, platform, key, cache_directory() / f"{day.name}-{kind}-{key}")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Holds the directory for this process. The kernel lets go when the process dies, however it
    dies, so a killed build never blocks the next one."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(day: Day, platform: Platform) -> Path:
    """Builds the day's library if it is not there yet and returns its path.

    Loads the library into this process as a side effect, so call it in a process of its own.
    Raises BuildError with the compiler's message, OSError if the disk is full.
    """
    todo = plan(day, platform)
    with _locked(todo.directory):
        if not todo.library.is_file():
            # Ours is the only process here: PyTorch's own lock file was left by a dead one.
            (todo.directory / "lock").unlink(missing_ok=True)
            started = time.monotonic()
            built = _load_cuda(todo) if platform.device == "cuda" else _load_cpu(todo)
            _record_seconds(todo.directory, started)
            os.replace(built, todo.library)
            _prune(todo.directory, todo.key, KEPT_BUILDS)
        if todo.extras is not None and not todo.extras.is_file():
            for problem in load_lesson(day).problems:
                for rung in problem.rungs:
                    if rung.load is not None:
                        rung.load(Builder(todo))
            todo.extras.touch()
    return todo.library


def _load_cuda(todo: Build) -> Path:
    toolkit = todo.platform.toolkit
    assert toolkit
    return _load(
        todo,
        list(todo.day.library_sources),
        extra_cuda_cflags=[*cuda_flags([todo.platform.arch]), *BINDING, f"-I{ROOT}"],
        extra_ldflags=[f"-L{link_directory(toolkit)}"],
    )


def _load_cpu(todo: Build) -> Path:
    runtime, prelude = build_once(todo.platform)
    try:
        rewritten = [
            rewrite_tree(source, todo.directory / "rewritten", [ROOT])
            for source in todo.day.library_sources
        ]
    except RewriteError as error:
        raise BuildError(str(error)) from None
    return _load(
        todo,
        rewritten,
        extra_cflags=[
            *prelude,
            "-std=c++20",
            STABLE_ABI,
            *_cpu_flags(todo.platform),
            f"-I{ROOT}",
        ],
        extra_ldflags=cpu.ldflags(runtime, todo.platform.variant),
    )


def unset_locals(day: Day, platform: Platform) -> list[str]:
    """Local variables that may be read before they are set, as far as the compiler sees it: a line
    each, "file:line: variable 'sum' may be read before it is set". For the variant "address", whose
    compiler flags leave such reads as they stand."""
    todo = plan(day, platform)
    found: dict[str, None] = {}
    for source in day.library_sources:
        rewritten = rewrite_tree(source, todo.directory / "rewritten", [ROOT])
        command = [platform.compiler, "-c", str(rewritten), "-o", os.devnull, STABLE_ABI]
        command += [*_cpu_flags(platform), f"-I{ROOT}", *(f"-I{p}" for p in torch_includes())]
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


def _load(todo: Build, sources: list[Path], **flags: list[str]) -> Path:
    """Runs cpp_extension.load and returns the library that it linked."""
    from torch.utils import cpp_extension

    _prepare_environment(todo.platform)
    name = f"{todo.day.name}_build"
    try:
        cpp_extension.load(
            name,
            [str(source) for source in sources],
            build_directory=str(todo.directory),
            is_python_module=False,
            **flags,
        )
    except RuntimeError as error:
        raise BuildError(compiler_message(str(error))) from None
    return todo.directory / f"{name}.so"


def _prepare_environment(platform: Platform) -> None:
    """Makes cpp_extension use this platform's compilers, in this process."""
    from torch.utils import cpp_extension

    if platform.toolkit is not None:
        cpp_extension.CUDA_HOME = str(platform.toolkit.home)  # read once, when torch was imported
    os.environ["CXX"] = platform.compiler
    os.environ.setdefault("TORCH_DONT_CHECK_COMPILER_ABI", "1")  # two compiler starts saved


def link_directory(toolkit: Toolkit) -> Path:
    """A directory with a libcudart.so to link against. The wheels have libcudart.so.13 only."""
    for place in ("lib64", "lib"):
        if (toolkit.home / place / "libcudart.so").exists():
            return toolkit.home / place
    versioned = sorted((toolkit.home / "lib").glob("libcudart.so.*"))
    if not versioned:
        raise BuildError(f"{toolkit.home}: neither lib64 nor lib holds libcudart.so")
    directory = cache_directory() / f"link-{_digest([str(versioned[-1])], [])}"
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / "libcudart.so"
    with contextlib.suppress(FileExistsError):
        link.symlink_to(versioned[-1])
    return directory


def build_runtime(platform: Platform) -> Path:
    """Builds the CPU backend's runtime library if it is not there yet; returns its path."""
    path = runtime_path(platform)
    with _locked(path.parent):
        if path.is_file():
            return path
        partial = path.with_suffix(".partial")
        compiles, link = cpu.runtime_commands(
            platform.compiler, platform.cuda_include, partial, platform.variant
        )
        with ThreadPoolExecutor(len(compiles)) as pool:
            list(pool.map(_run_for_runtime, compiles))
        _run_for_runtime(link)
        for unit in path.parent.glob("*.o"):
            unit.unlink()
        if platform.variant == "trace":
            # Linking with the flags of compiling asks for the thread sanitizer's own library. An
            # empty one beside ours is found first.
            (path.parent / "libtsan.a").write_bytes(b"!<arch>\n")
        os.replace(partial, path)
    return path


def _run_for_runtime(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"the CPU backend's runtime did not build\n{done.stderr.strip()}")


def build_once(platform: Platform) -> tuple[Path, list[str]]:
    """What all days on the CPU backend share, built side by side where it is missing: the runtime
    library's path, and the flags of `build_prelude`. Raises BuildError."""
    with ThreadPoolExecutor(1) as pool:
        prelude = pool.submit(build_prelude, platform)
        return build_runtime(platform), prelude.result()


def build_prelude(platform: Platform) -> list[str]:
    """Flags that give a file the headers which nearly every day includes, already compiled.

    Compiles them if that is not done yet: as long as three days take, and 137 MB. None for clang,
    and none for the variants, whose builds are few. Raises BuildError.
    """
    if platform.variant != "plain" or "clang" in Path(platform.compiler).name:
        return []
    flags = ["-fPIC", STABLE_ABI, *_cpu_flags(platform)]
    includes = [word for path in torch_includes() for word in ("-isystem", str(path))]
    key = _digest([platform.compiler_version, platform.torch, *flags], cpu.HEADERS)
    header = cache_directory() / f"prelude-cpu-{key}" / "prelude.h"
    with _locked(header.parent):
        compiled = header.with_suffix(".h.gch")  # the name that g++ looks for beside a header
        if not compiled.is_file():
            header.write_text('#include "cudacpu/prelude.h"\n', encoding="utf-8")
            partial = header.with_suffix(".partial")
            command = [platform.compiler, *flags, *includes, "-x", "c++-header", str(header)]
            done = subprocess.run([*command, "-o", str(partial)], capture_output=True, text=True)
            if done.returncode != 0:
                raise BuildError(f"the CPU backend's headers did not build\n{done.stderr.strip()}")
            os.replace(partial, compiled)
            _prune(header.parent, key, KEPT_PRELUDES)
    return ["-include", str(header)]


def runtime_path(platform: Platform) -> Path:
    """Where the CPU backend's runtime library for this platform is or will be."""
    key = _digest([platform.compiler_version, *_cpu_flags(platform)], [*cpu.RUNTIME_SOURCES])
    return cache_directory() / f"runtime-cpu-{key}" / "libcudacpu.so"


def load(todo: Build) -> Any:
    """Loads a built day into this process; returns its operators, torch.ops.dayNN."""
    import torch

    torch.ops.load_library(str(todo.library))
    return getattr(torch.ops, todo.day.name)


@dataclass(frozen=True)
class Site:
    """Where a day builds a library in a way of its own: see `Builder.library`.

    directory: holds copies of the sources, and whatever is built. kernel: the .cu, or the .cpp that
    the CPU backend makes of it. flags: (macros) -> keywords for torch.utils.cpp_extension.load.
    """

    directory: Path
    kernel: Path
    platform: Platform
    flags: Callable[[list[str]], dict[str, list[str]]]

    @property
    def sm(self) -> str:
        """The GPU's architecture as CMake and nvcc write it, "90a"; "" on the CPU."""
        return sm(self.platform.arch) if self.platform.device == "cuda" else ""

    def run(self, command: list[Any], **variables: Any) -> None:
        """Runs a command in the directory, with this platform's compilers in its environment.

        variables: further environment variables. Raises BuildError with what the command printed.
        """
        found = {**os.environ, "CXX": self.platform.compiler}
        flags = self.flags([])
        if self.platform.toolkit is not None and self.platform.device == "cuda":
            found["CUDA_HOME"] = str(self.platform.toolkit.home)
            found["CUDACXX"] = str(self.platform.toolkit.nvcc)
            found["CUDAHOSTCXX"] = self.platform.compiler
            found["TORCH_CUDA_ARCH_LIST"] = self.platform.arch
        else:
            found["CFLAGS"] = found["CXXFLAGS"] = shlex.join(flags["extra_cflags"])
        # Libraries may stand before the objects that need them.
        found["LDFLAGS"] = shlex.join(["-Wl,--no-as-needed", *flags["extra_ldflags"]])
        found |= {name: str(value) for name, value in variables.items()}
        words = [str(word) for word in command]
        done = subprocess.run(words, cwd=self.directory, env=found, capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildError(f"{shlex.join(words)}\n{compiler_message(done.stdout + done.stderr)}")


class Builder:
    """What a rung that is built in a way of its own gets: see `Rung.load`.

    seconds: how long the last thing that it handed out took to build, when it was built.
    """

    def __init__(self, todo: Build):
        self._todo = todo
        self.device = todo.platform.device
        self.seconds: float | None = None

    def operators(self) -> Any:
        """The day's operators, torch.ops.dayNN, built from its SOURCE through the stable ABI."""
        self.seconds = _recorded_seconds(self._todo.directory)
        return load(self._todo)

    def module(self, name: str, sources: list[str], defines: list[str]) -> Any:
        """A Python module of the day's own `sources` with pybind11 and torch/extension.h.

        defines: macros set for all of them. Raises BuildError.
        """
        files = [self._todo.day.folder / source for source in sources]
        reached = sorted({path for file in files for path in sources_of(file)})
        macros = [f"-D{name}" for name in defines]

        def compile_into(directory: Path) -> Any:
            from torch.utils import cpp_extension

            paths = [
                self._on_this_device(file, directory) if file.suffix == ".cu" else file
                for file in files
            ]
            return cpp_extension.load(
                name, [str(p) for p in paths], build_directory=str(directory), **self._flags(macros)
            )

        return self._module(name, compile_into, reached, macros)

    def inline(self, name: str, declarations: str, source: str, functions: list[str]) -> Any:
        """A Python module of CUDA source text, by torch.utils.cpp_extension.load_inline.

        declarations: C++ declarations of `functions`, which become the module's. Raises BuildError.
        """

        def compile_into(directory: Path) -> Any:
            from torch.utils import cpp_extension

            on_gpu = self.device == "cuda"
            text = source if on_gpu else rewrite(source, f"{self._todo.day.name}, inline source")
            return cpp_extension.load_inline(
                name,
                cpp_sources=[declarations] if on_gpu else [declarations, text],
                cuda_sources=[text] if on_gpu else [],
                functions=functions,
                build_directory=str(directory),
                **self._flags([]),
            )

        return self._module(name, compile_into, [], [declarations, source, *functions])

    def library(self, namespace: str, sources: list[str], make: Callable[[Site], Path]) -> Any:
        """The operators torch.ops.<namespace> of a library that the day builds itself.

        sources: files of the day's folder, copied to where it is built; one of them is the .cu.
        make: builds the library and returns its path. It is part of day.py, so that it is built
        again when that changes. Raises BuildError.
        """
        import torch

        day, platform = self._todo.day, self._todo.platform
        files = [day.folder / source for source in sources]
        reached = sorted({path for file in files for path in sources_of(file)})
        directory = self._directory(namespace, [*reached, day.folder / "day.py"], [])
        with _locked(directory):
            stamp = directory / "ok"
            if not stamp.is_file():
                (directory / "lock").unlink(missing_ok=True)
                for file in files:
                    shutil.copy(file, directory)
                kernel = self._on_this_device(day.source, directory)
                kernel = directory / day.source.name if kernel == day.source else kernel
                started = time.monotonic()
                _prepare_environment(platform)
                try:
                    built = make(Site(directory, kernel, platform, self._flags))
                except RewriteError as error:
                    raise BuildError(str(error)) from None
                except RuntimeError as error:
                    raise BuildError(compiler_message(str(error))) from None
                _record_seconds(directory, started)
                stamp.write_text(str(built))
        self.seconds = _recorded_seconds(directory)
        torch.ops.load_library(stamp.read_text())
        return getattr(torch.ops, namespace)

    def _directory(self, name: str, files: list[Path], parts: list[str]) -> Path:
        """Where something of that name, with this content, is or will be built."""
        kind = self._todo.directory.name.removesuffix(f"-{self._todo.key}")
        key = _digest([self._todo.key, *parts], files)
        return cache_directory() / f"{kind}-{name}-{key}"

    def _on_this_device(self, file: Path, directory: Path) -> Path:
        if self.device == "cuda":
            return file
        return rewrite_tree(file, directory / "rewritten", [ROOT])

    def _flags(self, macros: list[str]) -> dict[str, list[str]]:
        if self.device == "cuda":
            toolkit = self._todo.platform.toolkit
            assert toolkit
            return {
                "extra_cflags": ["-O2", *macros],
                "extra_cuda_cflags": [*cuda_flags([self._todo.platform.arch]), *macros],
                "extra_ldflags": [f"-L{link_directory(toolkit)}"],
                "extra_include_paths": [str(toolkit.include)],
            }
        runtime = build_runtime(self._todo.platform)
        return {
            "extra_cflags": [*_cpu_flags(self._todo.platform), *macros],
            "extra_ldflags": cpu.ldflags(runtime, self._todo.platform.variant),
        }

    def _module(
        self,
        name: str,
        compile_into: Callable[[Path], Any],
        files: list[Path],
        parts: list[str],
    ) -> Any:
        directory = self._directory(name, files, parts)
        library = directory / f"{name}.so"
        with _locked(directory):
            stamp = directory / "ok"
            if not stamp.is_file():
                (directory / "lock").unlink(missing_ok=True)
                started = time.monotonic()
                _prepare_environment(self._todo.platform)
                try:
                    module = compile_into(directory)
                except RewriteError as error:
                    raise BuildError(str(error)) from None
                except RuntimeError as error:
                    raise BuildError(compiler_message(str(error))) from None
                _record_seconds(directory, started)
                stamp.touch()
                self.seconds = _recorded_seconds(directory)
                return module
        self.seconds = _recorded_seconds(directory)
        spec = importlib.util.spec_from_file_location(name, library)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def _record_seconds(directory: Path, started: float) -> None:
    (directory / "seconds").write_text(f"{time.monotonic() - started:.3f}")


def _recorded_seconds(directory: Path) -> float:
    return float((directory / "seconds").read_text())


def compile_only(day: Day, archs: list[str], toolkit: Toolkit | None = None) -> None:
    """Compiles the day's .cu files for every architecture: see `compile_source`."""
    for source in day.library_sources:
        compile_source(day.name, source, archs, toolkit)


def compile_source(
    name: str, source: Path, archs: list[str], toolkit: Toolkit | None = None
) -> None:
    """Compiles a .cu for every architecture, without a GPU and without linking.

    name: of its entry in the cache: a success is remembered, so that the same content is not
    compiled again. archs: e.g. ["8.0", "9.0a"]. toolkit: default, the one that builds use.
    Raises BuildError with nvcc's message, ToolchainError if there is no nvcc.
    """
    toolkit = toolkit or find_toolkit()
    if toolkit is None:
        raise ToolchainError("no nvcc: python -m pip install -r requirements.txt brings it")
    flags = cuda_flags(archs) + BINDING
    key = _digest([toolkit.version, str(toolkit.home), *flags], sources_of(source))
    directory = cache_directory() / f"{name}-compiled-{key}"
    with _locked(directory):
        stamp = directory / "ok"
        if stamp.is_file():
            return
        command = [toolkit.nvcc, "-c", source, "-o", directory / "object.o", *flags]
        command += [f"-I{ROOT}", *(f"-I{path}" for path in torch_includes())]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildError(compiler_message(done.stderr))
        (directory / "object.o").unlink()
        stamp.touch()


def torch_includes() -> list[Path]:
    """Include directories of the installed torch, without importing it."""
    spec = importlib.util.find_spec("torch")
    assert spec and spec.origin
    include = Path(spec.origin).parent / "include"
    return [include, include / "torch" / "csrc" / "api" / "include"]


_NOISE = re.compile(
    r"^(\[\d+/\d+\]|FAILED:|ninja: |Error building extension|\d+ errors? detected|"
    r"compilation terminated|In file included from|\s+from /|/\S*(nvcc|c\+\+|g\+\+)\s)"
)


def compiler_message(text: str) -> str:
    """The compiler's message: without the build tool's lines, paths relative to the repository."""
    lines = [line for line in text.splitlines() if not _NOISE.match(line)]
    message = "\n".join(lines).strip() or text.strip()
    return message.replace(f"{ROOT}/", "")


def _prune(directory: Path, key: str, kept: int) -> None:
    """Removes older builds of the same kind as this one (its name ends in `key`); keeps some."""
    pattern = directory.name.removesuffix(key) + "*"
    siblings = sorted(directory.parent.glob(pattern), key=lambda p: p.stat().st_mtime)
    for old in siblings[:-kept]:
        shutil.rmtree(old, ignore_errors=True)
