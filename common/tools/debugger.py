"""`--sanitize` on the CPU backend: a day's checks in many orders and in builds that watch memory.

Each question that the report answers is a row, as each of compute-sanitizer's tools is one on a
GPU. What answers them are passes over the day's checks, each in a process of its own: `_in_orders`
with an ordinary build, `_watching_memory` with one whose accesses are checked.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.base.days import Day
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome
from common.base.toolchain import VARIANT_VARIABLE, Platform, Variant
from common.build.library import unset_locals
from common.build.narrowing import narrowed
from common.cpu import findings
from common.cpu.backend import preloaded
from common.cpu.findings import ABOUT_ADDRESSES, ROWS, THROWN
from common.process.child import Child, describe_exit, fork
from common.process.events import Channel, Ended, Finished, Over, Planned, Progress, Stage
from common.process.worker import Work, run_this
from common.process.worker import run_day as check_day
from common.report.runs import outcomes_of, read_json

_SHOWN = 40  # lines of a row's details
_SHOWN_OUTPUT = 15  # lines of what a process printed that died


@dataclass
class Pass:
    """What a pass over the day's checks gave. died: why there is no more, "" if it came to its end.

    skipped: what the day asks for and is not here. output: what was printed, where it died.
    """

    rungs: list[RungOutcome] = field(default_factory=list)
    died: str = ""
    skipped: str = ""
    output: list[str] = field(default_factory=list)

    def failed(self) -> list[RungOutcome]:
        return [rung for rung in self.rungs if rung.status == FAIL]


def run_day(day: Day, platform: Platform, work: Work, channel: Channel) -> None:
    """Runs the passes and tells each row as if it were a rung."""
    channel.emit(Planned([["sanitize", row, what] for row, what in ROWS.items()]))

    def tell(row: str, outcome: RungOutcome) -> None:
        channel.emit(Finished(replace(outcome, rung=row, idea=ROWS[row])))

    channel.emit(Stage("orders", "checking in many orders"))
    ordered = _in_orders(day, platform, work)
    if ordered.skipped:
        channel.emit(Ended(SKIP, ordered.skipped))
        channel.emit(Over())
        return
    tell("orders", judge_orders(ordered))
    tell("waits", judge_waits(ordered))
    channel.emit(Stage("addresses", "checking with every access watched"))
    missing = _why_no_addresses(platform)
    watched = Pass() if missing else _watching_memory("address", day, platform, work)
    tell("addresses", judge_addresses(ordered, watched, missing))
    channel.emit(Stage("locals", "looking for variables that are never set"))
    outcome = judge_locals(ordered, watched, missing)
    if outcome.status == FAIL:
        outcome.details += unset_locals(day, replace(platform, variant="address"))
    tell("locals", outcome)
    channel.emit(Stage("indices", "looking for sizes and indices that are cut short"))
    tell("indices", judge_indices(day, platform))
    channel.emit(Stage("races", "checking with every access traced"))
    traced = _watching_memory("trace", day, platform, work)
    tell("races", judge_trace(traced, findings.RACES, ordered))
    tell("unwritten", judge_trace(traced, ("unwritten",)))
    channel.emit(Over())


def _in_orders(day: Day, platform: Platform, work: Work) -> Pass:
    """The day's checks in a forked process, in all orders."""
    requested = replace(work, bench=False, debug=True)
    child = fork(lambda channel: check_day(day, platform, requested, channel))
    progress = Progress(DayOutcome(day.number, day.name, day.title, PASS))
    died = ""
    try:
        over = False
        while not over and not died:
            over = child.finished()
            if child.readers and not over:
                select.select(child.readers, [], [], 0.1)
            for event in child.read():
                progress.take(event)
            if not over and time.monotonic() - child.started > work.time_limit:
                died = f"no end after {work.time_limit:.0f} s, {_at(progress)}"
        if progress.outcome.status == FAIL:
            died = progress.outcome.reason
        elif not progress.over and not died:
            died = _ending(child, progress)
        output = child.output().splitlines() if died else []
    finally:
        child.kill()
        child.close()
    skipped = progress.outcome.reason if progress.outcome.status == SKIP else ""
    return Pass(progress.outcome.rungs, died, skipped, output)


