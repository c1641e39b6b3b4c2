"""Sum up the work of a rung as counted by the CPU backend, and compare it with another's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from common.base.outcome import RungOutcome

LESS = 0.9  # of the first rung's count: if the last rung needs at most this, the count is a goal
NEAR = 1.1  # times the last rung's count: the goal is reached
WASTE = 1.5  # times the count of the day's own function: from here on it is reported


@dataclass(frozen=True)
class WorkCounts:
    """Counts over all kernels of a call, on the problem's small timing case.

    sectors: of 32 bytes, of global memory. requests: instructions of warps that access memory.
    passes: over the banks of shared memory, including those added by bank conflicts. atomics: lanes
    that update global memory atomically.
    """

    sectors: int
    requests: int
    passes: int
    atomics: int

    def by_name(self) -> dict[str, int]:
        """Return the counts by the names shown to a learner."""
        return {name: getattr(self, field) for field, name in NAMES.items()}


NAMES = {
    "sectors": "sectors",
    "requests": "memory instr.",
    "passes": "shared passes",
    "atomics": "atomics",
}
_MEANING = {
    NAMES["sectors"]: "32 bytes of global memory each",
    NAMES["requests"]: "instructions of warps that access memory",
    NAMES["passes"]: "over the banks of shared memory, bank conflicts included",
}


def legend(columns: Iterable[str]) -> str:
    """Return the meanings of these columns' names, if they need an explanation."""
    return "; ".join(f"{name}: {_MEANING[name]}" for name in columns if name in _MEANING)


def work_counts(outcome: RungOutcome) -> WorkCounts:
    """Return the sums over a rung's profile."""
    lines = outcome.counts
    updates = (line for line in lines if line["kind"] == "global atomic")
    return WorkCounts(
        sum(line["sectors"] for line in lines),
        sum(line["requests"] for line in lines),
        sum(line["wavefronts"] for line in lines),
        sum(line["lanes"] for line in updates),
    )


def goals(first: WorkCounts, last: WorkCounts) -> dict[str, int]:
    """Return the limit of each count for a solved exercise, by name; {} if the last rung reduces no
    count.

    A count that it reduces is a goal. Any other must not exceed the larger of the two rungs'
    counts, and one that neither rung needs is unlimited.
    """
    before, after = first.by_name(), last.by_name()
    less = [name for name in before if after[name] <= LESS * before[name] != 0]
    if not less:
        return {}
    most = {name: max(before[name], after[name]) for name in before if after[name]}
    most |= {name: after[name] for name in less}
    return {name: int(NEAR * count) for name, count in most.items()}


def waste(mine: WorkCounts, own: WorkCounts) -> str:
    """Return the count in which a right kernel far exceeds the day's, as a sentence, or ""."""
    mine_by_name, own_by_name = mine.by_name(), own.by_name()
    ratios = {name: mine_by_name[name] / count for name, count in own_by_name.items() if count}
    name = max(ratios, key=lambda each: ratios[each], default="")
    if not name or ratios[name] < WASTE:
        return ""
    return (
        f"{_LONG[name]}: {mine_by_name[name]:,}, {ratios[name]:.1f} times as many as the day's "
        f"own ({own_by_name[name]:,})"
    )


_LONG = {
    NAMES["sectors"]: "32-byte sectors of global memory",
    NAMES["requests"]: "instructions that access memory",
    NAMES["passes"]: "passes over shared memory",
    NAMES["atomics"]: "atomic updates of global memory",
}
assert [field.name for field in fields(WorkCounts)] == list(NAMES)
