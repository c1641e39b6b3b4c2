"""Builds versions of a day's sources for the CPU backend, fast: only what is tried is compiled.

What a day's build has and a mutant's does not: ninja, the day's other operators and what only they
use, PyTorch's symbols (the process that loads the library has them), and headers rewritten anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from common.base.cache import Entry, cached, digest
from common.base.compiling import STABLE_ABI, BuildError, compiler_message, torch_includes
from common.base.days import Day
from common.base.paths import ROOT
from common.base.toolchain import Platform, Variant
from common.cpu import backend, libraries
from common.cpu.rewrite import RewriteError, Variants
from common.practice.mutants.outline import outline, trimmed

COMPILE_LIMIT = 180.0  # seconds; a constant expression of a mutant may take forever


class Stopped(Exception):
    """The work was ended from outside."""


class Programs:
    """Programs that run now, in sessions of their own, so that Ctrl-C reaches us alone."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self.stopped = False

    def start(self, command: list[str], **options: object) -> subprocess.Popen[bytes]:
        """Starts a program. Raises Stopped after `stop`."""
        with self._lock:
            if self.stopped:
                raise Stopped
            program = subprocess.Popen(command, start_new_session=True, **options)  # type: ignore[call-overload]
            self._running.add(program)
        return program

    def ended(self, program: subprocess.Popen[bytes]) -> None:
        """Forgets a program that was waited for."""
        with self._lock:
            self._running.discard(program)

    def stop(self) -> None:
        """Ends all programs; no other can be started."""
        with self._lock:
            self.stopped = True
            for program in self._running:
                if program.poll() is None:
                    os.killpg(program.pid, signal.SIGKILL)

    def run(self, command: list[str], text: bytes = b"", directory: Path | None = None) -> bytes:
        """What the program printed. Raises BuildError with its message if it failed."""
        pipe = subprocess.PIPE
        program = self.start(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=directory)
        try:
            out, message = program.communicate(text, COMPILE_LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()
            raise BuildError(f"no end after {COMPILE_LIMIT:.0f} s: {command[0]}") from None
        finally:
            self.ended(program)
        if self.stopped:
            raise Stopped
        if program.returncode != 0:
            raise BuildError(compiler_message(message.decode(errors="replace")))
        return out


@dataclass(frozen=True)
class Compiled:
    """An object file. code: a digest of all that is in it but the lines of the source."""

    path: Path
    code: str


class _Once:
    """Values that are made once by the first thread that needs them, while others wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[object, Future[Compiled]] = {}

    def get(self, key: object, make: Callable[[], Compiled]) -> Compiled:
        with self._lock:
            future = self._made.get(key)
            mine = future is None
            if future is None:
                future = self._made[key] = Future()
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:
                future.set_exception(error)
        return future.result()


class Workshop:
    """Builds versions of one day's `.cu` files in one variant of the CPU backend.

    folder: for what is built; it must exist. programs: where compilers run.
    """

    def __init__(
        self,
        day: Day,
        platform: Platform,
        folder: Path,
        programs: Programs,
        variant: Variant = "plain",
    ):
        self.day = day
        self.platform = replace(platform, variant=variant)
        self._programs = programs
        self._folder = folder / variant
        self._folder.mkdir()
        self._runtime = libraries.build_runtime(self.platform)
        flags = libraries.flags(self.platform)
        includes = [word for path in torch_includes() for word in ("-isystem", str(path))]
        prelude = libraries.build_prelude(self.platform, for_variants=True)
        self._compile = [platform.compiler, *prelude, "-fPIC", STABLE_ABI, *flags]
        self._compile += [f"-I{ROOT}", *includes, "-w", "-x", "c++", "-c", "-"]
        stubs = torch_stubs(platform)
        self._link = [platform.compiler, "-shared", *backend.ldflags(self._runtime, variant)]
        self._link_after = [f"-L{stubs}", "-Wl,--no-as-needed", *(f"-l{n}" for n in TORCH)]
        self._texts = {s: s.read_text(encoding="utf-8") for s in day.library_sources}
        self.operators = {s: outline(text).operators for s, text in self._texts.items()}
        self._rewriters: dict[Path, Variants] = {}
        for source in day.library_sources:
            out = self._folder / source.stem
            self._rewriters[source] = Variants(source, out, [ROOT], platform.model)
        self._originals = _Once()

    def needed(self, source: Path, operators: Iterable[str]) -> frozenset[str]:
        """Which of these operators the source binds."""
        return frozenset(self.operators[source]) & frozenset(operators)

    def original(self, source: Path, operators: Iterable[str]) -> Compiled:
        """The source as it is, with these operators alone. Raises BuildError."""
        needed = self.needed(source, operators)

        def make() -> Compiled:
            digits = digest([source.stem, *sorted(needed)])
            return self._object(source, self._texts[source], needed, f"original-{digits}")

        return self._originals.get((source, needed), make)

    def changed(self, source: Path, text: str, operators: Iterable[str], name: str) -> Compiled:
        """Another text of the source, with these operators alone. Raises BuildError."""
        return self._object(source, text, self.needed(source, operators), name)

    def library(self, objects: Iterable[Compiled], name: str) -> Path:
        """A library of these objects, named after the day as a day's own is. Raises BuildError."""
        directory = self._folder / f"{name}-library"
        directory.mkdir(exist_ok=True)
        path = directory / f"{self.day.name}.so"
        files = [str(each.path) for each in objects]
        self._programs.run([*self._link, *files, *self._link_after, "-o", str(path)])
        return path

    def others(self, source: Path, operators: Iterable[str]) -> list[Compiled]:
        """The day's other sources, as far as they bind any of these operators."""
        needed = set(operators)
        found = [s for s in self.day.library_sources if s != source and self.needed(s, needed)]
        return [self.original(other, needed) for other in found]

    def remove(self, name: str) -> None:
        """Removes what was built under this name."""
        shutil.rmtree(self._folder / f"{name}-library", ignore_errors=True)
        (self._folder / f"{name}.o").unlink(missing_ok=True)

    def _object(self, source: Path, text: str, operators: frozenset[str], name: str) -> Compiled:
        path = self._folder / f"{name}.o"
        try:
            rewritten = self._rewriters[source].rewrite(trimmed(text, operators))
        except RewriteError as error:
            raise BuildError(str(error)) from None
        directory = self._folder / source.stem
        self._programs.run([*self._compile, "-o", str(path)], rewritten.encode(), directory)
        return Compiled(path, self._digest(path))

    def _digest(self, path: Path) -> str:
        bare = path.with_suffix(".bare")
        self._programs.run(["objcopy", "--strip-debug", str(path), str(bare)])
        found = hashlib.sha256(bare.read_bytes()).hexdigest()
        bare.unlink()
        return found


TORCH = ("c10", "torch_cpu", "torch")


def torch_stubs(platform: Platform) -> Path:
    """A directory with libraries that have the names of PyTorch's and nothing in them.

    Linking with them takes 0.1 s instead of 0.4 s. The process that loads what was linked has the
    real ones already, and the loader goes by the name.
    """
    entry = Entry("torch-stubs", digest([platform.compiler_version, *TORCH]), f"lib{TORCH[-1]}.so")

    def make(directory: Path) -> None:
        for name in TORCH:
            soname = f"lib{name}.so"
            command = [platform.compiler, "-shared", "-x", "c++", os.devnull]
            command += ["-o", str(directory / soname), f"-Wl,-soname,{soname}"]
            subprocess.run(command, check=True, capture_output=True)

    return cached(entry, make).parent
