"""Draw a day's rungs for callers that show the drawing themselves, such as practice mode."""

from __future__ import annotations

import io
from dataclasses import replace

from common.base.days import Day
from common.base.options import RunOptions
from common.base.outcome import FAIL
from common.base.toolchain import Platform, detect
from common.report.drawn_call import DrawnRungs
from common.report.terminal import Report
from common.run.command import make_runner


def draw_day(
    day: Day,
    platform: Platform,
    options: RunOptions,
    rungs: tuple[str, ...],
    report: Report | None = None,
) -> DrawnRungs:
    """Return a drawing of each of these rungs of a day, on a small case, with lines and an SVG.

    day: may contain a learner's file (`Challenge.day_to_run`). platform: of the run; the drawing
    always comes from the CPU backend. options: of the run, for its limits and `attend`. rungs: ()
    for all. report: shows the progress, and the drawings; None for none. If the day does not build,
    or does not end, `missing` contains the reason. Raise ToolchainError if the CPU backend cannot
    be used.
    """
    if platform.device != "cpu":
        platform = detect("cpu")
    platform = replace(platform, variant="trace")
    options = replace(options, mode="draw", rungs=rungs, alone=True)
    runner = make_runner(options, [day], platform, report or Report(io.StringIO()))
    runner.run()
    outcome = runner.outcomes[0]
    drawn = DrawnRungs.of(outcome.rungs)
    if outcome.status == FAIL and not outcome.rungs:
        drawn.missing.append(f"{day.title}: {outcome.reason}")
    return drawn
