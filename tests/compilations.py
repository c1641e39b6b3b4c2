"""Run compilations that tests wait for in the background from the start, since they take most of
the time.

They run in separate processes, as many at a time as there are cores, in parallel with the tests:
changes that a test makes in its process, such as the cache in use, do not affect them. This module
imports neither torch nor pytest, so that such a process starts quickly.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from common.base import compiling, toolchain
from common.base.cache import Entry, cached, digest
from common.base.days import Day
from common.base.paths import ROOT
from common.build import narrowing, nvcc
from common.cpu import backend
from common.cpu import libraries as shared

_LOOKS_AT_IT = re.compile(r"^\s*#\s*(?:el)?if\b.*__CUDA_ARCH|NV_IF_TARGET", re.MULTILINE)
FOLDER = ROOT / "tests" / "cpu_kernels"


def source(name: str) -> Path:
    """Return the `.cu` of that name."""
    return FOLDER / f"{name}.cu"


def library(name: str, device: str) -> Path:
    """Build `cpu_kernels/<name>.cu` for "cpu" or "cuda" if necessary; return the library.

    Raise compiling.BuildError with the compiler's message, ToolchainError if there is none.
    """
    platform = toolchain.detect(device)
    torch_lib = compiling.torch_includes()[0].parent / "lib"
    includes = [word for path in compiling.torch_includes() for word in ("-isystem", str(path))]
    if device == "cpu":
        kept = f"test-{name}"
        cpp = shared.rewritten(kept, source(name), compiling.sources_of(source(name)), [ROOT])
        files = [*shared.texts(cpp), *backend.HEADERS]
        command = [platform.compiler, "-shared", *shared.build_prelude(platform), str(cpp)]
        command += [*shared.link_flags(platform), compiling.STABLE_ABI]
        command += shared.flags(platform)
        linked = [f"-Wl,-rpath,{torch_lib}"]
    else:
        assert platform.toolkit
        files = compiling.sources_of(source(name))
        command = [str(platform.toolkit.nvcc), "-shared", "-Xcompiler", "-fPIC", str(source(name))]
        command += ["-cudart", "shared", f"-L{nvcc.link_directory(platform.toolkit)}"]
        command += [*nvcc.BINDING, *nvcc.cuda_flags([platform.arch]), "-ccbin", platform.compiler]
        linked = ["-ltorch_cuda", "-lc10_cuda", f"-Xlinker=-rpath={torch_lib}"]
    command += [f"-I{ROOT}", *includes]
    linked += ["-ltorch_cpu", "-lc10", f"-L{torch_lib}"]
    key = digest([platform.label(), *command, *linked], files)
    entry = Entry(f"test-{name}-{device}", key, f"{name}.so")
    return cached(
        entry, lambda _: compiling.run_compiler([*command, "-o", str(entry.path), *linked])
    )


def _end_with(parent: Connection) -> None:
    """End this process, and the compilers that it starts, when the other end of the pipe is closed:
    by `give_up`, or by the end of its process in any way."""

    def end(*_: object) -> None:
        os.killpg(0, signal.SIGKILL)

    def watch() -> None:
        with contextlib.suppress(EOFError):
            parent.recv_bytes()
        end()

    os.setpgid(0, 0)  # the parent handles Ctrl-C on the terminal
    signal.signal(signal.SIGTERM, end)  # of the pool, to the others once a worker is gone
    threading.Thread(target=watch, daemon=True).start()


class Compilations:
    """Compilations in the background, each begun once."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._theirs, self._ours = multiprocessing.Pipe(duplex=False)
        self._begun: dict[Hashable, Future[Any]] = {}

    def begin(self, work: Callable[..., Any], *arguments: Hashable) -> Future[Any]:
        """Start work(*arguments) unless it was started before; return its future.

        work: a function of a module, which the other process imports.
        """
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                os.cpu_count(), multiprocessing.get_context("spawn"), _end_with, (self._theirs,)
            )
        name = (work.__name__, *arguments)
        if name not in self._begun:
            self._begun[name] = self._pool.submit(work, *arguments)
        return self._begun[name]

    def nvcc(self, name: str, source: Path) -> Future[Any]:
        """Return nvcc's compilation of a `.cu` for its `architectures`."""
        return self.begin(compile_for_gpus, name, source)

    def wait(self) -> None:
        """Return when all started compilations are done, have failed or were given up."""
        for future in list(self._begun.values()):
            with contextlib.suppress(CancelledError):
                future.exception()

    def give_up(self) -> None:
        """End unfinished compilations without waiting."""
        self._ours.close()

    def close(self) -> None:
        """End unfinished compilations, for which no test waits any more.

        A further Ctrl-C waits until that is done, a moment later: it would make Thread.join
        consider the pool's thread as ended, and hang at the exit.
        """
        self.give_up()
        if self._pool is not None:
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                self._pool.shutdown(cancel_futures=True)
            finally:
                signal.signal(signal.SIGINT, before)


def architectures(source: Path) -> list[str]:
    """Return the architectures that a `.cu` is compiled for: 8.0 alone if neither it nor a header
    of the repository depends on the architecture, since newer ones accept what 8.0 does."""
    texts = (path.read_text(encoding="utf-8") for path in compiling.sources_of(source))
    return ["8.0", "9.0a"] if any(map(_LOOKS_AT_IT.search, texts)) else ["8.0"]


def compile_for_gpus(name: str, source: Path) -> None:
    """Compile a `.cu` for its `architectures`, to prove that it compiles. Raise BuildError."""
    nvcc.compile_source(name, source, architectures(source), optimised=False)


def narrowed_on_cpu(day: Day) -> list[str]:
    """Return the findings of `narrowing.narrowed` with this machine's compiler. Raise
    ToolchainError, BuildError."""
    return narrowing.narrowed(day, toolchain.detect("cpu"))
