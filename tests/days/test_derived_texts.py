"""What is derived of every day's text alone, without a compiler: its exercises and its mutants."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from common.base.days import Day, discover, load_lesson
from common.base.ladder import has_ladder, ladder_of
from common.base.paths import DAYS, ROOT
from common.cpu.lexer import tokenize
from common.practice.challenge import source_of, write_challenge
from common.practice.exercise import MARK, changed_around, is_stub, solution
from common.practice.mutants import derive
from common.practice.mutants.outline import outline
from common.practice.natural import natural_text
from common.practice.planted import candidates
from common.practice.repeated import share
from common.practice.speed import speed_challenge
from common.practice.standing import kinds_of

FOUND, _ = discover()
every_day = pytest.mark.parametrize("day", FOUND, ids=[day.name for day in FOUND])
with_a_ladder = pytest.mark.parametrize(
    "day", [pytest.param(day, id=day.name) for day in FOUND if has_ladder(day)]
)

# ---------------------------------------------------------------- write


@every_day
def test_every_day_has_an_exercise(day: Day) -> None:
    assert day.exercise, f"{day.name}/day.py has no EXERCISE"
    original = source_of(day, day.exercise).read_text(encoding="utf-8")
    challenge = write_challenge(day, DAYS)
    theirs = challenge.start
    assert not is_stub(original, theirs, day.exercise)
    assert changed_around(challenge.solved, theirs, day.exercise) == []
    answer = solution(original, day.exercise)
    lines = [line for line in answer.splitlines() if line.strip()]
    assert 5 <= len(lines) <= 20, f"{len(lines)} lines to write"
    assert len(day.exercise.hints) == 3
    assert day.other_sources or not day.exercise.rungs, "the function says which rungs it is in"
    code = "".join(token.text for token in tokenize(answer) if token.is_code)
    for hint in (day.exercise.task, *day.exercise.hints):
        assert len(hint) > 40, f"this helps no learner: {hint!r}"
        assert code not in hint.replace(" ", ""), f"this is the solution: {hint!r}"


@every_day
def test_no_exercise_is_solved_further_down(day: Day) -> None:
    """No kernel that the learner's file holds below the exercise is the exercise again."""
    assert day.exercise
    challenge = write_challenge(day, DAYS)
    answer = [t.text for t in tokenize(solution(challenge.solved, day.exercise)) if t.is_code]
    read = outline(challenge.start)
    functions = [function for d in read.declarations for function in d.functions]
    own = next(f.start for f in functions if f.name == day.exercise.function)
    for function in functions:
        if function.start > own:
            body = [token.text for token in read.code.code[function.body : function.end]]
            assert share(answer, body) < 0.8, f"{function.name} is nearly the solution"


@every_day
def test_sources_include_from_the_repository(day: Day) -> None:
    """A learner's file lies in another folder than the day's headers."""
    for source in [*day.library_sources, *day.folder.glob("*.cuh")]:
        for name in re.findall(r'^#include "([^"]+)"', source.read_text(encoding="utf-8"), re.M):
            assert (ROOT / name).is_file(), (
                f"{source.name} includes {name}: write {day.name}'s path"
            )


# ---------------------------------------------------------------- speed


@every_day
def test_the_sources_alone_say_whether_there_is_one(day: Day) -> None:
    assert has_ladder(day) == (ladder_of(load_lesson(day).problems) is not None)
    assert ("speed" in kinds_of(day)) == has_ladder(day)


