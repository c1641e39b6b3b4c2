"""Cache everything that is built: name an entry, lock it while it is built, prune old ones.

An entry is a directory `<kind>-<key>`. The key covers everything that the entry is built from, so
that an entry is never stale; a change makes another entry. One process builds an entry while others
wait, and an entry counts only when it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

KEPT = 3  # entries of one kind, so that going back to yesterday's flags builds nothing
_STAMP = "complete.json"  # written last: the product's bytes and digest, the seconds it took
_LOCK = ".lock"
_IN_USE = 600.0  # seconds: longer than a compilation takes that uses an entry


def cache_directory() -> Path:
    """Return the directory of builds: HUNDRED_DAYS_CACHE, else the user's cache directory.
    Absolute."""
    if given := os.environ.get("HUNDRED_DAYS_CACHE"):
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hundred-days-of-cuda"


def keep_compilers_caches() -> None:
    """Make Triton and torch.compile keep their caches next to our builds, in this process and its
    children, unless the user has chosen otherwise."""
    for variable, value in (
        ("TRITON_CACHE_DIR", str(cache_directory() / "triton")),
        ("TORCHINDUCTOR_CACHE_DIR", str(cache_directory() / "inductor")),
        # Whole graphs, including the code around their kernels: on by default, set to be sure.
        ("TORCHINDUCTOR_FX_GRAPH_CACHE", "1"),
        ("TORCHINDUCTOR_AUTOGRAD_CACHE", "1"),
    ):
        os.environ.setdefault(variable, value)


def digest(parts: Sequence[str | bytes], files: Sequence[Path] = ()) -> str:
    """Return 16 hexadecimal digits for these words or bytes and the names and contents of these
    files.

    Raise OSError if a file cannot be read.
    """
    found = hashlib.sha256(b"\0".join(p.encode() if isinstance(p, str) else p for p in parts))
    for file in files:
        found.update(f"\0{file.name}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]


@dataclass(frozen=True)
class Entry:
    """A product that is built once and kept.

    kind: its type, e.g. "day05-cpu"; older entries of the same kind are pruned. key: see `digest`.
    product: the file that users of the entry open, relative to `directory`. kept: number of entries
    of this kind that stay.
    """

    kind: str
    key: str
    product: str
    kept: int = KEPT

    @property
    def directory(self) -> Path:
        return cache_directory() / f"{self.kind}-{self.key}"

    @property
    def path(self) -> Path:
        return self.directory / self.product

    @property
    def ready(self) -> bool:
        """Return True if the product exists, unchanged since it was built."""
        return self._stamp() is not None

    @property
    def seconds(self) -> float:
        """Return the build time in seconds. Raise LookupError if it is not built."""
        stamp = self._stamp()
        if stamp is None:
            raise LookupError(f"{self.directory} is not built")
        return float(stamp["seconds"])

    def _stamp(self) -> dict[str, Any] | None:
        try:
            stamp: dict[str, Any] = json.loads((self.directory / _STAMP).read_bytes())
            there = self.path.stat()
            if there.st_size != stamp["bytes"]:
                return None
            # Changed bytes would crash every process that loads them.
            return stamp if _digest(self.path, there.st_mtime_ns) == stamp["digest"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None  # missing, or truncated by a crash: it is built again


@cache
def _digest(file: Path, _changed: int) -> str:
    """Return the digest of a file's bytes, computed once per time of change."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def cached(entry: Entry, make: Callable[[Path], object]) -> Path:
    """Return the entry's product, after building it if it is missing.

    make: gets the entry's directory, empty, and leaves the product in it. Two processes never build
    one entry at a time, and a process that dies in any way leaves it unbuilt and unlocked.
    Exceptions of `make` pass through. Raise OSError if the disk is full or the cache cannot be
    written.
    """
    if entry.ready:  # without the lock: a read-only cache works, too
        _touch(entry)
        return entry.path
    directory = entry.directory
    with _locked(directory):
        if entry.ready:
            return entry.path
        _clear(directory)  # the files of a killed process
        started = time.monotonic()
        make(directory)
        stamp = {
            "bytes": entry.path.stat().st_size,
            "digest": _digest(entry.path, entry.path.stat().st_mtime_ns),
            "seconds": time.monotonic() - started,
        }
        partial = directory / f"{_STAMP}.partial"
        partial.write_text(json.dumps(stamp))
        os.replace(partial, directory / _STAMP)
    _prune(entry)
    return entry.path


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory for this process. The kernel releases the lock when the process dies."""
    while True:
        if not directory.is_dir():
            # It is a file, or a dangling link; or another process is creating it.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                directory.unlink()
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / _LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is(lock.fileno(), directory / _LOCK):
                yield
                return
            # It was pruned while we waited: the locked file has been removed.


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()


def _touch(entry: Entry) -> None:
    with contextlib.suppress(OSError):
        os.utime(entry.directory / _STAMP)


def _prune(newest: Entry) -> None:
    """Remove the least recently used entries of this kind, beyond `kept` of them.

    Keep the newest, any that is being built, and any used so recently that another checkout may be
    compiling with it.
    """
    name = re.compile(rf"{re.escape(newest.kind)}-[0-9a-f]{{16}}")
    found = [p for p in cache_directory().iterdir() if name.fullmatch(p.name)]
    others = sorted((p for p in found if p != newest.directory), key=_used)
    for old in others[: max(0, len(found) - newest.kept)]:
        if time.time() - _used(old) < _IN_USE:
            continue
        with contextlib.suppress(OSError), open(old / _LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)


def _used(directory: Path) -> float:
    for file in (directory / _STAMP, directory):
        with contextlib.suppress(FileNotFoundError):
            return file.stat().st_mtime
    return 0.0
