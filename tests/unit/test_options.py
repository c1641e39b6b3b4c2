"""The options of a run: parsed once, and the same in a process that a tool watches."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import run_day
from common.base.options import RunOptions


def parsed(words: list[str]) -> RunOptions:
    """Return the options of a command line."""
    parser = run_day.parser()
    args = parser.parse_intermixed_args(words)
    run_day.check(parser, args)
    return RunOptions.of(vars(args))


# Those that a caller sets, without an option of the command line.
INTERNAL = {"alone", "debug", "first_calls", "explain", "threads", "attend"}


def test_every_field_is_parsed_under_its_name() -> None:
    known = {action.dest for action in run_day.parser()._actions}
    names = {field.name for field in fields(RunOptions)}
    assert names - known == INTERNAL


def test_without_words_the_options_are_the_defaults() -> None:
    assert parsed([]) == RunOptions()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("5 --no-bench --quick --verbose", {"bench": False, "quick": True, "verbose": True}),
        ("5 --sanitize --no-color", {"mode": "sanitize", "colour": False}),
        ("5 --compile-only --arch 7.5,8.6", {"mode": "compile-only", "archs": ("7.5", "8.6")}),
        ("5 --draw", {"mode": "draw", "svg": None}),
        ("5 --draw x.svg", {"mode": "draw", "svg": Path("x.svg")}),
        ("5 --rungs a,b", {"rungs": ("a", "b")}),
        ("5 --swap x.cu y.cu", {"swap": (Path("x.cu"), Path("y.cu"))}),
        ("5 -j 3 --time-limit 7", {"jobs": 3, "time_limit": 7.0}),
    ],
)
def test_words_become_options(words: str, options: dict[str, object]) -> None:
    assert parsed(words.split()) == replace(RunOptions(("5",)), **options)  # type: ignore[arg-type]


def test_a_watched_process_has_the_options_of_its_parent(tmp_path: Path) -> None:
    """A forgotten word would let a tool watch other kernels than those that were named."""
    parent = RunOptions(
        selected=("all",),
        device="cpu",
        mode="sanitize",
        days=tmp_path,
        model="8.6",
        rungs=("v1", "v2"),
        swap=(Path("a.cu"), Path("b.cu")),
        time_limit=9.0,
        json=Path("report.json"),
        write=False,
    )
    changes: dict[str, Any] = {
        "quick": True,
        "bench": False,
        "watched": True,
        "json": tmp_path / "child.json",
    }
    child = parsed(parent.watched_command(7, "cpu", **changes)[2:])
    assert child == replace(
        parent, selected=("7",), mode="run", further=True, in_process=True, colour=False, **changes
    )


def test_a_watched_process_writes_no_report_of_its_own() -> None:
    parent = RunOptions(("1",), mode="profile", json=Path("report.json"), write=True)
    child = parsed(parent.watched_command(1, "cuda", mode="profiled")[2:])
    assert (child.mode, child.json, child.write, child.further) == ("profiled", None, False, True)
