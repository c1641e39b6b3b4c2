"""Which days and modules the tests take that take a part of them in turn."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from common.base.days import discover
from common.base.paths import ROOT
from tests import chance

DAYS, _ = discover()
TOUCHED = chance.recently_touched.__wrapped__


@pytest.fixture(autouse=True)
def _date(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary run on some date, in a repository where nothing was touched lately."""
    monkeypatch.setattr(chance, "GIVEN", False)
    monkeypatch.setattr(chance, "SEED", 20260131)
    monkeypatch.setattr(chance, "recently_touched", set)


def _due(purpose: str = "stubs", headers: bool = False, one_in: int = 5) -> list[str]:
    return [day.name for day in DAYS if chance.is_due(day, DAYS, purpose, headers, one_in)]


def test_a_fifth_is_due_and_another_one_tomorrow(monkeypatch: pytest.MonkeyPatch) -> None:
    today = _due()
    assert len(today) == len(DAYS) // 5 and today == _due() != _due("models")
    monkeypatch.setattr(chance, "SEED", 20260201)
    assert _due() != today


def test_a_larger_part_may_be_taken() -> None:
    assert len(_due(one_in=2)) == len(DAYS) // 2


def test_with_a_seed_every_day_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chance, "GIVEN", True)
    assert len(_due()) == len(DAYS)


def test_what_was_touched_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [day.name for day in DAYS if day.name not in _due()]
    monkeypatch.setattr(chance, "recently_touched", lambda: {ROOT / "days" / others[0] / "a.cu"})
    assert others[0] in _due() and others[1] not in _due()
    monkeypatch.setattr(chance, "recently_touched", lambda: None)  # no history to know it from
    assert len(_due()) == len(DAYS)


def test_what_includes_a_touched_header_is_due_where_that_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chance, "in_turn", lambda *_: [])
    monkeypatch.setattr(chance, "recently_touched", lambda: {ROOT / "common/cuda/tensor.cuh"})
    assert _due() == []
    most = _due(headers=True)
    monkeypatch.setattr(chance, "recently_touched", lambda: {ROOT / "common/cuda/philox.cuh"})
    assert 0 < len(_due(headers=True)) < len(DAYS) // 2 < len(most)


MODULES = sorted((ROOT / "tests/backend").glob("test_*.py"))


def _modules_due() -> list[Path]:
    return [module for module in MODULES if chance.is_module_due(module, MODULES)]


def test_a_third_of_the_backends_modules_is_due() -> None:
    assert len(_modules_due()) == len(MODULES) // 3 > 5


@pytest.mark.parametrize(
    ("touched", "all_due"),
    [
        ("common/cpu/runtime/memory.h", True),
        ("common/cuda/ptx/mma.cuh", True),
        ("tests/cpu_kernels/tma.cu", True),
        ("tests/conftest.py", True),
        ("common/base/toolchain.py", True),
        ("common/base/declaration.py", False),
        ("common/cuda/chunk.cuh", False),
        ("common/results/nvidia-h200/day01.json", False),
        ("tests/unit/test_chance.py", False),
        ("tests/chance.py", False),
    ],
)
def test_what_the_backends_modules_are_about_makes_all_of_them_due(
    touched: str, all_due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chance, "recently_touched", lambda: {ROOT / touched})
    assert (_modules_due() == MODULES) is all_due


@pytest.mark.parametrize(
    "touched", ["common/run/runner.py", "common/base/days.py", "common/build/library.py"]
)
def test_the_runner_makes_modules_due_that_have_to_do_with_it(
    touched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = _modules_due()
    monkeypatch.setattr(chance, "recently_touched", lambda: {ROOT / touched})
    due = _modules_due()
    assert due == [m for m in MODULES if chance.names_runs(m) or m in turn] != MODULES
    names = {module.stem for module in due}
    assert names >= {"test_cli", "test_runner", "test_build", "test_mutants_tried"}
    assert names >= {"test_cpu_models", "test_cpu_sanitize", "test_cpu_trace"}


def test_a_touched_module_of_the_backend_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    other = next(module for module in MODULES if module not in _modules_due())
    monkeypatch.setattr(chance, "recently_touched", lambda: {other})
    assert other in _modules_due() != MODULES


def test_touched_is_what_recent_commits_changed_or_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chance, "ROOT", tmp_path)
    assert TOUCHED() is None
    _git(tmp_path, "init", "-q")
    for number in range(1, chance.RECENT + 2):
        _commit(tmp_path, f"days/day{number:02d}/a.cu")
    uncommitted = ["days/day99/a.cu", "days/day99/tuned.json", "common/b.cuh"]
    for name in (*uncommitted, "days/day99/README.md"):
        _write(tmp_path / name)
    committed = [f"days/day{number:02d}/a.cu" for number in range(2, chance.RECENT + 2)]
    assert TOUCHED() == {tmp_path / name for name in (*committed, *uncommitted)}


def test_a_source_with_another_comment_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chance, "ROOT", tmp_path)
    monkeypatch.setattr(chance, "RECENT", 1)
    _git(tmp_path, "init", "-q")
    _commit(tmp_path, "a.cu", "int x;  // a\n")
    _commit(tmp_path, "b.py", '"""A."""\nx = 1  # a\n')
    assert TOUCHED() == {tmp_path / "b.py"}
    _commit(tmp_path, "c.json", "{}")
    assert TOUCHED() == {tmp_path / "c.json"}
    (tmp_path / "a.cu").write_text("int x;  // another comment\n")
    (tmp_path / "b.py").write_text('"""Another docstring."""\nx = 1\n')
    assert TOUCHED() == {tmp_path / "c.json"}
    (tmp_path / "a.cu").write_text("int y;  // a\n")
    (tmp_path / "b.py").write_text('"""A."""\nx = 2  # a\n')
    assert TOUCHED() == {tmp_path / name for name in ("a.cu", "b.py", "c.json")}


def _write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _commit(folder: Path, name: str, text: str = "") -> None:
    _write(folder / name, text)
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "a file")


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True)
