"""Hold the shared parts of every build: its error, the files that a source reaches, PyTorch's
headers."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from common.base.paths import ROOT

# The oldest PyTorch whose stable ABI the days use: 2.11.
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020b000000000000"


class BuildError(Exception):
    """A failed build. text: the compiler's message, without the build tool's lines."""

    def __init__(self, text: str):
        super().__init__(text)
        self.text = text


def run_compiler(command: Sequence[str | Path], what: str = "") -> str:
    """Run a compiler and return its warnings.

    what: a first line of the error, if the command does not compile a file of the user's. Raise
    BuildError with the compiler's message.
    """
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        message = compiler_message(done.stderr)
        raise BuildError(f"{what}\n{message}" if what else message)
    return done.stderr


_NOISE = re.compile(
    r"^(\[\d+/\d+\]|FAILED:|ninja: |Error building extension|\d+ errors? detected|"
    r"compilation terminated|In file included from|\s+from /|/\S*(nvcc|c\+\+|g\+\+)\s)"
)


def compiler_message(text: str) -> str:
    """Return the compiler's message without the build tool's lines, with paths relative to the
    repository."""
    lines = [line for line in text.splitlines() if not _NOISE.match(line)]
    message = "\n".join(lines).strip() or text.strip()
    return message.replace(f"{ROOT}/", "")


_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.MULTILINE)


def sources_of(file: Path, roots: Sequence[Path] = (ROOT,)) -> list[Path]:
    """Return `file` and every project header that it reaches by #include, sorted.

    A header is looked up in the including file's folder, unless it is in angle brackets, then in
    `roots`, by default the repository. Other headers belong to the toolkit or to torch, whose
    versions are in the key.
    """
    found: set[Path] = set()
    todo = [file.resolve()]
    while todo:
        current = todo.pop()
        if current in found:
            continue
        found.add(current)
        for bracket, name in _INCLUDE.findall(current.read_bytes()):
            for base in (current.parent, *roots) if bracket == b'"' else roots:
                candidate = (base / os.fsdecode(name)).resolve()
                if candidate.is_file():
                    todo.append(candidate)
                    break
    return sorted(found)


def torch_includes() -> list[Path]:
    """Include directories of the installed torch, without importing it."""
    spec = importlib.util.find_spec("torch")
    assert spec and spec.origin
    include = Path(spec.origin).parent / "include"
    return [include, include / "torch" / "csrc" / "api" / "include"]
