"""Implement `--sanitize` on the CPU backend: a day's checks in many orders and with watched memory.

The report has a row for each question, as it has one for each tool of compute-sanitizer on a GPU.
The answers come from passes over the day's checks, each in a separate process: one in many orders
with an ordinary build, and `_watching_memory` with builds whose accesses are checked.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.base.days import Day, load_lesson
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome
from common.base.toolchain import VARIANT_VARIABLE, Platform, Variant
from common.build.custom_build import not_watched
from common.build.library import unset_locals
from common.build.narrowing import narrowed
from common.cpu import findings
from common.cpu.backend import preloaded
from common.cpu.findings import ABOUT_ADDRESSES, RETURNED_EARLY, ROWS, THROWN
from common.process.child import Child, describe_exit, fork
from common.process.events import Channel, Ended, Finished, Over, Planned, Progress, Stage
from common.process.worker import chosen_problems
from common.process.worker import run_day as check_day
from common.report.runs import outcomes_of, read_json

# The rows of a day with all kernels in Python.
INTERPRETED = {
    "results": "right in every case, in the interpreter's order",
    "races and addresses": "no two programs at one place, no access beyond an array",
}
_SHOWN = 40  # lines of a row's details
_SHOWN_OUTPUT = 15  # lines of the output of a process that died


@dataclass
class Pass:
    """The result of a pass over the day's checks. died: why it ended early, or "".

    skipped: what the day needs and this machine lacks. output: the output of a pass that died.
    """

    rungs: list[RungOutcome] = field(default_factory=list)
    died: str = ""
    skipped: str = ""
    output: list[str] = field(default_factory=list)

    def failed(self) -> list[RungOutcome]:
        return [rung for rung in self.rungs if rung.status == FAIL]


def run_day(day: Day, platform: Platform, options: RunOptions, channel: Channel) -> None:
    """Run the passes and report each row like a rung. For kernels in Python, which no build
    watches, only results are checked."""
    interpreter = _interpreter(day, options)
    rows = INTERPRETED if interpreter else ROWS
    channel.emit(Planned([["sanitize", row, what] for row, what in rows.items()]))

    def tell(row: str, outcome: RungOutcome) -> None:
        channel.emit(Finished(replace(outcome, rung=row, idea=rows[row])))

    if interpreter:
        results, accesses = INTERPRETED
        channel.emit(Stage(results, "checking all cases"))
        ordered = _followed(_begin_in_orders(day, platform, options), day, options.limit("cpu"))
        tell(results, judge_orders(ordered))
        tell(accesses, RungOutcome("sanitize", "", "", SKIP, not_watched(interpreter)))
        channel.emit(Over())
        return
    missing = _why_no_addresses(platform)
    channel.emit(Stage("orders", "checking in many orders, and with every access watched"))
    # Before threads start: a forked child has one of them, and the locks held by the others.
    in_orders = _begin_in_orders(day, platform, options)
    with ThreadPoolExecutor(3) as pool:
        watching = (
            None if missing else pool.submit(_watching_memory, "address", day, platform, options)
        )
        indexed = pool.submit(judge_indices, day, platform)
        tracing = pool.submit(_watching_memory, "trace", day, platform, options)
        ordered = _followed(in_orders, day, options.limit("cpu"))
        if ordered.skipped:
            channel.emit(Ended(SKIP, ordered.skipped))
            channel.emit(Over())
            return
        tell("orders", judge_orders(ordered))
        tell("waits", judge_waits(ordered))
        channel.emit(Stage("addresses", "checking with every access watched"))
        watched = watching.result() if watching else Pass()
        odd = wrong_there_alone(ordered, watched)
        addresses = judge_addresses(ordered, watched, missing)
        if not odd:
            tell("addresses", addresses)
            tell("locals", _locals_anyway(ordered, watched, missing, day, platform))
        channel.emit(Stage("indices", "looking for sizes and indices that are cut short"))
        tell("indices", indexed.result())
        channel.emit(Stage("races", "checking with every access traced"))
        traced = tracing.result()
        if traced.died and addresses.status == FAIL:
            traced = replace(traced, skipped="the process died: see addresses")
        tell("races", judge_trace(traced, findings.RACES, ordered))
        tell("unwritten", judge_trace(traced, ("unwritten",)))
    if odd:
        channel.emit(Stage("locals", "looking for variables that are never set"))
        causes = _causes(odd, traced, day, platform, options)
        tell("addresses", judge_addresses(ordered, watched, missing, causes))
        outcome = judge_locals(watched, missing, causes)
        if outcome.status == FAIL:
            outcome.details += unset_locals(day, platform)
        tell("locals", outcome)
    channel.emit(Over())


def _interpreter(day: Day, options: RunOptions) -> str:
    """Return the interpreter of the kernels of all rungs to run, "" if some are in CUDA."""
    try:
        problems = chosen_problems(load_lesson(day), options)
    except Exception:
        return ""  # the passes meet it again, and report it
    found = {rung.interpreter for problem in problems for rung in problem.rungs}
    return found.pop() if len(found) == 1 else ""


def _causes(
    odd: Sequence[RungOutcome], traced: Pass, day: Day, platform: Platform, options: RunOptions
) -> Causes:
    """Return why rungs are wrong only if addresses are watched, as far as two more passes show: in
    the same build, and in one whose locals begin with zeros."""
    if all(_races(rung, traced) for rung in odd):
        return {RACED: list(odd)}
    again, zeroed = (
        _watching_memory(variant, day, platform, options, [rung.rung for rung in odd])
        for variant in ("address", "zeroed")
    )
    return why_wrong_there(odd, traced, again, zeroed)


def _begin_in_orders(day: Day, platform: Platform, options: RunOptions) -> Child:
    """Start the day's checks in a forked process, in all orders."""
    requested = replace(options, bench=False, debug=True)
    return fork(lambda channel: check_day(day, platform, requested, channel))


