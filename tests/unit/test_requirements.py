"""requirements.txt: the packages of a machine that it keeps, and those that it installs on a fresh
one."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from common.base import toolchain
from common.base.paths import ROOT
from common.run import doctor
from common.run.doctor import BAD, OK, WARN


def _lines(path: Path) -> list[Requirement]:
    texts = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [Requirement(text) for text in texts if text]


NEEDED = _lines(ROOT / "requirements.txt")
DEVELOPMENT = _lines(ROOT / ".ci" / "requirements.txt")


def test_the_doctor_reads_every_line_as_pip_does() -> None:
    read = doctor.requirements()
    assert list(read) == [requirement.name for requirement in NEEDED]
    for requirement in NEEDED:
        mine = read[requirement.name]
        for version in (mine.oldest, mine.newest, importlib.metadata.version(requirement.name)):
            assert requirement.specifier.contains(version, prereleases=True)
            assert mine.admits(version)


@pytest.mark.parametrize(
    ("version", "kept"),
    [
        ("2.10.1", False),
        ("2.11.0", True),
        ("2.11.0a0+b558c98.nv26.01", True),  # of NVIDIA's container
        ("2.12.1+cu128", True),
        ("2.13.0+cpu", True),
        ("2.13.1", False),
        ("2.15.0", False),
    ],
)
def test_which_torch_is_kept(version: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (torch,) = (requirement for requirement in NEEDED if requirement.name == "torch")
    assert torch.specifier.contains(version, prereleases=True) == kept
    assert doctor.requirements()["torch"].admits(version) == kept
    monkeypatch.setattr(toolchain, "torch_version", lambda: version)
    imported = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: imported)
    states = {finding.state for finding in doctor.torch(ROOT)}
    older = version.startswith("2.10")
    assert states == {OK} | (set() if kept else {BAD if older else WARN})


def test_every_requirement_has_one_tested_version() -> None:
    """A fresh machine gets the upper end: no range is open."""
    for requirement in (*NEEDED, *DEVELOPMENT):
        assert {s.operator for s in requirement.specifier} in ({"=="}, {">=", "<="}), requirement


def test_what_only_development_needs_is_apart() -> None:
    needed = {requirement.name for requirement in NEEDED}
    assert needed.isdisjoint(requirement.name for requirement in DEVELOPMENT)
    imported = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for name in ("pytest", "hypothesis"):
        assert name in needed and re.search(rf"^import {name}$", imported, re.MULTILINE)
