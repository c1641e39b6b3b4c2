"""`--new`: a folder that a contributor begins from builds, passes and compiles for GPUs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from common.base import toolchain
from common.base.days import read_day
from common.base.paths import ROOT
from common.build import nvcc
from tests.command_line import CommandLine


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of days with a new one."""
    folder = tmp_path_factory.mktemp("new") / "days"
    made = CommandLine(folder)("--new", "101", "Sparse attention")
    assert made.returncode == 0, made.stdout
    return folder


def test_a_new_day_passes(days: Path) -> None:
    assert sorted(path.name for path in (days / "day101").iterdir()) == [
        "README.md",
        "day.py",
        "exercises.toml",
        "mutants.toml",
        "sparse_attention.cu",
    ]
    done = CommandLine(days)("101", "--quick")
    assert done.returncode == 0, done.stdout
    assert "sparse_attention_v1_thread_per_element PASS" in done.stdout
    if toolchain.find_toolkit() is not None:
        nvcc.compile_only(read_day(days / "day101"), ["8.0"])


CLANG_FORMAT = f"clang-format --style=file:{ROOT}/.clang-format --dry-run --Werror"


@pytest.mark.parametrize(
    ("command", "name"),
    [("ruff format --check", "day.py"), (CLANG_FORMAT, "sparse_attention.cu")],
    ids=["ruff", "clang-format"],
)
def test_a_new_day_is_formatted(days: Path, command: str, name: str) -> None:
    words = command.split()
    if not shutil.which(words[0]):
        pytest.skip(f"no {words[0]}: python -m pip install -r .ci/requirements.txt")
    subprocess.run([*words, days / "day101" / name], check=True, cwd=ROOT)


def test_what_is_no_new_day(tmp_path: Path) -> None:
    run = CommandLine(tmp_path)
    assert run("--new", "7", "Again").returncode == 0
    for number, title, said in (
        ("7", "Again", "is there already"),
        ("seven", "Title", "'seven' is no number of a day"),
        ("1000", "Title", "from 1 to 999"),
        ("8", "???", "is no title"),
        ("8", 'a "quoted" title', "is no title"),
    ):
        done = run("--new", number, title)
        assert done.returncode == 2 and said in done.stdout, done.stdout
