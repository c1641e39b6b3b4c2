"""Reports of runs: what `--json` writes, and `--merge` and `--write --from` read. Those of
`--mutants` hold other things, and `--write --from` knows them by these."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.base.outcome import DayOutcome
from common.base.verdict import Score, Verdict, score
from common.base.where import device_name, slug, versions
from common.report.files import ResultsError, write_atomically

FORMAT = 2


def describe(
    where: dict[str, str], outcomes: Sequence[DayOutcome], complete: bool
) -> dict[str, Any]:
    """One run as plain data: where and when it was, and what came of each day.

    where: see `common.base.where.where`. complete: everything was checked and timed, as results
    that are stored must be.
    """
    return {
        "where": where,
        "complete": complete,
        "days": [outcome.to_json() for outcome in outcomes],
    }


def write_json(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    """Writes runs (see `describe`) as one report.

    Its "days" lie side by side, each with the number of its run in "runs".
    """
    report = {
        "format": FORMAT,
        "runs": [{key: run[key] for key in run if key != "days"} for run in runs],
        "days": [{"run": i, **day} for i, run in enumerate(runs) for day in run["days"]],
    }
    write_atomically(path, json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> list[dict[str, Any]]:
    """The runs of a report. Raises ResultsError where the file is none."""
    data = _read(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ResultsError(f"{path} is no report of format {FORMAT} written by --json")
    if "mutants" in data:
        raise ResultsError(f"{path} is a report of --mutants, not of a run")
    try:
        runs = [{**run, "days": []} for run in data["runs"]]
        for day in data["days"]:
            runs[day.pop("run")]["days"].append(day)
        _try(runs)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{path} is no whole report written by --json: {error!r}") from None
    return runs


def _try(runs: Sequence[dict[str, Any]]) -> None:
    """Raises an error of some kind where something of these runs is not there, or not a number."""
    for run in runs:
        device_name(run["where"]), versions(run["where"]), run["complete"]
    for outcome in outcomes_of(runs):
        for rung in outcome.rungs:
            if rung.timing and not rung.timing.ms > 0:
                raise ValueError(f"{rung.rung} took {rung.timing.ms} ms")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ResultsError(f"{path} is no JSON: {error}") from None


def write_mutants(path: Path, days: Sequence[dict[str, Any]], date: str) -> None:
    """Writes the report of --mutants. days: of each, "day", "error", "problems", "complete" (all
    standard mutants were tried), "rate" and "verdicts". date: of the run, as 2026-01-31."""
    report = {"format": FORMAT, "date": date, "mutants": days}
    write_atomically(path, json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def read_mutants(path: Path) -> list[Score] | None:
    """The scores in a report of --mutants; None for a report of something else. Raises
    ResultsError where the file is none, or where a day's mutants were not all tried."""
    data = _read(path)
    if not isinstance(data, dict) or "mutants" not in data:
        return None
    found = []
    try:
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, not {FORMAT}")
        for day in data["mutants"]:
            if day["error"] or not day["complete"]:
                why = day["error"] or "not all of its standard mutants were tried"
                raise ResultsError(f"{path}: day {day['day']} cannot be stored: {why}")
            verdicts = [Verdict(**verdict) for verdict in day["verdicts"]]
            found.append(score(day["day"], verdicts, True, data["date"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{path} is no report of --mutants: {error!r}") from None
    return found


def outcomes_of(runs: Sequence[dict[str, Any]]) -> list[DayOutcome]:
    """All days of all runs, in order."""
    found = [DayOutcome.from_json(day) for run in runs for day in run["days"]]
    return sorted(found, key=lambda outcome: outcome.number)


def merge(reports: Sequence[Path]) -> list[dict[str, Any]]:
    """The runs of several reports; those from equal machines on one date become one run.

    Raises ResultsError where a day would be there twice on the same device.
    """
    merged: dict[str, dict[str, Any]] = {}
    seen: dict[tuple[str, int], Path] = {}
    for path in reports:
        for run in read_json(path):
            key = json.dumps(run["where"], sort_keys=True)
            into = merged.setdefault(key, {**run, "days": []})
            into["complete"] &= run["complete"]
            for day in run["days"]:
                one = (slug(run["where"]), day["number"])
                if one in seen:
                    raise ResultsError(
                        f"day {one[1]} on {one[0]} is in both {seen[one]} and {path}"
                    )
                seen[one] = path
                into["days"].append(day)
    for run in merged.values():
        run["days"].sort(key=lambda day: day["number"])
    return list(merged.values())
