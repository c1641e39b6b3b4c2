"""Try the mutants of days: build each, run the day's own checks on it, and judge the outcome.

A mutant is tried with the rungs that reach its function, the quickest first, until one fails. If
the plain check passes, it is tried like `--sanitize`: in builds that watch memory, and in more
orders. Findings that these builds also report for the original do not count.
"""

from __future__ import annotations

import ast
import os
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from common.base.cache import digest
from common.base.compiling import BuildError, sources_of
from common.base.days import Day
from common.base.options import TIME_LIMIT
from common.base.outcome import SKIP
from common.base.paths import ROOT
from common.base.toolchain import Platform, Variant
from common.base.verdict import EQUIVALENT, KILLED, STILLBORN, SURVIVED, Verdict
from common.cpu import findings
from common.mutants.derive import Mutant, headers_of, mutants_of, sample, standard
from common.mutants.heuristics import covered, unfit
from common.mutants.known_verdicts import KnownVerdicts
from common.mutants.outline import Declaration, outline
from common.mutants.partial_builds import Once, PartialBuilds, Programs
from common.mutants.trial import Result, Trial
from common.mutants.trial_process import TrialProcess
from common.process.events import Ran

WATCHING: tuple[Variant, ...] = ("trace", "address")
DAYS_AT_A_TIME = 3  # keeps cores busy while the last mutants of a day are tried
KEPT_DETAILS = 12  # lines of a compiler's message
SLOWER = 100  # limit of a check, as a multiple of the original's quick check
LONGEST = TIME_LIMIT["cpu"]  # seconds of a check, as a whole day has

BAD = ("failed", "died", "late")  # values of `Result.status` that kill a mutant

# The card that lacks most, the first with mma of bf16 and cp.async, and one without wgmma.
OTHER_CARDS = ("7.5", "8.0", "10.0")
_NEEDS = re.compile(r"require_\w+\(")  # a call that refuses a card

# Files that affect a verdict, in addition to the mutant itself.
_JUDGES = ("check", "cpu", "process", "build")
_JUDGES_HERE = ("campaign.py", "partial_builds.py", "run_trial.py", "trial_server.py")
_THROWN = "CUDA on CPU: "  # the beginning of the CPU backend's errors
_SKIPPED = "a case or all are skipped, where the original runs"
_ELSEWHERE = f"{_THROWN}on the wrong "  # device, or stream
_ADDRESSES = re.compile(r"out of bounds|illegal memory access|stack overflow|misaligned")
_ORDER = re.compile(r"order in which threads run|^[^:]*: with threads in |two runs on the same")

Done = TypeVar("Done")
Pair = tuple[str, str]  # a problem and one of its rungs


class DayUnfit(Exception):
    """The day's mutants cannot be judged; the message contains the reason."""


class _TooFew(DayUnfit):
    """The check of some rungs fails if only the operators called in a quick check are built."""


# From this number of mutants on, headers are also precompiled for debugger builds, which takes
# as long as the headers take in about ten of these.
MANY = 25


@dataclass(frozen=True)
class Choice:
    """The mutants to try. every: more than the standard ones. sample: number drawn at random, 0 for
    all; seed: of the sample. fresh: also those with a known verdict."""

    every: bool = False
    sample: int = 0
    seed: int = 0
    fresh: bool = False

    @property
    def complete(self) -> bool:
        return not self.every and not self.sample


@dataclass
class DayReport:
    """A day's mutants. verdicts: in the order of the sources' lines. problems: with the entries of
    mutants.toml. error: why nothing was tried."""

    day: Day
    verdicts: list[Verdict] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    chosen: int = 0
    error: str = ""


@dataclass(frozen=True)
class _Rung:
    """A rung of the original: pair, seconds of its quick check, operators that it calls."""

    pair: Pair
    seconds: float
    operators: frozenset[str]


@dataclass(frozen=True)
class _Todo:
    """A mutant to judge. rungs: those that reach its function. key: of its verdict.
    known: the verdict of an earlier run."""

    mutant: Mutant
    rungs: list[_Rung]
    key: str
    known: Verdict | None


