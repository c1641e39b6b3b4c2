"""Stored results: one JSON file per day and GPU, with one line per rung.

    common/results/<gpu>/dayNN.json    what was measured: written by --write alone
    common/results/mutants/dayNN.json  the score of --mutants, written by --mutants --write
    days/dayNN/NAME.json, NAME.svg     what the day's `show` made: written by --write alone

Everything that shows results in the repository is generated from them: see markdown.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from common.base.figures import numbers
from common.base.outcome import FAIL, SKIP, DayOutcome, RungOutcome, Timing
from common.base.paths import ROOT
from common.base.verdict import Score
from common.base.where import slug
from common.report import markdown
from common.report.files import ResultsError, write_atomically
from common.report.markdown import Stored
from common.report.runs import FORMAT

MUTANTS = "mutants"  # the folder of the scores
MADE = (".json", ".svg")  # what a day's own files are called


def unfit(outcome: DayOutcome) -> str:
    """Why a day's outcome is not stored; "" if it is."""
    if outcome.status == FAIL:
        return "it failed"
    if outcome.status == SKIP:
        return f"it was skipped ({outcome.reason})"
    return ""


def store(run: dict[str, Any], root: Path = ROOT) -> list[str]:
    """Stores a run's days and writes again what is generated from them; returns what to tell.

    A failed day keeps its old results. Of a run on the CPU backend, only the days' own files are
    stored. Nothing is written unless all of it can be made. Raises ResultsError where it cannot, or
    a file cannot be written.
    """
    if not run["complete"]:
        raise ResultsError("nothing is stored: the run was --quick, --no-bench or --rungs")
    said = []
    fit = []
    for outcome in map(DayOutcome.from_json, run["days"]):
        if reason := unfit(outcome):
            said.append(f"day {outcome.number} is not stored: {reason}")
        else:
            fit.append(outcome)
    made = {path: text for outcome in fit for path, text in _made_by(outcome, root).items()}
    files: dict[Path, str] = {}
    new: dict[Path, Stored] = {}
    if run["where"]["device"] == "cuda":
        folder = _folder(root) / slug(run["where"])
        for outcome in fit:
            one = Stored(outcome.number, run["where"], outcome.rungs, outcome.output.splitlines())
            path = folder / f"{outcome.name}.json"
            new[path], files[path] = one, to_text(one)
    elif not made:
        raise ResultsError("nothing is stored: the run was on the CPU backend, not on a GPU")
    generated = markdown.generated(root, _by_day(_read_files(root) | new), read_scores(root))
    for path, text in files.items():
        write_atomically(path, text)
    said += _write_changed(root, made)
    if new:
        stored = numbers(one.day for one in new.values())
        said.append(f"stored day {stored} in {folder.relative_to(root)}")
    return said + _write_changed(root, generated)


def _made_by(outcome: DayOutcome, root: Path) -> dict[Path, str]:
    """The day's own files by their paths. Raises ResultsError for a name that it may not have."""
    for name in outcome.files:
        if Path(name).name != name or Path(name).suffix not in MADE or name == markdown.PLOT:
            expected = " or ".join(f"NAME{suffix}" for suffix in MADE)
            raise ResultsError(f"day {outcome.number}: its show made {name!r}, expected {expected}")
    folder = root / "days" / outcome.name
    return {folder / name: text for name, text in outcome.files.items()}


def regenerate(root: Path = ROOT) -> list[str]:
    """Writes what is generated from the stored results and differs from it; returns what to tell.

    Raises ResultsError where a file cannot be written.
    """
    return _write_changed(root, markdown.generated(root, read_stored(root), read_scores(root)))


def check(root: Path = ROOT) -> list[str]:
    """Generated files that differ from the stored results, each with the fix; [] if none does."""
    problems = []
    try:
        files = markdown.generated(root, read_stored(root), read_scores(root))
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


def read_stored(root: Path = ROOT) -> dict[int, list[Stored]]:
    """All stored results by day; those of the GPU that has most days come first, which is the one
    that an index shows.

    Raises ResultsError for a file that holds none.
    """
    return _by_day(_read_files(root))


def _folder(root: Path) -> Path:
    return root / "common" / "results"


def _read_files(root: Path) -> dict[Path, Stored]:
    found = _folder(root).glob("*/day*.json")
    return {path: from_text(path) for path in found if path.parent.name != MUTANTS}


def _by_day(files: dict[Path, Stored]) -> dict[int, list[Stored]]:
    found: dict[int, list[Stored]] = {}
    days_on = Counter(path.parent.name for path in files)
    for path in sorted(files, key=lambda path: (-days_on[path.parent.name], path)):
        found.setdefault(files[path].day, []).append(files[path])
    return found


def _write_changed(root: Path, files: dict[Path, str]) -> list[str]:
    said = []
    for path, text in files.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
            said.append(f"wrote {path.relative_to(root)}")
    return said


# --- the scores of --mutants ------------------------------------------------------------------


def store_scores(scores: Sequence[Score], root: Path = ROOT) -> list[str]:
    """Stores these days' scores and writes again what is generated from them; returns what to
    say. Raises ResultsError where a file cannot be written."""
    folder = _folder(root) / MUTANTS
    known = read_scores(root) | {score.day: score for score in scores}
    generated = markdown.generated(root, read_stored(root), known)
    said = []
    for score in scores:
        text = json.dumps({"format": FORMAT, **score.to_json()}, ensure_ascii=False, indent=1)
        write_atomically(folder / f"day{score.day:02d}.json", text + "\n")
    if scores:
        days = numbers(score.day for score in scores)
        said.append(f"stored the mutants of day {days} in {folder.relative_to(root)}")
    return said + _write_changed(root, generated)


def read_scores(root: Path = ROOT) -> dict[int, Score]:
    """The stored scores by day. Raises ResultsError for a file that holds none."""
    found = {}
    for path in sorted((_folder(root) / MUTANTS).glob("day*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.pop("format") != FORMAT:
                raise ValueError(f"not of format {FORMAT}")
            score = Score(**data)
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{path} holds no score of mutants: {error!r}") from None
        found[score.day] = score
    return found


# --- the file of a day ------------------------------------------------------------------------


def to_text(one: Stored) -> str:
    """The file's text: a line per rung, fields that have their default left out."""
    head = {"format": FORMAT, "day": one.day, "where": one.where, "output": one.output}
    lines = [f"{json.dumps(key)}: {_dump(value)}," for key, value in head.items()]
    rungs = ",\n".join(_dump(_lean(rung)) for rung in one.rungs)
    return "\n".join(["{", *lines, '"rungs": [', rungs, "]", "}"]) + "\n"


def from_text(path: Path) -> Stored:
    """The stored result that the file holds. Raises ResultsError, naming it, where it does not."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, not {FORMAT}")
        rungs = [RungOutcome.from_json(rung) for rung in data["rungs"]]
        return Stored(data["day"], data["where"], rungs, data["output"])
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path} holds no stored result: {error!r}") from None


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _lean(item: RungOutcome | Timing) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    found: dict[str, Any] = {}
    for field in fields(item):
        value = getattr(item, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if value != default:
            found[field.name] = _lean(value) if isinstance(value, Timing) else value
    return found
