"""Texts derived from every day's text, without a compiler: its exercises and its mutants."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from common.base.day_files import EXERCISES, Step, read_outcomes
from common.base.days import Day, discover, load_lesson
from common.base.ladder import has_ladder, ladder_of
from common.base.paths import DAYS, ROOT
from common.cpu.lexer import tokenize
from common.mutants import derive
from common.mutants.heuristics import covered, unfit
from common.mutants.outline import outline
from common.practice.challenge import write_challenge
from common.practice.debug import candidates
from common.practice.planted_text import planted_text
from common.practice.progress import exercises_of
from common.practice.speed import speed_challenge
from common.practice.steps import MARK, changed_around, same_code, solution
from tests.days.outcomes import changed_by

FOUND, _ = discover()
every_day = pytest.mark.parametrize("day", FOUND, ids=[day.name for day in FOUND])
STEPS = [pytest.param(day, s, id=f"{day.name}-{s.name}") for day in FOUND for s in day.steps]
every_step = pytest.mark.parametrize(("day", "step"), STEPS)
EARLY = 25  # days on which a learner goes in small steps
with_a_ladder = pytest.mark.parametrize(
    "day", [pytest.param(day, id=day.name) for day in FOUND if has_ladder(day)]
)

# ---------------------------------------------------------------- write


@every_day
def test_every_day_has_steps(day: Day) -> None:
    """The early days have several, and begin with one that is a line or three."""
    least, most = (3, 5) if day.number <= EARLY else (1, 5)
    assert least <= len(day.steps) <= most, f"{day.name} has {len(day.steps)} steps"
    if day.number <= EARLY:
        assert len(lines_of(day, day.steps[0])) <= 3, "begin with something small"


@every_step
def test_a_step_can_be_found_and_done(day: Day, step: Step) -> None:
    challenge = write_challenge(day, DAYS, step)
    assert not same_code(challenge.solved, challenge.start, step)
    assert changed_around(challenge.solved, challenge.start, step) == []
    assert challenge.start.count(MARK) == 1
    assert 1 <= len(lines_of(day, step)) <= 25
    code = "".join(solution(challenge.solved, step).split())
    assert 2 <= len(step.hints) <= 3
    for words in (step.task, *step.hints, step.why):
        assert len(words) > 30, f"this helps no learner: {words!r}"
    for words in (step.task, *step.hints):
        assert code not in "".join(words.split()), f"this is the solution: {words!r}"


@every_step
def test_no_readme_prints_what_is_to_be_written(day: Day, step: Step) -> None:
    """A README's listings contain at most a fourth of a step's lines of code."""
    readme = (day.folder / "README.md").read_text(encoding="utf-8")
    listings = re.findall(r"^```(?:cuda|python|cpp)\n(.*?)^```", readme, re.M | re.S)
    printed = {bare(line) for listing in listings for line in listing.splitlines()}
    telling = [line for line in map(bare, lines_of(day, step)) if len(line) > 16]
    shown = [line for line in telling if line in printed]
    assert 4 * len(shown) <= len(telling), f"the README prints {shown}"


def lines_of(day: Day, step: Step) -> list[str]:
    """Return the lines that the learner writes, without blank lines and comments."""
    lines = solution(write_challenge(day, DAYS, step).solved, step).splitlines()
    return [line for line in lines if line.strip() and not line.strip().startswith(("//", "#"))]


def bare(line: str) -> str:
    return "".join(re.sub(r"//.*|#\s.*", "", line).split())


@every_day
def test_an_outcome_belongs_to_an_item(day: Day) -> None:
    """The item is one of "Try it yourself", and what it changes can be found."""
    readme = (day.folder / "README.md").read_text(encoding="utf-8")
    tried = readme.partition("## Try it yourself")[2].partition("\n## ")[0]
    items = re.findall(r"^(\d+)\. ", tried, re.M)
    for outcome in read_outcomes(day.folder / EXERCISES):
        assert outcome.item in items
        changed_by(outcome, day)


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
    assert ("speed" in exercises_of(day)) == has_ladder(day)


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
        defined = [name for name in names[1:] if f"{name}_kernel" in challenge.start]
        assert not [name for name in defined if f"return {name}(" not in challenge.start]
    assert challenge.original.read_text(encoding="utf-8") != challenge.start
    assert len(challenge.hints) == len(names) - 1
    assert all(name in hint for name, hint in zip(names[1:], challenge.hints, strict=True))
    code = challenge.answer[1]
    for hint in challenge.hints:
        assert "{" not in hint and ";" not in hint and hint not in code


# ---------------------------------------------------------------- debug


# Code that a compiler accepts and no programmer writes.
GIVE_AWAY = re.compile(
    r"""\b(if|while)\ \((true|false)\) | \btrue\ \? | ^\s*; | \s[;,)\]] | [(\[]\s+\S
      | \[&\]\ \{\ auto\* | (?<![\w>\])])\(\w+\)\ [-+/] | [-+]\ \d+\ [-+]\ \d
      | (?<![*/%]\ )(?<![\w.])\d+\ [-+]\ \d+\b | [+-]\ 0\b(?!\.)
      | \*\ 1\b(?!\.) | \S\ \ +[^\s/] | \(\([\w.]+\)\)""",
    re.VERBOSE,
)


@every_day
def test_no_words_give_a_change_away(day: Day) -> None:
    for mutant in candidates(day):
        text = planted_text(mutant)
        assert text is not None
        before = set(mutant.source.read_text(encoding="utf-8").splitlines())
        for line in text.splitlines():
            code = line.split("  //")[0].rstrip()
            if line not in before and code.strip():
                assert not GIVE_AWAY.search(code.lstrip()), f"{mutant.identity}\n{line}"


@pytest.mark.skipif(
    not shutil.which("clang-format"),
    reason="no clang-format: python -m pip install -r .ci/requirements.txt",
)
@every_day
def test_no_place_on_the_page_gives_a_change_away(day: Day, tmp_path: Path) -> None:
    """It is formatted as the rest is."""
    for i, mutant in enumerate(candidates(day)[:3]):
        text = planted_text(mutant) or ""
        (tmp_path / f"{i}{mutant.source.suffix}").write_text(text, encoding="utf-8")
    style = f"--style=file:{ROOT / '.clang-format'}"
    command = ["clang-format", style, "--dry-run", "--Werror"]
    command += map(str, sorted(tmp_path.iterdir()))
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 0, run.stderr


# ---------------------------------------------------------------- mutants


@cache
def mutants_of(number: int) -> list[derive.Mutant]:
    return derive.mutants_of(next(day for day in FOUND if day.number == number).with_further())


def same_start(a: str, b: str) -> int:
    """Return the number of characters that two texts share at the beginning."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


@every_day
def test_mutants_of_the_days(day: Day) -> None:
    """Each differs from its source in one place, keeps every line, and has a unique name."""
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
    found = mutants_of(day.number)
    assert set(day.equivalent) <= {mutant.identity for mutant in found}
    assert unfit(day, found) == []
    twice = [m.identity for m in found if m.identity in day.equivalent and covered(day, m)]
    assert twice == [], "a heuristic covers them already"
