"""Compare the learner's kernel with the day's rungs: timed on a GPU, counted on the CPU.

A time on the CPU backend does not predict a GPU's, so the memory accesses that a GPU would make are
counted there. The day's own figures are measured on this machine, and cached for a day.
"""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from common.base.cache import cache_directory, digest
from common.base.days import Day
from common.base.figures import duration, rate
from common.base.ladder import Ladder
from common.base.options import RunOptions
from common.base.outcome import PASS, DayOutcome, RungOutcome, Timing
from common.base.toolchain import Platform
from common.base.where import where
from common.build import library
from common.practice.challenge import Challenge
from common.practice.speed import SpeedChallenge
from common.practice.steps import ExerciseError
from common.practice.work_counts import (
    NAMES,
    WorkCounts,
    goals,
    legend,
    waste,
    work_counts,
)
from common.report.files import write_atomically
from common.report.terminal import Report, table_lines
from common.run.command import make_runner
from common.run.runner import TOOL_SLOWDOWN

REACHED = 0.95  # of the last rung's rate: allows for noise
PATIENCE, LONGER = 15.0, 5.0  # seconds, and times the day's own: the limit of counting
BETTER = 1.05  # times as fast: smaller speed-ups count as noise


@dataclass(frozen=True)
class Verdict:
    """The result of measuring. solved: the goal is reached. lines: the figures. hint: the next
    step, from the day's declaration, "" if the goal is reached. needs: what this machine lacks for
    a goal to exist."""

    solved: bool
    lines: tuple[str, ...]
    hint: str = ""
    needs: str = ""


