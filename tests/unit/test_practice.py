"""Practice mode: exercises, the learner's file, what is remembered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.base.days import DayError, discover, read_day
from common.base.declaration import Exercise
from common.base.paths import DAYS, ROOT
from common.practice.challenge import write_challenge
from common.practice.exercise import (
    ExerciseError,
    changed_around,
    is_stub,
    line_of,
    place,
    rungs_that_use,
    solution,
    stub,
    with_backward,
)
from common.practice.journal import Journal, JournalError
from common.practice.mutants.outline import outline
from common.practice.repeated import repetitions, without
from common.practice.standing import exercises, standing

SOURCE = """\
// a comment with { in it
#include "x.cuh"
namespace {
constexpr int BLOCK = 256;
struct Pair {
  int a, b;
  __device__ int sum() const { return a + b; }
};
template <typename T, int N = (3 > 2)>
__device__ T twice(T x) {
  T y = x;
  // doubled
  return y + x;
}
template <typename T>
__global__ void __launch_bounds__(BLOCK) both_kernel(const T* x, T* y) {
  y[threadIdx.x] = twice(x[threadIdx.x]);
}
}  // namespace
Tensor one(const Tensor& x) {
  both_kernel<float><<<1, BLOCK>>>(data<float>(x), mutable_data<float>(x));
  return x;
}
Tensor two(const Tensor& x) { return x; }
RUNG(day01, one, "(Tensor x) -> Tensor");
RUNG(day01, two, "(Tensor x) -> Tensor");
"""
TWICE = Exercise("twice", "Double it.", ("a", "b", "c"))


def using(text: str, function: str) -> list[str]:
    file = Path("x.cu")
    return rungs_that_use({file: outline(text)}, file, function)


def test_the_rungs_that_use_a_function_are_found() -> None:
    assert using(SOURCE, "twice") == ["one"]
    assert using(SOURCE, "two") == ["two"]
    assert using(SOURCE, "no_such") == []


def test_a_function_that_another_file_uses_belongs_to_that_files_rungs() -> None:
    helper, caller = Path("helper.cu"), Path("caller.cu")
    outlines = {
        helper: outline("int half(int x) { return x / 2; }\n"),
        caller: outline(
            "Tensor three(const Tensor& x) { half(3); return x; }\n"
            'RUNG(day01, three, "(Tensor x) -> Tensor");\n'
        ),
    }
    assert rungs_that_use(outlines, helper, "half") == ["three"]


def test_operators_of_gradients_are_needed_too() -> None:
    operators = ("conv_v1", "conv_weight_gradient_v1", "conv_data_gradient_v2", "sum_v1")
    operators += ("sum_backward_v1", "sum_backward_v2", "gradient_of_image")
    bound = {Path("x.cu"): outline("\n".join(f'RUNG(day01, {o}, "()");' for o in operators))}
    assert with_backward(bound, ["conv_v1"]) == [
        *("conv_v1", "conv_data_gradient_v2", "conv_weight_gradient_v1")
    ]
    assert with_backward(bound, ["sum_v1"]) == ["sum_v1", "sum_backward_v1"]


def test_a_stub_replaces_the_body() -> None:
    text = stub(SOURCE, TWICE, "run it")
    assert "// your turn: Double it. Then: run it\n  return {};\n}" in text
    assert "T y = x;" not in text
    assert is_stub(text.replace("// your turn", "// mine"), text, TWICE)
    assert not is_stub(SOURCE, text, TWICE)
    assert changed_around(SOURCE, text, TWICE) == []
    assert text.splitlines()[line_of(text, TWICE) - 1].startswith("  // your turn:")
    assert solution(SOURCE, TWICE) == "T y = x;\n// doubled\nreturn y + x;"


def test_a_stub_of_a_part_keeps_the_rest() -> None:
    part = Exercise("twice", "Say so.", ("a",), first="// doubled", last="// doubled")
    text = stub(SOURCE, part, "run it")
    assert "T y = x;\n  // your turn: Say so. Then: run it\n  return y + x;\n" in text


def test_a_stub_is_indented_as_what_it_replaces() -> None:
    """Also where that begins with a directive, which has no indentation."""
    member = "struct S {\n  int f() {\n#pragma unroll\n    return 2;\n  }\n};\n"
    text = stub(member, Exercise("S::f", "Return 2.", ("a",)), "run it")
    gap = "    // your turn: Return 2. Then: run it\n    return {};\n"
    assert text == "struct S {\n  int f() {\n" + gap + "  }\n};\n"


def test_a_body_on_one_line_becomes_a_gap() -> None:
    text = stub(SOURCE, Exercise("two", "Return x.", ("a",)), "run it")
    assert "Tensor two(const Tensor& x) {\n  // your turn:" in text
    assert using(text, "two") == ["two"]


def test_what_was_changed_around_is_named() -> None:
    text = stub(SOURCE, TWICE, "run it").replace("BLOCK = 256", "BLOCK = 128")
    text = text.replace("return x;\n}\nTensor two", "return  x;\n}\nTensor two")
    lines = changed_around(SOURCE, text, TWICE)
    assert [text.splitlines()[n - 1].strip() for n in lines] == [
        "constexpr int BLOCK = 128;",
        "return  x;",
    ]


@pytest.mark.parametrize(
    ("exercise", "message"),
    [
        (Exercise("thrice", "", ()), "the function thrice is not there"),
        (Exercise("twice", "", (), first="no such"), "no line of the function has 'no such'"),
        (Exercise("twice", "", (), first="x"), "more than one line of the function has 'x'"),
        (Exercise("twice", "", (), first="return y", last="T y"), "stands before"),
    ],
)
def test_what_cannot_be_found_is_said(exercise: Exercise, message: str) -> None:
    with pytest.raises(ExerciseError, match=message):
        place(SOURCE, exercise)


def test_unbalanced_code_is_an_error_and_no_crash() -> None:
    with pytest.raises(ExerciseError, match="twice cannot be found"):
        place("__device__ int twice() {\n  return 1;\n", TWICE)


def test_what_repeats_an_exercise_is_left_out() -> None:
    again = SOURCE + (
        "template <typename T>\n__device__ T again(T x) {\n  T y = x;\n  return y + x;\n}\n"
        "template <typename T>\n__device__ T other(T x) {\n  return x;\n}\n"
    )
    assert repetitions(again, TWICE, ()) == ["again"]
    assert repetitions(again, TWICE, ("again",)) == []
    twin = again[len(SOURCE) :].partition("template <typename T>\n__device__ T other")[0]
    assert repetitions(SOURCE.replace("namespace {", twin), TWICE, ()) == []
    left = without(again, ["again"], "x.cu")
    assert "since it repeats your exercise; x.cu has it\n  return {};\n}" in left
    assert left.count("return y + x;") == 1


def write_day(folder: Path, exercise: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "x.cu").write_text(SOURCE)
    head = 'TITLE = "T"\nTEACHES = "t"\nTOPICS = ("x",)\nSOURCE = "x.cu"\n'
    (folder / "day.py").write_text(f"{head}EXERCISE = {exercise}\n")
    return folder


def test_an_exercise_is_read_without_running_the_day(tmp_path: Path) -> None:
    text = 'Exercise(function="twice", task="Double it.", hints=("a", "b"))'
    day = read_day(write_day(tmp_path / "days" / "day01", text))
    assert day.exercise == Exercise("twice", "Double it.", ("a", "b"))


@pytest.mark.parametrize(
    ("exercise", "message"),
    [
        ('"twice"', "must be Exercise"),
        ("Exercise(function=name, task='', hints=())", "must be made of literals"),
        ("Exercise(task='', hints=())", "missing 1 required positional argument: 'function'"),
        ("Exercise(functoin='x', task='', hints=())", "unexpected keyword argument 'functoin'"),
    ],
)
def test_a_wrong_exercise_names_its_line(tmp_path: Path, exercise: str, message: str) -> None:
    with pytest.raises(DayError, match=r"day\.py:5: EXERCISE") as caught:
        read_day(write_day(tmp_path / "days" / "day01", exercise))
    assert message in str(caught.value)


def test_the_learners_file_lives_beside_the_days(tmp_path: Path) -> None:
    days = tmp_path / "days"
    text = 'Exercise(function="twice", task="Double it.", hints=("a", "b"))'
    challenge = write_challenge(read_day(write_day(days / "day01", text)), days)
    assert challenge.file == tmp_path / "practice" / "day01" / "write.cu"
    assert challenge.rungs == ("one",)
    assert challenge.begin()
    assert not challenge.begin(), "what the learner wrote is never overwritten"
    assert challenge.state().open
    mine = challenge.file.read_text().replace("return {};", "return 2 * x;")
    challenge.file.write_text(mine)
    assert not challenge.state().open
    assert challenge.day_to_run().source == challenge.file
    first, second = challenge.reset(), challenge.reset()
    assert first is not None and second is not None
    assert first.read_text() == mine
    assert {first.name, second.name} == {"write.1.cu", "write.2.cu"}
    challenge.file.write_text("int x;\n")
    with pytest.raises(ExerciseError, match=r"twice is not there; .* --reset begins anew"):
        challenge.state()


def test_what_a_day_builds_itself_is_built_of_the_learners_file(tmp_path: Path) -> None:
    """For the rungs that the exercise names, and nothing else."""
    days = tmp_path / "days"
    text = 'Exercise(function="twice", task="t", hints=("a",), rungs=("quick",))'
    folder = write_day(days / "day01", text)
    (folder / "bind.cpp").touch()
    with (folder / "day.py").open("a") as day_py:
        day_py.write('EXTRA_SOURCES = ("bind.cpp",)\n')
    challenge = write_challenge(read_day(folder), days)
    assert challenge.rungs == ("quick",) and challenge.begin()
    day = challenge.day_to_run()
    assert day.only == ("quick",)
    assert day.file("x.cu") == challenge.file
    assert day.file("bind.cpp") == folder / "bind.cpp"


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """As with `--solution | head`."""
    script = [sys.executable, ROOT / "run_day.py", "3", "--solution", "--days", tmp_path / "days"]
    shutil.copytree(DAYS / "day03", tmp_path / "days" / "day03")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(script, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_the_journal_survives(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "practice")
    assert not journal.begun and not journal.solved(5, "write")
    journal.entry(5, "write").hints = 2
    journal.entry(5, "write").solved = "2026-01-31"
    journal.save()
    again = Journal(tmp_path / "practice")
    assert again.solved(5, "write") and again.entry(5, "write").hints == 2
    assert not again.solved(5, "debug")
    journal.path.with_suffix(".partial").write_text("{")  # an interrupted write
    assert Journal(tmp_path / "practice").solved(5, "write")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 9, "days": {}}', '{"format": 1}'])
def test_a_damaged_journal_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "progress.json").write_text(text)
    with pytest.raises(JournalError, match=r"progress\.json cannot be read: .*move it away"):
        Journal(tmp_path)


def test_the_journal_is_plain_data(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.entry(5, "write").hints = 1
    journal.save()
    data = json.loads(journal.path.read_text())
    assert data["days"]["5"]["write"]["hints"] == 1


@pytest.mark.parametrize(("done", "filled"), [(0, 0), (1, 1), (14, 6), (27, 11), (28, 12)])
def test_a_bar_shows_the_first_and_is_full_at_the_last(
    tmp_path: Path, done: int, filled: int
) -> None:
    days = [day for day in discover()[0] if day.number < 11]
    journal = Journal(tmp_path)
    every = exercises(days)
    assert len(every) == 28
    for day, kind in every[:done]:
        journal.entry(day.number, kind).solved = "2026-01-31"
    bar = standing(days, journal)[0].split()[-5]
    assert bar == "■" * filled + "□" * (12 - filled)


def test_what_a_day_shows_is_no_part_of_an_exercise() -> None:
    """It would take time, and stand below the failure that is to be read."""
    from common.process.worker import Work, _show

    shown: list[str] = []
    lesson: Any = SimpleNamespace(show=lambda *_: shown.append("shown"))
    for work, count in ((Work(alone=True), 0), (Work(rungs=("v1",)), 0), (Work(), 1)):
        run: Any = SimpleNamespace(
            work=work,
            stage=lambda *_: None,
            backend=SimpleNamespace(device="cpu", synchronize=lambda: None),
        )
        _show(run, lesson, None)
        assert len(shown) == count, work
