"""Draw calls of rungs with their launches, as lines for a terminal and as an SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from common.base.decoding import decode
from common.base.outcome import RungOutcome
from common.report.drawn_launch import DrawnLaunch
from common.report.launch_lines import launch_lines
from common.report.launch_svg import Part, launches_as_svg
from common.report.launch_words import headline, remarks

WIDTH, MOST_LINES = 78, 30
EMPTY = DrawnLaunch("", (0, 0, 0), (0, 0, 0))  # for a call that launches nothing


@dataclass
class DrawnCall:
    """The launches of a rung on one case.

    case: "" if it has no sizes. notes: sentences about the call as a whole. more: number of
    launches that are not drawn.
    """

    rung: str
    case: str
    launches: list[DrawnLaunch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    more: int = 0

    @staticmethod
    def from_json(data: Any) -> DrawnCall:
        """Return the drawing from its plain data. Raise PlainError, naming the field."""
        drawing: DrawnCall = decode(DrawnCall, data)
        return drawing

    @property
    def out_of_bounds(self) -> bool:
        """Return True if a launch accessed memory outside of a tensor."""
        return any(
            marks is not None and marks.outside > 0
            for launch in self.launches
            for tensor in launch.tensors
            for marks in (tensor.reads, tensor.writes)
        )

    @property
    def name(self) -> str:
        """Return the rung, and the case if it has sizes."""
        return f"{self.rung} on {self.case}" if self.case else self.rung

    def titles(self) -> list[str]:
        """Return a heading for each launch; a single one if there are no launches."""
        many = len(self.launches)
        if many == 1:
            return [f"{self.name}: {headline(self.launches[0])}"]
        return [
            f"{self.name}, launch {number} of {many + self.more}: {headline(launch)}"
            for number, launch in enumerate(self.launches, 1)
        ] or [f"{self.name}: no launch"]

    def remarks(self) -> list[list[str]]:
        """Return the sentences below each launch; those about the call follow the last ones."""
        found = [remarks(launch) for launch in self.launches] or [[]]
        if len(self.launches) > 1:
            for launch, said in zip(self.launches, found, strict=True):
                said.insert(0, f"kernel {launch.kernel}")
        more = (
            [f"{self.more} further launch{'es' * (self.more > 1)} not drawn"] if self.more else []
        )
        found[-1] += [*self.notes, *more]
        return found

    def lines(self, width: int = WIDTH) -> list[str]:
        """Return at most MOST_LINES lines of at most `width` characters."""
        room = MOST_LINES // max(len(self.launches), 1) - 1
        launches: list[DrawnLaunch | None] = [*self.launches] or [None]
        lines = []
        for title, launch, said in zip(self.titles(), launches, self.remarks(), strict=True):
            lines.append(title[:width])
            lines += launch_lines(launch or EMPTY, said, width, room)
        return lines


@dataclass
class DrawnRungs:
    """Several calls drawn together. missing: reasons for rungs that are not drawn."""

    calls: list[DrawnCall]
    missing: list[str] = field(default_factory=list)

    @staticmethod
    def of(outcomes: Sequence[RungOutcome]) -> DrawnRungs:
        """Return the drawings of outcomes, and the reasons for missing ones. Raise PlainError,
        naming a field, for an invalid drawing."""
        calls = [DrawnCall.from_json(outcome.drawing) for outcome in outcomes if outcome.drawing]
        missing = [f"{o.rung}: {o.reason or 'not drawn'}" for o in outcomes if not o.drawing]
        return DrawnRungs(calls, missing)

    def lines(self, width: int = WIDTH) -> list[str]:
        """Return lines of at most `width` characters, at most MOST_LINES per call."""
        lines = [line for call in self.calls for line in call.lines(width)]
        return lines + [part for text in self.missing for part in textwrap.wrap(text, width)]

    def svg(self) -> str:
        """Return the text of an SVG with all calls, one below the other."""
        parts: list[Part] = []
        for call in self.calls:
            launches: list[DrawnLaunch | None] = [*call.launches] or [None]
            parts += zip(call.titles(), launches, call.remarks(), strict=True)
        return launches_as_svg([*parts, *((text, None, ()) for text in self.missing)])
