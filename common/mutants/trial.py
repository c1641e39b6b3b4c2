"""Hold a trial of a mutant and its result as plain data, sent between processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from common.base.outcome import FAIL, SKIP
from common.process.events import Ran


@dataclass(frozen=True)
class Trial:
    """A trial of a mutant.

    day: its folder. folder: of its sources, if elsewhere. library: built from them. rungs:
    (problem, rung), tried in this order until one fails. once_first: before the whole check, call
    all cases of all rungs once, on which most wrong kernels fail already. quick, watched, debug: as
    in `RunOptions`. model: the simulated card, "" for the default. limit: seconds for the whole
    trial. threads: that run blocks.
    """

    day: str
    library: str
    rungs: tuple[tuple[str, str], ...]
    folder: str = ""
    once_first: bool = False
    quick: bool = False
    watched: bool = False
    debug: bool = False
    model: str = ""
    limit: float = 60.0
    threads: int = 1


@dataclass
class Result:
    """The result of a trial.

    status: "passed", "failed", "skipped" (no rung can run here), "died" or "late". rung: the one
    that failed, or that ran when it died. reason, details: of the failure. findings: of the tracer
    ("races", …). planned: (problem, rung) of each rung of the day, from a trial without rungs. ran:
    the last check of each rung that ran.
    """

    status: str
    rung: str = ""
    reason: str = ""
    details: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    planned: list[tuple[str, str]] = field(default_factory=list)
    ran: list[Ran] = field(default_factory=list)
    seconds: float = 0.0


def status_of(statuses: Sequence[str]) -> str:
    """Return the status of a trial that ended normally, from those of its rungs."""
    if FAIL in statuses:
        return "failed"
    return "skipped" if all(status == SKIP for status in statuses) else "passed"
