"""Hold the outcome of a mutant of a day's source, and a day's score, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["killed", "survived", "equivalent", "stillborn"]
KILLED: Status = "killed"
SURVIVED: Status = "survived"
EQUIVALENT: Status = "equivalent"
STILLBORN: Status = "stillborn"

GOAL = 0.95  # of the mutants that are not equivalent, killed on every day


@dataclass
class Verdict:
    """The outcome of one mutant.

    identity: see `common.mutants.derive.Mutant`. kind, source, line: of the change.
    status: KILLED, SURVIVED, EQUIVALENT or STILLBORN (it does not compile). by: what killed it
    ("result", "bad input", "crash", "sanitizer: races", …), or for EQUIVALENT "declared" or "same
    machine code". rung: the rung whose check killed it. reason, details: the message of the check
    or the compiler, or why it is equivalent. build_s, check_s: seconds. stored: it is from an
    earlier run with the same sources.
    """

    identity: str
    kind: str
    source: str
    line: int
    status: Status
    by: str = ""
    rung: str = ""
    reason: str = ""
    details: list[str] = field(default_factory=list)
    build_s: float = 0.0
    check_s: float = 0.0
    stored: bool = False


@dataclass
class Score:
    """Counts of a day's mutants.

    day: its number. made: mutants that were tried and compile. killed: numbers by killer.
    equivalent: number. survived: identities. complete: all of the day's standard mutants were
    tried. date: of the run.
    """

    day: int
    made: int
    killed: dict[str, int]
    equivalent: int
    survived: list[str]
    complete: bool = False
    date: str = ""

    @property
    def counted(self) -> int:
        """Return the number of mutants that are not equivalent."""
        return self.made - self.equivalent

    @property
    def rate(self) -> float:
        """Return the killed share of these; 1 if there are none."""
        return sum(self.killed.values()) / self.counted if self.counted else 1.0


def score(day: int, verdicts: Sequence[Verdict], complete: bool = False, date: str = "") -> Score:
    """Return the score of a day's verdicts."""
    killed = Counter(v.by for v in verdicts if v.status == KILLED)
    return Score(
        day,
        sum(v.status != STILLBORN for v in verdicts),
        dict(sorted(killed.items())),
        sum(v.status == EQUIVALENT for v in verdicts),
        [v.identity for v in verdicts if v.status == SURVIVED],
        complete,
        date,
    )
