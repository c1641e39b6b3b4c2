"""What a command line asks for, done: a run over days, or reports of runs shown and stored."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.base.days import Day, discover
from common.base.figures import numbers
from common.base.outcome import FAIL, PASS, DayOutcome
from common.base.paths import DAYS, ROOT
from common.base.toolchain import Platform, ToolchainError, detect, leave_preload, sm
from common.base.where import device_name, versions, where
from common.cpu import libraries, models
from common.practice.exercise import linked_for
from common.practice.journal import Journal, JournalError, practice_folder
from common.practice.standing import kinds_of
from common.process.child import Child, fork
from common.process.events import Channel, Direct, Ended, Event, Finished, Progress
from common.report import runs as reports
from common.report import stored
from common.report.comparison import Change, compare, compared_lines, in_one_only
from common.report.files import ResultsError, write_atomically
from common.report.terminal import Report
from common.run.runner import BUILD_GRACE, POLL, Runner, Step, jobs_allowed, no_attention
from common.run.selection import Selection, SelectionError, select

EXIT_PASSED, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

TIME_LIMIT = {"cuda": 120.0, "cpu": 300.0}  # seconds per day, of its own running
SANITIZER_SLOWDOWN = 10  # a tool may slow kernels so many times before the limit is too short

MODEL_ON_GPU = "--model is the card that the CPU backend plays: it goes with --device cpu"

# "profiled" is what a profiler runs: the rungs and nothing else, in one process.
MODES = ("run", "sanitize", "profile", "profiled", "compile")


@dataclass(frozen=True)
class Options:
    """What the command line asks for. mode: one of MODES. jobs: builds at a time, 0 for as many
    as cores and memory allow. time_limit: seconds per day, 0 for the device's default. archs: for
    mode "compile". model: the card that the CPU backend plays, "" for its default. days: where the
    days are. in_process: run in this process (for tools that watch one process). watched: such
    a tool looks at every access. rungs: run only these. alone: time them without libraries.
    These three: see `common.process.worker.Work`. swap: a day's source, and the file that takes
    its place. attend: called again and again while something is waited for; what it raises ends
    the run."""

    selected: tuple[str, ...]
    shard: str = ""
    device: str = "auto"
    mode: str = "run"
    quick: bool = False
    bench: bool = True
    jobs: int = 0
    time_limit: float = 0.0
    archs: tuple[str, ...] = ("8.0", "9.0a")
    json: Path | None = None
    html: Path | None = None
    write: bool = False
    colour: bool = True
    model: str = ""
    days: Path = DAYS
    in_process: bool = False
    watched: bool = False
    rungs: tuple[str, ...] = ()
    alone: bool = False
    swap: tuple[Path, Path] | None = None
    attend: Callable[[], None] = no_attention


class Refused(Exception):
    """A run cannot begin. lines: why. code: the exit code."""

    def __init__(self, lines: Sequence[str], code: int = EXIT_FAILED):
        super().__init__("\n".join(lines))
        self.lines, self.code = list(lines), code


class Interrupted(BaseException):
    """A signal ended this process. number: the signal."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def exit_code(outcomes: Sequence[DayOutcome]) -> int:
    """0 if nothing failed and something passed, else 1."""
    if any(outcome.status == FAIL for outcome in outcomes):
        return EXIT_FAILED
    return EXIT_PASSED if any(o.status == PASS for o in outcomes) else EXIT_FAILED


@contextmanager
def signals_raise() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise Interrupted, once: a second one does not cut cleaning up."""

    def interrupt(number: int, _frame: object) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _begin_runtime(device: str) -> Child:
    """Begins to build the CPU backend's runtime, where days run on it, before torch is imported.

    What goes wrong here goes wrong again where it is reported: in `detect`, or in a day's build.
    """

    def work(_channel: Channel) -> None:
        platform = detect(device)
        if platform.device == "cpu":
            libraries.build_runtime(platform)

    return fork(work)


class _Import(threading.Thread):
    """Imports torch, and what of ours needs it, beside other work."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            import common.process.worker  # noqa: F401
        except Exception as error:
            self.error = error

    def wait(self, attend: Callable[[], None]) -> None:
        """Returns when the import is over; raises what it raised, and what `attend` raises."""
        while self.is_alive():
            self.join(POLL)
            attend()
        if self.error is not None:
            raise self.error


def run(options: Options) -> int:
    """Runs what the command line asks for and returns the exit code."""
    report = Report(colour=options.colour)
    try:
        selection = select(options.selected, options.days, options.shard)
    except SelectionError as error:
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_USAGE
    if options.swap:
        swapped = tuple(
            linked_for(day.with_source(*options.swap), options.rungs) for day in selection.days
        )
        selection = replace(selection, days=swapped)
    try:
        for arch in options.archs:
            sm(arch)
    except ToolchainError as error:
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        options = replace(options, model=models.chosen(options.model) if options.model else "")
    except models.ModelError as error:
        print(f"run_day.py: --model: {error}", file=sys.stderr)
        return EXIT_USAGE
    if options.in_process:
        leave_preload()
    with signals_raise():
        early = options.mode == "run" and not options.in_process
        runtime = _begin_runtime(options.device) if early else None
        try:
            return _run(options, selection, report)
        except Interrupted as interrupted:
            report.close()
            return 128 + interrupted.number
        finally:
            report.close()
            if runtime is not None:
                runtime.kill(BUILD_GRACE)
                runtime.close()


