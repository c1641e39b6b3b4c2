"""Define the events that a day's process sends to its parent, and the progress that they add up to.

A `Channel` carries events, in this order for one day:

    Planned    all rungs of the day, before the first one runs
    Stage      the work that starts now; a crash is attributed to it
    Checked    a rung passed its checks; its time follows later
    Finished   a rung's outcome
    AskTurn    a request for exclusive use of the device; the child waits for the answer
    TurnOver   the exclusive use has ended
    Ran        what a rung's check used, for trials of mutants
    Table      a table that a tool prints
    Made       files that the day creates, stored by --write
    Unbuilt    the day does not build
    Ended      the day cannot continue: FAIL (it does not load, the device is in error), or SKIP
    Over       the day has ended normally

`Progress` alone interprets a sequence of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from common.base.days import Day
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome, Status
from common.base.toolchain import Platform


@dataclass(frozen=True)
class Planned:
    """The rungs of a day: [problem, name, idea] of each."""

    rungs: list[list[str]]


@dataclass(frozen=True)
class Stage:
    """A stage of the run. rung: "" for the whole day. stage: one of a few texts, for each of which
    the report adds up the seconds. problem: the problem of the rung or stage."""

    rung: str
    stage: str
    problem: str = ""


@dataclass(frozen=True)
class Checked:
    """The outcome of a rung before it is timed."""

    outcome: RungOutcome


@dataclass(frozen=True)
class Finished:
    """The complete outcome of a rung."""

    outcome: RungOutcome


@dataclass(frozen=True)
class AskTurn:
    """A request for the device. quiet: no build may run during the turn. last: no other day may
    hold memory of the device, so the turn comes when the others are over."""

    quiet: bool
    last: bool = False


@dataclass(frozen=True)
class TurnOver:
    pass


@dataclass(frozen=True)
class Ran:
    """The check of a rung in a trial of a mutant. seconds: that it took. operators: of the day that
    it called. left_out: cases that it skipped because the card lacks something."""

    problem: str
    rung: str
    status: Status
    seconds: float
    operators: list[str]
    left_out: int = 0


@dataclass(frozen=True)
class Table:
    """A header and rows of cells, all text."""

    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Made:
    """Files of the day: texts by name."""

    files: dict[str, str]


@dataclass(frozen=True)
class Unbuilt:
    """A failed build. reason: one line; details: the compiler's message."""

    reason: str
    details: list[str]


@dataclass(frozen=True)
class Ended:
    """The early end of a day. status: FAIL or SKIP. reason: one line; details: its explanation."""

    status: Status
    reason: str
    details: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Over:
    pass


Event = (
    Planned
    | Stage
    | Checked
    | Finished
    | AskTurn
    | TurnOver
    | Ran
    | Table
    | Made
    | Unbuilt
    | Ended
    | Over
)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in Event.__args__}


def to_line(event: Event) -> bytes:
    """Return the event as one line of JSON."""
    data = {"event": type(event).__name__, **asdict(event)}
    return (json.dumps(data) + "\n").encode()


def from_line(line: bytes) -> Event | None:
    """Return the event in the line, or None: a day may write other text to any descriptor."""
    try:
        data = json.loads(line)
        kind = _KINDS[data.pop("event")]
        if "outcome" in data:
            data["outcome"] = RungOutcome.from_json(data["outcome"])
        event: Event = kind(**data)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return event


