"""Derive the mutants of a day from its `.cu` files and the headers in its folder, with identities
that survive other edits."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from common.base.days import Day
from common.cpu.lexer import tokenize
from common.mutants.inlined import own_headers
from common.mutants.kinds import DEVICE_CHECK, Edit, Kind, edits
from common.mutants.outline import (
    Code,
    Declaration,
    Function,
    Outline,
    outlines_of,
    reached_together,
)

STANDARD = 40  # most mutants per file of a full run


@dataclass(frozen=True)
class Mutant:
    """One change of a day's source, or of a header of its folder.

    identity: "function: kind: `original` -> `changed`", followed by ", 2nd" if the function has
    several such changes; it stays the same while other lines change. It begins with "file: ",
    except for the source of a day with only one. source: the file. line: of the change. original,
    changed: the text around it, on one line.
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
        """Return the whole text of the changed file."""
        return self.code.replaced(self.edit.start, self.edit.end, self.edit.text)


def mutants_of(
    day: Day, reached: Mapping[Path, Sequence[Declaration]] | None = None
) -> list[Mutant]:
    """Return all mutants of the day's `.cu` files, then of its headers, in the order of their
    lines.

    reached: for each file, the declarations that the day's rungs use; by default, those that all
    operators of the day use. The rest is not changed.
    """
    read = outlines_of(day)
    if reached is None:
        operators = {name for each in read.values() for name in each.operators}
        everything = {path: each.reached() for path, each in read.items()}
        reached = reached_together(read, operators) if operators else everything
    found = []
    refused = _refused_by_dispatcher(read)
    sources = day.library_sources
    for source in (*sources, *headers_of(day)):
        prefix = "" if sources == (source,) else f"{source.name}: "
        used = {declared.start for declared in reached.get(source, ())}
        mine = [declared for declared in read[source].declarations if declared.start in used]
        made = mutants(source, read[source], mine)
        found += [
            replace(m, identity=prefix + m.identity)
            for m in made
            if not (m.kind.name == DEVICE_CHECK and m.function in refused[source])
        ]
    return found


def headers_of(day: Day) -> list[Path]:
    """Return the headers of the day's folder that its `.cu` files include."""
    return sorted({header for source in day.library_sources for header in own_headers(source)})


def _refused_by_dispatcher(outlines: Mapping[Path, Outline]) -> dict[Path, set[str]]:
    """Return the functions of each source that no tensor on another device reaches, regardless of
    their checks.

    An operator is registered for one device. PyTorch calls its kernel if one of the tensors is on
    that device, and none is on a device that comes later in its order: CPU, GPU, meta. So the only
    tensor of an operator for the GPU is on the GPU, and all tensors of one for the CPU are on the
    CPU.
    """
    found = {path: (set[str](), set[str]()) for path in outlines}  # refused, others
    bindings = [d for read in outlines.values() for d in read.declarations if d.operators]
    taken = {name: count for each in bindings for name, count in each.schemas.items()}
    for name, tensors in taken.items():
        on_host = any("CPU" in each.uses for each in bindings if name in each.operators)
        safe = on_host or tensors == 1
        for path, used in reached_together(outlines, {name}).items():
            names = {function.name for d in used for function in d.functions}
            found[path][0 if safe else 1].update(names)
    # A launcher may be called by another one, with the same tensors.
    own = {name for name, tensors in taken.items() if tensors == 1}
    return {path: safe - (others - own) for path, (safe, others) in found.items()}


def mutants(
    source: Path, read: Outline, declared: Sequence[Declaration] | None = None
) -> list[Mutant]:
    """Return the mutants of one file, each text once.

    declared: declarations to change; by default, all that its operators use.
    """
    code = read.code
    words = [token.text for token in code.code]
    seen = {tuple(words)}
    times: Counter[str] = Counter()
    found = []
    used = read.reached(read.operators) if declared is None else declared
    for function in (function for each in used for function in each.functions):
        for kind, edit in edits(code, function):
            text = (*words[: edit.start], *_words(edit.text), *words[edit.end :])
            if text not in seen:
                seen.add(text)
                found.append(_mutant(source, code, function, kind, edit, times))
    return sorted(found, key=lambda m: m.line)


@lru_cache(maxsize=1024)  # most edits insert one of a few texts
def _words(text: str) -> tuple[str, ...]:
    """Return the words of replacement code."""
    return tuple(token.text for token in tokenize(text) if token.is_code)


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
    """Return the text of [start, end) after the edit, spaced like the original."""
    before = code.text(start, edit.start) if start < edit.start else ""
    after = code.text(edit.end, end) if edit.end < end else ""
    space = " " if before and code.white_before(edit.start) else ""
    if not edit.text:
        return before + (space if after and code.white_before(edit.end) else "") + after
    return (
        before + space + edit.text + (" " if after and code.white_before(edit.end) else "") + after
    )


def ordinal(number: int) -> str:
    """Return "2nd", "3rd", "11th"."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 14 else ending}"


# Subsets ------------------------------------------------------------------------------------------


def standard(found: Sequence[Mutant]) -> list[Mutant]:
    """Return the mutants of a full run: at most STANDARD per file, every kind and function among
    them."""
    sources = list(dict.fromkeys(mutant.source for mutant in found))
    chosen: list[Mutant] = []
    for source in sources:
        chosen += balanced([m for m in found if m.source == source], STANDARD)
    return chosen


def balanced(found: Sequence[Mutant], count: int) -> list[Mutant]:
    """Return `count` mutants, the rarest kinds and functions first. The choice depends only on the
    identities, so that an edit elsewhere hardly changes it."""
    kinds: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    left = sorted(found, key=lambda m: hashlib.sha256(m.identity.encode()).digest())
    chosen: list[Mutant] = []
    while left and len(chosen) < count:
        best = min(left, key=lambda m: (kinds[m.kind.name], functions[m.function]))
        left.remove(best)
        kinds[best.kind.name] += 1
        functions[best.function] += 1
        chosen.append(best)
    return sorted(chosen, key=lambda m: (str(m.source), m.line))


def sample(found: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return `count` random mutants, the same for the same seed."""
    chosen = random.Random(seed).sample(range(len(found)), min(count, len(found)))
    return [found[i] for i in sorted(chosen)]