def _run(options: Options, selection: Selection, report: Report) -> int:
    began = time.monotonic()
    try:
        platform = prepare(options, selection, report)
    except Refused as refused:
        report.close()
        return refuse(refused)
    broken = [
        DayOutcome(number, f"day{number:02d}", "", FAIL, str(error).replace(f"{ROOT}/", ""))
        for number, error in selection.broken.items()
    ]
    report.text(title(options, platform))
    if platform.note:
        report.text(f"note: {platform.note}", "yellow")
    for outcome in broken:
        report.day(outcome)
    if options.in_process:
        step, work = _step(options.mode, platform), _work(options, platform)
        outcomes = in_process(selection.days, platform, step, work, report)
    else:
        runner = make_runner(options, selection.days, platform, report)
        try:
            runner.run()
        except Interrupted:
            runner.break_off()
            report.text("interrupted; what is known so far:", "yellow")
            report.summary(broken + runner.outcomes, time.monotonic() - began)
            _store(options, platform, broken + runner.outcomes, report, write=False)
            raise
        outcomes = runner.outcomes
    outcomes = sorted(broken + outcomes, key=lambda outcome: outcome.number)
    report.summary(outcomes, time.monotonic() - began)
    stored = _store(options, platform, outcomes, report, options.write)
    return exit_code(outcomes) if stored else EXIT_FAILED


def refuse(refused: Refused) -> int:
    """Says why a run cannot begin; returns the exit code."""
    for line in refused.lines:
        print(f"run_day.py: {line}", file=sys.stderr)
    return refused.code


def prepare(options: Options, selection: Selection, report: Report) -> Platform:
    """Finds out where days run, and imports PyTorch meanwhile. Raises Refused."""
    importing = _Import()
    report.status("importing PyTorch")
    try:
        platform = detect(options.device)
    except ToolchainError as error:
        raise Refused([str(error)]) from None
    if options.model and platform.device != "cpu":
        raise Refused([MODEL_ON_GPU], EXIT_USAGE)
    platform = replace(platform, model=options.model)
    if options.mode == "profile" and platform.device == "cpu":
        platform = replace(platform, variant="trace")
    for note in selection.notes:
        report.text(note, "yellow")
    try:
        importing.wait(options.attend)
    except (ImportError, OSError) as error:
        raise Refused(
            [
                f"{type(error).__name__}: {error}",
                "PyTorch, or something beside it, cannot be imported; "
                "python run_day.py --doctor says more",
            ]
        ) from None
    if findings := _obstacles(options, selection, platform):
        raise Refused(findings)
    return platform


def _obstacles(options: Options, selection: Selection, platform: Platform) -> list[str]:
    """What would make every build fail, where there is something to build: a line each."""
    from common.build import day_build
    from common.run.doctor import obstacles

    def built(day: Day) -> bool:
        try:
            return day_build.ready(day, platform)
        except OSError:
            return False  # the day's own failure, reported with it

    if options.mode != "compile" and all(built(day) for day in selection.days):
        return []
    return [f"{finding.subject}: {finding.text}; {finding.fix}" for finding in obstacles()]


def title(options: Options, platform: Platform) -> str:
    """The first line of a run."""
    if options.mode == "compile":
        toolkit = platform.toolkit
        version = toolkit.version if toolkit else "missing"
        return f"compiling for {', '.join(options.archs)} with nvcc {version}, running nothing"
    return platform.label()


def _work(options: Options, platform: Platform) -> Any:
    from common.process.worker import Work

    limit = options.time_limit or TIME_LIMIT[platform.device]
    arguments = () if options.days == DAYS else ("--days", str(options.days))
    if options.model:
        arguments = (*arguments, "--model", options.model)
    if options.rungs:
        arguments = (*arguments, "--rungs", ",".join(options.rungs))
    if options.swap:
        arguments = (*arguments, "--swap", *map(str, options.swap))
    return Work(
        options.quick,
        options.bench,
        limit,
        options.watched,
        arguments,
        rungs=options.rungs,
        alone=options.alone,
        explain=not options.watched,
    )


def _step(mode: str, platform: Platform) -> Step:
    from common.process.worker import run_day
    from common.tools.table import TOOLS

    return run_day if mode == "run" else TOOLS[mode, platform.device]


