"""Build versions of a day's sources for the CPU backend quickly, by compiling only the tried parts.

Unlike a day's build, a mutant's omits ninja, the day's other operators and the code that only they
use, PyTorch's symbols (the process that loads the library has them), and rewriting headers again.
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
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from common.base.cache import Entry, cached, digest
from common.base.compiling import STABLE_ABI, BuildError, compiler_message, torch_includes
from common.base.days import Day
from common.base.paths import ROOT
from common.base.toolchain import Platform, Variant
from common.build import narrowing
from common.cpu import backend, libraries, source_warnings
from common.cpu.rewrite import RewriteError, Variants
from common.mutants.inlined import inlined, own_headers
from common.mutants.outline import Declaration, outlines_of, reached_together, trimmed

COMPILE_LIMIT = 180.0  # seconds; a constant expression of a mutant may take forever

# Compiling takes longer than checking. With this it takes about half the time of a day's own -O2.
QUICK = "-Og"


class Stopped(Exception):
    """The work was ended from outside."""


class Programs:
    """Running programs, in separate sessions, so that Ctrl-C reaches only this process."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self.stopped = False

    def start(self, command: list[str], **options: object) -> subprocess.Popen[bytes]:
        """Start a program. Raise Stopped after `stop`."""
        with self._lock:
            if self.stopped:
                raise Stopped
            program = subprocess.Popen(command, start_new_session=True, **options)  # type: ignore[call-overload]
            self._running.add(program)
        return program

    def ended(self, program: subprocess.Popen[bytes]) -> None:
        """Forget a program that has ended."""
        with self._lock:
            self._running.discard(program)

    def stop(self) -> None:
        """End all programs, and prevent further ones."""
        with self._lock:
            self.stopped = True
            for program in self._running:
                if program.poll() is None:
                    os.killpg(program.pid, signal.SIGKILL)

    def run(self, command: list[str], text: bytes = b"", directory: Path | None = None) -> str:
        """Return the program's warnings, from its standard error. Raise BuildError with its output
        if it failed."""
        pipe = subprocess.PIPE
        program = self.start(
            command,
            stdin=pipe,
            stdout=subprocess.DEVNULL,
            stderr=pipe,
            cwd=directory,
            env=source_warnings.environment(),
        )
        try:
            _, printed = program.communicate(text, COMPILE_LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()
            raise BuildError(f"no end after {COMPILE_LIMIT:.0f} s: {command[0]}") from None
        finally:
            self.ended(program)
        if self.stopped:
            raise Stopped
        message = printed.decode(errors="replace")
        if program.returncode != 0:
            raise BuildError(compiler_message(message))
        return message


Change = tuple[Path, str]  # a file, source or header, and its changed text
Made = TypeVar("Made")


class Once(Generic[Made]):
    """Values made once, by the first thread that needs them, while others wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[object, Future[Made]] = {}

    def get(self, key: object, make: Callable[[], Made]) -> Made:
        """Return the value of this key; `make` returns it at first. Raise what that raised."""
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


class PartialBuilds:
    """Build versions of one day's `.cu` files, with the headers of its folder inlined, in one
    variant of the CPU backend.

    folder: existing folder for the builds. programs: runs the compilers. many: precompiled headers
    pay off, also for the variants.
    """

    def __init__(
        self,
        day: Day,
        platform: Platform,
        folder: Path,
        programs: Programs,
        variant: Variant = "plain",
        many: bool = False,
    ):
        self.day = day
        self.platform = replace(platform, variant=variant)
        self._programs = programs
        self._folder = folder / variant
        self._folder.mkdir()
        self._many = many
        self._files = {s: [s, *own_headers(s)] for s in day.library_sources}
        own = {file for files in self._files.values() for file in files}
        self._texts = {file: file.read_text(encoding="utf-8") for file in own}
        self.outlines = outlines_of(day)
        self.operators = {s: self.outlines[s].operators for s in day.library_sources}
        self._shared = {source: self._used_elsewhere(source) for source in day.library_sources}
        self._rewriters: dict[Path, Variants] = {}
        for source in day.library_sources:
            out = self._folder / source.stem
            self._rewriters[source] = Variants(source, out, [ROOT], platform.model)
        self._originals: Once[Path] = Once()
        self._codes: Once[str] = Once()
        self._narrowed: Once[list[str]] = Once()

    def _front(self) -> list[str]:
        """Return the compile command. It looks up its files in the cache for each compilation,
        since a run of many mutants takes longer than unused entries are kept."""
        includes = [word for path in torch_includes() for word in ("-isystem", str(path))]
        prelude = libraries.build_prelude(self.platform, for_variants=self._many)
        flags = [*prelude, "-fPIC", STABLE_ABI, *libraries.flags(self.platform)]
        return [self.platform.compiler, *flags, f"-I{ROOT}", *includes, "-x", "c++", "-"]

    def _link(self, objects: list[str]) -> list[str]:
        """Return the link command."""
        runtime = libraries.build_runtime(self.platform)
        flags = ["-shared", *backend.ldflags(runtime, self.platform.variant)]
        after = [f"-L{torch_stubs(self.platform)}", "-Wl,--no-as-needed"]
        return [self.platform.compiler, *flags, *objects, *after, *(f"-l{n}" for n in TORCH)]

    def reached(self, operators: Iterable[str]) -> dict[Path, list[Declaration]]:
        """Return the declarations that these operators use, by source and header, without files in
        which they use none."""
        found = reached_together(self.outlines, operators)
        sources = [source for source in self.day.library_sources if source in found]
        files = {file: None for source in sources for file in self._files[source]}
        return {file: found[file] for file in files if file in found}

    def needed(self, operators: Iterable[str]) -> dict[Path, frozenset[str]]:
        """Return, for each source that these operators need, those of them that it binds."""
        mine = frozenset(operators)
        reached = self.reached(mine)
        return {s: mine & bound for s, bound in self.operators.items() if s in reached}

    def holding(self, file: Path, operators: Iterable[str]) -> dict[Path, frozenset[str]]:
        """Return `needed` for the sources that contain this file or, if none is needed, all these
        sources without operators."""
        sources = [source for source, files in self._files.items() if file in files]
        needed = self.needed(operators)
        return {s: needed[s] for s in sources if s in needed} or dict.fromkeys(sources, frozenset())

    def original(self, source: Path, operators: frozenset[str]) -> Path:
        """Return the object file of the unchanged source, with only these of its operators. Raise
        BuildError."""

        def make() -> Path:
            digits = digest([source.stem, *sorted(operators)])
            return self._object(source, self._text(source), operators, f"original-{digits}")

        return self._originals.get((source, operators), make)

    def changed(self, source: Path, change: Change, operators: frozenset[str], name: str) -> Path:
        """Return the object file of the source with a change, with only these of its operators.
        Raise BuildError."""
        return self._object(source, self._text(source, change), operators, f"{name}-{source.stem}")

    def same_code(self, source: Path, change: Change, operators: frozenset[str], name: str) -> bool:
        """Return True if the source with a change has the same machine code as the unchanged
        source, both optimized like the day's own build. Raise BuildError."""
        key = (source, operators)
        before = self._codes.get(key, lambda: self._code(source, None, operators, "original"))
        return before == self._code(source, change, operators, name)

    def _text(self, source: Path, change: Change | None = None) -> str:
        files = {file: self._texts[file] for file in self._files[source]}
        return inlined(source, files | dict([change] if change else []))

    def library(self, objects: Iterable[Path], name: str) -> Path:
        """Return a library of these object files, named after the day like its own. Raise
        BuildError."""
        directory = self._folder / f"{name}-library"
        directory.mkdir(exist_ok=True)
        path = directory / f"{self.day.name}.so"
        self._programs.run([*self._link([str(each) for each in objects]), "-o", str(path)])
        return path

    def remove(self, name: str) -> None:
        """Remove the files built under this name."""
        shutil.rmtree(self._folder / f"{name}-library", ignore_errors=True)
        for path in self._folder.glob(f"{name}-*.o"):
            path.unlink()

    def _used_elsewhere(self, source: Path) -> set[str]:
        """Return the functions of a source that other files call."""
        mine = {d.name for d in self.outlines[source].declarations if d.is_function}
        others = (read for path, read in self.outlines.items() if path != source)
        return mine & {word for read in others for d in read.declarations for word in d.uses}

    def _object(
        self,
        source: Path,
        text: str,
        operators: frozenset[str],
        name: str,
        options: Iterable[str] = (QUICK,),
    ) -> Path:
        path = self._folder / f"{name}.o"
        rewritten = self._rewritten(source, text, operators)
        command = [*self._front(), *options, "-w", "-c", "-o", str(path)]
        self._programs.run(command, rewritten.encode(), self._folder / source.stem)
        return path

    def _rewritten(self, source: Path, text: str, operators: frozenset[str]) -> str:
        try:
            return self._rewriters[source].rewrite(trimmed(text, operators, self._shared[source]))
        except RewriteError as error:
            raise BuildError(str(error)) from None

    def narrowed(self, source: Path, change: Change | None, operators: frozenset[str]) -> list[str]:
        """Return the findings of `common.build.narrowing.narrowed` in the source with a change,
        with only these of its operators. Raise BuildError."""
        rewritten = self._rewritten(source, self._text(source, change), operators)
        prepared = source_warnings.prepared(rewritten, str(source))
        command = [*self._front(), *source_warnings.NARROWING]
        warnings = self._programs.run(command, prepared.encode(), self._folder / source.stem)
        return narrowing.places(warnings, self.day)

    def original_narrowed(self, source: Path, operators: frozenset[str]) -> list[str]:
        """Return these findings for the unchanged source."""
        key = (source, operators)
        return self._narrowed.get(key, lambda: self.narrowed(source, None, operators))

    def _code(
        self, source: Path, change: Change | None, operators: frozenset[str], name: str
    ) -> str:
        """Return a digest of the machine code, optimized like the day's own build."""
        digits = digest([name, source.stem, *sorted(operators)])
        path = self._object(
            source, self._text(source, change), operators, f"code-{digits}", ["-g0"]
        )
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        path.unlink()
        return found


TORCH = ("c10", "torch_cpu", "torch")


def torch_stubs(platform: Platform) -> Path:
    """Return a directory with empty libraries that have the names of PyTorch's.

    Linking with them takes 0.1 s instead of 0.4 s. The process that loads the result has the real
    ones already, and the loader compares only names.
    """
    entry = Entry("torch-stubs", digest([platform.compiler_version, *TORCH]), f"lib{TORCH[-1]}.so")

    def make(directory: Path) -> None:
        for name in TORCH:
            soname = f"lib{name}.so"
            command = [platform.compiler, "-shared", "-x", "c++", os.devnull]
            command += ["-o", str(directory / soname), f"-Wl,-soname,{soname}"]
            subprocess.run(command, check=True, capture_output=True)

    return cached(entry, make).parent
