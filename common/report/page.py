"""Generate the page of `--html`: the curriculum, every day's ladder, a roofline and the glossary.

The page is self-contained: it needs no network and no other file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from common.base.course_parts import part_of
from common.base.days import Day
from common.base.figures import counted, rate
from common.base.outcome import FAIL, PASS, DayOutcome, RungOutcome
from common.base.verdict import Score
from common.report.columns import HOST, MARKDOWN, PROGRESS
from common.report.comparison import QUIET, Change
from common.report.glossary import introduced, terms
from common.report.markdown import CAUGHT, best_rung, kills
from common.report.roofline import roofline
from common.report.terminal import checked


@dataclass(frozen=True)
class Bar:
    """A rung in its ladder. width: percent of the ladder's longest bar, None without a rate.
    checked: number of checks, as text."""

    outcome: RungOutcome
    width: float | None
    rate: str
    figures: str
    checked: str


@dataclass
class PageDay:
    """A day of the page. status: "" for a day that did not run. score: of its mutants, as a table's
    cell. mutants: the same in sentences. exercises: their kinds, each with True if it is solved."""

    number: int
    title: str
    teaches: str
    status: str = ""
    reason: str = ""
    rungs: list[RungOutcome] = field(default_factory=list)
    score: str = ""
    mutants: list[str] = field(default_factory=list)
    exercises: dict[str, bool] = field(default_factory=dict)

    @property
    def solved(self) -> str:
        """Return the exercises as a table's cell: "2 of 3"; "" without any."""
        return f"{sum(self.exercises.values())} of {len(self.exercises)}" if self.exercises else ""

    @property
    def best(self) -> RungOutcome | None:
        """Return the rung that represents the day."""
        return best_rung(self.rungs) if self.rungs else None

    @property
    def ladders(self) -> list[tuple[str, list[Bar]]]:
        """Return the rungs of each problem, as bars of one scale."""
        return [
            (problem, _bars(list(rungs)))
            for problem, rungs in groupby(self.rungs, key=lambda rung: rung.problem)
        ]


def _bars(rungs: list[RungOutcome]) -> list[Bar]:
    timed = [rung.timing for rung in rungs if rung.timing and rate(rung.timing)]
    fast = min((timing.ms for timing in timed), default=0.0)
    bars = []
    for rung in rungs:
        timing = rung.timing if rung.status == PASS else None
        columns = (*PROGRESS, HOST)
        figures = [f"{c.heading} {c.text(rung)}" for c in columns if timing and c.text(rung)]
        if rung.target:
            met = {True: "met", False: "missed", None: "not measured"}[rung.target_met]
            figures.append(f"target {rung.target}: {met}")
        width = 100 * fast / timing.ms if timing and fast else None
        shown = rate(timing) if timing else ""
        bars.append(Bar(rung, width, shown, " · ".join(figures), checked(rung)))
    return bars


def page(
    days: Sequence[Day],
    outcomes: Sequence[DayOutcome],
    where: Sequence[str],
    changes: Sequence[Change] | None = None,
    scores: Mapping[int, Score] | None = None,
    exercises: Mapping[int, dict[str, bool]] | None = None,
) -> str:
    """Return the page's text.

    days: all existing days. outcomes: of the days that ran. where: machines and versions, a line
    each. changes: of a comparison, None without one. scores: of mutants, by day. exercises: by day,
    their kinds, each with True if it is solved; None if the learner has begun none.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    by_number = {outcome.number: outcome for outcome in outcomes}
    scores, exercises = dict(scores or {}), dict(exercises or {})
    shown = [_page_day(day, by_number.get(day.number)) for day in days]
    for each, day in zip(shown, days, strict=True):
        each.score = "".join(kills(day, scores))
        each.mutants = _mutants(scores.get(day.number))
        each.exercises = exercises.get(day.number, {})
    ran = [day for day in shown if day.status]
    bests = [(day.number, day.best) for day in ran if day.best]
    where_from = introduced(days)
    glossary = [
        (name, term.text, where_from[name].number)
        for name, term in sorted(terms().items(), key=lambda item: item[0].lower())
        if name in where_from
    ]
    template = Path(__file__).with_name("page.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        totals=_totals(ran),
        where=where,
        parts=[
            (str(part), list(group))
            for part, group in groupby(shown, key=lambda day: part_of(day.number))
        ],
        columns=PROGRESS,
        meanings=[column for column in MARKDOWN if column.meaning],
        caught=CAUGHT,
        ran=ran,
        roofline=roofline([(n, rung.timing) for n, rung in bests if rung.timing]),
        glossary=glossary,
        breakable=lambda name: escape(name).replace("_", Markup("_<wbr>")),
        scored=bool(scores),
        practised=_practised(shown) if exercises else "",
        changes=None if changes is None else [c for c in changes if c.what not in QUIET],
        compared="" if changes is None else _compared(changes),
    )


def _page_day(day: Day, outcome: DayOutcome | None) -> PageDay:
    if outcome is None:
        return PageDay(day.number, day.title, day.teaches)
    status, reason = outcome.status, outcome.reason
    return PageDay(day.number, day.title, day.teaches, status, reason, outcome.rungs)


def _mutants(score: Score | None) -> list[str]:
    """Return sentences about a day's mutants."""
    if score is None:
        return []
    ways = ", ".join(f"{count} by {way}" for way, count in score.killed.items())
    killed = sum(score.killed.values())
    lines = [
        f"The checks catch {killed} of {counted(score.counted, 'planted bug')}: {ways or 'none'}"
        + (f"; {score.equivalent} more compute the same" if score.equivalent else "")
        + (f" ({score.date})." if score.date else ".")
    ]
    return [*lines, *(f"Not caught: {identity}" for identity in score.survived)]


def _practised(shown: Sequence[PageDay]) -> str:
    solved = sum(sum(day.exercises.values()) for day in shown)
    return f"{solved} of {counted(sum(len(day.exercises) for day in shown), 'exercise')} solved."


def _totals(ran: Sequence[PageDay]) -> str:
    rungs = [rung for day in ran for rung in day.rungs]
    aimed = [rung for rung in rungs if rung.target_met is not None]
    failed = sum(day.status == FAIL for day in ran)
    text = f"{counted(len(ran), 'day')} with {counted(len(rungs), 'rung')}, {failed} failed"
    if aimed:
        text += f"; {sum(bool(rung.target_met) for rung in aimed)} of {len(aimed)} targets met"
    return f"{text}."


def _compared(changes: Sequence[Change]) -> str:
    worse = sum(change.worse for change in changes)
    return f"{counted(len(changes), 'rung')} compared, {worse} worse than before."