def make_runner(
    options: Options, days: Sequence[Day], platform: Platform, report: Report
) -> Runner:
    """What runs the days as the options ask for."""
    from common.build import day_build, nvcc

    work = _work(options, platform)
    jobs = jobs_allowed(options.jobs)
    if options.mode == "compile":
        archs = list(options.archs)
        return Runner(
            days,
            platform,
            None,
            lambda day: nvcc.compile_only(day, archs),
            lambda day: False,
            work,
            report,
            jobs,
            work.time_limit,
            options.attend,
        )
    return Runner(
        days,
        platform,
        _step(options.mode, platform),
        lambda day: day_build.build(day, platform),
        lambda day: day_build.ready(day, platform),
        work,
        report,
        jobs,
        work.time_limit * (1 if options.mode == "run" else SANITIZER_SLOWDOWN),
        options.attend,
    )


def in_process(
    days: Sequence[Day], platform: Platform, step: Step, work: Any, report: Report
) -> list[DayOutcome]:
    """Runs days in this very process, unprotected, for tools that watch a single process."""
    from common.build.day_build import build

    outcomes = []
    for day in days:
        progress = Progress(DayOutcome(day.number, day.name, day.title, PASS))

        def handle(event: Event, day: Day = day, progress: Progress = progress) -> None:
            progress.take(event)
            match event:
                case Finished(outcome):
                    report.rung(day.number, outcome)
                case Ended():
                    report.day(progress.outcome)
                case _:
                    pass  # nothing is shown of it here

        build(day, platform)
        step(day, platform, work, Direct(handle))
        progress.conclude()
        outcomes.append(progress.outcome)
    return outcomes


def _store(
    options: Options,
    platform: Platform,
    outcomes: Sequence[DayOutcome],
    report: Report,
    write: bool,
) -> bool:
    """Writes what --json, --html and --write ask for; False, with a message, where that failed."""
    if not (options.json or options.html or write):
        return True
    complete = options.mode == "run" and options.bench and not (options.quick or options.rungs)
    run = reports.describe(where(platform), outcomes, complete)
    try:
        if options.json:
            reports.write_json(options.json, [run])
        if options.html:
            write_page(options.html, options.days, [run])
        if write:
            for text in stored.store(run, options.days.parent):
                report.text(text)
    except ResultsError as error:
        report.text(str(error), "red")
        return False
    return True


def write_page(
    path: Path,
    days: Path,
    runs: Sequence[dict[str, Any]],
    changes: Sequence[Change] | None = None,
) -> None:
    """Writes the page of --html. Raises ResultsError."""
    where = [f"{device_name(run['where'])}: {versions(run['where'])}" for run in runs]
    _write_page(path, days, reports.outcomes_of(runs), list(dict.fromkeys(where)), changes)


def _write_page(
    path: Path,
    root: Path,
    outcomes: Sequence[DayOutcome],
    where: Sequence[str],
    changes: Sequence[Change] | None = None,
) -> None:
    """The page, with the stored scores of mutants and what the learner has solved."""
    from common.report.page import page

    days = discover(root)[0]
    try:
        journal = Journal(practice_folder(root))
    except JournalError as error:
        raise ResultsError(str(error)) from None
    solved = {
        day.number: {kind: journal.solved(day.number, kind) for kind in kinds_of(day)}
        for day in (days if journal.begun else [])
    }
    scores = stored.read_scores(root.parent)
    write_atomically(path, page(days, outcomes, where, changes, scores, solved))


def use_reports(
    files: Sequence[Path],
    store_in: Path | None,
    json: Path | None,
    colour: bool,
    html: Path | None,
    days: Path,
) -> int:
    """Shows reports written by --json as one, writes them as one to `json` and `html`, and stores
    their results under `store_in`. Without reports: writes the generated files anew, and the page
    of what is stored. To be stored, a report may also be one of --mutants."""
    report = Report(colour=colour)
    try:
        scores = reports.read_mutants(files[0]) if store_in and len(files) == 1 else None
        if store_in and scores is not None:
            for text in stored.store_scores(scores, store_in):
                report.text(text)
            return EXIT_PASSED if scores else EXIT_FAILED
        runs = reports.merge(files)
        outcomes = reports.outcomes_of(runs)
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
        if html and runs:
            write_page(html, days, runs)
        elif html:
            from common.report.page import from_stored

            found, where = from_stored(stored.read_stored(days.parent))
            _write_page(html, days, found, where)
        if html:
            report.text(f"wrote {html}")
    except ResultsError as error:
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    return exit_code(outcomes) if files else EXIT_PASSED


def compare_reports(
    old: Path, new: Path, threshold: float, html: Path | None, days: Path, colour: bool
) -> int:
    """Shows what changed between two reports; the exit code says whether anything is worse."""
    report = Report(colour=colour)
    try:
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
        for found, path in zip(in_one_only(*outcomes), (old, new), strict=True):
            if found:
                report.text(f"note: only {path} has day {numbers(found)}, not compared", "yellow")
        for line in compared_lines(changes):
            report.line([line])
        if html:
            write_page(html, days, after, changes)
            report.text(f"wrote {html}")
    except ResultsError as error:
        print(f"run_day.py: {error}", file=sys.stderr)
        return EXIT_FAILED
    worse = any(change.worse for change in changes)
    return EXIT_FAILED if worse or not changes else EXIT_PASSED
