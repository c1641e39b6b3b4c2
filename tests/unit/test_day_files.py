"""The TOML files of a day: their contents, and the errors of invalid ones."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from common.base.day_files import (
    DayError,
    KnownMutants,
    Step,
    read_excused,
    read_mutants,
    read_steps,
)
from common.base.days import read_day

STEP = '[[step]]\nfunction = "twice"\ntask = "Double it."\nhints = ["a", "b"]\nwhy = "So."\n'

LISTED = '[[equivalent]]\nmutants = ["f: comparison: `a < b` -> `a <= b`"]\nwhy = "equal"\n'


def named(name: str) -> str:
    return f'{STEP}name = "{name}"\n'


def test_line_breaks_of_prose_are_blanks(tmp_path: Path) -> None:
    file = tmp_path / "exercises.toml"
    file.write_text(
        '[[step]]\nfunction = "f"\nfirst = "  if (x)"\nrungs = ["v"]\ntask = """\n  Two\n  lines.\n'
        "\"\"\"\nhints = [\n    '''\n    a \\ b\n    c\n    ''',\n]\n"
        'why = "So."\n'
    )
    (found,) = read_steps(file)
    assert found == Step("f", "Two lines.", ("a \\ b c",), "So.", first="  if (x)", rungs=("v",))


def test_mutants_have_reasons(tmp_path: Path) -> None:
    file = tmp_path / "mutants.toml"
    file.write_text(f'{LISTED}[[heuristic]]\nfunctions = ["f", "a.cuh: g"]\nwhy = "chooses"\n')
    same = {"f: comparison: `a < b` -> `a <= b`": "equal"}
    assert read_mutants(file) == KnownMutants(same, {"f": "chooses", "a.cuh: g": "chooses"})


def test_a_file_that_is_not_there_lists_nothing(tmp_path: Path) -> None:
    assert read_steps(tmp_path / "exercises.toml") == ()
    assert read_mutants(tmp_path / "mutants.toml") == KnownMutants()


def test_kernels_are_excused_with_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "evidence.toml"
    assert read_excused(file) == {}
    file.write_text('[[excused]]\nkernels = ["f", "g"]\nwhy = "two blocks\\nare resident"\n')
    assert read_excused(file) == dict.fromkeys(("f", "g"), "two blocks are resident")
    file.write_text('[[excused]]\nkernels = ["f"]\n')
    with pytest.raises(DayError, match=r"evidence.toml: \[\[excused\]\].why: missing"):
        read_excused(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[step]\n", "(at line 1"),
        (STEP.replace("function", "functoin"), "[[step]].functoin: unknown, expected function"),
        (STEP.replace('task = "Double it."\n', ""), "[[step]].task: missing"),
        (STEP.replace('"Double it."', "3"), "[[step]].task: expected a text, got 3"),
        (STEP.replace('"Double it."', '" "'), "[[step]].task: is empty"),
        (STEP.replace('["a", "b"]', '"a"'), "[[step]].hints: expected a list, got 'a'"),
        (STEP.replace('"b"', "2"), "[[step]].hints[1]: expected a text, got 2"),
        (STEP.replace('["a", "b"]', "[]"), "[[step]].hints: is empty"),
        (STEP.replace('"b"', '""'), "[[step]].hints: is empty, or has an empty text"),
        (STEP + STEP.replace("task", "tsak"), "[[step]] 2.tsak: unknown"),
        (STEP + STEP, "[[step]] 1: name is missing: the day has 2 steps"),
        (named("one") + STEP, "[[step]] 2: name is missing"),
        (named("one") + named("one"), "[[step]] 2: name: 'one' is another step's name"),
        (named("one") + named("debug"), "[[step]] 2: name: 'debug' is a kind of exercise"),
        (named("one") + named("The loop"), "[[step]] 2: name must be lower-case letters"),
        (named("one"), "name: the only step of a day is called 'write'"),
        (STEP.replace("[[step]]", "[step]"), "step must be tables, each begun by [[step]]"),
        (STEP.replace("step", "steps"), "'steps' is unknown; the file holds tables [[step]] and"),
    ],
)
def test_a_wrong_exercise_names_file_table_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "exercises.toml"
    file.write_text(text)
    with pytest.raises(DayError, match=re.escape(message)) as caught:
        read_steps(file)
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LISTED + LISTED, "mutants: 'f: comparison: `a < b` -> `a <= b`' is listed twice"),
        (LISTED.replace('"equal"', '""'), "[[equivalent]].why: is empty"),
        (LISTED.replace("mutants", "mutant"), "mutant: unknown, expected mutants, why"),
        ('[[heuristic]]\nwhy = "x"\n', "[[heuristic]].functions: missing"),
        ("other = 1\n", "'other' is unknown; the file holds tables [[equivalent]] and [[heur"),
    ],
)
def test_a_wrong_list_of_mutants_names_what_is_wrong(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "mutants.toml").write_text(text)
    with pytest.raises(DayError, match=re.escape(message)):
        read_mutants(tmp_path / "mutants.toml")


def test_a_day_with_a_wrong_file_is_no_proper_day(tmp_path: Path) -> None:
    day = tmp_path / "day01"
    day.mkdir()
    (day / "x.cu").touch()
    (day / "day.py").write_text('TITLE = "T"\nTEACHES = "t"\nTOPICS = ("x",)\nSOURCE = "x.cu"\n')
    assert read_day(day).steps == ()
    for name, text, message in (
        ("exercises.toml", STEP + STEP, "name is missing: the day has 2 steps"),
        ("exercises.toml", "step = 1\n", "step must be tables"),
        ("mutants.toml", "other = 1\n", "'other' is unknown"),
    ):
        (day / name).write_text(text)
        with pytest.raises(DayError, match=rf"day01/{name}: .*{re.escape(message)}"):
            read_day(day)
        (day / name).unlink()


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "bytes", "deep"])
def test_what_is_no_text_in_place_of_a_toml_file(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "exercises.toml"
    makers: dict[str, tuple[Callable[[], object], str]] = {
        "folder": (file.mkdir, "is no file"),
        "link": (lambda: file.symlink_to("nowhere"), "is no file"),
        "pipe": (lambda: os.mkfifo(file), "is no file"),
        "bytes": (lambda: file.write_bytes(b"a = '\xff'"), "cannot be read"),
        "deep": (lambda: file.write_text(f"a = {'[' * 100_000}"), "nested too deeply"),
    }
    make, message = makers[kind]
    make()
    with pytest.raises(DayError, match=rf"exercises\.toml: {message}"):
        read_steps(file)
