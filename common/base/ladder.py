"""Choose the ladder of a speed exercise: the problem, and its first and last rung."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from common.base.days import Day
from common.base.declaration import Problem, Rung

_BINDING = re.compile(r"^\s*(?:HOST_)?RUNG\(\s*\w+\s*,\s*((\w+?)_v\d+\w*)", re.MULTILINE)


@dataclass(frozen=True)
class Ladder:
    """The timed rungs of a problem that are the day's own kernels, from the first to the last."""

    problem: Problem
    rungs: tuple[Rung, ...]

    @property
    def first(self) -> Rung:
        return self.rungs[0]

    @property
    def last(self) -> Rung:
        return self.rungs[-1]


def ladder_of(problems: Sequence[Problem]) -> Ladder | None:
    """Return the longest ladder of the problems, the first of equals; None if no timed problem has
    two rungs. Rungs with a custom build, such as a library's, do not count."""
    found = [
        Ladder(problem, tuple(rung for rung in problem.rungs if rung.timed and rung.of_library))
        for problem in problems
        if problem.timed
    ]
    longest = max(found, key=lambda ladder: len(ladder.rungs), default=None)
    return longest if longest and len(longest.rungs) > 1 else None


@cache
def has_ladder(day: Day) -> bool:
    """Return True if the sources bind two versions of one operator without a custom build; unlike
    `ladder_of`, without running day.py, which needs PyTorch."""
    versions: dict[str, set[str]] = defaultdict(set)
    for source in day.library_sources:
        for name, stem in _BINDING.findall(source.read_text(encoding="utf-8")):
            versions[stem].add(name)
    if all(len(names) < 2 for names in versions.values()):
        return False
    otherwise = _built_otherwise(day.modules)
    return any(len(names - otherwise) > 1 for names in versions.values())


def _built_otherwise(files: Sequence[Path]) -> set[str]:
    """Return the names of rungs that get `load=`, from Rung itself or from a function that calls
    it."""
    texts = [file.read_text(encoding="utf-8") for file in files]
    if not any("load=" in text for text in texts):
        return set()
    statements = [each for text in texts for each in _statements(text)]
    makers = {
        node.name
        for node, text in statements
        if isinstance(node, ast.FunctionDef) and "load=" in text
    }
    telling = re.compile("|".join(["load=", *(rf"\b{name}\(" for name in makers)]))
    calls = [
        call
        for node, text in statements
        if telling.search(text)  # most do not match, and walking a tree is slow
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
    ]
    return {
        call.args[0].value
        for call in calls
        if call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
        and (any(word.arg == "load" for word in call.keywords) or ast.unparse(call.func) in makers)
    }


def _statements(text: str) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the statements of a module, each with its source lines."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        yield node, "\n".join(lines[node.lineno - 1 : node.end_lineno])
