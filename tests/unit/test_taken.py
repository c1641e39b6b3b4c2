"""The days and modules of a run: those that the commit touches, then those that its tree draws."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.base.days import Day, discover
from common.base.paths import ROOT
from common.check.random_case import SEED_VARIABLE
from tests import conftest, taken

DAYS, _ = discover()


@pytest.fixture(autouse=True)
def _nothing_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a repository in which no commit has touched anything lately."""
    monkeypatch.setattr(taken, "touched", dict)
    monkeypatch.setattr(taken, "seed", lambda: 1)


def _touch(monkeypatch: pytest.MonkeyPatch, **ages: int) -> None:
    """Mark files as touched: names with "__" for "/", and how many commits ago."""
    found: dict[Path, int] = {}
    for name, ago in sorted(ages.items(), key=lambda item: item[1]):
        file = ROOT / (name.replace("__", "/") + ".cu")
        for path in (file, *file.parents):
            found.setdefault(path, ago)
    monkeypatch.setattr(taken, "touched", lambda: found)


def _days(count: int) -> list[str]:
    return [day.name for day in taken.order_of_days(DAYS).items[:count]]


def test_a_seed_takes_the_same_and_another_one_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _days(10)
    assert first == _days(10) and sorted(_days(len(DAYS))) == sorted(d.name for d in DAYS)
    monkeypatch.setattr(taken, "seed", lambda: 2)
    assert _days(10) != first


def test_what_was_touched_comes_first_the_latest_before_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    untouched = _days(len(DAYS))
    old, new, newest = untouched[-3:]
    _touch(monkeypatch, **{f"days__{old}__a": 9, f"days__{new}__b": 3, f"days__{newest}__b": 0})
    assert _days(5) == [newest, new, untouched[0], old, untouched[1]]
    order = taken.order_of_days(DAYS)
    assert order.touched(2) == "2 of 3" and order.touched(5) == "3 of 3"


def test_where_all_was_touched_the_part_is_no_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    _touch(monkeypatch, **{f"days__{day.name}__a": 0 for day in DAYS})
    assert sorted(_days(len(DAYS))) == sorted(day.name for day in DAYS)
    first = _days(10)
    monkeypatch.setattr(taken, "seed", lambda: 2)
    assert _days(10) != first


def test_a_header_counts_less_than_a_day_s_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    header = ROOT / "common/cuda/philox.cuh"
    own = DAYS[0]
    monkeypatch.setattr(taken, "touched", lambda: {header: 0, own.folder: 5})
    ages = taken.order_of_days(DAYS).ages
    assert ages[own] == (0, 5) and set(ages.values()) == {(0, 5), (1, 0)}
    assert 1 < len(ages) < len(DAYS) // 2
    assert _days(1) == [own.name]


def test_a_day_that_uses_a_touched_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    user = next(day for day in DAYS if day.uses)
    _touch(monkeypatch, **{f"days__day{user.uses[0]:02d}__a": 2})
    assert taken.order_of_days(DAYS).ages[user] == (1, 2)


