"""The mutants of a day: derived from its `.cu` files, each with a name that survives other edits."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.base.days import Day
from common.cpu.lexer import tokenize
from common.practice.mutants.kinds import Edit, Kind, edits
from common.practice.mutants.outline import Code, Function, Outline, outline

STANDARD = 60  # mutants per source of a full run; a day that has more is sampled with seed 0


@dataclass(frozen=True)
class Mutant:
    """One single change of a day's source.

    identity: "function: kind: `original` -> `changed`", with ", 2nd" behind it where the function
    has several such; it stays the same while other lines change. source: the file. line: of the
    change. original, changed: the text around it, on one line.
    """

    identity: str
    kind: Kind = field(repr=False)
    function: str
    source: Path
    line: int
    original: str
    changed: str
    code: Code = field(repr=False)
    edit: Edit = field(repr=False)

    def text(self) -> str:
        """The whole changed file."""
        return self.code.replaced(self.edit.start, self.edit.end, self.edit.text)


def mutants_of(day: Day, reached: dict[Path, set[str]] | None = None) -> list[Mutant]:
    """All mutants of the day's `.cu` files, in the order of their lines.

    reached: for each source, the operators that the day's rungs call, by default all that it binds.
    What only other operators use is left alone.
    """
    found = []
    for source in day.library_sources:
        read = outline(source.read_text(encoding="utf-8"))
        operators = None if reached is None else reached[source]
        prefix = f"{source.name}: " if len(day.library_sources) > 1 else ""
        found += [
            replace(m, identity=prefix + m.identity) for m in mutants(source, read, operators)
        ]
    return found


def mutants(source: Path, read: Outline, operators: Iterable[str] | None = None) -> list[Mutant]:
    """The mutants of one file, each text once.

    operators: only what these use; by default, all that the file binds.
    """
    code = read.code
    words = [token.text for token in code.code]
    seen = {tuple(words)}
    times: Counter[str] = Counter()
    found = []
    used = read.reached(read.operators if operators is None else operators)
    for function in (function for declared in used for function in declared.functions):
        for kind, edit in edits(code, function):
            changed = [token.text for token in tokenize(edit.text) if token.is_code]
            text = (*words[: edit.start], *changed, *words[edit.end :])
            if text not in seen:
                seen.add(text)
                found.append(_mutant(source, code, function, kind, edit, times))
    return sorted(found, key=lambda m: m.line)


def _mutant(
    source: Path, code: Code, function: Function, kind: Kind, edit: Edit, times: Counter[str]
) -> Mutant:
    start, end = edit.shown or (edit.start, edit.end)
    start, end = min(start, edit.start), max(end, edit.end)
    original = code.text(start, end)
    changed = _changed(code, edit, start, end)
    name = f"{function.name}: {kind.name}: `{original}` -> `{changed}`"
    times[name] += 1
    identity = name if times[name] == 1 else f"{name}, {ordinal(times[name])}"
    line = code.code[edit.start].line
    return Mutant(identity, kind, function.name, source, line, original, changed, code, edit)


def _changed(code: Code, edit: Edit, start: int, end: int) -> str:
    """The text of [start, end) after the edit, spaced as the original is."""
    before = code.text(start, edit.start) if start < edit.start else ""
    after = code.text(edit.end, end) if edit.end < end else ""
    space = " " if before and code.white_before(edit.start) else ""
    if not edit.text:
        return before + (space if after and code.white_before(edit.end) else "") + after
    return (
        before + space + edit.text + (" " if after and code.white_before(edit.end) else "") + after
    )


def ordinal(number: int) -> str:
    """ "2nd", "3rd", "11th"."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 14 else ending}"


# A part of them -----------------------------------------------------------------------------------


def standard(found: Sequence[Mutant]) -> list[Mutant]:
    """What a full run tries: at most STANDARD per source, every kind and every function among
    them."""
    sources = list(dict.fromkeys(mutant.source for mutant in found))
    chosen: list[Mutant] = []
    for source in sources:
        chosen += balanced([m for m in found if m.source == source], STANDARD)
    return chosen


def balanced(found: Sequence[Mutant], count: int) -> list[Mutant]:
    """So many of them, the rarest kinds and functions first. The choice depends on the identities
    alone, so that an edit elsewhere changes little of it."""
    kinds: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    left = sorted(found, key=lambda m: hashlib.sha256(m.identity.encode()).digest())
    chosen = []
    while left and len(chosen) < count:
        best = min(left, key=lambda m: (kinds[m.kind.name], functions[m.function]))
        left.remove(best)
        kinds[best.kind.name] += 1
        functions[best.function] += 1
        chosen.append(best)
    return sorted(chosen, key=lambda m: (str(m.source), m.line))


def sample(found: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them at random, the same for the same seed."""
    chosen = random.Random(seed).sample(range(len(found)), min(count, len(found)))
    return [found[i] for i in sorted(chosen)]
