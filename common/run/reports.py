"""Show, merge, compare and store reports of runs, and show the difference of two rungs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.base.days import discover
from common.base.figures import numbers
from common.base.outcome import PASS
from common.base.refusal import UsageError
from common.base.where import device_name, versions
from common.practice.journal import Journal, JournalError, practice_folder
from common.practice.progress import exercises_of
from common.practice.rung_diff import pairs_of, rung_diff, times_of
from common.report import runs as reports
from common.report import stored
from common.report.comparison import Change, compare, compared_lines, in_one_only
from common.report.files import ResultsError, write_atomically
from common.report.terminal import NO_TIMES, Report
from common.run.exit_status import EXIT_FAILED, EXIT_PASSED, exit_code
from common.run.selection import select


def write_page(
    path: Path,
    root: Path,
    runs: Sequence[dict[str, Any]],
    changes: Sequence[Change] | None = None,
) -> None:
    """Write the page of --html, with the stored scores of mutants and the learner's solved
    exercises. Raise ResultsError."""
    from common.report.page import page

    where = [
        f"{device_name(run['where'])}: {versions(run['where'])}"
        + (f"; {NO_TIMES}" if reports.on_cpu(run) else "")
        for run in runs
    ]
    days = discover(root)[0]
    try:
        journal = Journal(practice_folder(root))
    except JournalError as error:
        raise ResultsError(str(error)) from None
    solved = {
        day.number: {name: journal.solved(day.number, name) for name in exercises_of(day)}
        for day in (days if journal.begun else [])
    }
    scores = stored.read_scores(root.parent)
    outcomes = reports.outcomes_of(runs)
    write_atomically(
        path, page(days, outcomes, list(dict.fromkeys(where)), changes, scores, solved)
    )


def use_reports(
    files: Sequence[Path],
    store_in: Path | None,
    json: Path | None,
    colour: bool,
    html: Path | None,
    days: Path,
) -> int:
    """Show reports written by --json as one, write them as one to `json` and `html`, and store
    their results under `store_in`. Without reports: regenerate the generated files, and the page of
    the stored results. A report to be stored may also be one of --mutants."""
    report = Report(colour=colour)
    scores = reports.read_mutants(files[0]) if store_in and len(files) == 1 else None
    if store_in and scores is not None:
        for text in stored.store_scores(scores, store_in):
            report.text(text)
        return EXIT_PASSED if scores else EXIT_FAILED
    runs = reports.merge(files)
    outcomes = reports.outcomes_of(runs)
    report.times = not all(map(reports.on_cpu, runs))
    for outcome in outcomes:
        for rung in outcome.rungs:
            report.rung(outcome.number, rung)
        if outcome.status != PASS and not outcome.rungs:
            report.day(outcome)
    if outcomes:
        report.summary(outcomes, sum(o.build_s + o.run_s for o in outcomes))
    if json:
        reports.write_json(json, runs)
    if store_in:
        lines = [text for run in runs for text in stored.store(run, store_in)]
        for text in lines if runs else stored.regenerate(store_in):
            report.text(text)
    if html:
        write_page(html, days, runs or stored.as_runs(stored.read_stored(days.parent)))
        report.text(f"wrote {html}")
    return exit_code(outcomes) if files else EXIT_PASSED


def show_diff(selected: Sequence[str], first: str, second: str, days: Path, colour: bool) -> int:
    """Show the change from one rung of a day to another; return the exit code."""
    report = Report(colour=colour)
    chosen = select(selected, days, further=True).days if selected else ()
    if len(chosen) != 1:
        raise UsageError("--diff takes one day: run_day.py 21 --diff v2 v3")
    day = chosen[0]
    pairs = pairs_of(day, first, second)
    for pair in pairs:
        for line in rung_diff(day, *pair):
            style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
            report.line([(line, style)])
        if times := times_of(day, *pair, days.parent):
            report.text(times, "bold")
    return EXIT_PASSED


def compare_reports(
    old: Path, new: Path, threshold: float, html: Path | None, days: Path, colour: bool
) -> int:
    """Show the changes between two reports; return EXIT_FAILED for a worse one or for none."""
    report = Report(colour=colour)
    before, after = reports.read_json(old), reports.read_json(new)
    outcomes = reports.outcomes_of(before), reports.outcomes_of(after)
    changes = compare(*outcomes, threshold)
    for runs, path in ((before, old), (after, new)):
        places = [f"{device_name(run['where'])}, {versions(run['where'])}" for run in runs]
        for place in dict.fromkeys(places):
            report.text(f"{path}: {place}", "dim")
    machines = {device_name(run["where"]) for run in [*before, *after]}
    if len(machines) > 1:
        report.text(
            f"note: measured on different machines: {', '.join(sorted(machines))}", "yellow"
        )
    if any(map(reports.on_cpu, [*before, *after])):
        report.text(f"note: {NO_TIMES}: they are not compared", "yellow")
    for found, path in zip(in_one_only(*outcomes), (old, new), strict=True):
        if found:
            report.text(f"note: only {path} has day {numbers(found)}, not compared", "yellow")
    for line in compared_lines(changes):
        report.line([line])
    if html:
        write_page(html, days, after, changes)
        report.text(f"wrote {html}")
    worse = any(change.worse for change in changes)
    return EXIT_FAILED if worse or not changes else EXIT_PASSED
