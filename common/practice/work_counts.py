"""What a rung's work adds up to where the CPU backend counts it, and how near to another it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from common.base.outcome import RungOutcome

LESS = 0.9  # of the first rung's count: where the last rung needs no more, the count is a goal
NEAR = 1.1  # times the last rung's count: the goal is reached
WASTE = 1.5  # times the count of the day's own function: from here on it is said


@dataclass(frozen=True)
class WorkCounts:
    """Of all kernels of a call, on the problem's small timing case.

    sectors: of 32 bytes, of global memory. requests: instructions of warps that access memory.
    passes: over the banks of shared memory, those that bank conflicts add included. atomics: lanes
    that update global memory atomically.
    """

    sectors: int
    requests: int
    passes: int
    atomics: int

    def by_name(self) -> dict[str, int]:
        """Return the counts under the names that a learner sees."""
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
    """Return what the names of these columns mean, as far as they need words."""
    return "; ".join(f"{name}: {_MEANING[name]}" for name in columns if name in _MEANING)


def work_counts(outcome: RungOutcome) -> WorkCounts:
    """Return what the profile of a rung adds up to."""
    lines = outcome.counts
    updates = (line for line in lines if line["kind"] == "global atomic")
    return WorkCounts(
        sum(line["sectors"] for line in lines),
        sum(line["requests"] for line in lines),
        sum(line["wavefronts"] for line in lines),
        sum(line["lanes"] for line in updates),
    )


def goals(first: WorkCounts, last: WorkCounts) -> dict[str, int]:
    """Return the most that each count may be for the exercise to be solved, by name; {} where the
    last rung brings no count down.

    What it brings down is a goal. Of what it needs more of, or as much, no more than that is spent,
    and what neither of the two needs may be spent freely.
    """
    before, after = first.by_name(), last.by_name()
    less = [name for name in before if after[name] <= LESS * before[name] != 0]
    if not less:
        return {}
    most = {name: max(before[name], after[name]) for name in before if after[name]}
    most |= {name: after[name] for name in less}
    return {name: int(NEAR * count) for name, count in most.items()}


def waste(mine: WorkCounts, own: WorkCounts) -> str:
    """Return what a right kernel has far too much of, in one sentence; "" where it has not."""
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