class Campaign:
    """Try the mutants of days.

    jobs: builds and trials at a time. tell: called, from any thread, with the report of its day so
    far, when a mutant is judged. Raise BuildError if the CPU backend itself does not build.
    """

    def __init__(
        self,
        platform: Platform,
        jobs: int,
        choice: Choice,
        tell: Callable[[DayReport], None] = lambda report: None,
    ):
        self.platform, self.choice, self.tell = platform, choice, tell
        self.programs = Programs()
        self.pool = ThreadPoolExecutor(jobs)  # for mutants of all days, in order
        # In parallel with other days' mutants, so that no day's original waits for them.
        self.first = ThreadPoolExecutor(jobs)
        self._days = ThreadPoolExecutor(DAYS_AT_A_TIME)
        self._scratch = tempfile.TemporaryDirectory(prefix="hundred-days-mutants-")
        self._processes: dict[Variant, TrialProcess] = {}
        self._lock = threading.Lock()

    def start(self, days: Sequence[Day]) -> list[Future[DayReport]]:
        """Start all days; each future returns a day's report."""
        return [self._days.submit(self._try_day, day) for day in days]

    def close(self) -> None:
        """End everything that runs and remove all builds."""
        self.programs.stop()
        for pool in (self._days, self.first, self.pool):
            pool.shutdown(cancel_futures=True)
        self._scratch.cleanup()

    def trial_process(self, variant: Variant) -> TrialProcess:
        """Return the process that runs trials in this variant. Raise FileNotFoundError if the
        compiler lacks it."""
        with self._lock:
            if variant not in self._processes:
                self._processes[variant] = TrialProcess(self.platform, variant, self.programs)
            return self._processes[variant]

    def _try_day(self, day: Day) -> DayReport:
        folder = Path(self._scratch.name) / day.name
        folder.mkdir()
        try:
            return _DayCampaign(self, day, folder).run()
        except (BuildError, DayUnfit, OSError) as error:
            return DayReport(day, error=str(error))


