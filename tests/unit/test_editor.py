"""`--editor`: the files that it writes, and those that it leaves unchanged."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import run_day
from common.base import toolchain
from common.base.days import discover, read_day
from common.base.paths import ROOT
from common.run import editor
from common.run.editor import editor_files, write_editor_files
from common.run.selection import select


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("day01/a.cu", "day02/further/b.cu"):
        (tmp_path / "days" / name).parent.mkdir(parents=True)
        (tmp_path / "days" / name).touch()
    return tmp_path


def written(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in write_editor_files(root))


def test_what_the_user_has_changed_stays(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(str(path.relative_to(root)) for path in editor_files(root))
    assert written(root) == names
    assert written(root) == []
    settings = root / ".vscode/settings.json"
    settings.write_text('{"editor.fontSize": 20}\n')
    assert written(root) == []
    assert editor.main(root) == 0
    assert "left .vscode/settings.json as it is" in capsys.readouterr().out
    settings.unlink()
    assert written(root) == [".vscode/settings.json"]


def test_what_is_out_of_date_is_written_anew(root: Path) -> None:
    write_editor_files(root)
    (root / "days/day02/c.cu").touch()
    assert written(root) == ["compile_commands.json"]


def test_a_file_that_was_there_before_stays(root: Path) -> None:
    (root / ".clangd").write_text("If:\n")
    (root / ".vscode").mkdir()
    (root / ".vscode/written.json").write_text("no JSON")
    assert ".clangd" not in written(root)
    assert (root / ".clangd").read_text() == "If:\n"


def test_every_source_of_every_day_has_a_command() -> None:
    commands = json.loads(editor_files(ROOT)[ROOT / "compile_commands.json"])
    files = {Path(command["file"]) for command in commands}
    for day in discover()[0]:
        assert files >= set(day.with_further().nvcc_sources)


def test_what_is_missing_is_named(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def absent() -> Path:
        raise toolchain.ToolchainError("no CUDA headers")

    monkeypatch.setattr(editor, "cuda_headers", absent)
    assert run_day.main(["--editor", "--days", str(root / "days")]) == 1
    assert "no CUDA headers" in capsys.readouterr().err
    assert not (root / ".clangd").exists()


def test_git_ignores_what_is_written() -> None:
    names = [str(path.relative_to(ROOT)) for path in editor_files(ROOT)]
    names += [editor.LEDGER, ".cache/clangd/index/x.idx"]
    done = subprocess.run(
        ["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 128:
        pytest.skip("no git repository")
    assert done.stdout.split() == names


def command_lines() -> list[list[str]]:
    """Return the command lines of tasks and launches, for a day's file and for one of the
    learner's."""
    files = editor_files(ROOT)
    code = ROOT / ".vscode"
    tasks = json.loads(files[code / "tasks.json"])["tasks"]
    launches = json.loads(files[code / "launch.json"])["configurations"]
    found = []
    for file in ("days/day05/shared_softmax.cu", "practice/day05/debug.cu"):
        words = {"${relativeFile}": file, "${fileBasenameNoExtension}": Path(file).stem}
        found += [[words.get(each, each) for each in one["args"]] for one in [*tasks, *launches]]
    return found


def test_the_editors_commands_are_understood() -> None:
    lines = command_lines()
    assert len(lines) >= 10
    selected = set()
    for script, *arguments in lines:
        assert (ROOT / script).is_file()
        parser = run_day.parser()
        args = parser.parse_intermixed_args(arguments)
        run_day.check(parser, args)
        selected |= set(args.selected)
    assert [day.number for day in select(sorted(selected), ROOT / "days").days] == [5]


def test_a_debugger_needs_the_learner_s_file(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "days").mkdir()
    shutil.copytree(ROOT / "days/day01", tmp_path / "days/day01")
    assert run_day.main(
        ["1", "--practice", "speed", "--in-process", "--days", str(tmp_path / "days")]
    )
    assert "day 1" in capsys.readouterr().err
    name = read_day(ROOT / "days/day01").steps[0].name
    words = ["1", "--practice", name, "--in-process", "--days", str(tmp_path / "days")]
    assert run_day.main(words) == 2
    assert f"{name}.cu is not there; python run_day.py 1 --practice" in capsys.readouterr().err


def test_further_is_run_from_a_file_of_it() -> None:
    day = next(day for day in discover()[0] if day.further)
    assert day.further
    for path in (day.further.sources[0], day.source):
        (chosen,) = select([str(path.relative_to(ROOT))], ROOT / "days").days
        assert chosen.whole == (path == day.further.sources[0])