def _at(progress: Progress) -> str:
    return f"while {progress.rung or 'the day'} was at: {progress.stage}"


def _ending(child: Child, progress: Progress) -> str:
    assert child.exit_code is not None
    return f"the process died: {describe_exit(child.exit_code)}, {_at(progress)}"


def _why_no_addresses(platform: Platform) -> str:
    """Why there is no build that watches addresses; "" if there is one."""
    try:
        preloaded(platform.compiler)
    except FileNotFoundError as error:
        return str(error)
    return ""


def _watching_memory(variant: Variant, day: Day, platform: Platform, work: Work) -> Pass:
    """The day's checks in a new process that builds and loads that variant: all cases where
    addresses are watched, the quick ones where every access is traced.

    Without guard bands: a tensor is to end where its memory ends.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        # Tracing takes long; what an access beyond an array needs may be in any case.
        fewer = ("--quick",) if variant == "trace" else ()
        options = (*fewer, "--no-bench", "--watched", "--no-color", "--json", str(report))
        command = run_this(day, "cpu", work, *options)
        variables = {VARIANT_VARIABLE: variant, "CXX": platform.compiler}
        if variant == "address":
            variables |= preloaded(platform.compiler)
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=work.time_limit,
            )
        except subprocess.TimeoutExpired:
            return Pass(died=f"no end after {work.time_limit:.0f} s")
        if not report.is_file():
            lines = done.stdout.strip().splitlines()
            return Pass(died=_first_finding(lines, done.returncode), output=lines)
        days = outcomes_of(read_json(report))
    return _of_report(days, done.stdout.strip().splitlines())


def _of_report(days: Sequence[DayOutcome], output: list[str]) -> Pass:
    rungs = [rung for day in days for rung in day.rungs]
    ended = next((day.reason for day in days if not day.rungs), "")
    return Pass(rungs, died=ended, output=output if ended else [])


def _first_finding(lines: Sequence[str], code: int) -> str:
    """Why a process ended without a report: what the sanitizer's own library or ours said last."""
    for line in lines:
        if "ERROR: AddressSanitizer" in line or line.startswith(THROWN):
            return line.split("ERROR: ")[-1].removeprefix(THROWN)
    return f"the process died: {describe_exit(code)}"


# ------------------------------------------------------------------ what the passes say


def _row(found: Pass, failures: Sequence[RungOutcome]) -> RungOutcome:
    """A row that these rungs of the pass made fail, or that passed."""
    outcome = RungOutcome("sanitize", "", "", PASS)
    if not failures:
        if all(rung.status == SKIP for rung in found.rungs):
            outcome.status = SKIP
            outcome.reason = found.rungs[0].reason if found.rungs else "no rung was checked"
        return outcome
    outcome.status = FAIL
    outcome.reason = f"{failures[0].rung}: {_words(failures[0].reason)}"
    outcome.details = list(failures[0].details)
    for rung in failures[1:]:
        outcome.details += [f"{rung.rung}: {_words(rung.reason)}", *rung.details]
    outcome.details = outcome.details[:_SHOWN]
    return outcome


def _words(reason: str) -> str:
    return reason.replace("it raised " + THROWN, "").replace(THROWN, "")


def _thrown(rung: RungOutcome) -> bool:
    return THROWN in rung.reason


def _about_addresses(rung: RungOutcome) -> bool:
    return _thrown(rung) and bool(ABOUT_ADDRESSES.search(rung.reason))


def _dead(found: Pass) -> RungOutcome:
    output = found.output[-_SHOWN_OUTPUT:]
    return RungOutcome("sanitize", "", "", FAIL, found.died, output)


def _remarks(found: Pass, about: str) -> list[str]:
    """What the rungs remark about that, each once: a rung may be there for several problems."""
    remarks = (f"{rung.rung}: {r}" for rung in found.rungs for r in rung.remarks if about in r)
    return list(dict.fromkeys(remarks))