class SpeedCheck:
    """Measure rungs on one platform. Raise ExerciseError if one cannot be measured."""

    def __init__(self, options: RunOptions, platform: Platform, report: Report):
        self._options, self._platform, self._report = options, platform, report

    def judge(self, challenge: SpeedChallenge, checked: DayOutcome) -> Verdict:
        """Return the verdict on the learner's file. checked: the outcome of the checks, with the
        time on a GPU."""
        ladder = challenge.ladder
        if self._platform.device == "cuda":
            mine = _rungs(checked, ladder.problem.name)[ladder.first.name].timing
            if mine is None:
                raise ExerciseError(f"{ladder.first.name} was not timed")
            return judge_times(ladder, mine, self._own_times(challenge))
        found = self._counted(challenge.day_to_run(), challenge, (ladder.first.name,))
        mine_counted = work_counts(_rungs(found, ladder.problem.name)[ladder.first.name])
        own = self._own_counts(challenge, ladder)
        return judge_counts(ladder, mine_counted, own)

    def waste(self, challenge: Challenge) -> str:
        """Return the count of a right solution that far exceeds the day's own, as text; "" if none
        does, or nothing can be counted."""
        built_otherwise = any(path.suffix != ".py" for path in challenge.day.other_sources)
        in_python = challenge.original.suffix == ".py"
        if self._platform.device == "cuda" or built_otherwise or in_python:
            return ""
        own = self._counted(challenge.day, None, challenge.rungs)
        limit = PATIENCE + LONGER * own.run_s
        try:
            mine = self._counted(challenge.day_to_run(), challenge, challenge.rungs, limit)
        except ExerciseError as error:
            if "no end after" not in str(error):
                raise
            return (
                f"its accesses to memory were not counted to the end in {limit:.0f} s; those of "
                f"the day's own took {own.run_s:.1f} s"
            )
        said = ""
        for rung, theirs in zip(mine.rungs, own.rungs, strict=True):
            said = said or waste(work_counts(rung), work_counts(theirs))
        return said

    def _counted(
        self,
        day: Day,
        challenge: Challenge | None,
        rungs: tuple[str, ...],
        limit: float = 0.0,
    ) -> DayOutcome:
        """Return the profile of these rungs. limit: seconds that it may take, 0 for the default."""
        self._report.status("counting accesses to memory")
        platform = replace(self._platform, variant="trace")
        options = replace(self._options, mode="profile")
        if limit:
            options = replace(options, time_limit=limit / TOOL_SLOWDOWN)
        return self._run(day, challenge, rungs, options, platform)

    def _run(
        self,
        day: Day,
        challenge: Challenge | None,
        rungs: tuple[str, ...],
        options: RunOptions,
        platform: Platform,
    ) -> DayOutcome:
        swap = (challenge.original, challenge.file) if challenge else None
        options = replace(options, rungs=rungs, swap=swap, alone=True)
        runner = make_runner(options, [day], platform, Report(io.StringIO()))
        runner.run()
        outcome = runner.outcomes[0]
        if outcome.status != PASS:
            broken = next((rung for rung in outcome.rungs if rung.status != PASS), None)
            why = f"{broken.rung}: {broken.reason}" if broken else outcome.reason
            if outcome.output:  # the last line contains the reason if the process died
                why += f" ({outcome.output.splitlines()[-1]})"
            raise ExerciseError(f"day {day.number} cannot be measured here: {why}")
        return outcome

    def _own_times(self, challenge: SpeedChallenge) -> dict[str, Timing]:
        def measure() -> dict[str, Timing]:
            self._report.status("timing the day's own rungs")
            options = replace(self._options, mode="run", quick=False, bench=True)
            names = tuple(rung.name for rung in challenge.ladder.rungs)
            outcome = self._run(challenge.day, None, names, options, self._platform)
            found = _rungs(outcome, challenge.ladder.problem.name)
            return {name: rung.timing for name, rung in found.items() if rung.timing}

        kept = self._kept(challenge.day, lambda: {k: asdict(t) for k, t in measure().items()})
        return {name: Timing(**values) for name, values in kept.items()}

    def _own_counts(self, challenge: Challenge, ladder: Ladder) -> dict[str, WorkCounts]:
        def measure() -> dict[str, WorkCounts]:
            names = tuple(rung.name for rung in ladder.rungs)
            outcome = self._counted(challenge.day, None, names)
            found = _rungs(outcome, ladder.problem.name)
            return {name: work_counts(rung) for name, rung in found.items()}

        kept = self._kept(challenge.day, lambda: {k: asdict(c) for k, c in measure().items()})
        return {name: WorkCounts(**values) for name, values in kept.items()}

    def _kept(
        self, day: Day, measure: Callable[[], dict[str, dict[str, Any]]]
    ) -> dict[str, dict[str, Any]]:
        """Return the result of `measure`, from the cache if it was measured here with these sources
        and, for times, today."""
        here = where(self._platform)
        if self._platform.device == "cpu":
            here["date"] = ""  # counts do not drift
        built = library.plan(day, self._platform).entry.key
        key = digest([json.dumps(here), built], sorted(day.folder.glob("*.py")))
        path = cache_directory() / "speed" / f"{day.kind}-{self._platform.device}.json"
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["key"] == key:
                return dict(known["rungs"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # missing, or written by another version of this program
        rungs = measure()
        write_atomically(path, json.dumps({"key": key, "rungs": rungs}))
        return rungs


def _rungs(outcome: DayOutcome, problem: str) -> dict[str, RungOutcome]:
    return {rung.rung: rung for rung in outcome.rungs if rung.problem == problem}


def judge_times(ladder: Ladder, mine: Timing, own: Mapping[str, Timing]) -> Verdict:
    """Return the verdict on a time. mine: time of the learner's kernel. own: times of the day's
    rungs, on the same case of this GPU."""
    last = own[ladder.last.name]
    rows = [_time_row("yours", mine)]
    rows += [_time_row(rung.name, own[rung.name]) for rung in ladder.rungs]
    faster = [r for r in ladder.rungs[1:] if own[r.name].ms * BETTER < mine.ms]
    others = ", ".join(
        f"{short(rung.name)} reaches {_share(own[rung.name])}" for rung in ladder.rungs[1:]
    )
    bound = f" of {mine.bound}" if mine.share is not None else ""
    line = f"{_share(mine)}{bound}; {others}"
    solved = mine.ms * REACHED <= last.ms
    hint = "" if solved or not faster else f"{faster[0].name}: {faster[0].idea}"
    return Verdict(solved, (*table_lines(("", "of peak", "rate", "time"), rows), line), hint)


def _time_row(name: str, timing: Timing) -> list[str]:
    peak = "" if timing.share is None else f"{timing.share:.2f} {timing.bound}"
    return [name, peak, rate(timing), duration(timing.ms / 1e3)]


def _share(timing: Timing) -> str:
    """Return the share of the ceiling or, if unknown, the time."""
    return duration(timing.ms / 1e3) if timing.share is None else f"{timing.share:.2f}"


def judge_counts(ladder: Ladder, mine: WorkCounts, own: Mapping[str, WorkCounts]) -> Verdict:
    """Return the verdict on counts. mine: counts of the learner's kernel. own: counts of the day's
    rungs, on the same case."""
    most = goals(own[ladder.first.name], own[ladder.last.name])
    used = [name for name in NAMES.values() if any(_count(c, name) for c in [mine, *own.values()])]

    def row(title: str, counts: WorkCounts) -> list[str]:
        return [title, *(f"{_count(counts, name):,}" for name in used)]

    rows = [row("yours", mine), *(row(rung.name, own[rung.name]) for rung in ladder.rungs)]
    rows.append(["goal", *(f"≤ {most[name]:,}" if name in most else "" for name in used)])
    case = ladder.problem.timing_case("cpu")
    table = table_lines(("", *used), rows)
    lines = [f"counted on {case}:", *table, *textwrap.wrap(legend(used), 78)]
    if not most:
        return Verdict(
            False,
            (
                *lines,
                f"{ladder.last.name} makes no fewer accesses to memory than {ladder.first.name}: "
                "its gain is time, and a goal needs a GPU",
            ),
            needs="a GPU",
        )
    above = {name: _count(mine, name) / max(most[name], 1) for name in most}
    above = {name: ratio for name, ratio in above.items() if _count(mine, name) > most[name]}
    if not above:
        return Verdict(True, tuple(lines))
    lines.append(", ".join(f"{name}: {ratio:.2f} of the goal" for name, ratio in above.items()))
    better = (
        rung
        for rung in ladder.rungs[1:]
        if any(_count(own[rung.name], name) * BETTER < _count(mine, name) for name in above)
    )
    following = next(better, None)
    hint = f"{following.name}: {following.idea}" if following else ""
    return Verdict(False, tuple(lines), hint)


def _count(counts: WorkCounts, name: str) -> int:
    return counts.by_name()[name]


def short(rung: str) -> str:
    """Return the version in a rung's name: "v3" for softmax_v3_registers; else the whole name."""
    return next((word for word in rung.split("_") if word[:1] == "v" and word[1:].isdigit()), rung)
