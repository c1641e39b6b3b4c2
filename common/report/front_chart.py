"""Draw the front page's chart: matrix products from the course's first kernel to its fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.base.days import Day
from common.base.figures import rate
from common.base.outcome import RungOutcome
from common.report.plot import Bar, Bars, Problem, drawn, problems_of

# For each day, the fastest rung of its first problem; for the first day, also the first rung.
CLIMB = (7, 8, 51, 52, 54, 56)


def steps_of(
    days: Sequence[Day], results: Mapping[int, Sequence[RungOutcome]]
) -> list[tuple[int, Bar]]:
    """Return the measured steps of the climb, days with bars. results: the rungs of each day."""
    titles = {day.number: day.title for day in days}
    steps: list[tuple[int, Bar]] = []
    for number in CLIMB:
        problems = problems_of(results.get(number, ()))
        if number not in titles or not problems:
            continue
        problem = problems[0]
        if not steps:
            steps.append((number, _bar(f"day {number}: a first kernel", problem, 0)))
        fastest = problem.rates.index(max(problem.rates))
        steps.append((number, _bar(f"day {number}: {titles[number]}", problem, fastest)))
    return steps


def _bar(label: str, problem: Problem, index: int) -> Bar:
    timing = problem.rungs[index].timing
    assert timing  # its problem has a rate
    dtype = timing.case.split()[-1]
    return Bar(label, problem.rates[index], f"{rate(timing)}, {dtype}", problem)


def climb(days: Sequence[Day], results: Mapping[int, Sequence[RungOutcome]]) -> str:
    """Return the SVG of the climb; "" if nothing of it is measured. results: see `steps_of`."""
    bars = [bar for _, bar in steps_of(days, results)]
    return drawn([Bars("Matrix products", bars)], "cuBLAS, as PyTorch calls it") if bars else ""
