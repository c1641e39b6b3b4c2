"""Stored results: one JSON file per day and GPU, with one line per rung.

    common/results/<gpu>/dayNN.json    what was measured: written by --write alone

Everything that shows results in the repository is generated from them: see markdown.py.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from common.base.figures import numbers
from common.base.outcome import FAIL, SKIP, DayOutcome, RungOutcome, Timing
from common.base.paths import ROOT
from common.base.where import slug
from common.report import markdown
from common.report.files import ResultsError, write_atomically
from common.report.markdown import Stored
from common.report.runs import FORMAT


def unfit(outcome: DayOutcome) -> str:
    """Why a day's outcome is not stored; "" if it is."""
    if outcome.status == FAIL:
        return "it failed"
    if outcome.status == SKIP:
        return f"it was skipped ({outcome.reason})"
    return ""


def store(run: dict[str, Any], root: Path = ROOT) -> list[str]:
    """Stores a run's days and writes again what is generated from them; returns what to tell.

    A failed day keeps its old results. Nothing is written unless all of it can be made. Raises
    ResultsError where it cannot, or a file cannot be written.
    """
    if not run["complete"]:
        raise ResultsError("nothing is stored: the run was --quick or --no-bench")
    if run["where"]["device"] != "cuda":
        raise ResultsError("nothing is stored: the run was on the CPU backend, not on a GPU")
    said = []
    folder = _folder(root) / slug(run["where"])
    files: dict[Path, str] = {}
    new: dict[Path, Stored] = {}
    for day in run["days"]:
        outcome = DayOutcome.from_json(day)
        if reason := unfit(outcome):
            said.append(f"day {outcome.number} is not stored: {reason}")
            continue
        one = Stored(outcome.number, run["where"], outcome.rungs, outcome.output.splitlines())
        path = folder / f"{outcome.name}.json"
        new[path], files[path] = one, to_text(one)
    generated = markdown.generated(root, _by_day(_read_files(root) | new))
    for path, text in files.items():
        write_atomically(path, text)
    if new:
        stored = numbers(one.day for one in new.values())
        said.append(f"stored day {stored} in {folder.relative_to(root)}")
    return said + _write_changed(root, generated)


def regenerate(root: Path = ROOT) -> list[str]:
    """Writes what is generated from the stored results and differs from it; returns what to tell.

    Raises ResultsError where a file cannot be written.
    """
    return _write_changed(root, markdown.generated(root, read_stored(root)))


def check(root: Path = ROOT) -> list[str]:
    """Generated files that differ from the stored results, each with the fix; [] if none does."""
    problems = []
    try:
        files = markdown.generated(root, read_stored(root))
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
    """All stored results by day, in the order of the GPUs' names.

    Raises ResultsError for a file that holds none.
    """
    return _by_day(_read_files(root))


def _folder(root: Path) -> Path:
    return root / "common" / "results"


def _read_files(root: Path) -> dict[Path, Stored]:
    return {path: from_text(path) for path in _folder(root).glob("*/day*.json")}


def _by_day(files: dict[Path, Stored]) -> dict[int, list[Stored]]:
    found: dict[int, list[Stored]] = {}
    for path in sorted(files):
        found.setdefault(files[path].day, []).append(files[path])
    return found


def _write_changed(root: Path, files: dict[Path, str]) -> list[str]:
    said = []
    for path, text in files.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
            said.append(f"wrote {path.relative_to(root)}")
    return said


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
