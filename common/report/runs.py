"""Reports of runs: what `--json` writes, and `--merge` and `--write --from` read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.base.outcome import DayOutcome
from common.base.where import slug
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
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ResultsError(f"{path} is no JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ResultsError(f"{path} is no report of format {FORMAT} written by --json")
    runs = [{**run, "days": []} for run in data["runs"]]
    for day in data["days"]:
        runs[day.pop("run")]["days"].append(day)
    return runs


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
