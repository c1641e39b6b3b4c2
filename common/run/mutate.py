"""Implement `--mutants`: try the mutants of days and report those that the days' checks miss."""

from __future__ import annotations

import datetime
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import asdict
from typing import Any

from common.base.compiling import BuildError
from common.base.days import Day
from common.base.figures import counted, duration
from common.base.options import RunOptions
from common.base.paths import ROOT
from common.base.refusal import CommandError
from common.base.toolchain import Platform, detect
from common.base.verdict import (
    EQUIVALENT,
    GOAL,
    KILLED,
    STILLBORN,
    SURVIVED,
    Verdict,
    score,
)
from common.mutants.campaign import Campaign, Choice, DayReport
from common.report import runs as reports
from common.report import stored
from common.report.files import ResultsError, check_writable
from common.report.terminal import Report
from common.run.doctor import obstacles
from common.run.exit_status import (
    EXIT_FAILED,
    EXIT_PASSED,
    Interrupted,
    signals_raise,
)
from common.run.runner import jobs_allowed
from common.run.selection import select

POLL = 0.2  # seconds between checks for finished days


def today_as_seed() -> int:
    """Return the date as a number, so that the sample changes every day: 20260131."""
    return int(datetime.date.today().strftime("%Y%m%d"))


def run(options: RunOptions, choice: Choice) -> int:
    """Try the mutants of the selected days and return the exit code: 0 if each of them kills at
    least 95 %, and its list of equivalent mutants holds. Raise CommandError."""
    report = Report(colour=options.colour)
    selection = select(options.selected, options.days, options.shard, further=True)
    if options.json:
        check_writable(options.json)
    platform = detect("cpu")
    if wrong := obstacles():
        raise CommandError(*wrong)
    for note in selection.notes:
        report.text(note, "yellow")
    if platform.note:
        report.text(f"note: {platform.note}", "yellow")
    for number, broken in selection.broken.items():
        report.text(f"{number:>3} {broken}", "red")
    report.text(f"mutants, {platform.label()}{_seed(choice)}")
    with signals_raise():
        try:
            this = _Run(options, choice, platform, report)
            found = this.run(selection.days)
        except Interrupted as interrupted:
            report.close()
            return 128 + interrupted.number
        finally:
            report.close()
    good = this.stored and not selection.broken and all(passed(each) for each in found)
    return EXIT_PASSED if good and found else EXIT_FAILED


def _seed(choice: Choice) -> str:
    if not choice.sample:
        return ""
    return f", {choice.sample} of each day (--sample {choice.sample} --seed {choice.seed})"


def passed(report: DayReport) -> bool:
    """Return True if enough of a day's mutants are killed, and its list of equivalent ones
    holds."""
    enough = score(report.day.number, report.verdicts).rate >= GOAL
    return enough and not report.problems and not report.error


