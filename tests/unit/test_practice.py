"""Practice mode: exercises, the learner's file, the journal."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.base.day_files import Step
from common.base.days import discover, read_day
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome
from common.base.paths import DAYS, ROOT
from common.mutants.outline import outline
from common.practice.challenge import WriteChallenge, write_challenge
from common.practice.excerpt import excerpt
from common.practice.journal import Journal, JournalError
from common.practice.progress import exercises, next_exercise, progress_lines
from common.practice.python_code import body_of, code_of, excerpt_of
from common.practice.steps import (
    ExerciseError,
    changed_around,
    line_of,
    linked_for,
    place,
    rungs_that_use,
    same_code,
    solution,
    stub,
    with_backward,
)
from common.report.terminal import Report
from common.run.tutor import _with_what_is_no_fault_noted

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
TWICE = Step("twice", "Double it.", ("a", "b", "c"), "So.")


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


def test_an_excerpt_keeps_a_variable_that_has_an_alignment() -> None:
    text = (
        "__constant__ alignas(16) unsigned char bytes[64];\n"
        "Tensor one(const Tensor& x) { return bytes[0] ? x : x; }\n"
        'RUNG(day01, one, "(Tensor x) -> Tensor");\n'
    )
    file = Path("x.cu")
    assert excerpt({file: outline(text)}, file, ["one"]) == text


def test_operators_of_gradients_are_needed_too() -> None:
    operators = ["conv_v1", "conv_weight_gradient_v1", "conv_data_gradient_v2", "sum_v1"]
    operators += ["sum_backward_v1", "sum_backward_v2", "gradient_of_image"]
    bound = {Path("x.cu"): outline("\n".join(f'RUNG(day01, {o}, "()");' for o in operators))}
    assert with_backward(bound, ["conv_v1"]) == [
        *("conv_v1", "conv_data_gradient_v2", "conv_weight_gradient_v1")
    ]
    assert with_backward(bound, ["sum_v1"]) == ["sum_v1", "sum_backward_v1"]


def test_a_stub_replaces_the_body() -> None:
    text = stub(SOURCE, TWICE, "run it")
    assert "// your turn: Double it.\n  // Then: run it\n  return {};\n}" in text
    assert "T y = x;" not in text
    assert same_code(text.replace("// your turn", "// mine"), text, TWICE)
    assert not same_code(SOURCE, text, TWICE)
    assert changed_around(SOURCE, text, TWICE) == []
    assert text.splitlines()[line_of(text, TWICE) - 1].startswith("  // your turn:")
    assert solution(SOURCE, TWICE) == "T y = x;\n// doubled\nreturn y + x;"


def test_a_stub_of_a_part_keeps_the_rest() -> None:
    part = Step("twice", "Say so.", ("a",), "So.", first="// doubled", last="// doubled")
    text = stub(SOURCE, part, "run it")
    assert "T y = x;\n  // your turn: Say so.\n  // Then: run it\n  return y + x;\n" in text


def test_a_stub_is_indented_as_what_it_replaces() -> None:
    """Also if that begins with a directive, which has no indentation."""
    member = "struct S {\n  int f() {\n#pragma unroll\n    return 2;\n  }\n};\n"
    text = stub(member, Step("S::f", "Return 2.", ("a",), "So."), "run it")
    gap = "    // your turn: Return 2.\n    // Then: run it\n    return {};\n"
    assert text == "struct S {\n  int f() {\n" + gap + "  }\n};\n"


def test_a_body_on_one_line_becomes_a_gap() -> None:
    text = stub(SOURCE, Step("two", "Return x.", ("a",), "So."), "run it")
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
        (Step("thrice", "", (), ""), "the function thrice is not there"),
        (Step("twice", "", (), "", first="no such"), "no line of the function has 'no such'"),
        (Step("twice", "", (), "", first="x"), "more than one line of the function has 'x'"),
        (Step("twice", "", (), "", first="return y", last="T y"), "stands before"),
    ],
)
def test_what_cannot_be_found_is_said(exercise: Step, message: str) -> None:
    with pytest.raises(ExerciseError, match=message):
        place(SOURCE, exercise)


def test_unbalanced_code_is_an_error_and_no_crash() -> None:
    with pytest.raises(ExerciseError, match="twice cannot be found"):
        place("__device__ int twice() {\n  return 1;\n", TWICE)


STEP = '[[step]]\nfunction = "twice"\ntask = "Double it."\nhints = ["a", "b"]\nwhy = "So."\n'


def write_day(folder: Path, step: str = STEP) -> Path:
    folder.mkdir(parents=True)
    (folder / "x.cu").write_text(SOURCE)
    head = 'TITLE = "T"\nTEACHES = "t"\nTOPICS = ("x",)\nSOURCE = "x.cu"\n'
    (folder / "day.py").write_text(head)
    (folder / "exercises.toml").write_text(step)
    return folder


def challenge_of(folder: Path, days: Path, step: int = 0) -> WriteChallenge:
    day = read_day(folder)
    return write_challenge(day, days, day.steps[step])


def test_an_exercise_is_read_without_running_the_day(tmp_path: Path) -> None:
    day = read_day(write_day(tmp_path / "days" / "day01"))
    assert day.steps[0] == Step("twice", "Double it.", ("a", "b"), "So.")


def test_the_learners_file_lives_beside_the_days(tmp_path: Path) -> None:
    days = tmp_path / "days"
    challenge = challenge_of(write_day(days / "day01"), days)
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


def test_a_learners_file_that_is_no_utf_8_is_named(tmp_path: Path) -> None:
    days = tmp_path / "days"
    challenge = challenge_of(write_day(days / "day01"), days)
    challenge.begin()
    challenge.file.write_bytes(challenge.file.read_bytes() + b"// caf\xe9\n")
    with pytest.raises(ExerciseError, match=rf"{challenge.file.name}: save it as UTF-8: "):
        challenge.state()


def test_a_file_is_linked_with_what_it_calls_and_with_no_namesake(tmp_path: Path) -> None:
    """A linked file brings all of its code, and needs the files that this calls."""
    folder = write_day(tmp_path / "day01")
    (folder / "shared.cuh").write_text("Tensor halved(const Tensor& x);\n")
    binding = 'RUNG(day01, {0}, "(Tensor x) -> Tensor");\n'
    files = {
        "first.cu": '#include "shared.cuh"\nTensor first(const Tensor& x) { return halved(x); }\n',
        "half.cu": "Tensor whole(const Tensor& x);\nTensor halved(const Tensor& x) { return x; }\n"
        "Tensor other(const Tensor& x) { return whole(x); }\n",
        "whole.cu": "Tensor whole(const Tensor& x) { return x; }\n",
        # `x` is a parameter everywhere else, and no other file declares this one.
        "namesake.cu": "Tensor x(const Tensor& y) { return y; }\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text + binding.format(Path(name).stem))
    with (folder / "day.py").open("a") as day_py:
        day_py.write(f"EXTRA_SOURCES = {tuple(files)}\n")
    day = read_day(folder)
    linked = [path.name for path in linked_for(day, ["first"]).library_sources]
    assert linked == ["first.cu", "half.cu", "whole.cu"]


def test_a_copy_of_a_day_is_linked_as_the_day_is(tmp_path: Path) -> None:
    """It includes the headers of the original, by their place in the repository."""
    days, _ = discover()
    day = next(d for d in days if d.number == 20)
    copy = shutil.copytree(day.folder, tmp_path / day.name)
    for step in day.steps:
        linked, of_copy = (linked_for(d, step.rungs).library_sources for d in (day, read_day(copy)))
        assert [path.name for path in of_copy] == [path.name for path in linked]


def test_what_a_day_builds_itself_is_built_of_the_learners_file(tmp_path: Path) -> None:
    """Build it for the rungs that the exercise names, and nothing else."""
    days = tmp_path / "days"
    folder = write_day(days / "day01", f'{STEP}rungs = ["quick"]\n')
    (folder / "bind.cpp").touch()
    with (folder / "day.py").open("a") as day_py:
        day_py.write('EXTRA_SOURCES = ("bind.cpp",)\n')
    challenge = challenge_of(folder, days)
    assert challenge.rungs == ("quick",) and challenge.begin()
    day = challenge.day_to_run()
    assert day.only == ("quick",)
    assert day.file("x.cu") == challenge.file
    assert day.file("bind.cpp") == folder / "bind.cpp"


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """Read the output as `--solution | head` does."""
    script: list[str | Path] = [sys.executable, ROOT / "run_day.py", "3", "--solution"]
    script += ["--days", tmp_path / "days"]
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


def test_two_terminals_share_the_journal(tmp_path: Path) -> None:
    """Each saves its changes, in any order."""
    one, two = Journal(tmp_path), Journal(tmp_path)
    one.entry(76, "write").solved = "2026-01-31"
    one.save()
    two.entry(4, "debug").planted = "a change"
    two.save()
    one.entry(76, "debug").found.append("first")
    one.save()
    again = Journal(tmp_path)
    assert again.solved(76, "write") and again.entry(4, "debug").planted == "a change"
    assert one.entry(4, "debug").planted == "a change", "what others saved is known then"
    two.entry(76, "debug").found.append("second")
    two.save()
    assert Journal(tmp_path).entry(76, "debug").found == ["first", "second"]


def test_an_entry_that_is_held_goes_on_counting(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    entry = journal.entry(5, "tree")
    for hints in (1, 2):
        entry.hints = hints
        journal.save()
    entry.planted = ""
    journal.save()
    assert Journal(tmp_path).entry(5, "tree").hints == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 9, "days": {}}', '{"format": 1}'])
def test_a_damaged_journal_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "progress.json").write_text(text)
    with pytest.raises(JournalError, match=r"progress\.json cannot be read: .*move it away"):
        Journal(tmp_path)


def test_next_is_the_first_that_is_not_solved(tmp_path: Path) -> None:
    """Begin at a day, or after a named exercise, and go on with those before."""
    days, journal = discover()[0][:2], Journal(tmp_path)
    first, second = (exercises([day]) for day in days)
    assert next_exercise(days, journal, days[1]) == second[0]
    assert next_exercise(days, journal, first[0]) == first[1]
    journal.entry(2, second[0][1]).solved = "2026-01-31"
    assert next_exercise(days, journal, days[1]) == second[1]
    for day, name in (*first[1:], *second):
        journal.entry(day.number, name).solved = "2026-01-31"
    assert next_exercise(days, journal, days[1]) == first[0]
    journal.entry(1, first[0][1]).solved = "2026-01-31"
    assert next_exercise(days, journal) is None


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
    days = [replace(day, steps=day.steps[:1]) for day in discover()[0] if day.number < 11]
    journal = Journal(tmp_path)
    every = exercises(days)
    assert len(every) == 28
    for day, kind in every[:done]:
        journal.entry(day.number, kind).solved = "2026-01-31"
    bar = progress_lines(days, journal)[0].split()[-5]
    assert bar == "■" * filled + "□" * (12 - filled)


def test_what_a_day_shows_is_no_part_of_an_exercise() -> None:
    """It would take time, and be printed below the failure that is to be read."""
    from common.process.worker import _shows

    alone, one_rung = RunOptions(alone=True), RunOptions(rungs=("v1",))
    for options, shows in ((alone, False), (one_rung, False), (RunOptions(), True)):
        run: Any = SimpleNamespace(options=options)
        assert _shows(run) == shows, options


def test_what_was_not_looked_at_to_the_end_is_not_solved() -> None:
    """A too small index and skipped checks are noted: neither makes a solution wrong."""
    rows = [
        RungOutcome("sanitize", "races", "", FAIL, "no end after 300 s"),
        RungOutcome("sanitize", "indices", "", FAIL, "x.cu:3: 64 bits kept in 32"),
        RungOutcome("sanitize", "addresses", "", SKIP, "install g++"),
    ]
    said = io.StringIO()
    found = DayOutcome(5, "day05", "Softmax", FAIL, rungs=rows)
    judged = _with_what_is_no_fault_noted(found, Report(said))
    assert [row.status for row in judged.rungs] == [FAIL, PASS, PASS]
    assert judged.status == FAIL and "--time-limit" in judged.rungs[0].details[-1]
    assert "addresses not looked at: install g++" in said.getvalue()
    assert _with_what_is_no_fault_noted(replace(found, rungs=rows[1:]), Report(said)).status == PASS


def test_an_excerpt_in_python_runs() -> None:
    """It has the code that the names use, and the code of statements that define none."""
    text = """
