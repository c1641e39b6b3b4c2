"""The debug exercises: one of the day's mutants is planted, and the learner finds it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from common.base.days import Day
from common.practice.challenge import Challenge, State, rungs_to_check, shown
from common.practice.exercise import ExerciseError
from common.practice.journal import practice_folder
from common.practice.mutants.derive import Mutant, balanced, mutants_of
from common.practice.mutants.outline import outlines_of

UNSEEN = frozenset(("64-bit index in 32 bits",))  # kinds that no case of a learner's size shows
# Kinds that are planted in launchers, on a day whose kernels are elsewhere or small: of what a
# launcher computes, not of what it refuses.
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
ENOUGH = 9  # changes of kernels, of which three are sure to be rejected
OFFERED = 24  # mutants of a day, among which those are planted that its checks reject


@dataclass(frozen=True)
class DebugChallenge(Challenge):
    """One change is planted in the day's file."""

    mutant: Mutant

    def state(self) -> State:
        theirs = _lines(self.file.read_text(encoding="utf-8"))
        planted = _lines(self.start)
        original = _lines(self.original.read_text(encoding="utf-8"))
        there = all(theirs[line] >= planted[line] for line in planted - original)
        missing = any(theirs[line] < original[line] for line in original - planted)
        still = f"the planted change is still in {shown(self.file)}"
        return State(shown(self.file), still if there and missing else "")

    def explanation(self) -> list[str]:
        kind = self.mutant.kind
        name = self.original.name
        return [
            f"It was in {self.mutant.function}, {name}:{self.mutant.line}, {kind.name}:",
            f"  planted  {self.mutant.changed or '(nothing)'}",
            f"  right    {self.mutant.original}",
            kind.explanation,
        ]


def _lines(text: str) -> Counter[str]:
    """How often each line of code is there, without blanks and comments."""
    bare = (re.sub(r"\s+", "", line.split("//")[0]) for line in text.splitlines())
    return Counter(line for line in bare if line)


def candidates(day: Day) -> list[Mutant]:
    """Mutants of the day's kernels, every kind and function among them, in the order in which they
    are planted; of its launchers too where there are few. Whether the day's checks reject one is
    seen when it is planted."""
    device = {
        (source, function.name)
        for source, read in outlines_of(day).items()
        for declared in read.declarations
        for function in declared.functions
        if function.on_device
    }
    every = [
        m for m in mutants_of(day) if m.kind.name not in UNSEEN and m.identity not in day.equivalent
    ]
    found = [m for m in every if (m.source, m.function) in device]
    if len(found) < ENOUGH:
        found += [m for m in every if m not in found and m.kind.name in OF_LAUNCHERS]
    return _varied(balanced(found, OFFERED))


def _varied(found: list[Mutant]) -> list[Mutant]:
    """In an order in which neighbours are of different kinds, where that is possible."""
    left, ordered = list(found), list[Mutant]()
    while left:
        kinds = [m.kind.name for m in ordered]
        best = min(left, key=lambda m: (kinds.count(m.kind.name), m.identity))
        left.remove(best)
        ordered.append(best)
    return ordered


def planted_text(mutant: Mutant) -> str:
    """The changed file. Where a line has lost all of its code, its comment goes too: it would say
    what is missing."""
    original = mutant.source.read_text(encoding="utf-8").split("\n")
    lines = mutant.text().split("\n")
    kept = []
    for before, after in zip(original, lines, strict=True):
        emptied = before != after and not after.split("//")[0].strip()
        if not emptied or before.split("//")[0].strip() == "":
            kept.append(after)
    return "\n".join(kept)


def debug_challenge(day: Day, root: Path, planted: str, tried: Collection[str]) -> DebugChallenge:
    """The exercise to find a planted change.

    planted: the identity of the one that is there; where there is none, the first that is not in
    `tried` is taken. Raises ExerciseError where none is left, OSError where the source cannot be
    read.
    """
    found = candidates(day)
    mutant = next((m for m in found if m.identity == planted), None)
    if mutant is None:
        mutant = next((m for m in found if m.identity not in tried), None)
    if mutant is None:
        raise ExerciseError(f"day {day.number} has no other change to plant: all are found")
    return DebugChallenge(
        day,
        "debug",
        practice_folder(root) / day.name / "debug.cu",
        mutant.source,
        planted_text(mutant),
        f"one change is planted in {mutant.source.name}. Find it, and fix it.",
        (
            f"{day.practice('debug')} --sanitize looks for races, missing barriers and bad "
            "addresses, and names lines. Which elements are wrong in the report: the last ones, a "
            "column, all of them?",
            f"The change is in {mutant.function}.",
            f"Its kind is: {mutant.kind.name}. {mutant.kind.explanation}",
        ),
        rungs_to_check(day, mutant.source, mutant.function),
        mutant,
    )
