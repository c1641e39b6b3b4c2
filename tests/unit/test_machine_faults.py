"""A fault of the machine is distinguished from a fault of the source."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from common.base import machine_faults, toolchain
from common.base.machine_faults import full_disk
from common.run import doctor, runner

FULL = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (
            "c++: fatal error: cannot execute ‘as’: execvp: No such file or directory",
            "assembler (as)",
        ),
        ("g++: error trying to exec 'as': execvp: No such file or directory", "assembler (as)"),
        ("collect2: fatal error: cannot find ‘ld’", "the linker (ld)"),
        ("c++: fatal error: cannot execute 'cc1plus': execvp", "compiler proper (cc1plus)"),
        (f"/tmp/cc.s: fatal error: error writing to /tmp/cc.s: {FULL}", "the disk is full"),
        ("days/day05/x.cu:7:3: error: 'as' was not declared in this scope", ""),
        ("days/day05/x.cu:7:3: error: cannot find 'asm' in this scope", ""),
    ],
)
def test_an_obstacle_is_named_with_its_fix(message: str, what: str) -> None:
    found = machine_faults.obstacle(message)
    assert (what in found.what and found.fix) if found else not what
    unbuilt = runner._unbuilt("does not build", [message, "compilation terminated."])
    assert what in unbuilt.reason and message in unbuilt.details
    assert len(unbuilt.details) == (3 if what else 2)


def test_of_a_full_disk_the_cache_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HUNDRED_DAYS_CACHE", str(tmp_path / "not there yet"))
    unbuilt = runner._unbuilt(f"does not build: OSError: [Errno 28] {FULL}", [])
    assert unbuilt.reason == "does not build: the disk is full"
    assert str(tmp_path / "not there yet") in unbuilt.details[0]
    assert "HUNDRED_DAYS_CACHE" in full_disk().fix and " MB free" in full_disk().fix


def test_a_run_on_a_full_disk_ends_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HUNDRED_DAYS_CACHE", str(tmp_path))
    assert list(doctor.writable_cache(tmp_path)) == []
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    for limit, place in (("FULL_CACHE", tmp_path), ("FULL_TEMPORARY", tmp_path / "temporary")):
        with monkeypatch.context() as patch:
            patch.setattr(doctor, limit, 1e18)
            (finding,) = doctor.writable_cache(tmp_path)
        assert finding.state == doctor.BAD and finding.text.endswith(f"MB of room in {place}")
        assert str(tmp_path) in finding.fix


def test_what_a_compiler_lacked_may_be_there_the_next_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No failure is stored: its cause may have gone while the compiler has not changed."""
    monkeypatch.setenv("HUNDRED_DAYS_CACHE", str(tmp_path / "cache"))
    compiler = tmp_path / "c++"
    compiler.write_text("no program")
    tried: list[str] = []
    answers = ["lacks something", "", "tried again"]

    def attempt(path: str) -> str:
        tried.append(path)
        return answers[len(tried) - 1]

    monkeypatch.setattr(toolchain, "_try_compiler", attempt)
    found = [toolchain.compiler_unfit(str(compiler), "1") for _ in range(4)]
    assert found == ["lacks something", "", "", ""] and len(tried) == 2