import math
PLACE, OTHER = 4, 5  # where
UNUSED = 6
def used(): return math.pi + OTHER
def alone(): return UNUSED
def main(): return used()
if PLACE: kept = True
"""
    names: dict[str, Any] = {}
    exec(excerpt_of(text, {"main"}), names)
    assert names["main"]() > 8 and names["kept"]
    assert not {"alone", "UNUSED"} & set(names)


IN_PYTHON = '''\
def kernel(x):
    """Documented."""

    # what comes first
    def inner(y):
        return y + 1

    return inner(x)  # kept
    # and last


class Block:
    def inner(self):
        return 2


def one_line(): return 3
'''


def test_the_body_of_a_function_in_python() -> None:
    """It lacks its docstring and has its comments; a nested function has its full name."""

    def body(name: str) -> str:
        return IN_PYTHON[slice(*body_of(IN_PYTHON, name))]

    assert body("kernel").strip().startswith("# what comes first")
    assert body("kernel").rstrip().endswith("# and last") and "Documented" not in body("kernel")
    assert body("kernel.inner") == "        return y + 1\n"
    assert body("Block.inner") == "        return 2\n"
    assert code_of(IN_PYTHON, "Block.inner") == code_of("def f():\n  return (2)  # two", "f")
    for name, why in (
        ("inner", "is there 2 times"),
        ("outer", "is not there"),
        ("one_line", "has no line of its own"),
    ):
        with pytest.raises(LookupError, match=why):
            body_of(IN_PYTHON, name)
