"""Days named on a command line."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from common.base import days
from common.base.day_files import DayError
from common.base.days import load_lesson, read_day
from common.base.refusal import UsageError
from common.run.selection import listing, select

METADATA = 'TITLE = "{}"\nTEACHES = "t"\nTOPICS = ({},)\nSOURCE = "x.cu"\n'
DAYS = {
    1: ("Hello", '"set-up"'),
    2: ("Vector addition", '"indexing", "memory"'),
    3: ("Softmax, naive", '"softmax"'),
    5: ("Softmax in shared memory", '"softmax", "shared memory"'),
    12: ("Matrix product", '"GEMM"'),
    100: ("The end", '"farewell"'),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, (title, topics) in DAYS.items():
        folder = tmp_path / f"day{number:02d}"
        folder.mkdir()
        (folder / "day.py").write_text(METADATA.format(title, topics))
        (folder / "x.cu").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["5"], [5]),
        (["05"], [5]),
        (["day05"], [5]),
        (["1-3"], [1, 2, 3]),
        (["1,3,5-12"], [1, 3, 5, 12]),
        (["5", "1"], [1, 5]),
        (["3,3", "1-5"], [1, 2, 3, 5]),
        (["all"], [1, 2, 3, 5, 12, 100]),
        (["softmax"], [3, 5]),
        (["SoftMax"], [3, 5]),
        (["shared memory"], [5]),
        (["shared"], [5]),
        (["vector", "gemm"], [2, 12]),
        (["farewell,1"], [1, 100]),
    ],
)
def test_selection(root: Path, arguments: list[str], numbers: list[int]) -> None:
    assert [day.number for day in select(arguments, root).days] == numbers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["4"], "no day 4; there are days 1-3, 5, 12, 100"),
        (["0"], "no day 0"),
        (["6-9"], "no day in range 6-9; there are days 1-3"),
        (["3-1"], "write 1-3"),
        (["softmux"], "did you mean 'softmax' (day 3, 5)"),
        (["xyzzy"], "--list"),
        ([","], "no day given"),
        (["-3"], "no topic"),
        (["\u0661"], "no topic"),  # a one in Arabic digits
        (["1-\u0665"], "no topic"),
        (["9" * 5000], "no topic"),
    ],
)
def test_what_names_nothing_is_explained(root: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        select(arguments, root)
    assert message in str(error.value)


def test_a_range_with_gaps_says_what_is_missing(root: Path) -> None:
    assert select(["1-5"], root).notes == ("of 1-5, these do not exist yet: 4",)


def test_a_range_without_end_is_no_list_of_its_numbers(root: Path) -> None:
    selection = select(["12-99999999999999"], root)
    assert [day.number for day in selection.days] == [12, 100]
    assert "of 12-99999999999999, there are days up to 100 only" in selection.notes


def test_no_day_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no day found"):
        select(["all"], tmp_path)


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_shards_are_a_balanced_partition(root: Path, count: int) -> None:
    parts = [select(["all"], root, f"{i}/{count}").days for i in range(1, count + 1)]
    numbers = [day.number for part in parts for day in part]
    assert sorted(numbers) == sorted(DAYS)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0", "1/\u0662"])
def test_a_shard_that_is_none(root: Path, shard: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        select(["all"], root, shard)


def test_an_empty_shard_is_an_error(root: Path) -> None:
    with pytest.raises(UsageError, match="empty"):
        select(["1,2"], root, "3/3")


def test_a_broken_day_is_selected_with_its_error(root: Path) -> None:
    (root / "day05" / "x.cu").unlink()
    selection = select(["3-5"], root)
    assert [day.number for day in selection.days] == [3]
    assert "x.cu" in str(selection.broken[5])
    text, broken = listing([], root)
    listed, _, _ = text.partition("\n\n")  # the learner's progress follows
    assert len(listed.splitlines()) == len(DAYS) - 1
    assert len(broken) == 1


def _deep(folder: Path, sign: str) -> None:
    text = METADATA.format("T", '"t"')
    (folder / "day.py").write_text(f"X = {sign * 100_000}1\n{text}")


def _adds(line: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "day.py").write_text(METADATA.format("T", '"t"') + line + "\n")

    return change


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "latin-1": (lambda day: (day / "day.py").write_bytes(b"# caf\xe9"), "day.py: cannot be read"),
    "parser": (lambda day: _deep(day, "-"), "day.py: nested too deeply"),
    "brackets": (lambda day: _deep(day, "("), "day.py:1: too many nested"),
    "number": (_adds("EXTRA_SOURCES = (5,)"), "EXTRA_SOURCES must hold str, got 5"),
    "topic": (_adds('TOPICS = ("t", 5)'), "TOPICS must hold str, got 5"),
    "used": (_adds('USES = ("x",)'), "USES must hold int, got 'x'"),
    "elsewhere": (_adds('SOURCE = "../day01/x.cu"'), "names ../day01/x.cu, which is not in"),
    "absolute": (_adds('SOURCE = "/etc/passwd"'), "names /etc/passwd, which is not in"),
    "folder": (lambda day: (day / "y.cu").mkdir(), "y.cu: is no file"),
    "link": (lambda day: (day / "y.cuh").symlink_to("nowhere"), "y.cuh: is no file"),
    "pipe": (lambda day: os.mkfifo(day / "y.py"), "y.py: is no file"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_folder_is_its_own_failure(root: Path, broken: str) -> None:
    change, message = BROKEN[broken]
    change(root / "day05")
    selection = select(["all"], root)
    assert [day.number for day in selection.days] == [1, 2, 3, 12, 100]
    assert message in str(selection.broken[5])


def test_whatever_is_wrong_with_a_day_the_others_are_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Path, **_: str) -> str:
        if "day05" in file.parts:
            raise PermissionError(13, "Permission denied")
        return read_text(file, encoding="utf-8")

    read_text = Path.read_text
    monkeypatch.setattr(Path, "read_text", refuse)
    assert "day.py: cannot be read: [Errno 13]" in str(select(["all"], root).broken[5])
    monkeypatch.setattr(days, "read_day", lambda folder: 1 / 0)
    assert "ZeroDivisionError" in str(select(["all"], root).broken[1])


def test_a_day_uses_days_that_exist(root: Path) -> None:
    declared = root / "day05" / "day.py"
    declared.write_text(declared.read_text() + "USES = (2, 3)\n")
    assert read_day(declared.parent).uses == (2, 3)
    declared.write_text(declared.read_text().replace("(2, 3)", "(2, 999)"))
    with pytest.raises(DayError, match=r"day\.py: USES names day 999, which does not exist"):
        read_day(declared.parent)


def test_a_day_imports_files_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "day07"
    folder.mkdir()
    (folder / "x.cu").touch()
    text = METADATA.format("Two files", '"set-up"') + "from .cases import PROBLEMS\n"
    (folder / "day.py").write_text(text)
    declared = (
        "from common.day import Case, Problem, Rung\n"
        'PROBLEMS = (Problem("{}", lambda case, draw: (), lambda: None, (Rung("r", "i"),), '
        "(Case((1,)),), timed=False),)\n"
    )
    for name in ("first", "second"):  # earlier reads are not cached
        (folder / "cases.py").write_text(declared.format(name) + "#" * len(name))
        assert [p.name for p in load_lesson(read_day(folder)).problems] == [name]


def test_a_lesson_is_loaded_while_another_thread_imports(
    root: Path,
) -> None:
    file = root / "day01" / "day.py"
    lines = [
        "from common.day import Case, Problem, Rung",
        'PROBLEMS = (Problem("one", None, None, (Rung("v1", "i"),), (Case((1,)),), timed=False),)',
    ]
    file.write_text(file.read_text() + "\n".join(lines) + "\n")
    day, stop, before = read_day(file.parent), threading.Event(), sys.getswitchinterval()

    def imports() -> None:
        while not stop.is_set():
            for i in range(1000):
                sys.modules[f"imported_meanwhile_{i}"] = sys
            for i in range(1000):
                del sys.modules[f"imported_meanwhile_{i}"]

    sys.setswitchinterval(1e-6)
    other = threading.Thread(target=imports)
    other.start()
    try:
        for _ in range(50):
            load_lesson(day)
    finally:
        stop.set()
        other.join()
        sys.setswitchinterval(before)


def test_a_folder_further_is_read_with_its_day(tmp_path: Path) -> None:
    folder = tmp_path / "day07"
    further = folder / "further"
    further.mkdir(parents=True)
    (folder / "x.cu").touch()
    (folder / "day.py").write_text(METADATA.format("T", '"t"'))
    with pytest.raises(DayError, match=r"further: day\.py is missing"):
        read_day(folder)
    (further / "README.md").touch()
    (further / "day.py").write_text('SOURCE = "more.cu"\nEXTRA_SOURCES = (5,)\n')
    with pytest.raises(DayError, match="name files, got 5"):
        read_day(folder)
    (further / "day.py").write_text('SOURCE = "more.cu"\n')
    with pytest.raises(DayError, match=r"names more\.cu, which is not in the folder"):
        read_day(folder)
    (further / "more.cu").touch()
    main = read_day(folder)
    whole = main.with_further()
    assert main.library_sources == (folder / "x.cu",)
    assert whole.library_sources == (folder / "x.cu", further / "more.cu")
    assert whole.kind == f"{main.kind}-whole", "the two builds never push one another out"