def judge_orders(ordered: Pass) -> RungOutcome:
    """The row "orders": results that differ, or are wrong in every order."""
    if ordered.died:
        return _dead(ordered)
    outcome = _row(ordered, [rung for rung in ordered.failed() if not _thrown(rung)])
    outcome.remarks += _remarks(ordered, "bit for bit")
    return outcome


def judge_waits(ordered: Pass) -> RungOutcome:
    """The row "waits": launches that the runtime ended since threads waited in vain."""
    if ordered.died and not ordered.rungs:
        return RungOutcome("sanitize", "", "", SKIP, "the checks in many orders did not end")
    return _row(ordered, [r for r in ordered.failed() if _thrown(r) and not _about_addresses(r)])


def judge_addresses(ordered: Pass, watched: Pass, missing: str) -> RungOutcome:
    """The row "addresses", from the pass that watches them and from faults of the ordinary one."""
    failures = [rung for rung in watched.failed() if _about_addresses(rung)]
    seen = {(rung.problem, rung.rung) for rung in failures}
    failures += [
        rung
        for rung in ordered.failed()
        if _about_addresses(rung) and (rung.problem, rung.rung) not in seen
    ]
    if watched.died and not failures:
        return _dead(watched)
    outcome = _row(ordered if missing else watched, failures)
    if missing and outcome.status == PASS:
        outcome.status, outcome.reason = SKIP, missing
    return outcome


def judge_locals(ordered: Pass, watched: Pass, missing: str) -> RungOutcome:
    """The row "locals": rungs that are wrong only where locals begin with a strange pattern."""
    if missing or watched.died:
        reason = missing or "the checks with every access watched did not end"
        return RungOutcome("sanitize", "", "", SKIP, reason)
    wrong_anyway = {(rung.problem, rung.rung) for rung in ordered.failed()}
    failures = [
        rung
        for rung in watched.failed()
        if not _about_addresses(rung) and (rung.problem, rung.rung) not in wrong_anyway
    ]
    outcome = _row(watched, failures)
    if failures:
        outcome.reason += (
            " (only where local variables begin with a pattern: one is read before it is set)"
        )
    return outcome


def judge_indices(day: Day, platform: Platform) -> RungOutcome:
    """The row "indices": what the compiler says of the day's sources."""
    outcome = RungOutcome("sanitize", "", "", PASS)
    found = narrowed(day, platform)
    if found:
        outcome.status, outcome.reason, outcome.details = FAIL, found[0], found[1:_SHOWN]
    return outcome


def judge_trace(traced: Pass, kinds: tuple[str, ...], ordered: Pass | None = None) -> RungOutcome:
    """The rows "races" and "unwritten": what the tracer found of these kinds. With the pass in many
    orders, also the rungs that passed there and fail while they are traced, for whatever reason."""
    if traced.died:
        return _dead(traced)
    failures: list[RungOutcome] = []
    if ordered is not None:
        wrong_anyway = {(rung.problem, rung.rung) for rung in ordered.failed()}
        failures = [
            rung
            for rung in traced.failed()
            if not rung.findings and (rung.problem, rung.rung) not in wrong_anyway
        ]
    # Rungs share code, and one rung may serve several problems: each pair of lines
    # is reported once.
    found: dict[tuple[str, ...], tuple[dict[str, Any], list[str]]] = {}
    for rung in traced.rungs:
        for finding in rung.findings:
            if finding["what"] in kinds:
                _, names = found.setdefault(tuple(finding["places"]), (finding, []))
                names.append(rung.rung)
    outcome = _row(traced, failures)
    if found:
        lines = []
        for finding, names in found.values():
            lines.append(f"{', '.join(dict.fromkeys(names))}: {finding['summary']}")
            lines += finding["details"]
        if failures:
            lines += [outcome.reason, *outcome.details]
        outcome.status, outcome.reason, outcome.details = FAIL, lines[0], lines[1:_SHOWN]
    outcome.remarks += _remarks(traced, "looked at")
    return outcome
