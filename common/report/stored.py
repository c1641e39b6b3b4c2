"""Store results in the day's folder: one JSON file per GPU, with one line per rung.

    days/dayNN/results/<gpu>.json      the measured results, written only by --write
    days/dayNN/results/mutants.json    the score of --mutants, written by --mutants --write
    days/dayNN/results/evidence.json   see evidence.py
    days/dayNN/results/show/NAME.json, NAME.svg
                                       files of the day's `show`, written only by --write; beyond
                                       the main line, in days/dayNN/further/results/show

All shown results in the repository are generated from them: see markdown.py. The share of a ceiling
and whether a target is met are derived from the stored times and the GPU's ceilings of day 50, so
they are not stored.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

from common.base.ceilings import Ceilings, by_gpu, ceilings_files, share_of
from common.base.days import Day, discover, load_lesson
from common.base.declaration import Target
from common.base.decoding import PlainError
from common.base.figures import numbers
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome, Timing
from common.base.paths import ROOT
from common.base.targets import all_met
from common.base.verdict import Score
from common.base.where import slug
from common.report import evidence, markdown
from common.report.evidence import EVIDENCE, Evidence
from common.report.files import ResultsError, line_by_line, read_record, write_atomically
from common.report.markdown import Stored
from common.report.runs import FORMAT

RESULTS = "results"  # in a day's folder
MUTANTS = "mutants.json"  # in that folder: the score
SHOWN = "show"  # in that folder: the folder of the files of `show`
MADE = (".json", ".svg")  # name endings of the files of `show`
DERIVED = ("share", "target_met")  # fields that are not stored


def unfit(outcome: DayOutcome) -> str:
    """Return why a day's outcome cannot be stored; "" if it can."""
    if outcome.status == FAIL:
        return "it failed"
    if outcome.status == SKIP:
        return f"it was skipped ({outcome.reason})"
    return ""


def differs(outcome: DayOutcome, day: Day | None) -> str:
    """Return how an outcome differs from the day's declared rungs and files; "" if it does not.

    day: None if the repository lacks a day of the outcome's name.
    """
    if day is None:
        return f"there is no {outcome.name} here"
    problems = load_lesson(day.with_further()).problems
    declared = Counter((p.name, rung.name, p.further) for p in problems for rung in p.rungs)
    reported = Counter((rung.problem, rung.rung, rung.further) for rung in outcome.rungs)
    if missing := sorted(name for _, name, _ in declared - reported):
        return f"the report lacks {', '.join(missing)}"
    if unknown := sorted(name for _, name, _ in reported - declared):
        return f"the day has no {', '.join(unknown)}, or has it once"
    if day.further is None and any(name.startswith("further/") for name in outcome.files):
        return "it has files of a folder further, and the day has none"
    return ""


def store(run: dict[str, Any], root: Path = ROOT) -> list[str]:
    """Store a run's days and regenerate the files that depend on them; return messages.

    A failed day keeps its old results. Of a run on the CPU backend, only the files of `show` are
    stored. Nothing is written unless all of it can be made. Raise ResultsError if it cannot, or a
    file cannot be written.
    """
    if not run["complete"]:
        raise ResultsError("nothing is stored: the run was --quick, --no-bench or --rungs")
    said = []
    fit = []
    known = {day.name: day for day in discover(root / "days")[0]}
    for outcome in map(DayOutcome.from_json, run["days"]):
        if reason := unfit(outcome) or differs(outcome, known.get(outcome.name)):
            said.append(f"day {outcome.number} is not stored: {reason}")
        else:
            fit.append(outcome)
    made = {path: text for outcome in fit for path, text in _made_by(outcome, root).items()}
    ceilings = _ceilings(root, made)
    files: dict[Path, str] = {}
    new: dict[Path, Stored] = {}
    if run["where"]["device"] == "cuda":
        name = f"{slug(run['where'])}.json"
        for outcome in fit:
            one = Stored(outcome.number, run["where"], outcome.rungs, outcome.output.splitlines())
            path = _folder(root, outcome.number) / name
            new[path], files[path] = one, to_text(one)
    elif not made:
        said.append("no times are stored: the run was on the CPU backend, not on a GPU")
    results = _by_day(_read_files(root) | new, ceilings)
    generated = markdown.generated(root, results, read_scores(root), ceilings)
    for path, text in files.items():
        write_atomically(path, text)
    said += _write_changed(root, made)
    if new:
        stored = numbers(one.day for one in new.values())
        said.append(f"stored day {stored} in days/dayNN/{RESULTS}/{name}")
    return said + _write_changed(root, generated)


