"""The cache of builds: made once, whole or not at all, pruned, and never an obstacle."""

from __future__ import annotations

import fcntl
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from common.base.cache import (
    KEPT,
    Entry,
    cache_directory,
    cached,
    digest,
    keep_compilers_caches,
)
from common.base.paths import ROOT


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a separate cache for the test."""
    monkeypatch.setenv("HUNDRED_DAYS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entry(number: int = 0, kind: str = "thing") -> Entry:
    return Entry(kind, f"{number:016x}", "product")


def last_used(number: int, at: float) -> None:
    os.utime(entry(number).directory / "complete.json", (at, at))


def write(directory: Path, text: str = "made") -> None:
    (directory / "product").write_text(text)


def test_compilers_keep_theirs_beside_ours(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"HUNDRED_DAYS_CACHE": str(cache), "TRITON_CACHE_DIR": "/users/own"}
    monkeypatch.setattr(os, "environ", environment)
    keep_compilers_caches()
    assert environment["TRITON_CACHE_DIR"] == "/users/own"
    assert Path(environment["TORCHINDUCTOR_CACHE_DIR"]).parent == cache


def test_what_is_there_is_not_made_again() -> None:
    made: list[Path] = []

    def make(directory: Path) -> None:
        made.append(directory)
        write(directory)

    paths = {cached(entry(), make) for _ in range(3)}
    assert paths == {entry().path} and made == [entry().directory]
    assert entry().path.read_text() == "made" and entry().seconds >= 0


@pytest.mark.parametrize("left", [b"", b"ma", b"made and more"])
def test_a_product_cut_short_is_made_again(left: bytes) -> None:
    cached(entry(), write)
    entry().path.write_bytes(left)
    assert not entry().ready
    cached(entry(), write)
    assert entry().path.read_text() == "made"


def test_a_product_of_other_bytes_is_made_again() -> None:
    """A library with a few wrong bytes crashes every process that loads it."""
    cached(entry(), write)
    entry().path.write_text("evil")
    assert not entry().ready
    cached(entry(), write)
    assert entry().path.read_text() == "made" and entry().ready


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_in_the_place_of_an_entry_gives_way(cache: Path, kind: str) -> None:
    cache.mkdir()
    if kind == "file":
        entry().directory.touch()
    else:
        entry().directory.symlink_to("nowhere")
    assert cached(entry(), write).read_text() == "made"


def test_a_stamp_cut_short_is_no_stamp() -> None:
    cached(entry(), write)
    (entry().directory / "complete.json").write_text('{"bytes": 4, "sec')
    assert not entry().ready
    with pytest.raises(LookupError, match="is not built"):
        _ = entry().seconds


def test_what_failed_is_made_again_in_an_empty_directory() -> None:
    def fail(directory: Path) -> None:
        (directory / "half").mkdir()
        (directory / "half" / "object.o").touch()
        write(directory)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cached(entry(), fail)
    assert not entry().ready

    def make(directory: Path) -> None:
        assert [path.name for path in directory.iterdir()] == [".lock"]
        write(directory)

    cached(entry(), make)


def test_a_killed_process_leaves_no_lock() -> None:
    code = (
        "import os, signal; from common.base.cache import Entry, cached\n"
        f"cached(Entry('thing', {entry().key!r}, 'product'),"
        " lambda _: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert entry().directory.is_dir() and not entry().ready
    cached(entry(), write)


def test_two_at_a_time_make_it_once() -> None:
    made: list[int] = []
    begun = threading.Event()

    def make(directory: Path) -> None:
        made.append(1)
        begun.wait(5)
        write(directory)

    threads = [threading.Thread(target=cached, args=(entry(), make)) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_the_newest_of_a_kind_are_kept() -> None:
    cached(entry(99, "thing-else"), write)
    for number in range(KEPT + 3):
        cached(entry(number), write)
        last_used(number, at=float(number))
    left = sorted(path.name for path in cache_directory().glob("thing-0*"))
    assert left == [entry(number).directory.name for number in range(3, KEPT + 3)]
    assert entry(99, "thing-else").ready, "another kind"


def test_what_is_being_made_is_not_pruned() -> None:
    cached(entry(0), write)
    last_used(0, at=0.0)
    with open(entry(0).directory / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for number in range(1, KEPT + 2):
            cached(entry(number), write)
        assert entry(0).ready


def test_what_was_used_lately_is_not_pruned() -> None:
    """Another checkout may be compiling with it."""
    for number in range(KEPT + 3):
        cached(entry(number), write)
    last_used(0, at=0.0)
    last_used(1, at=0.0)
    cached(entry(1), write)  # used again
    cached(entry(50), write)
    assert [entry(n).ready for n in range(KEPT + 3)] == [False] + [True] * (KEPT + 2)


def test_a_cache_that_is_only_read_serves_what_it_holds(cache: Path) -> None:
    cached(entry(), write)
    if os.geteuid() == 0:  # root may write anywhere: no lock must even be opened
        (entry().directory / ".lock").unlink()
        cached(entry(), write)
        assert not (entry().directory / ".lock").exists()
        return
    for path in (entry().directory, cache):
        path.chmod(0o555)
    try:
        assert cached(entry(), write) == entry().path
    finally:
        for path in (cache, entry().directory):
            path.chmod(0o755)


def test_a_relative_cache_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNDRED_DAYS_CACHE", "some/cache")
    assert cache_directory() == Path.cwd() / "some" / "cache"


def test_a_key_depends_on_words_names_and_contents(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("1")
    b.write_text("1")
    keys = [digest(["x"], [a]), digest(["y"], [a]), digest(["x"], [b]), digest(["x"])]
    a.write_text("2")
    keys.append(digest(["x"], [a]))
    assert len(set(keys)) == len(keys) and all(len(key) == 16 for key in keys)


def test_a_program_is_built_again_for_a_pytorch_in_another_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Day 98's are the only ones that are linked with PyTorch and not loaded by it."""
    made = importlib.import_module("days.day98.made")
    here = made.entry("serve", torch.device("cpu"), "serve", ["serve.cpp"])
    monkeypatch.setattr(cpp_extension, "library_paths", lambda: ["/another/venv/torch/lib"])
    assert made.entry("serve", torch.device("cpu"), "serve", ["serve.cpp"]) != here
