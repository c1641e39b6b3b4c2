"""Show the change from one rung of a day to another: the lines of their kernels and launchers."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from common.base.days import Day
from common.base.figures import duration
from common.base.refusal import UsageError
from common.mutants.outline import Declaration, Outline, outlines_of, reached_together
from common.report.stored import read_stored

CONTEXT = 3  # unchanged lines around a change


def pairs_of(day: Day, first: str, second: str) -> list[tuple[str, str]]:
    """Return the pairs of operators that two words name, in the order of the source.

    first, second: whole names ("softmax_v2_online"), or versions ("v2", "v3"), which give a pair
    for each ladder that has both. Raise UsageError if they name no pair.
    """
    names = [name for outline in outlines_of(day).values() for name in sorted(outline.operators)]
    found = [
        (one, other)
        for one in names
        if _is_named(one, first)
        for other in names
        if _is_named(other, second) and one != other
        if first == one or second == other or _stem(one) == _stem(other)
    ]
    if not found:
        raise UsageError(
            f"--diff: {first!r} and {second!r} name no two rungs of one ladder of day "
            f"{day.number}; it has {', '.join(names)}"
        )
    return found


def _is_named(name: str, word: str) -> bool:
    return name == word or f"_{word}_" in f"{name}_"


def _stem(name: str) -> str:
    return re.sub(r"_v\d+(_.*)?$", "", name)


def rung_diff(day: Day, first: str, second: str) -> list[str]:
    """Return the lines of a unified diff between the code that only one of two operators uses, in
    the order of the source, with the comments above each function. The operators' own names do not
    count as a difference."""
    outlines = outlines_of(day)
    used = [reached_together(outlines, {name}) for name in (first, second)]
    before = [line.replace(first, second) for line in _only(outlines, used[0], used[1])]
    after = _only(outlines, used[1], used[0])
    return list(difflib.unified_diff(before, after, first, second, lineterm="", n=CONTEXT))


Used = dict[Path, list[Declaration]]


def _only(outlines: dict[Path, Outline], mine: Used, theirs: Used) -> list[str]:
    """Return the lines of the declarations in `mine` only."""
    lines: list[str] = []
    for path, declarations in mine.items():
        shared = {each.start for each in theirs.get(path, [])}
        for each in declarations:
            if each.start not in shared:
                lines += [*_text(outlines[path], each), ""]
    return lines


def _text(outline: Outline, declaration: Declaration) -> list[str]:
    """Return the lines of a declaration, with the comment directly above it."""
    code = outline.code
    start, last = code.offset(declaration.start), declaration.end - 1
    end = code.offset(last) + len(code.code[last].text)
    above = code.source[:start].splitlines()
    if above and not above[-1].strip():
        above.pop()
    comment: list[str] = []
    while above and above[-1].lstrip().startswith("//"):
        comment.insert(0, above.pop())
    return [*comment, *code.source[start:end].splitlines()]


def times_of(day: Day, first: str, second: str, root: Path) -> str:
    """Return a line with the stored times of two rungs, "" if one has none."""
    for one in read_stored(root, day.name).get(day.number, []):
        times = {rung.rung: rung.timing for rung in one.rungs if rung.timing}
        before, after = times.get(first), times.get(second)
        if before and after:
            return (
                f"{one.where['gpu']}, {before.case}: {first} {duration(before.ms / 1e3)}, "
                f"{second} {duration(after.ms / 1e3)} ({before.ms / after.ms:.2f} × as fast)"
            )
    return ""