@with_a_ladder
def test_the_file_begins_with_the_first_rung_alone(day: Day, tmp_path: Path) -> None:
    challenge = speed_challenge(day, tmp_path / "days")
    names = [rung.name for rung in challenge.ladder.rungs]
    bound = outline(challenge.start).operators
    plain = {name.replace("_backward", "") for name in bound if "_gradient" not in name}
    assert plain == {names[0].replace("_backward", "")}
    assert names[-1] in outline(challenge.answer[1]).operators
    assert challenge.start.count(MARK) == 1 and f"// Then: {challenge.command}" in challenge.start
    # A later rung is named in the note and where v1 sends what it cannot do. It is defined only
    # where another file, which v1 needs, uses it.
    challenge.begin()
    if len(challenge.day_to_run().library_sources) == 1:
        assert not [name for name in names[1:] if f"{name}_kernel" in challenge.start]
    assert challenge.original.read_text(encoding="utf-8") != challenge.start
    assert len(challenge.hints) == len(names) - 1
    assert all(name in hint for name, hint in zip(names[1:], challenge.hints, strict=True))
    code = challenge.answer[1]
    for hint in challenge.hints:
        assert "{" not in hint and ";" not in hint and hint not in code


# ---------------------------------------------------------------- debug


# What a compiler accepts and no programmer writes.
GIVE_AWAY = re.compile(
    r"""\b(if|while)\ \((true|false)\) | \btrue\ \? | ^\s*; | \s[;,)\]] | [(\[]\s+\S
      | \[&\]\ \{\ auto\* | (?<![\w>\])])\(\w+\)\ [-+/] | [-+]\ \d+\ [-+]\ \d
      | (?<![*/%]\ )(?<![\w.])\d+\ [-+]\ \d+\b | [+-]\ 0\b(?!\.)
      | \*\ 1\b(?!\.) | \S\ \ +[^\s/] | \(\([\w.]+\)\)""",
    re.VERBOSE,
)


@every_day
def test_nothing_gives_a_change_away(day: Day, tmp_path: Path) -> None:
    """Neither its words nor its place on the page: it is formatted as the rest is."""
    found = candidates(day)
    texts = [(mutant, natural_text(mutant)) for mutant in found]
    for mutant, text in texts:
        assert text is not None
        before = set(mutant.source.read_text(encoding="utf-8").splitlines())
        for line in text.splitlines():
            code = line.split("  //")[0].rstrip()
            if line not in before and code.strip():
                assert not GIVE_AWAY.search(code.lstrip()), f"{mutant.identity}\n{line}"
    if shutil.which("clang-format"):
        for i, (mutant, text) in enumerate(texts[:3]):
            (tmp_path / f"{i}{mutant.source.suffix}").write_text(text or "", encoding="utf-8")
        style = f"--style=file:{ROOT / '.clang-format'}"
        command = ["clang-format", style, "--dry-run", "--Werror", *sorted(tmp_path.iterdir())]
        run = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        assert run.returncode == 0, run.stderr


# ---------------------------------------------------------------- mutants


@cache
def mutants_of(number: int) -> list[derive.Mutant]:
    return derive.mutants_of(next(day for day in FOUND if day.number == number))


def same_start(a: str, b: str) -> int:
    """How many characters two texts begin with in common."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


@every_day
def test_mutants_of_the_days(day: Day) -> None:
    """Each differs from its source in one place, keeps every line, and has a name of its own."""
    found = mutants_of(day.number)
    assert len(found) >= 10
    identities = [mutant.identity for mutant in found]
    assert len(set(identities)) == len(identities)
    for mutant in derive.balanced(found, 8):
        original = mutant.source.read_text(encoding="utf-8")
        text = mutant.text()
        assert text != original
        assert text.count("\n") == original.count("\n")
        before = same_start(text, original)
        behind = same_start(text[before:][::-1], original[before:][::-1])
        assert len(original) - before - behind < 300, mutant.identity
        assert original[:before].count("\n") + 1 >= mutant.line
        assert "".join(token.text for token in tokenize(text)) == text


@every_day
def test_what_a_day_lists_as_equivalent_exists(day: Day) -> None:
    known = {mutant.identity for mutant in mutants_of(day.number)}
    assert set(day.equivalent) <= known
    assert all(reason.strip() for reason in day.equivalent.values())
