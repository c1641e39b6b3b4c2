"""Run the days that a command line selects: check and time them, or run a tool over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from common.base.cache import keep_compilers_caches
from common.base.ceilings import ceilings_of
from common.base.compiling import BuildError
from common.base.day_files import DayError, text_of
from common.base.days import Day, read_day
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, DayOutcome, Skip
from common.base.paths import ROOT
from common.base.refusal import CommandError, UsageError
from common.base.toolchain import Platform, ToolchainError, detect, leave_preload, sm
from common.base.where import cores, where
from common.cpu import libraries, models
from common.practice.steps import linked_for
from common.process.child import Child, fork
from common.process.events import Channel, Direct, Ended, Event, Finished, Progress, Step
from common.report import markdown, stored
from common.report import runs as reports
from common.report.drawn_call import DrawnRungs
from common.report.files import ResultsError, check_writable, write_atomically
from common.report.terminal import Report
from common.run.exit_status import (
    EXIT_FAILED,
    Interrupted,
    exit_code,
    signals_raise,
)
from common.run.reports import write_page
from common.run.runner import (
    BUILD_GRACE,
    ONE_BY_ONE,
    POLL,
    Runner,
    devices,
)
from common.run.scheduling import capacity, keep_seconds, longest_first, seconds_file
from common.run.selection import Selection, select

RIVALS_ON_GPU = "--rivals are libraries for a GPU, and there is none here"
MODEL_ON_GPU = "--model is the card that the CPU backend plays: it goes with --device cpu"

NO_CEILINGS = "this GPU's ceilings are unknown, so no shares are shown: run_day.py 50 measures them"
NO_DRAWING_ON_GPU = "drawn on the CPU backend, which sees every access; a GPU does not tell them"


def _begin_runtime(device: str) -> Child:
    """Start building the CPU backend's runtime, if days run on it, before torch is imported.

    An error here occurs again where it is reported: in `detect`, or in a day's build.
    """

    def work(_channel: Channel) -> None:
        platform = detect(device)
        if platform.device == "cpu":
            libraries.build_runtime(platform)

    return fork(work)


class _Import(threading.Thread):
    """Import torch, and our modules that need it, in a thread."""

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
        """Wait for the import; raise its exception, and those of `attend`."""
        while self.is_alive():
            self.join(POLL)
            attend()
        if self.error is not None:
            raise self.error


def run(options: RunOptions) -> int:
    """Execute the options and return the exit code. Raise CommandError."""
    report = Report(colour=options.colour, verbose=options.verbose)
    selection = select(options.selected, options.days, options.shard, options.whole_days)
    if options.swap:
        options, selection = _swapped(options, selection, *options.swap)
    check_targets(options)
    try:
        for arch in options.archs:
            sm(arch)
        options = replace(options, model=models.chosen(options.model) if options.model else "")
    except ToolchainError as error:
        raise UsageError(str(error)) from None
    except models.ModelError as error:
        raise UsageError(f"--model: {error}") from None
    if options.in_process:
        leave_preload()
    with signals_raise():
        runtime = None
        try:
            if options.mode == "run" and not options.in_process:
                runtime = _begin_runtime(options.device)
            return _run(options, selection, report)
        except Interrupted as interrupted:
            report.close()
            return 128 + interrupted.number
        finally:
            report.close()
            if runtime is not None:
                runtime.kill(BUILD_GRACE)
                runtime.close()


def _swapped(
    options: RunOptions, selection: Selection, original: Path, other: Path
) -> tuple[RunOptions, Selection]:
    """Return the options and the selection with `other` in place of a file of the days; both paths
    as in the days. Raise UsageError if no day has such a file."""
    try:
        for path in (original, other):
            text_of(path)
    except DayError as error:
        raise UsageError(f"--swap: {error}") from None
    other = other.absolute()
    files = [
        file
        for day in selection.days
        for file in (*day.nvcc_sources, *day.other_sources, *day.headers, *day.modules)
        if file.samefile(original)
    ]
    if not files:
        raise UsageError(f"--swap: {original} is no source of the days that are named")
    days = tuple(
        linked_for(day.with_source(files[0], other), options.rungs) for day in selection.days
    )
    return replace(options, swap=(files[0], other)), replace(selection, days=days)


def _run(options: RunOptions, selection: Selection, report: Report) -> int:
    began = time.monotonic()
    platform = prepare(options, selection, report)
    broken = [
        DayOutcome(number, f"day{number:02d}", "", FAIL, str(error).replace(f"{ROOT}/", ""))
        for number, error in selection.broken.items()
    ]
    report.text(title(options, platform))
    for outcome in broken:
        report.day(outcome)
    if options.in_process:
        step = _step(options.mode, platform)
        outcomes = in_process(selection.days, platform, step, options, report)
    else:
        known = seconds_file(platform, options.quick)
        side_by_side = options.mode == "run" and platform.device == "cuda"
        days = longest_first(selection.days, known) if side_by_side else selection.days
        runner = make_runner(options, days, platform, report)
        try:
            runner.run()
        except Interrupted:
            runner.break_off()
            report.text("interrupted; what is known so far:", "yellow")
            outcomes = _in_order(broken + runner.outcomes)
            report.summary(outcomes, time.monotonic() - began)
            _store(options, platform, outcomes, report, write=False)
            raise
        outcomes = runner.outcomes
        if side_by_side and options.bench:
            keep_seconds(outcomes, known)
    outcomes = _in_order(broken + outcomes)
    if options.mode == "run":
        report.legend(outcomes)
    report.summary(outcomes, time.monotonic() - began)
    stored = _store(options, platform, outcomes, report, options.write)
    return exit_code(outcomes) if stored else EXIT_FAILED


def _in_order(outcomes: Sequence[DayOutcome]) -> list[DayOutcome]:
    return sorted(outcomes, key=lambda outcome: outcome.number)


def prepare(options: RunOptions, selection: Selection, report: Report) -> Platform:
    """Return the platform that days run on; import PyTorch meanwhile. Raise CommandError."""
    keep_compilers_caches()
    importing = _Import()
    report.status("importing PyTorch")
    platform = detect(options.device)
    if options.model and platform.device != "cpu":
        raise UsageError(MODEL_ON_GPU)
    if options.rivals and platform.device != "cuda":
        raise UsageError(RIVALS_ON_GPU)
    if platform.note:
        report.text(f"note: {platform.note}", "yellow")
    platform = replace(platform, model=options.model)
    if options.mode == "draw" and platform.device != "cpu":
        platform = detect("cpu")
        report.text(f"note: {NO_DRAWING_ON_GPU}", "yellow")
    report.times = platform.device == "cuda"
    if report.times and options.bench and ceilings_of(platform.gpu) is None:
        report.text(f"note: {NO_CEILINGS}", "yellow")
    if options.mode in ("profile", "draw") and platform.device == "cpu":
        platform = replace(platform, variant="trace")
    for note in selection.notes:
        report.text(note, "yellow")
    try:
        importing.wait(options.attend)
    except (ImportError, OSError) as error:
        raise CommandError(
            f"{type(error).__name__}: {error}",
            "PyTorch, or something beside it, cannot be imported; "
            "python run_day.py --doctor says more",
        ) from None
    if findings := _obstacles(options, selection, platform):
        raise CommandError(*findings)
    return platform


def _obstacles(options: RunOptions, selection: Selection, platform: Platform) -> list[str]:
    """Return reasons why every build would fail, one per line; [] if there is nothing to build."""
    from common.build import day_build
    from common.run.doctor import obstacles

    def built(day: Day) -> bool:
        try:
            return day_build.ready(day, platform)
        except Exception:
            return False  # the day's own failure, reported with it

    if options.mode != "compile-only" and all(built(day) for day in selection.days):
        return []
    return obstacles()


def title(options: RunOptions, platform: Platform) -> str:
    """Return the first line of a run."""
    if options.mode == "compile-only":
        toolkit = platform.toolkit
        version = toolkit.version if toolkit else "missing"
        return f"compiling for {', '.join(options.archs)} with nvcc {version}, running nothing"
    return platform.label()


def _step(mode: str, platform: Platform) -> Step:
    from common.process.worker import run_day
    from common.tools.choice import TOOLS

    return run_day if mode == "run" else TOOLS[mode, platform.device]


def make_runner(
    options: RunOptions, days: Sequence[Day], platform: Platform, report: Report
) -> Runner:
    """Return the runner of the days, as the options request."""
    from common.build import day_build, nvcc
    from common.tools.kernel_evidence import compile_kernels

    if options.mode == "compile-only":
        archs = list(options.archs)
        return Runner(
            days,
            platform,
            options,
            None,
            compile_kernels if options.write else lambda day: nvcc.compile_only(day, archs),
            lambda day: False,
            report,
        )
    held = ONE_BY_ONE
    if options.mode == "run" and len(days) > 1:
        held = capacity(platform, len(days), options.quick, options.side_by_side)
    side_by_side = held.checked * devices(platform, len(days))
    if side_by_side > 1:
        options = replace(options, threads=max(1, cores() // side_by_side))
    return Runner(
        days,
        platform,
        options,
        _step(options.mode, platform),
        lambda day: day_build.build(day, platform),
        lambda day: day_build.ready(day, platform),
        report,
        held,
    )


def in_process(
    days: Sequence[Day], platform: Platform, step: Step, options: RunOptions, report: Report
) -> list[DayOutcome]:
    """Run days in this process, unprotected, for tools that watch a single process."""
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
                    pass  # not shown here

        build(day, platform)
        step(day, platform, options, Direct(handle))
        progress.conclude()
        outcomes.append(progress.outcome)
    return outcomes


def check_targets(options: RunOptions) -> None:
    """Raise ResultsError if a file that the run is to write cannot be written."""
    for path in (options.json, options.html, _drawing(options)):
        if path:
            check_writable(path)
    if options.write or options.html:  # generated files show all stored results
        stored.read_stored(options.days.parent)
        stored.read_scores(options.days.parent)


def _drawing(options: RunOptions) -> Path | None:
    if options.mode == "draw" and options.swap and options.svg is None:
        return options.swap[1].with_suffix(".svg")
    return options.svg


def _store(
    options: RunOptions,
    platform: Platform,
    outcomes: Sequence[DayOutcome],
    report: Report,
    write: bool,
) -> bool:
    """Write the files of --json, --html and --write; on failure print why and return False."""
    svg = _drawing(options)
    if not (options.json or options.html or svg or write):
        return True
    complete = options.mode == "run" and options.bench and not (options.quick or options.rungs)
    run = reports.describe(where(platform, options.rivals), outcomes, complete)
    try:
        if options.json:
            reports.write_json(options.json, [run])
        if options.html:
            write_page(options.html, options.days, [run])
        if svg:
            rungs = [rung for outcome in outcomes for rung in outcome.rungs]
            write_atomically(svg, DrawnRungs.of(rungs).svg())
            report.text(f"wrote {svg}")
        if write:
            if options.mode in ("compile-only", "profile"):
                lines = _store_evidence(options, outcomes)
            else:
                lines = stored.store(run, options.days.parent)
            for text in lines:
                report.text(text)
    except ResultsError as error:
        report.text(str(error), "red")
        return False
    return True


def _store_evidence(options: RunOptions, outcomes: Sequence[DayOutcome]) -> list[str]:
    """Store the evidence of the passed days' kernels; return messages. Raise ResultsError."""
    from common.tools.kernel_evidence import EvidenceError, gather

    said, found = [], []
    for outcome in outcomes:
        if reason := stored.unfit(outcome):
            said.append(f"day {outcome.number} is not stored: {reason}")
            continue
        try:
            day = read_day(options.days / outcome.name).with_further()
            before = markdown.read_evidence(day)
            profile = outcome.rungs if options.mode == "profile" else ()
            found.append(gather(day, profile, before))
        except (Skip, EvidenceError, BuildError) as error:
            said.append(f"day {outcome.number} is not stored: {error}")
    return said + stored.store_evidence(found, options.days.parent)