@dataclass
class Progress:
    """The state of a day's run after its events so far.

    planned: the day's rungs. rung, stage, problem: of the current stage. checked: rungs that passed
    their checks and are not finished. unbuilt: the failed build, if any. over: the day has ended
    normally.
    """

    outcome: DayOutcome
    planned: list[list[str]] = field(default_factory=list)
    rung: str = ""
    stage: str = ""
    problem: str = ""
    checked: dict[tuple[str, str], RungOutcome] = field(default_factory=dict)
    unbuilt: Unbuilt | None = None
    over: bool = False

    def take(self, event: Event) -> None:
        """Add one event."""
        match event:
            case Planned(rungs):
                self.planned = rungs
            case Stage(rung, stage, problem):
                self.rung, self.stage, self.problem = rung, stage, problem
            case Checked(outcome):
                self.checked[outcome.problem, outcome.rung] = outcome
            case Finished(outcome):
                self.finish(outcome)
            case Made(files):
                self.outcome.files = {**self.outcome.files, **files}
            case Unbuilt():
                self.unbuilt = event
            case Ended(status, reason, details):
                self.outcome.status, self.outcome.reason = status, reason
                self.outcome.details = details
            case Over():
                self.over = True
            case AskTurn() | TurnOver() | Ran() | Table():
                pass  # for the scheduler and the report; they do not change the state

    def finish(self, outcome: RungOutcome) -> None:
        """Add a rung's outcome."""
        self.checked.pop((outcome.problem, outcome.rung), None)
        self.outcome.rungs.append(outcome)

    def doing(self) -> str:
        """Return the current stage as text: "softmax_v1 checking", "timing softmax"."""
        words = (self.rung, self.stage) if self.rung else (self.stage, self.problem)
        return " ".join(filter(None, words))

    def _runs(self, problem: str, name: str) -> bool:
        """Return True if the current stage concerns this rung."""
        return name == self.rung and self.problem in ("", problem)

    def unfinished(self) -> list[list[str]]:
        """Return the planned rungs without an outcome."""
        finished = {(rung.problem, rung.rung) for rung in self.outcome.rungs}
        return [rung for rung in self.planned if (rung[0], rung[1]) not in finished]

    def complete(self, cause: str = "") -> list[RungOutcome]:
        """Add and return an outcome for each unfinished rung: the running one failed by `cause`,
        those that had passed their checks are untimed, the others were not run."""
        added = []
        for problem, name, idea in self.unfinished():
            if cause and self._runs(problem, name):
                added.append(RungOutcome(problem, name, idea, FAIL, cause))
                cause = ""
            elif passed := self.checked.get((problem, name)):
                passed.remarks.append("not timed: the day ended before")
                added.append(passed)
            else:
                reason = "not run: the day ended before"
                added.append(RungOutcome(problem, name, idea, SKIP, reason))
        for outcome in added:
            self.finish(outcome)
        return added

    def conclude(self) -> None:
        """Derive the day's status from that of its rungs, and sort these in the day's order."""
        outcome = self.outcome
        failed = [rung.rung for rung in outcome.rungs if rung.status == FAIL]
        if failed:
            outcome.status = FAIL
            outcome.reason = outcome.reason or f"failed: {', '.join(failed)}"
        elif outcome.status == PASS and not outcome.rungs:
            outcome.status, outcome.reason = FAIL, "the day ran no rung"
        elif outcome.status == PASS and all(rung.status == SKIP for rung in outcome.rungs):
            outcome.status, outcome.reason = SKIP, "every rung was skipped"
        # A timed rung finishes after the untimed ones.
        place = {(problem, name): i for i, (problem, name, _) in enumerate(self.planned)}
        outcome.rungs.sort(key=lambda rung: place.get((rung.problem, rung.rung), len(place)))


class Channel(Protocol):
    """A channel for events from the process of a day to the process that started it."""

    def emit(self, event: Event) -> None:
        """Send one event."""

    def wait(self, event: Event) -> None:
        """Send `event` and return when the other side agrees."""


# A day's work in its process: `common.process.worker.run_day`, or that of a tool.
Step = Callable[[Day, Platform, RunOptions, Channel], None]


class Direct:
    """A channel whose events are handled immediately, in the process that emits them."""

    def __init__(self, handle: Callable[[Event], None]):
        self._handle = handle

    def emit(self, event: Event) -> None:
        """Handle the event."""
        self._handle(event)

    def wait(self, event: Event) -> None:
        """Handle the event; a single process has nothing to wait for."""
        self.emit(event)
