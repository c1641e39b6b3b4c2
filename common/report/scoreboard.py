"""Pair rungs, one in CUDA and one in Triton or Numba, to compare their times and lines of code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.base.days import Day
from common.base.outcome import PASS, RungOutcome

TWINS = ("_triton.py", "_numba.py")  # name endings of modules with kernels in Python


@dataclass(frozen=True)
class Side:
    """The fastest rung of a problem in one language. ms: its time. lines: see `lines_of`."""

    rung: str
    ms: float
    lines: int


@dataclass(frozen=True)
class Pair:
    """A problem's fastest rung in CUDA, and its twin in Triton or Numba."""

    problem: str
    cuda: Side
    twin: Side

    @property
    def speed(self) -> float:
        """Return the speed of the twin over that of the rung in CUDA."""
        return self.cuda.ms / self.twin.ms


def twin_modules(day: Day) -> list[Path]:
    """Return the day's modules of kernels in Triton or Numba."""
    return [path for path in day.extra_sources if path.name.endswith(TWINS)]


def pairs(day: Day, rungs: Sequence[RungOutcome]) -> list[Pair]:
    """Return a pair for each problem that was timed in both languages.

    A problem of the twin alone has the name of CUDA's, followed by a comma and the language:
    "patterns, Numba".
    """
    sources = ([*day.library_sources, *day.headers], twin_modules(day))
    items = [[item for path in paths for item in items_of(path)] for paths in sources]
    defined = [{name for item in found for name in item.names} for found in items]
    times: dict[str, tuple[dict[str, float], dict[str, float]]] = {}  # ms by rung, both languages
    for rung in rungs:
        side = next((side for side in (0, 1) if rung.rung in defined[side]), None)
        if side is not None and rung.timing is not None and rung.status == PASS:
            problem = re.sub(", (Triton|Numba)$", "", rung.problem)
            times.setdefault(problem, ({}, {}))[side][rung.rung] = rung.timing.ms
    return [
        Pair(problem, _fastest(cuda, items[0]), _fastest(twin, items[1]))
        for problem, (cuda, twin) in times.items()
        if cuda and twin
    ]


def _fastest(times: dict[str, float], items: Sequence[Item]) -> Side:
    rung = min(times, key=lambda name: times[name])
    return Side(rung, times[rung], lines_of(items, rung))


# --- lines of code ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """A function, type or constant at the top level of a source. text: without comments,
    docstrings, imports and blank lines."""

    names: frozenset[str]
    text: str


def lines_of(items: Sequence[Item], rung: str) -> int:
    """Return the number of lines of the items that a rung uses: its launcher, kernels, helpers,
    fallbacks. Every occurrence of a name as a word counts as its use, also as the name of a
    parameter."""
    named = {rung}
    reached: list[Item] = []
    while more := [item for item in items if item not in reached and item.names & named]:
        reached += more
        named |= {word for item in more for word in re.findall(r"\w+", item.text)}
    return sum(item.text.count("\n") for item in reached)


# Our formatters start an item in the first column and indent all but its closing bracket.
_ITEM = re.compile(r"(?:(?:template|@).*\n(?: .*\n)*)*\S.*\n(?:[ })\]].*\n)*")
# Docstrings, comments, imports; comments, directives with all their lines.
_NO_CODE = {
    "Python": re.compile(r'""".*?"""|#[^\n]*|^(?:import|from) [^(\n]*(?:\([^)]*\))?', re.S | re.M),
    "CUDA": re.compile(r"//.*|^#(?:.*\\\n)*.*", re.M),
}


def items_of(source: Path) -> Iterator[Item]:
    """Yield the top-level items of a .cu, .cuh or .py."""
    language = "Python" if source.suffix == ".py" else "CUDA"
    text = _NO_CODE[language].sub("", source.read_text(encoding="utf-8"))
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines() if line.strip())
    for found in _ITEM.finditer(text):
        yield Item(frozenset(_names(found[0])), found[0])


def _names(text: str) -> list[str]:
    """Return the names that an item defines."""
    text = re.sub(r"^(?:template|@).*\n(?: .*\n)*", "", text, flags=re.M)
    text = re.sub(r"(?:__launch_bounds__|alignas)\((?:[^()]|\([^()]*\))*\) ?", "", text)
    if found := re.match(r"(?:struct|class|using|enum class|enum) (\w+)", text):
        return [found[1]]
    before = re.split(r"[({]", text, maxsplit=1)[0]
    if "=" in before:
        return re.findall(r"([A-Za-z_]\w*)(?:\[\w*\])*(?=(?:, \w+)* =)", text.partition("{")[0])
    return re.findall(r"\w+", before)[-1:]