def _made_by(outcome: DayOutcome, root: Path) -> dict[Path, str]:
    """Return the files of the day's `show` by path. Raise ResultsError for a name that is not
    allowed."""
    for name in outcome.files:
        if not re.fullmatch(r"(further/)?\w[\w.-]{0,60}\.(json|svg)", name):
            expected = " or ".join(f"NAME{suffix}" for suffix in MADE)
            raise ResultsError(f"day {outcome.number}: its show made {name!r}, expected {expected}")
    day = _folder(root, outcome.number).parent
    return {
        (day / name).parent / RESULTS / SHOWN / Path(name).name: text
        for name, text in outcome.files.items()
    }


def regenerate(root: Path = ROOT) -> list[str]:
    """Write the generated files that differ from the stored results; return messages.

    Raise ResultsError if a file cannot be written.
    """
    return _write_changed(root, _generated(root))


def _generated(root: Path) -> dict[Path, str]:
    """Return every generated file with its text. Raise ResultsError for an invalid stored file."""
    return markdown.generated(root, read_stored(root), read_scores(root), _ceilings(root))


def check(root: Path = ROOT) -> list[str]:
    """Return generated files that differ from the stored results, each with the fix; [] if none
    does."""
    problems = []
    try:
        files = _generated(root)
    except ResultsError as error:
        return [str(error)]
    for path, text in files.items():
        name = path.relative_to(root)
        if not path.is_file():
            problems.append(f"{name} is missing; python run_day.py --write writes it")
        elif path.read_text(encoding="utf-8") != text:
            problems.append(
                f"{name} differs from the stored results; python run_day.py --write writes it anew"
            )
    return problems


def read_stored(root: Path = ROOT, days: str = "day*") -> dict[int, list[Stored]]:
    """Return the stored results of these days, a pattern of folders, by day; results of the GPU
    with the most days come first, and an index shows these.

    Raise ResultsError for an invalid file.
    """
    return _by_day(_read_files(root, days), _ceilings(root))


def as_runs(results: dict[int, list[Stored]]) -> list[dict[str, Any]]:
    """Return the results of each day on its first GPU as a run."""
    firsts = [(number, found[0]) for number, found in sorted(results.items())]
    return [
        {
            "where": one.where,
            "days": [DayOutcome(number, f"day{number:02d}", "", PASS, rungs=one.rungs).to_json()],
        }
        for number, one in firsts
    ]


def _ceilings(root: Path, made: dict[Path, str] | None = None) -> dict[str, Ceilings]:
    """Return the stored ceilings by the GPU's slug. made: new files, which replace stored ones.
    Raise ResultsError for an invalid file."""
    try:
        return by_gpu(ceilings_files(root / "days") | (made or {}))
    except PlainError as error:
        raise ResultsError(str(error)) from None


def _folder(root: Path, day: int) -> Path:
    return root / "days" / f"day{day:02d}" / RESULTS


def _read_files(root: Path, days: str = "day*") -> dict[Path, Stored]:
    found = (root / "days").glob(f"{days}/{RESULTS}/*.json")
    return {path: from_text(path) for path in found if path.name not in (MUTANTS, EVIDENCE)}


def _by_day(files: dict[Path, Stored], ceilings: dict[str, Ceilings]) -> dict[int, list[Stored]]:
    found: dict[int, list[Stored]] = {}
    days_on = Counter(path.name for path in files)
    for path in sorted(files, key=lambda path: (-days_on[path.name], path.name)):
        one = _held_against(files[path], ceilings.get(path.stem))
        found.setdefault(one.day, []).append(one)
    return found