def _followed(child: Child, day: Day, limit: float) -> Pass:
    """Return the result of the checks in all orders, after their end. limit: seconds."""
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
            if not over and time.monotonic() - child.started > limit:
                died = f"no end after {limit:.0f} s, {_at(progress)}"
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
    """Return why no build can watch addresses; "" if one can."""
    try:
        preloaded(platform.compiler)
    except FileNotFoundError as error:
        return str(error)
    return ""


def _watching_memory(
    variant: Variant, day: Day, platform: Platform, options: RunOptions, rungs: Sequence[str] = ()
) -> Pass:
    """Run the day's checks in a new process that builds and loads that variant: all cases if
    addresses are watched, the quick ones if every access is traced. rungs: run only these, if there
    are any.

    Guard bands are off, so that a tensor ends where its memory ends.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = options.watched_command(
            day.number,
            "cpu",
            # Tracing takes long; an access beyond an array may occur in any case.
            quick=variant == "trace",
            bench=False,
            watched=True,
            rungs=options.rungs or tuple(dict.fromkeys(rungs)),
            json=report,
        )
        limit = options.limit("cpu")
        variables = {VARIANT_VARIABLE: variant, "CXX": platform.compiler}
        if variant in ("address", "zeroed"):
            variables |= preloaded(platform.compiler)
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return Pass(died=f"no end after {limit:.0f} s")
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
    """Return why a process ended without a report: the message of the sanitizer's library or of
    ours."""
    for line in lines:
        if "ERROR: AddressSanitizer" in line or line.startswith(THROWN):
            return line.split("ERROR: ")[-1].removeprefix(THROWN)
    return f"the process died: {describe_exit(code)}"


# ------------------------------------------------------------------ results of the passes


def _row(found: Pass, failures: Sequence[RungOutcome]) -> RungOutcome:
    """Return a row failed by these rungs of the pass, or a passed one without any."""
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
    """Return the rungs' remarks that contain `about`, each once: a rung may belong to several
    problems."""
    said = ((rung.rung, text) for rung in found.rungs for text in (*rung.remarks, *rung.asides))
    return list(dict.fromkeys(f"{name}: {text}" for name, text in said if about in text))


def judge_orders(ordered: Pass) -> RungOutcome:
    """Return the row "orders": results that differ, or that are wrong in every order."""
    if ordered.died:
        return _dead(ordered)
    outcome = _row(ordered, [rung for rung in ordered.failed() if not _thrown(rung)])
    outcome.remarks += _remarks(ordered, "bit for bit")
    return outcome


def judge_waits(ordered: Pass) -> RungOutcome:
    """Return the row "waits": launches that the runtime ended because threads waited forever, and
    wrong results of blocks in which threads had returned before a barrier of the others."""
    if ordered.died and not ordered.rungs:
        return RungOutcome("sanitize", "", "", SKIP, "the checks in many orders did not end")
    failures = [r for r in ordered.failed() if _thrown(r) and not _about_addresses(r)]
    for rung in ordered.failed():
        for hint in [line for line in rung.details if RETURNED_EARLY.search(line)][:1]:
            wrong = [f"the result is wrong: {rung.reason}"]
            failures.append(replace(rung, reason=hint.removeprefix("hint: "), details=wrong))
    return _row(ordered, failures)


# Causes of a rung that is wrong only if addresses are watched.
RACED = "it has a race"
CHANCE = "another run of the same build does not fail in this way"
ANYWAY = "it fails in the same way where local variables begin with zeros"
LOCAL = "one is read before it is set"
Causes = dict[str, list[RungOutcome]]  # the rungs of each


def wrong_there_alone(ordered: Pass, watched: Pass) -> list[RungOutcome]:
    """Return the rungs that are wrong only in the pass that watches addresses, without an address
    error."""
    wrong_anyway = {(rung.problem, rung.rung) for rung in ordered.failed()}
    return [
        rung
        for rung in watched.failed()
        if not _about_addresses(rung) and (rung.problem, rung.rung) not in wrong_anyway
    ]


def _races(rung: RungOutcome, traced: Pass) -> bool:
    """Return True if the tracer found a race in that rung."""
    return any(
        (other.problem, other.rung) == (rung.problem, rung.rung)
        and any(finding["what"] in findings.RACES for finding in other.findings)
        for other in traced.rungs
    )


def why_wrong_there(odd: Sequence[RungOutcome], traced: Pass, again: Pass, zeroed: Pass) -> Causes:
    """Return why these rungs are wrong only if addresses are watched. again: another run of that
    build. zeroed: a run of a build whose local variables begin with zeros instead of a pattern."""

    def fails_alike(rung: RungOutcome, found: Pass) -> bool:
        same = {(r.problem, r.rung): (r.reason, r.details) for r in found.failed()}
        return same.get((rung.problem, rung.rung)) == (rung.reason, rung.details)

    causes: Causes = {}
    for rung in odd:
        if _races(rung, traced):
            cause = RACED
        elif not fails_alike(rung, again):
            cause = CHANCE
        else:
            cause = ANYWAY if fails_alike(rung, zeroed) else LOCAL
        causes.setdefault(cause, []).append(rung)
    return causes


def judge_addresses(
    ordered: Pass, watched: Pass, missing: str, causes: Causes | None = None
) -> RungOutcome:
    """Return the row "addresses", from the pass that watches them and from faults of the ordinary
    one. causes: of rungs that are wrong only in the first; causes without another row are reported
    here."""
    failures = [rung for rung in watched.failed() if _about_addresses(rung)]
    seen = {(rung.problem, rung.rung) for rung in failures}
    failures += [
        rung
        for rung in ordered.failed()
        if _about_addresses(rung) and (rung.problem, rung.rung) not in seen
    ]
    if watched.died and not failures:
        return _dead(watched)
    for cause in (CHANCE, ANYWAY):
        for rung in (causes or {}).get(cause, []):
            reason = f"{rung.reason} (only where accesses are watched; {cause})"
            failures.append(replace(rung, reason=reason))
    outcome = _row(ordered if missing else watched, failures)
    if missing and outcome.status == PASS:
        outcome.status, outcome.reason = SKIP, missing
    return outcome


def judge_locals(watched: Pass, missing: str, causes: Causes) -> RungOutcome:
    """Return the row "locals": rungs that are wrong only if locals begin with a pattern, every time
    in the same way, and without a race."""
    if missing or watched.died:
        reason = missing or "the checks with every access watched did not end"
        return RungOutcome("sanitize", "", "", SKIP, reason)
    outcome = _row(watched, causes.get(LOCAL, []))
    if outcome.status == FAIL:
        outcome.reason += f" (only where local variables begin with a pattern: {LOCAL})"
    elif causes:
        cause, (first, *_) = next(iter(causes.items()))
        outcome.status = SKIP
        outcome.reason = (
            f"cannot tell: {first.rung} is wrong where local variables begin with a pattern, but "
            f"{cause}"
        )
    return outcome


def _locals_anyway(
    ordered: Pass, watched: Pass, missing: str, day: Day, platform: Platform
) -> RungOutcome:
    """Return the row "locals" if no rung is wrong only in the pass that watches addresses: if one
    is also wrong in the ordinary build, the compiler may find an unset local."""
    outcome = judge_locals(watched, missing, {})
    failed = ordered.failed()
    if outcome.status != PASS or not failed:
        return outcome
    if unset := unset_locals(day, platform):
        return replace(outcome, status=FAIL, reason=unset[0], details=unset[1:])
    reason = f"cannot tell: {failed[0].rung} is wrong whatever local variables begin with"
    return replace(outcome, status=SKIP, reason=reason)


def judge_indices(day: Day, platform: Platform) -> RungOutcome:
    """Return the row "indices": the compiler's findings in the day's sources."""
    outcome = RungOutcome("sanitize", "", "", PASS)
    found = narrowed(day, platform)
    if found:
        outcome.status, outcome.reason, outcome.details = FAIL, found[0], found[1:_SHOWN]
    return outcome


def judge_trace(traced: Pass, kinds: tuple[str, ...], ordered: Pass | None = None) -> RungOutcome:
    """Return the row "races" or "unwritten": the tracer's findings of these kinds. With the pass in
    many orders, also the rungs that passed there and fail while traced, for any reason."""
    if traced.skipped:
        return RungOutcome("sanitize", "", "", SKIP, traced.skipped)
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
