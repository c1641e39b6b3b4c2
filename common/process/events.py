"""What a process that runs a day tells the one that started it, and what that adds up to.

A `Channel` carries events, in this order for one day:

    Planned    all rungs of the day, before the first one runs
    Stage      what starts now, so that a crash can be put down to it
    Checked    a rung passed its checks; its time follows later
    Finished   a rung's outcome
    AskTurn    may the day have the device for itself? The child waits for the answer
    TurnOver   it needs it no longer
    Table      a table of a tool's own
    Made       files of the day's own, which --write stores
    Unbuilt    the day does not build
    Ended      the day cannot go on: FAIL (it could not be loaded, the device is in error), or SKIP
    Over       the day is over, in good order

`Progress` is the one place that says what a sequence of them means.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome, Status


@dataclass(frozen=True)
class Planned:
    """rungs: [problem, name, idea] of each."""

    rungs: list[list[str]]


@dataclass(frozen=True)
class Stage:
    """rung: "" for what concerns the day. stage: what is done now, in words, one of few: the
    report adds up the seconds of each. problem: the rung's, or the one that is concerned."""

    rung: str
    stage: str
    problem: str = ""


@dataclass(frozen=True)
class Checked:
    """outcome: what is known of the rung until it is timed."""

    outcome: RungOutcome


@dataclass(frozen=True)
class Finished:
    """outcome: all that there is to know of the rung."""

    outcome: RungOutcome


@dataclass(frozen=True)
class AskTurn:
    """quiet: no build may run beside it. last: no other day may hold memory of the device, so the
    turn comes when they are over."""

    quiet: bool
    last: bool = False


@dataclass(frozen=True)
class TurnOver:
    pass


@dataclass(frozen=True)
class Table:
    """A header and rows of cells, all text."""

    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Made:
    """files: texts by name."""

    files: dict[str, str]


@dataclass(frozen=True)
class Unbuilt:
    """reason: one line; details: the compiler's message."""

    reason: str
    details: list[str]


@dataclass(frozen=True)
class Ended:
    """status: FAIL or SKIP. reason: one line; details: what explains it."""

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
    """Return the event that the line holds; None where it holds none, for a day may write into any
    descriptor."""
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
    """What is known of a day's run from its events so far.

    planned: the day's rungs. rung, stage, problem: what it is doing. checked: rungs that passed
    their checks and are not finished. unbuilt: why the day does not build. over: whether it came
    to its end in good order.
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
                self.outcome.files = files
            case Unbuilt():
                self.unbuilt = event
            case Ended(status, reason, details):
                self.outcome.status, self.outcome.reason = status, reason
                self.outcome.details = details
            case Over():
                self.over = True
            case AskTurn() | TurnOver() | Table():
                pass  # for who schedules and who prints; they change nothing that is known

    def finish(self, outcome: RungOutcome) -> None:
        """Add a rung's outcome."""
        self.checked.pop((outcome.problem, outcome.rung), None)
        self.outcome.rungs.append(outcome)

    def doing(self) -> str:
        """Return what it is doing, in words: "softmax_v1 checking", "timing softmax"."""
        words = (self.rung, self.stage) if self.rung else (self.stage, self.problem)
        return " ".join(filter(None, words))

    def _runs(self, problem: str, name: str) -> bool:
        """Return whether this rung is the one that is concerned now."""
        return name == self.rung and self.problem in ("", problem)

    def unfinished(self) -> list[list[str]]:
        """Return the planned rungs without an outcome."""
        finished = {(rung.problem, rung.rung) for rung in self.outcome.rungs}
        return [rung for rung in self.planned if (rung[0], rung[1]) not in finished]

    def complete(self, cause: str = "") -> list[RungOutcome]:
        """Give each rung without an outcome one, and return these: the one that ran has failed by
        `cause`, those that had passed their checks go untimed, the others were never reached."""
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
        """Derive the day's status from that of its rungs, and put these in the day's order."""
        outcome = self.outcome
        failed = [rung.rung for rung in outcome.rungs if rung.status == FAIL]
        if failed:
            outcome.status = FAIL
            outcome.reason = outcome.reason or f"failed: {', '.join(failed)}"
        elif outcome.status == PASS and not outcome.rungs:
            outcome.status, outcome.reason = FAIL, "the day ran no rung"
        elif outcome.status == PASS and all(rung.status == SKIP for rung in outcome.rungs):
            outcome.status, outcome.reason = SKIP, "every rung was skipped"
        # A rung that is timed is finished later than one that is not.
        place = {(problem, name): i for i, (problem, name, _) in enumerate(self.planned)}
        outcome.rungs.sort(key=lambda rung: place.get((rung.problem, rung.rung), len(place)))


class Channel(Protocol):
    """The way of events from who runs a day to who started it."""

    def emit(self, event: Event) -> None:
        """Send one event."""

    def wait(self, event: Event) -> None:
        """Send `event` and return when the other side agrees."""


class Direct:
    """A channel whose events are handled at once, in the process that emits them."""

    def __init__(self, handle: Callable[[Event], None]):
        self._handle = handle

    def emit(self, event: Event) -> None:
        """Handle the event."""
        self._handle(event)

    def wait(self, event: Event) -> None:
        """Handle the event; in one process there is nothing to wait for."""
        self.emit(event)
