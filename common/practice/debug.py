"""Define the debug exercises: one of the day's mutants is planted, and the learner finds it."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.base.days import Day
from common.cpu.lexer import tokenize
from common.cpu.syntax import TokenError
from common.mutants.derive import Mutant, balanced, mutants_of
from common.mutants.heuristics import covered
from common.mutants.outline import outline, outlines_of
from common.practice.challenge import Challenge, State, rungs_that_reach, shown
from common.practice.journal import practice_folder
from common.practice.planted_text import planted_text
from common.practice.steps import ExerciseError
from common.report.stored import read_scores

UNSEEN = frozenset(("64-bit index in 32 bits",))  # kinds that no case of a learner's size shows
# Kinds that fail or pass depending on how the machine runs threads: planted if the checks reject
# them this many times in a row.
BY_CHANCE = frozenset(("atomic made plain", "fence or memory order"))
IN_A_ROW = 3
# Kinds that an ordinary check on the CPU backend never detects, or by luck if many cores run the
# blocks (see common/cpu/README.md): not even tried there.
UNSEEN_ON_CPU = frozenset(("atomic made plain",))
# Kinds that are planted in launchers, on a day whose kernels are elsewhere or small: in the part
# that computes, not in the checks.
OF_LAUNCHERS = frozenset(
    (
        "arithmetic operator",
        "comparison",
        "constant off by one",
        "grid or block size",
        "initial value",
        "loop bound off by one",
        "loop stride",
        "rounded down",
    )
)
ENOUGH = 9  # changes of kernels, of which three are certainly rejected
SHOWN = 4  # lines of a change that are shown
OFFERED = 24  # mutants of a day to choose from; those that its checks reject are planted


@dataclass(frozen=True)
class DebugChallenge(Challenge):
    """An exercise to find a change planted in the day's file."""

    mutant: Mutant

    def state(self) -> State:
        theirs = _code_of(self.text, self.mutant.function)
        same = theirs == _code_of(self.start, self.mutant.function)
        still = f"the planted change is still in {shown(self.file)}"
        return State(shown(self.file), still if same else "")

    def explanation(self) -> list[str]:
        kind = self.mutant.kind
        before = self.original.read_text(encoding="utf-8").splitlines()
        planted, right = _differing(self.start.splitlines(), before)
        return [
            f"It was in {self.mutant.function}, {self.original.name}:{self.mutant.line}, "
            f"{kind.name}:",
            *_titled("planted", planted),
            *_titled("right", right),
            kind.explanation,
        ]


def _code_of(text: str, function: str) -> list[list[str]]:
    """Return the tokens of the functions of this name, or of the whole text if brackets do not
    match."""
    try:
        read = outline(text)
    except TokenError:
        return [[token.text for token in tokenize(text) if token.is_code]]
    found = (f for d in read.declarations for f in d.functions if f.name == function)
    return [[token.text for token in read.code.code[f.start : f.end]] for f in found]


def _differing(mine: Sequence[str], right: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the lines of each that the other lacks, ignoring comments and indentation."""
    matcher = difflib.SequenceMatcher(None, _bare(mine), _bare(right), autojunk=False)
    changed = [codes for codes in matcher.get_opcodes() if codes[0] != "equal"]
    return (
        [line.strip() for _, low, high, _, _ in changed for line in mine[low:high]],
        [line.strip() for _, _, _, low, high in changed for line in right[low:high]],
    )


def _bare(lines: Sequence[str]) -> list[str]:
    return [line.split("//")[0].strip() for line in lines]


def _titled(title: str, lines: Sequence[str]) -> list[str]:
    """Return these lines, one per line, with the title in front of the first."""
    shown_lines = [*lines[:SHOWN], "…"] if len(lines) > SHOWN else lines or ["(nothing)"]
    return [f"  {title if not i else '':<8} {line}" for i, line in enumerate(shown_lines)]


def candidates(day: Day) -> list[Mutant]:
    """Return mutants of the kernels in the day's sources, every kind and function among them, in
    planting order; also of its launchers if there are few. Mutants known to survive
    (results/mutants.json) are excluded. The day's checks are tried on a mutant only when it is
    planted. Raise ResultsError for an invalid score file."""
    device = {
        (source, function.name)
        for source, read in outlines_of(day).items()
        for declared in read.declarations
        for function in declared.functions
        if function.on_device
    }
    score = read_scores(days=day.name).get(day.number)
    useless = {*day.equivalent, *(score.survived if score else ())}
    every = [
        m
        for m in mutants_of(day)
        if m.source in day.library_sources
        and m.kind.name not in UNSEEN
        and m.identity not in useless
        and not covered(day, m)
    ]
    found = [m for m in every if (m.source, m.function) in device]
    if len(found) < ENOUGH:
        found += [m for m in every if m not in found and m.kind.name in OF_LAUNCHERS]
    offered = balanced(found, OFFERED)
    return _varied([mutant for mutant in offered if planted_text(mutant) is not None])


def _varied(found: list[Mutant]) -> list[Mutant]:
    """Return the mutants in an order in which neighbours differ in kind and function, if
    possible."""
    left, ordered = list(found), list[Mutant]()
    kinds, functions = Counter[str](), Counter[str]()
    while left:
        best = min(left, key=lambda m: (kinds[m.kind.name], functions[m.function], m.identity))
        left.remove(best)
        kinds[best.kind.name] += 1
        functions[best.function] += 1
        ordered.append(best)
    return ordered


def debug_challenge(day: Day, root: Path, planted: str, tried: Collection[str]) -> DebugChallenge:
    """Return the exercise to find a planted change.

    planted: identity of the planted mutant; without it, the first that is not in `tried` is used.
    Raise ExerciseError if none is left, OSError if the source cannot be read, ResultsError if the
    scores cannot.
    """
    found = candidates(day)
    mutant = next((m for m in found if m.identity == planted), None)
    if mutant is None:
        mutant = next((m for m in found if m.identity not in tried), None)
    if mutant is None:
        raise ExerciseError(f"day {day.number} has no other change to plant: all are found")
    text = planted_text(mutant)
    assert text is not None, "candidates leaves such out"
    return DebugChallenge(
        day,
        "debug",
        practice_folder(root) / day.name / "debug.cu",
        mutant.source,
        text,
        f"one change is planted in {mutant.source.name}. Find it, and fix it.",
        (
            f"{day.practice('debug')} --sanitize looks for races, missing barriers and bad "
            "addresses, and names lines. Which elements are wrong in the report: the last ones, a "
            "column, all of them?",
            f"The change is in {mutant.function}.",
            f"Its kind is: {mutant.kind.name}. {mutant.kind.explanation}",
        ),
        rungs_that_reach(day, mutant.source, mutant.function),
        mutant,
    )
