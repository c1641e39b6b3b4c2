"""`--new`: a folder that a contributor begins from builds, passes and compiles for GPUs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from common.base import toolchain
from common.base.days import read_day
from common.base.paths import ROOT
from common.build import nvcc
from tests.command_line import CommandLine


def test_a_new_day_passes(tmp_path: Path) -> None:
    days = tmp_path / "days"
    run = CommandLine(days)
    made = run("--new", "101", "Sparse attention")
    assert made.returncode == 0, made.stdout
    assert sorted(path.name for path in (days / "day101").iterdir()) == [
        "README.md",
        "day.py",
        "sparse_attention.cu",
    ]
    done = run("101", "--quick")
    assert done.returncode == 0, done.stdout
    assert "sparse_attention_v1_thread_per_element PASS" in done.stdout
    style = ["clang-format", f"--style=file:{ROOT}/.clang-format", "--dry-run", "--Werror"]
    subprocess.run([*style, days / "day101" / "sparse_attention.cu"], check=True)
    subprocess.run(["ruff", "format", "--check", days], check=True, cwd=ROOT)
    if toolchain.find_toolkit() is not None:
        nvcc.compile_only(read_day(days / "day101"), ["8.0"])


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