@pytest.mark.parametrize(
    ("touched", "module", "age"),
    [
        ("tests/backend/test_cpu_wmma.py", "test_cpu_wmma", (0, 4)),
        ("tests/cpu_kernels/faults.cu", "test_cpu_backend", None),  # only its library is loaded
        ("tests/cpu_kernels/ptx.cu", "test_cpu_ptx", (0, 4)),
        ("common/build/nvcc.py", "test_build", (1, 4)),
        ("common/run/runner.py", "test_cli", (1, 4)),
        ("common/run/runner.py", "test_cpu_ptx", None),
        ("run_day.py", "test_runner", (1, 4)),
    ],
)
def test_modules_that_were_touched(
    touched: str, module: str, age: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ROOT / touched
    monkeypatch.setattr(taken, "touched", lambda: dict.fromkeys((file, *file.parents), 4))
    found = {path.stem: age for path, age in taken.order_of_modules().ages.items()}
    assert found.get(module) == age


# ---------------------------------------------------------------- collected tests


class Collected:
    """A test that pytest has found, with its session."""

    def __init__(self, path: str, purpose: str = "", day: Day | None = None):
        self.path = ROOT / path
        self.callspec = SimpleNamespace(params={"day": day})
        self._mark = SimpleNamespace(args=(purpose,)) if purpose else None

    def get_closest_marker(self, name: str) -> object:
        assert name == "some_days"
        return self._mark


def _kept(found: list[Collected], *named: str) -> list[Collected]:
    left_out: list[Collected] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    kept = list(found)
    config = SimpleNamespace(args=list(named), hook=hook, stash={})
    conftest.leave_out_what_is_not_taken(config, kept)  # type: ignore[arg-type]
    assert len(kept) + len(left_out) == len(found)
    assert not left_out or f"of {len(DAYS)} days" in next(iter(config.stash.values()))
    return kept


def test_a_purpose_takes_its_number_of_the_days_that_have_the_test() -> None:
    having = [day for day in DAYS if day.number % 2]
    order = [day for day in taken.order_of_days(DAYS).items if day in having]
    for purpose, count in taken.DAYS_TAKEN.items():
        kept = _kept([Collected("tests/days/test_days.py", purpose, day) for day in having])
        assert {item.callspec.params["day"].name for item in kept} == {
            day.name for day in order[:count]
        }


def test_every_test_of_some_days_has_a_number() -> None:
    texts = [path.read_text() for path in (ROOT / "tests/days").glob("*.py")]
    used = re.findall(r'@pytest\.mark\.some_days\("(.*)"\)', "\n".join(texts))
    assert set(used) == set(taken.DAYS_TAKEN)


def test_other_modules_are_left_out_unless_they_are_named() -> None:
    modules = [path.relative_to(ROOT).as_posix() for path in sorted(taken.BACKEND.glob("test_*"))]
    found = [Collected(path) for path in (*modules, "tests/unit/test_taken.py")]
    kept = {item.path for item in _kept(found, "tests")}
    assert len(kept) == taken.MODULES_TAKEN + 1 and ROOT / "tests/unit/test_taken.py" in kept
    (other, *_) = [path for path in modules if ROOT / path not in kept]
    assert {item.path for item in _kept(found, str(ROOT / other))} == kept | {ROOT / other}


# ---------------------------------------------------------------- git's history


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, at first outside git, whose files are examined."""
    monkeypatch.undo()
    root = tmp_path / "here"
    root.mkdir()
    monkeypatch.setattr(taken, "ROOT", root)
    monkeypatch.setattr(taken, "COMMITS", 3)
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    for name in ("tree", "seed", "touched"):
        monkeypatch.setattr(taken, name, getattr(taken, name).__wrapped__)
    return root


def _write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def _commit(folder: Path, name: str, text: str = "") -> None:
    _write(folder / name, text)
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "a file")


def _files(root: Path) -> dict[str, int]:
    found = {path: ago for path, ago in taken.touched().items() if path.is_file()}
    return {path.relative_to(root).as_posix(): ago for path, ago in found.items()}


def test_touched_is_what_is_not_committed_and_what_the_last_commits_changed(
    repository: Path,
) -> None:
    assert taken.touched() == {}
    _git(repository, "init", "-q")
    for name in ("first.cu", "a.cu", "b b.cu", "results/c.json", "days/day01/results/c.json"):
        _commit(repository, name)
    assert _files(repository) == {"b b.cu": 3}
    _write(repository / "a.cu", "changed")
    _write(repository / "days/day02/new.cu")
    _write(repository / "README.md")
    assert _files(repository) == {"b b.cu": 3, "a.cu": 0, "days/day02/new.cu": 0}
    assert taken.touched()[repository / "days/day02"] == 0


def test_a_merge_counts_once_and_has_all_that_it_brought(repository: Path) -> None:
    _git(repository, "init", "-q", "-b", "main")
    _commit(repository, "first.cu")
    _git(repository, "checkout", "-q", "-b", "other")
    for number in range(5):
        _commit(repository, f"{number}.cu")
    _git(repository, "checkout", "-q", "main")
    _commit(repository, "here.cu")
    _git(repository, "merge", "-q", "--no-edit", "other")
    assert _files(repository) == {"here.cu": 2} | {f"{number}.cu": 1 for number in range(5)}


def test_the_last_commit_of_a_shallow_clone_touches_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git would show all its files as new."""
    _git(repository, "init", "-q")
    for name in ("a.cu", "b.cu", "c.cu"):
        _commit(repository, name)
    tree = taken.tree()
    for depth, known in ((1, {}), (2, {"c.cu": 1})):
        clone = tmp_path / str(depth)
        _git(tmp_path, "clone", "-q", "--depth", str(depth), f"file://{repository}", str(clone))
        monkeypatch.setattr(taken, "ROOT", clone)
        assert _files(clone) == known
        assert taken.tree() == tree


def test_the_seed_is_of_the_content(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(repository / "tests/a.py")
    without_git = taken.seed()
    _write(repository / "tests/a.py", "x = 1\n")
    assert taken.seed() != without_git
    _git(repository, "init", "-q")
    _commit(repository, "a.cu")
    once = taken.seed()
    _commit(repository, "a.cu", "x")
    assert taken.seed() != once
    _commit(repository, "a.cu")
    assert taken.seed() == once
    monkeypatch.setenv(SEED_VARIABLE, "7")
    assert taken.seed() == 7