class _DayCampaign:
    """The campaign for one day's mutants."""

    def __init__(self, campaign: Campaign, day: Day, folder: Path):
        self.campaign, self.day, self.folder = campaign, day, folder
        self.known_verdicts = KnownVerdicts(day.name, campaign.choice.fresh)
        self._builds: dict[Variant, PartialBuilds] = {}
        self._baselines: Once[Result] = Once()
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._many = False
        self._whole: set[tuple[Pair, ...]] = set()  # rungs that need all operators of the day
        self._otherwise: set[Pair] = set()  # rungs with a custom build: not watched
        self._key = self._common_key()

    def builds(self, variant: Variant = "plain") -> PartialBuilds:
        """Return the builds of the day's sources in this variant."""
        with self._building:
            if variant not in self._builds:
                self._builds[variant] = PartialBuilds(
                    self.day,
                    self.campaign.platform,
                    self.folder,
                    self.campaign.programs,
                    variant,
                    many=self._many,
                )
            return self._builds[variant]

    def run(self) -> DayReport:
        """Try all mutants and return the report."""
        rungs = self._baseline()
        self._otherwise = {rung.pair for rung in rungs if self._unknown(rung)}
        found = mutants_of(self.day, self._reached(rungs))
        report = DayReport(self.day, problems=self._gone(found))
        chosen = self._choose(found)
        report.chosen = len(chosen)
        self._many = len(chosen) >= MANY
        verdicts: dict[str, Verdict] = {}

        def judge(todo: _Todo) -> Verdict:
            verdict = self._judge(todo)
            with self._lock:
                verdicts[verdict.identity] = verdict
                report.verdicts = [verdicts[m.identity] for m in chosen if m.identity in verdicts]
            self.campaign.tell(report)
            return verdict

        self.campaign.tell(report)
        todo = [self._todo(mutant, rungs) for mutant in chosen]
        # Known verdicts come first, so that an interrupted run reports them. Mutants listed as
        # equivalent pass through all checks and take longest, so they do not start last.
        listed = self.day.equivalent
        todo.sort(key=lambda each: (not each.known, each.mutant.identity not in listed))
        for future in [self.campaign.pool.submit(judge, each) for each in todo]:
            future.result()
        report.problems += self._needless(report.verdicts)
        report.problems += [
            f"listed as equivalent, but {v.status}{f' ({v.by})' if v.by else ''}: {v.identity}"
            for v in report.verdicts
            if v.identity in self.day.equivalent and v.status != EQUIVALENT
        ]
        return report

    def _choose(self, found: list[Mutant]) -> list[Mutant]:
        choice = self.campaign.choice
        chosen = found if choice.every else standard(found)
        listed = [m for m in found if m.identity in self.day.equivalent]
        if choice.sample:
            return sample(chosen, choice.sample, choice.seed)
        return chosen + [m for m in listed if m not in chosen]

    def _gone(self, found: list[Mutant]) -> list[str]:
        known = {mutant.identity for mutant in found}
        return [
            f"listed as equivalent, but there is no such mutant: {identity}"
            for identity in self.day.equivalent
            if identity not in known
        ] + unfit(self.day, found)

    def _needless(self, verdicts: Sequence[Verdict]) -> list[str]:
        """Return heuristics without a survivor, if all standard mutants were tried."""
        if not self.campaign.choice.complete:
            return []
        spared = [v.identity for v in verdicts if v.status == EQUIVALENT and v.by == "declared"]
        return [
            f"listed as a heuristic, but no mutant of it survives: {function}"
            for function in self.day.heuristics
            if any(v.identity.startswith(f"{function}: ") for v in verdicts)
            and not any(identity.startswith(f"{function}: ") for identity in spared)
        ]

    # The original ---------------------------------------------------------------------------------

    def _baseline(self) -> list[_Rung]:
        """Return the day's rungs that run here, from a quick check of the original. Raise DayUnfit
        if one does not pass."""
        key = digest([self._key, "baseline", *self._texts().values()])
        data = self.known_verdicts.get(key)
        if data is None:
            builds = self.builds()
            objects = [
                builds.original(s, frozenset(bound)) for s, bound in builds.operators.items()
            ]
            library = builds.library(objects, "baseline")
            listed = self.campaign.trial_process("plain").run(self._trial(library, (), 60.0))
            if listed.status == "died":
                raise DayUnfit(f"the day cannot be loaded: {listed.reason}")
            trial_process = self.campaign.trial_process("plain")
            futures = [
                self.campaign.first.submit(
                    trial_process.run, replace(self._trial(library, (pair,), LONGEST), quick=True)
                )
                for pair in listed.planned
            ]
            results = [future.result() for future in futures]
            for result in results:
                if result.status not in ("passed", "skipped"):
                    raise DayUnfit(
                        f"{result.rung}, as it is, does not pass: {result.reason}; "
                        f"python run_day.py {self.day.number} --device cpu says more"
                    )
            passed = [result for result in results if result.status == "passed"]
            data = {"ran": [asdict(ran) for result in passed for ran in result.ran]}
            self.known_verdicts.put(key, data)
        known = data["ran"]
        assert isinstance(known, list)
        found = [
            _Rung((ran.problem, ran.rung), ran.seconds, frozenset(ran.operators))
            for ran in (Ran(**each) for each in known)
        ]
        return sorted(found, key=lambda rung: rung.seconds)

    def _reached(self, rungs: Sequence[_Rung]) -> dict[Path, list[Declaration]]:
        """Return, for each file, the declarations that the rungs use; if a rung's operators are
        unknown, those of all sources, and those that all operators use in the headers."""
        builds = self.builds()
        if any(self._unknown(rung) for rung in rungs):
            every = {name for bound in builds.operators.values() for name in bound}
            whole = {source: builds.outlines[source].reached() for source in builds.operators}
            return builds.reached(every) | whole
        return builds.reached({name for rung in rungs for name in rung.operators})

    def _unknown(self, rung: _Rung) -> bool:
        """Return True if the rung, because of a custom build, calls no operator of the sources."""
        return not any(rung.operators & bound for bound in self.builds().operators.values())

    def _rungs_of(self, mutant: Mutant, rungs: list[_Rung]) -> list[_Rung]:
        """Return the rungs that reach the mutant's function."""
        found = []
        for rung in rungs:
            used = self._reached([rung]).get(mutant.source, [])
            if mutant.function in {function.name for d in used for function in d.functions}:
                found.append(rung)
        return found

    # A mutant -------------------------------------------------------------------------------------

    def _todo(self, mutant: Mutant, rungs: list[_Rung]) -> _Todo:
        tried = self._rungs_of(mutant, rungs)
        key = self._mutant_key(mutant, tried)
        return _Todo(mutant, tried, key, self.known_verdicts.verdict(key))

    def _judge(self, todo: _Todo) -> Verdict:
        mutant, key, verdict = todo.mutant, todo.key, todo.known
        if verdict is not None:
            verdict.identity, verdict.line, verdict.stored = mutant.identity, mutant.line, True
        else:
            name = f"mutant-{key}"
            try:
                verdict = self._try_with_enough(mutant, todo.rungs, name)
            finally:
                with self._building:
                    every = list(self._builds.values())
                for builds in every:
                    builds.remove(name)
            self.known_verdicts.put(key, asdict(verdict))
        reason = self.day.equivalent.get(mutant.identity) or covered(self.day, mutant)
        if reason and verdict.status == SURVIVED:
            verdict = replace(verdict, status=EQUIVALENT, by="declared", reason=reason)
        return verdict

    def _try_with_enough(self, mutant: Mutant, rungs: list[_Rung], name: str) -> Verdict:
        """Try with the operators that quick checks of these rungs called or, if the whole check
        needs others as well, with all operators of the day."""
        pairs = tuple(rung.pair for rung in rungs)
        if pairs not in self._whole:
            try:
                return self._try(mutant, rungs, name)
            except _TooFew:
                self._whole.add(pairs)
        every = frozenset(n for bound in self.builds().operators.values() for n in bound)
        return self._try(mutant, [replace(rung, operators=every) for rung in rungs], name)

    def _try(self, mutant: Mutant, rungs: list[_Rung], name: str) -> Verdict:
        operators = {operator for rung in rungs for operator in rung.operators}
        verdict = Verdict(
            mutant.identity, mutant.kind.name, mutant.source.name, mutant.line, SURVIVED
        )
        try:
            began = time.monotonic()
            library = self._build(self.builds(), mutant, operators, name)
            verdict.build_s = time.monotonic() - began
        except BuildError as error:
            verdict.status = STILLBORN
            verdict.reason, *verdict.details = str(error).splitlines()[:KEPT_DETAILS] or [""]
            return verdict
        if mutant.kind.narrows:
            found = self._narrowed(mutant, operators)
            if found:
                verdict.status, verdict.by = KILLED, "narrowing"
                verdict.reason, *verdict.details = found
                return verdict
        pairs = tuple(rung.pair for rung in rungs)
        usual = self._check_original("plain", pairs, operators)
        if usual.status != "passed":
            raise _TooFew(f"{usual.rung or 'the day'}, built otherwise, fails: {usual.reason}")
        limit = min(LONGEST, 30 + SLOWER * sum(rung.seconds for rung in rungs))
        folder = self._moved(mutant, name) if self.day.other_sources else ""
        plain = self.campaign.trial_process("plain")
        if _NEEDS.match(mutant.original):
            # Quick, as --model --quick: bad input does not depend on the simulated card.
            for model in OTHER_CARDS:
                other = replace(self._trial(library, pairs, limit), quick=True, model=model)
                result = plain.run(replace(other, folder=folder))
                if result.status in BAD:
                    return _killed(verdict, result, "another card")
                usual_there = self._check_original("plain", pairs, operators, model)
                skipped = _no_longer_run(usual_there, result)
                if skipped:
                    why = f"on a card of compute capability {model}, {_SKIPPED}"
                    result = replace(result, rung=skipped, reason=why)
                    return _killed(verdict, result, "another card")
        trial = self._trial(library, pairs, limit)
        result = plain.run(replace(trial, folder=folder, once_first=True))
        verdict.check_s = result.seconds
        if result.status in BAD:
            return _killed(verdict, result, _by(result))
        skipped = _no_longer_run(usual, result)
        if not skipped and any(ran.left_out for ran in result.ran):
            whole = self._check_original("plain", pairs, operators, whole=True)
            skipped = _leaves_out_more(whole, result)
        if skipped:
            return _killed(verdict, replace(result, rung=skipped, reason=_SKIPPED), "skipped")
        if self._is_original(mutant, operators, name):
            if mutant.kind.left_out:
                verdict.reason = "the CPU backend's headers leave out what is changed"
            else:
                verdict.status, verdict.by = EQUIVALENT, "same machine code"
            return verdict
        if not mutant.kind.watched:
            return verdict
        watched = [rung for rung in rungs if rung.pair not in self._otherwise]
        if watched:
            left_out, crash = [], None
            for variant in WATCHING:
                try:
                    failed = self._watched(variant, mutant, watched, operators, name)
                except Unwatched as why:
                    left_out.append(f"not tried in the {variant} build, {why}")
                    continue
                if failed is not None and variant == "trace" and failed.status == "died":
                    crash = failed  # possibly a read beyond a tensor: the other build names it
                elif failed is not None:
                    return _killed(verdict, failed, _watched_by(failed, variant))
            if crash is not None:
                return _killed(verdict, crash, "crash")
            verdict.reason = "; ".join(left_out)
        # Last, because it takes the longest: all cases, each in many orders.
        more = replace(self._trial(library, pairs, 2 * limit), folder=folder, debug=True)
        result = plain.run(more)
        if result.status in BAD:
            return _killed(verdict, result, "sanitizer: orders")
        return verdict

    def _build(self, builds: PartialBuilds, mutant: Mutant, operators: set[str], name: str) -> Path:
        """Return a library of the sources that the mutant changes and of the others that it
        needs."""
        change = (mutant.source, mutant.text())
        holding = builds.holding(mutant.source, operators)
        built = [builds.changed(s, change, mine, name) for s, mine in holding.items()]
        needed = builds.needed(operators)
        others = [builds.original(s, mine) for s, mine in needed.items() if s not in holding]
        return builds.library([*built, *others], name)

    def _is_original(self, mutant: Mutant, operators: set[str], name: str) -> bool:
        """Return True if the mutant has the same machine code as the original."""
        builds = self.builds()
        change = (mutant.source, mutant.text())
        holding = builds.holding(mutant.source, operators)
        return all(builds.same_code(s, change, mine, name) for s, mine in holding.items())

    def _narrowed(self, mutant: Mutant, operators: set[str]) -> list[str]:
        """Return the findings of the row "indices" of `--sanitize` for the mutant, without the
        original's."""
        builds = self.builds()
        change = (mutant.source, mutant.text())
        found = Counter[str]()
        for source, mine in builds.holding(mutant.source, operators).items():
            before = Counter(builds.original_narrowed(source, mine))
            found |= Counter(builds.narrowed(source, change, mine)) - before
        return list(found.elements())

    def _watched(
        self, variant: Variant, mutant: Mutant, rungs: list[_Rung], operators: set[str], name: str
    ) -> Result | None:
        """Return the failure of a check in a build that watches memory; None if it passes. Raise
        Unwatched."""
        try:
            trial_process = self.campaign.trial_process(variant)
        except FileNotFoundError as error:
            raise Unwatched(str(error)) from None
        usual = {r.pair: self._check_original(variant, (r.pair,), r.operators) for r in rungs}
        pairs = tuple(pair for pair, result in usual.items() if result.status == "passed")
        if not pairs:
            rung, why = next((pair[1], result.reason) for pair, result in usual.items())
            raise Unwatched(f"where {rung} as it is does not pass: {why}")
        try:
            library = self._build(self.builds(variant), mutant, operators, name)
        except BuildError as error:  # it compiles as a plain build: a limit of this build
            raise Unwatched(f"which does not compile: {str(error).splitlines()[0]}") from None
        limit = 60 + 10 * sum(usual[pair].seconds for pair in pairs)
        trial = replace(self._trial(library, pairs, limit), quick=_few_cases(variant), watched=True)
        result = trial_process.run(trial)
        if result.status == "late":  # the plain check ended
            raise Unwatched(f"which has no end after {limit:.0f} s")
        return result if result.status in BAD else None

    def _check_original(
        self,
        variant: Variant,
        pairs: tuple[Pair, ...],
        operators: Collection[str],
        model: str = "",
        whole: bool = False,
    ) -> Result:
        """Return the result of checking the original, built like mutants, in this variant and card.
        whole: check all cases even if the variant is usually checked on few."""

        def check() -> Result:
            builds = self.builds(variant)
            objects = [builds.original(s, mine) for s, mine in builds.needed(operators).items()]
            objects = objects or [builds.original(s, frozenset()) for s in self.day.library_sources]
            words = [word for pair in pairs for word in pair]
            words += [*sorted(operators), model, str(whole)]
            library = builds.library(objects, f"original-{digest(words)}")
            trial = replace(self._trial(library, pairs, LONGEST), model=model)
            quick = _few_cases(variant) and not whole
            return self.campaign.trial_process(variant).run(
                replace(trial, quick=quick, watched=variant != "plain")
            )

        key = (variant, pairs, frozenset(operators), model, whole)
        return self._baselines.get(key, check)

    def _trial(self, library: Path, rungs: tuple[Pair, ...], limit: float) -> Trial:
        return Trial(str(self.day.folder), str(library), rungs, limit=limit)

    def _moved(self, mutant: Mutant, name: str) -> str:
        """Return a copy of the day's folder with the mutant in it, for rungs that build it
        themselves."""
        folder = self.folder / name / self.day.name
        for original in self.day.folders:
            moved = folder / original.relative_to(self.day.folder)
            moved.mkdir(parents=True, exist_ok=True)
            for path in original.iterdir():
                if path.is_file() and path != mutant.source and not (moved / path.name).exists():
                    os.symlink(path, moved / path.name)
        place = folder / mutant.source.relative_to(self.day.folder)
        place.write_text(mutant.text(), encoding="utf-8")
        return str(folder)

    # Keys -----------------------------------------------------------------------------------------

    def _texts(self) -> dict[Path, str]:
        """Return the day's sources and headers without white space and comments, which do not
        affect a verdict."""
        own = (*self.day.library_sources, *headers_of(self.day))
        return {path: _essence(path.read_text(encoding="utf-8")) for path in own}

    def _mutant_key(self, mutant: Mutant, rungs: list[_Rung]) -> str:
        texts = self._texts() | {mutant.source: _essence(mutant.text())}
        return digest([self._key, *texts.values(), *(word for rung in rungs for word in rung.pair)])

    def _common_key(self) -> str:
        platform = self.campaign.platform
        folders = [ROOT / "common" / name for name in _JUDGES]
        files = [p for folder in folders for p in sorted(folder.rglob("*")) if p.is_file()]
        files = [p for p in files if "__pycache__" not in p.parts and p.suffix != ".md"]
        files += [Path(__file__).with_name(name) for name in _JUDGES_HERE]
        for source in self.day.library_sources:
            files += sources_of(source)
        files += list(self.day.other_sources)
        own = {path.resolve() for path in (*self.day.library_sources, *headers_of(self.day))}
        files = [path for path in files if path.resolve() not in own]
        texts = []
        for path in self.day.modules:
            # Without comments.
            texts += [path.name, ast.unparse(ast.parse(path.read_text(encoding="utf-8")))]
        return digest([platform.compiler_version, platform.torch, str(ROOT), *texts], files)