def _held_against(one: Stored, ceilings: Ceilings | None) -> Stored:
    """Return the results with the share and the verdict on the targets of each timed rung."""
    times: dict[str, dict[str, Timing]] = {}  # by problem and rung
    for rung in one.rungs:
        if rung.timing:
            timing = replace(rung.timing, share=share_of(rung.timing, ceilings))
            times.setdefault(rung.problem, {})[rung.rung] = timing

    def held(rung: RungOutcome) -> RungOutcome:
        if rung.timing is None:
            return rung
        others = times[rung.problem]
        timing = others[rung.rung]
        met = all_met(Target.of_text(rung.target), timing, others, ceilings)
        return replace(rung, timing=timing, target_met=met)

    return replace(one, rungs=[held(rung) for rung in one.rungs])


def _write_changed(root: Path, files: dict[Path, str]) -> list[str]:
    said = []
    for path, text in files.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
            said.append(f"wrote {path.relative_to(root)}")
    return said


# --- the scores of --mutants ------------------------------------------------------------------


def store_scores(scores: Sequence[Score], root: Path = ROOT) -> list[str]:
    """Store these days' scores and regenerate the files that depend on them; return messages. Raise
    ResultsError if a file cannot be written."""
    there = {day.number for day in discover(root / "days")[0]}
    if unknown := [score.day for score in scores if score.day not in there]:
        raise ResultsError(f"nothing is stored: there is no day {numbers(unknown)} here")
    known = read_scores(root) | {score.day: score for score in scores}
    generated = markdown.generated(root, read_stored(root), known, _ceilings(root))
    said = []
    for score in scores:
        text = json.dumps({"format": FORMAT, **asdict(score)}, ensure_ascii=False, indent=1)
        write_atomically(_folder(root, score.day) / MUTANTS, text + "\n")
    if scores:
        days = numbers(score.day for score in scores)
        said.append(f"stored the mutants of day {days} in days/dayNN/{RESULTS}/{MUTANTS}")
    return said + _write_changed(root, generated)


def store_evidence(found: Sequence[Evidence], root: Path = ROOT) -> list[str]:
    """Store the evidence of these days and regenerate the files that depend on it; return messages.
    Raise ResultsError if a file cannot be written."""
    for one in found:
        write_atomically(_folder(root, one.day) / EVIDENCE, evidence.to_text(one))
    said = [f"stored the evidence of day {numbers(one.day for one in found)}"] if found else []
    return said + regenerate(root)


def read_scores(root: Path = ROOT, days: str = "day*") -> dict[int, Score]:
    """Return the stored scores of these days, a pattern of folders, by day. Raise ResultsError for
    an invalid file."""
    paths = sorted((root / "days").glob(f"{days}/{RESULTS}/{MUTANTS}"))
    scores = [read_record(path, Score, FORMAT, "score of mutants") for path in paths]
    return {score.day: score for score in scores}


# --- the file of a day ------------------------------------------------------------------------


def to_text(one: Stored) -> str:
    """Return the file's text: a line per rung, without fields that have their default or are
    derived."""
    head = {"format": FORMAT, "day": one.day, "where": one.where, "output": one.output}
    return line_by_line(head, {"rungs": [_lean(rung) for rung in one.rungs]})


def from_text(path: Path) -> Stored:
    """Return the stored result in the file. Raise ResultsError, naming the file, if it is
    invalid."""
    found: Stored = read_record(path, Stored, FORMAT, "stored result")
    return found


def _lean(item: RungOutcome | Timing) -> dict[str, Any]:
    """Return the stored fields of a dataclass that differ from their defaults."""
    found: dict[str, Any] = {}
    for field in fields(item):
        value = getattr(item, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if value != default and field.name not in DERIVED:
            found[field.name] = _lean(value) if isinstance(value, Timing) else value
    return found
