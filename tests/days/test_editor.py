"""An editor reads every day's .cu, and the learner's, without a GPU and without a CUDA toolkit."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.base.days import Day, discover
from common.base.paths import DAYS, ROOT
from common.practice.challenge import write_challenge
from common.run.editor import (
    INSTALL_CLANGD,
    TESTED_CLANGD,
    clangd_version,
    editor_files,
    find_clangd,
)
from tests.clangd import Clangd, problems

FOUND, _ = discover()
CLANGD = find_clangd()

every_day = pytest.mark.parametrize("day", FOUND, ids=[day.name for day in FOUND])
with_clangd = pytest.mark.skipif(
    CLANGD is None or clangd_version(CLANGD) < TESTED_CLANGD,
    reason=f"no clangd of version {TESTED_CLANGD} or later: {INSTALL_CLANGD}",
)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the database of commands, and with the content of .clangd as user
    settings: the checkout may have none."""
    folder = tmp_path_factory.mktemp("commands")
    name = "compile_commands.json"
    (folder / name).write_text(editor_files(ROOT)[ROOT / name])
    (folder / "clangd").mkdir()
    (folder / "clangd/config.yaml").write_text(editor_files(ROOT)[ROOT / ".clangd"])
    return folder


@pytest.mark.some_days("editor")
@every_day
@with_clangd
def test_clangd_finds_no_error(day: Day, commands: Path) -> None:
    assert CLANGD
    for source in day.with_further().nvcc_sources:
        assert problems(CLANGD, commands, source) == [], source


@with_clangd
def test_clangd_reads_the_learner_s_file(commands: Path, tmp_path: Path) -> None:
    """It has no compile command: missing code is not an error, and wrong code is one."""
    assert CLANGD
    day = FOUND[1]
    challenge = write_challenge(day, DAYS, day.steps[0])
    file = tmp_path / "days" / day.name / challenge.file.name
    file.parent.mkdir(parents=True)
    file.write_text(challenge.start)
    assert problems(CLANGD, commands, file) == []
    file.write_text(challenge.start + "int wrong = not_declared;\n")
    (error,) = problems(CLANGD, commands, file)
    assert "undeclared identifier 'not_declared'" in error


@with_clangd
def test_clangd_knows_cuda(commands: Path) -> None:
    """A word of CUDA's is explained, and a word of common/cuda leads to its definition."""
    assert CLANGD
    with Clangd(CLANGD, commands, FOUND[1].source) as clangd:
        assert "threadIdx" in str(clangd.at("hover", "threadIdx"))
        (place,) = clangd.at("definition", "check_launch")
        assert place["uri"].startswith((ROOT / "common/cuda").as_uri())
        hover = str(clangd.at("hover", "cudaMemcpy("))
        assert "cudaMemcpyKind" in hover