def _essence(text: str) -> str:
    return " ".join(token.text for token in outline(text).code.tokens if token.is_code)


class Unwatched(Exception):
    """The reason why a mutant cannot be tried in a build that watches memory."""


def _few_cases(variant: Variant) -> bool:
    """Return True if a build is checked on few cases, as in the debugger: all are needed if an
    access beyond an array may occur in any case."""
    return variant != "address"


def _killed(verdict: Verdict, result: Result, by: str) -> Verdict:
    verdict.status, verdict.by, verdict.rung = KILLED, by, result.rung
    verdict.reason, verdict.details = result.reason, result.details
    return verdict


def _no_longer_run(usual: Result, result: Result) -> str:
    """Return a rung that the original runs and the mutant skips, since the card lacks something
    now, or ""."""
    run = {(ran.problem, ran.rung) for ran in usual.ran if ran.status != SKIP}
    skipped = [ran for ran in result.ran if ran.status == SKIP]
    return next((ran.rung for ran in skipped if (ran.problem, ran.rung) in run), "")


def _leaves_out_more(usual: Result, result: Result) -> str:
    """Return a rung that the mutant, tried on all cases, checks on fewer than the original, since
    the card lacks something for the others now, or ""."""
    before = {(ran.problem, ran.rung): ran.left_out for ran in usual.ran}
    more = [r for r in result.ran if r.left_out > before.get((r.problem, r.rung), r.left_out)]
    return more[0].rung if more else ""


def _by(result: Result) -> str:
    """Return which part of the plain check killed a mutant."""
    if result.status != "failed":
        return "crash" if result.status == "died" else "time limit"
    text = "\n".join([result.reason, *result.details])
    if _ELSEWHERE in text:
        return "stream or device"
    if _THROWN in text:
        return "address" if _ADDRESSES.search(text) else "barrier or wait"
    if result.reason.startswith("bad input"):
        return "bad input"
    return "order" if _ORDER.search(text) else "result"


def _watched_by(result: Result, variant: Variant) -> str:
    if variant == "trace" and result.findings:
        raced = set(result.findings) & set(findings.RACES)
        return "sanitizer: races" if raced else f"sanitizer: {result.findings[0]}"
    if variant == "address" and not _ADDRESSES.search(result.reason) and result.status == "failed":
        return "sanitizer: locals"
    return f"sanitizer: {'addresses' if variant == 'address' else 'races'}"