class _Run:
    """One run of the command. stored: True if everything requested was written."""

    def __init__(self, options: RunOptions, choice: Choice, platform: Platform, report: Report):
        self.options, self.choice = options, choice
        self.platform, self.report = platform, report
        self._states: dict[int, DayReport] = {}
        self._shown: set[int] = set()
        self._lock = threading.Lock()
        self.stored = True

    def run(self, days: Sequence[Day]) -> list[DayReport]:
        began = time.monotonic()
        jobs = jobs_allowed(self.options.jobs)
        try:
            campaign = Campaign(self.platform, jobs, self.choice, self._tell)
        except BuildError as error:
            self.report.text(str(error), "red")
            return []
        try:
            futures = campaign.start(days)
            found = self._follow(futures)
        except Interrupted:
            campaign.programs.stop()
            self.report.text("interrupted; what is known is kept, and so far it is:", "yellow")
            states = [self._states[number] for number in sorted(self._states)]
            for state in states:
                if state.day.number not in self._shown:
                    self._show(state)
            self._write_json(states)
            raise
        finally:
            campaign.close()
        self._summary(found, time.monotonic() - began)
        self._store(found)
        return found

    def _tell(self, state: DayReport) -> None:
        with self._lock:
            self._states[state.day.number] = state

    def _follow(self, futures: list[Future[DayReport]]) -> list[DayReport]:
        """Show each day when it is over, in the days' order."""
        found: list[DayReport] = []
        while len(found) < len(futures):
            self._status()
            wait_for([futures[len(found)]], POLL)
            while len(found) < len(futures) and futures[len(found)].done():
                found.append(futures[len(found)].result())
                self._show(found[-1])
        return found

    def _status(self) -> None:
        parts = []
        with self._lock:
            for number, state in sorted(self._states.items()):
                if number not in self._shown and len(state.verdicts) < state.chosen:
                    alive = sum(v.status == SURVIVED for v in state.verdicts)
                    text = f"day {number}: {len(state.verdicts)} of {state.chosen} mutants"
                    parts.append(text + (f", {alive} survived" if alive else ""))
        self.report.status(" · ".join(parts) or "checking the original")

    def _show(self, state: DayReport) -> None:
        self._shown.add(state.day.number)
        number = state.day.number
        if state.error:
            self.report.line([(f"{number:>3} {state.day.title:<29} ", ""), (state.error, "red")])
            return
        style = "green" if passed(state) else "red"
        counts = score(number, state.verdicts)
        line = [(f"{number:>3} {state.day.title:<29} ", "")]
        line += [(f"{counts.rate:4.0%}", f"bold {style}"), (f" {describe(state.verdicts)}", "")]
        self.report.line(line)
        for verdict in state.verdicts:
            if verdict.status == SURVIVED:
                place = f"{verdict.source}:{verdict.line}"
                why = f" ({verdict.reason})" if verdict.reason else ""
                line = [(f"      {place}", "cyan"), (f" {verdict.identity}", "yellow"), (why, "")]
                self.report.line(line)
        for problem in state.problems:
            self.report.line([(f"      {problem}", "red")])

    def _summary(self, found: Sequence[DayReport], seconds: float) -> None:
        verdicts = [verdict for state in found for verdict in state.verdicts]
        short = [state.day.number for state in found if not passed(state)]
        text = f"{counted(len(found), 'day')}: {describe(verdicts)}"
        if short:
            text += f"; below {GOAL:.0%} or with errors: {', '.join(map(str, short))}"
        self.report.close()
        self.report.text(text, "bold")
        known = sum(verdict.stored for verdict in verdicts)
        times = f"{duration(seconds)} in all"
        self.report.text(f"{times}, {known} known from before" if known else times, "dim")

    def _store(self, found: Sequence[DayReport]) -> None:
        self._write_json(found)
        if not self.options.write:
            return
        date, complete = datetime.date.today().isoformat(), self.choice.complete
        scores = [
            score(state.day.number, state.verdicts, complete, date)
            for state in found
            if not state.error
        ]
        try:
            for text in stored.store_scores(scores, self.options.days.parent):
                self.report.text(text)
        except ResultsError as error:
            self._not_stored(error)

    def _not_stored(self, error: ResultsError) -> None:
        self.stored = False
        self.report.text(str(error), "red")

    def _write_json(self, found: Sequence[DayReport]) -> None:
        if not self.options.json:
            return
        days = [to_json(state, self.choice) for state in found]
        try:
            reports.write_mutants(self.options.json, days, datetime.date.today().isoformat())
        except ResultsError as error:
            self._not_stored(error)


def describe(verdicts: Sequence[Verdict]) -> str:
    """Return "58 mutants: 41 killed (30 result, 11 bad input), 6 equivalent, 3 survived"."""
    by = Counter(verdict.status for verdict in verdicts)
    killers = Counter(verdict.by for verdict in verdicts if verdict.status == KILLED)
    parts = []
    if by[KILLED]:
        which = ", ".join(f"{n} {name}" for name, n in killers.most_common())
        parts.append(f"{by[KILLED]} killed ({which})")
    if by[EQUIVALENT]:
        parts.append(f"{by[EQUIVALENT]} equivalent")
    parts.append(f"{by[SURVIVED]} survived")
    if by[STILLBORN]:
        parts.append(f"{by[STILLBORN]} did not compile")
    return f"{counted(len(verdicts), 'mutant')}: {', '.join(parts)}"


def to_json(state: DayReport, choice: Choice) -> dict[str, Any]:
    """Return a day's report, for --json."""
    return {
        "day": state.day.number,
        "complete": choice.complete and len(state.verdicts) == state.chosen,
        "error": state.error.replace(f"{ROOT}/", ""),
        "problems": state.problems,
        "rate": score(state.day.number, state.verdicts).rate,
        "verdicts": [asdict(verdict) for verdict in state.verdicts],
    }
