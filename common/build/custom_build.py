"""Build rungs with a custom `Rung.load`: day 6 binds by pybind11, day 12 with setuptools and CMake;
and kernels in Python: in Triton from day 61 on (`Rung.triton`), and in Numba (`Rung.numba`)."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from typing import Any

from common.base.cache import Entry, cached, digest
from common.base.compiling import BuildError, compiler_message, run_compiler, sources_of
from common.base.declaration import NUMBA_SIMULATOR, TRITON_INTERPRETER
from common.base.outcome import Skip
from common.base.paths import ROOT
from common.base.toolchain import Platform, sm
from common.build.library import Build, compilers, kind, load, quoted, with_compilers
from common.build.nvcc import cuda_flags, link_directory
from common.cpu import backend as cpu
from common.cpu import libraries
from common.cpu.rewrite import RewriteError, rewrite

_KEPT_GENERATED = 60  # generated sources of a day, and their libraries


# Works with NumPy 2.4 and, by `numpy_as_numba_expects`, 2.5.
NUMBA = "'numba-cuda[cu13]==0.30.4' numba==0.68.1"


def _nothing() -> None:
    """Do nothing, as a kernel that tests if Numba can compile."""


def _installed(*packages: str) -> list[Distribution]:
    return [found for name in packages for found in distributions(name=name)]


@contextmanager
def numpy_as_numba_expects() -> Iterator[None]:
    """Restore NumPy's row_stack temporarily: at its first compilation numba-cuda, up to 0.30.4,
    registers that old name of vstack, which NumPy 2.5 has removed. No kernel of ours calls it."""
    import numpy

    if hasattr(numpy, "row_stack"):
        yield
        return

    def row_stack(tup: Any) -> Any:
        return numpy.vstack(tup)

    vars(numpy)["row_stack"] = row_stack
    try:
        yield
    finally:
        del vars(numpy)["row_stack"]


@dataclass(frozen=True)
class Site:
    """The directory in which a day builds a library itself: see `Builder.library`.

    directory: contains copies of the sources, and all results. kernel: the .cu, or the .cpp
    generated from it for the CPU backend. flags: (macros) -> keywords for
    torch.utils.cpp_extension.load, each flag quoted for a shell.
    """

    directory: Path
    kernel: Path
    platform: Platform
    flags: Callable[[list[str]], dict[str, list[str]]]

    @property
    def sm(self) -> str:
        """Return the GPU's architecture as CMake and nvcc write it, "90a"; "" on the CPU."""
        return sm(self.platform.arch) if self.platform.device == "cuda" else ""

    def run(self, command: list[Any], **variables: Any) -> None:
        """Run a command in the directory, with this platform's compilers in its environment.

        variables: further environment variables. Raise BuildError with the command's output.
        """
        compiler = self.platform.compiler
        found = {**os.environ, "CXX": compiler, "CC": compiler}
        flags = self.flags([])
        if self.platform.toolkit is not None and self.platform.device == "cuda":
            found["CUDA_HOME"] = str(self.platform.toolkit.home)
            found["CUDACXX"] = str(self.platform.toolkit.nvcc)
            found["CUDAHOSTCXX"] = compiler
            found["TORCH_CUDA_ARCH_LIST"] = self.platform.arch
        else:
            found["CFLAGS"] = found["CXXFLAGS"] = " ".join(flags["extra_cflags"])
        # Libraries may stand before the objects that need them.
        found["LDFLAGS"] = " ".join(["-Wl,--no-as-needed", *flags["extra_ldflags"]])
        found |= {name: str(value) for name, value in variables.items()}
        words = [str(word) for word in command]
        done = subprocess.run(words, cwd=self.directory, env=found, capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildError(f"{shlex.join(words)}\n{compiler_message(done.stdout + done.stderr)}")


def not_watched(interpreter: str) -> str:
    """Return why no tool traces the accesses of kernels that this interpreter runs."""
    return f"{interpreter} runs the kernels; on a GPU, --sanitize watches them"


class Builder:
    """The argument of `Rung.load`.

    seconds: build time of its last result, at the time when that was built.
    """

    def __init__(self, todo: Build):
        self._todo = todo
        self.device = todo.platform.device
        self._model = todo.platform.model
        self.seconds: float | None = None

    def operators(self) -> Any:
        """Return the day's operators, torch.ops.dayNN, built from its SOURCE through the stable
        ABI."""
        self.seconds = self._todo.entry.seconds
        return load(self._todo)

    def module(self, name: str, sources: list[str], defines: list[str]) -> Any:
        """Return a Python module of the day's `sources` with pybind11 and torch/extension.h.

        defines: macros set for all of them. Raise BuildError.
        """
        files = [self._todo.day.file(source) for source in sources]
        reached = sorted({path for file in files for path in sources_of(file)})
        macros = [f"-D{name}" for name in defines]

        def compile_into(directory: Path) -> Any:
            paths = [self._on_this_device(f) if f.suffix == ".cu" else f for f in files]
            return with_compilers(
                self._todo.platform,
                lambda load: load(
                    name,
                    [str(path) for path in paths],
                    build_directory=str(directory),
                    **self._flags(macros),
                ),
            )

        return self._module(name, compile_into, self._entry(name, reached, macros, f"{name}.so"))

    def inline(self, name: str, declarations: str, source: str, functions: list[str]) -> Any:
        """Return a Python module of CUDA source text, by torch.utils.cpp_extension.load_inline.

        declarations: C++ declarations of `functions`, which become the module's. Raise BuildError.
        """

        on_gpu = self.device == "cuda"
        day, platform = self._todo.day, self._todo.platform
        try:
            text = source if on_gpu else rewrite(source, f"{day.name}, inline source", self._model)
        except RewriteError as error:
            raise BuildError(str(error)) from None

        def compile_into(directory: Path) -> Any:
            from torch.utils import cpp_extension

            return with_compilers(
                platform,
                lambda _: cpp_extension.load_inline(
                    name,
                    cpp_sources=[declarations] if on_gpu else [declarations, text],
                    cuda_sources=[text] if on_gpu else [],
                    functions=functions,
                    build_directory=str(directory),
                    **self._flags([]),
                ),
            )

        # The key omits the day's files, so a learner's change does not affect it.
        parts = [*compilers(platform), declarations, text, *functions]
        key = digest(parts, () if on_gpu else cpu.HEADERS)
        entry = Entry(kind(f"{day.name}-{name}", platform), key, f"{name}.so")
        return self._module(name, compile_into, entry)

    def text(self) -> str:
        """Return the text of the day's SOURCE, or of the file that replaces it."""
        return self._todo.day.source.read_text(encoding="utf-8")

    def generated(self, name: str, text: str) -> ctypes.CDLL:
        """Return a library of CUDA text without PyTorch's headers, for `extern "C"` functions by
        ctypes. It is kept until many newer texts of this name exist. Raise BuildError."""
        day, platform = self._todo.day, self._todo.platform
        source = Entry(f"{day.kind}-{name}-text", digest([text]), f"{name}.cu", _KEPT_GENERATED)
        file = cached(source, lambda _: source.path.write_text(text, encoding="utf-8"))
        reached = sources_of(file, [ROOT])
        parts = [*compilers(platform), platform.model]
        headers = () if self.device == "cuda" else cpu.HEADERS
        key = digest(parts, [*reached, *headers])
        entry = Entry(kind(f"{day.kind}-{name}", platform), key, f"{name}.so", _KEPT_GENERATED)

        def compile_into(_: Path) -> None:
            command: list[str | Path]
            if self.device == "cuda":
                toolkit = platform.toolkit
                assert toolkit
                command = [toolkit.nvcc, "-shared", "-Xcompiler", "-fPIC", "-cudart", "shared"]
                command += [*cuda_flags([platform.arch]), "-ccbin", platform.compiler]
                command += [f"-L{link_directory(toolkit)}", f"-I{ROOT}", file]
            else:
                kept = f"{day.kind}-{name}"
                cpp = libraries.rewritten(kept, file, reached, [ROOT], self._model)
                runtime = libraries.build_runtime(platform)
                command = [platform.compiler, "-shared", "-fPIC", "-std=c++20"]
                command += [*libraries.flags(platform), cpp]
                command += cpu.ldflags(runtime, platform.variant)
            run_compiler([*command, "-o", entry.path])

        library = cached(entry, compile_into)
        self.seconds = entry.seconds
        return ctypes.CDLL(str(library))

    def library(self, namespace: str, sources: list[str], make: Callable[[Site], Path]) -> Any:
        """Return the operators torch.ops.<namespace> of a library that the day builds itself.

        sources: files of the day's folder, copied to the build directory; one of them is the .cu.
        make: builds the library and returns its path. It is part of day.py, so the library is built
        again when day.py changes. Raise BuildError.
        """
        import torch

        day, platform = self._todo.day, self._todo.platform
        files = {source: day.file(source) for source in sources}
        reached = sorted({path for file in files.values() for path in sources_of(file)})
        entry = self._entry(namespace, [*reached, day.folder / "day.py"], [], f"{namespace}.so")

        def compile_into(directory: Path) -> None:
            site = directory / "site"
            site.mkdir()
            for source, file in files.items():
                shutil.copy(file, site / source)
            kernel = self._on_this_device(day.source)
            if kernel == day.source:
                kernel = next(site / source for source in files if files[source] == kernel)
            built = with_compilers(
                platform, lambda _: make(Site(site, kernel, platform, self._flags))
            )
            os.replace(built, directory / entry.product)

        library = cached(entry, compile_into)
        self.seconds = entry.seconds
        torch.ops.load_library(str(library))
        return getattr(torch.ops, namespace)

    def triton(self, module: str) -> Any:
        """Return `module`.py of the day's folder, whose functions launch Triton kernels. On the
        CPU, Triton's interpreter runs them. Raise Skip without Triton, or if memory is to be
        watched, which the interpreter does not support."""
        if self.device == "cpu":
            self._not_watched(TRITON_INTERPRETER)
            os.environ["TRITON_INTERPRET"] = "1"  # read where a kernel is decorated
            # A result may be infinite, of which NumPy would warn.
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton|numpy")
        try:
            importlib.import_module("triton")
        except ImportError as error:
            raise Skip(f"Triton is missing: python -m pip install triton ({error})") from error
        return importlib.import_module(f"days.{self._todo.day.name}.{module}")

    def numba(self, module: str) -> Any:
        """Return `module`.py likewise for Numba's kernels; on the CPU its simulator runs them."""
        if self.device == "cpu":
            self._not_watched(NUMBA_SIMULATOR)
            os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # read where Numba is imported
        os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"  # most cases are small on purpose
        try:
            # Compile immediately, to detect a Numba that is older than its NumPy.
            with numpy_as_numba_expects():
                importlib.import_module("numba.cuda").jit("void()")(_nothing)
        except ModuleNotFoundError as error:
            raise Skip(f"Numba is missing: python -m pip install {NUMBA} ({error})") from error
        except (ImportError, AttributeError) as error:
            found = ", ".join(f"{d.name} {d.version}" for d in _installed("numba", "numba-cuda"))
            raise Skip(
                f"{found} does not work with NumPy {version('numpy')}: {error}; with NumPy 2.4 and "
                f"2.5, this does: python -m pip install {NUMBA}"
            ) from error
        return importlib.import_module(f"days.{self._todo.day.name}.{module}")

    def _not_watched(self, interpreter: str) -> None:
        if self._todo.platform.variant != "plain":
            raise Skip(not_watched(interpreter))

    def _entry(self, name: str, files: list[Path], parts: list[str], product: str) -> Entry:
        key = digest([self._todo.entry.key, *parts], files)
        return Entry(kind(f"{self._todo.day.kind}-{name}", self._todo.platform), key, product)

    def _on_this_device(self, file: Path) -> Path:
        if self.device == "cuda":
            return file
        name = f"{self._todo.day.kind}-{file.stem}"
        return libraries.rewritten(name, file, sources_of(file), [ROOT], self._model)

    def _flags(self, macros: list[str]) -> dict[str, list[str]]:
        platform = self._todo.platform
        if self.device == "cuda":
            toolkit = platform.toolkit
            assert toolkit
            return {
                "extra_cflags": quoted("-O2", *macros),
                "extra_cuda_cflags": quoted(*cuda_flags([platform.arch]), *macros),
                "extra_ldflags": quoted(f"-L{link_directory(toolkit)}"),
                "extra_include_paths": [str(toolkit.include)],
            }
        runtime = libraries.build_runtime(platform)
        return {
            "extra_cflags": quoted(*libraries.flags(platform), *macros),
            "extra_ldflags": quoted(*cpu.ldflags(runtime, platform.variant)),
        }

    def _module(self, name: str, compile_into: Callable[[Path], Any], entry: Entry) -> Any:
        made: list[Any] = []
        library = cached(entry, lambda directory: made.append(compile_into(directory)))
        self.seconds = entry.seconds
        if made:
            return made[0]  # loaded already: a second copy could not register the same names
        spec = importlib.util.spec_from_file_location(name, library)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
