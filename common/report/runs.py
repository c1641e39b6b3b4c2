"""Read and write reports of runs: `--json` writes them, `--merge` and `--write --from` read them.
This module also reads reports of `--mutants`, which differ in format, for `--write --from`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.base.decoding import PlainError, decode, parse
from common.base.figures import printable
from common.base.outcome import DayOutcome
from common.base.verdict import Score, Verdict, score
from common.base.where import WHERE, slug
from common.report.files import ResultsError, write_atomically

FORMAT = 2
LEAST_MS, MOST = 1e-7, 1e12  # a clock cycle of a GPU takes 5e-7 ms
FIGURES = ("gbs", "tflops", "share", "spread", "samples", "host_us", "pytorch_host_us")
MUTANTS = "mutants"  # the name of the stored scores of mutants, which no GPU may have


def describe(
    where: dict[str, str], outcomes: Sequence[DayOutcome], complete: bool
) -> dict[str, Any]:
    """Return one run as plain data: place and date, and the outcome of each day.

    where: see `common.base.where.where`. complete: everything was checked and timed, which stored
    results require.
    """
    return {
        "where": where,
        "complete": complete,
        "days": [outcome.to_json() for outcome in outcomes],
    }


def write_json(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    """Write runs (see `describe`) as one report.

    Its "days" are one list, each day with the index of its run in "runs".
    """
    report = {
        "format": FORMAT,
        "runs": [{key: run[key] for key in run if key != "days"} for run in runs],
        "days": [{"run": i, **day} for i, run in enumerate(runs) for day in run["days"]],
    }
    write_atomically(path, json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a report, after checking it completely.

    Raise ResultsError, naming the field, if the file is not a report or a field of it is invalid.
    """
    data = read_plain(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ResultsError(f"{path} is no report of format {FORMAT} written by --json")
    if "mutants" in data:
        raise ResultsError(f"{path} is a report of --mutants, not of a run")
    try:
        return _runs(data)
    except PlainError as error:
        raise ResultsError(f"{path} is no whole report written by --json: {error}") from None


@dataclass(frozen=True)
class _Head:
    where: dict[str, str]
    complete: bool


def _runs(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs of a report's data. Raise PlainError."""
    data = decode(dict[str, Any], data)
    for key in ("runs", "days"):
        if not isinstance(data.get(key), list):
            raise PlainError(f"{key}: expected a list, got {type(data.get(key)).__name__}")
    heads: list[_Head] = decode(list[_Head], data["runs"], "runs")
    for i, head in enumerate(heads):
        check_where(head.where, f"runs[{i}].where")
    runs: list[dict[str, Any]] = [{**asdict(head), "days": []} for head in heads]
    for i, day in enumerate(data["days"]):
        place = f"days[{i}]"
        number = day.pop("run", None) if isinstance(day, dict) else None
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(runs):
            raise PlainError(f"{place}.run: expected the number of a run, got {number!r}")
        check_outcome(DayOutcome.from_json(day, place), place)
        runs[number]["days"].append(day)
    return runs


def check_where(where: dict[str, str], place: str) -> None:
    """Raise PlainError if a machine's description lacks a field, or has an invalid one."""
    missing = [key for key in WHERE if key not in where]
    if missing:
        raise PlainError(f"{place}.{missing[0]}: missing")
    if where["device"] not in ("cuda", "cpu"):
        raise PlainError(f"{place}.device: expected 'cuda' or 'cpu', got {where['device']!r}")
    for key, value in where.items():
        if printable(value) != value:
            raise PlainError(f"{place}.{key}: expected printable text, got {value[:80]!r}")
    if where["device"] == "cuda" and not re.fullmatch(r"\d{1,3}\.\d[af]?", where["arch"]):
        raise PlainError(f"{place}.arch: expected one like '9.0a', got {where['arch'][:80]!r}")
    if (where["device"] == "cuda" and slug(where) in ("", MUTANTS)) or len(slug(where)) > 80:
        raise PlainError(f"{place}.gpu: {where['gpu'][:80]!r} is not the name of a GPU")


def check_outcome(outcome: DayOutcome, place: str) -> None:
    """Raise PlainError if a day's name does not match its number, a duration is negative, or a time
    is not positive."""
    if not 0 < outcome.number < 1000 or outcome.name != f"day{outcome.number:02d}":
        raise PlainError(
            f"{place}.name: expected the name of day {outcome.number}, got {outcome.name[:80]!r}"
        )
    if outcome.build_s < 0 or outcome.run_s < 0:
        raise PlainError(f"{place}: build_s and run_s must not be negative")
    for rung in outcome.rungs:
        if printable(rung.rung + rung.problem) != rung.rung + rung.problem:
            raise PlainError(f"{place}: expected a printable name, got {rung.rung[:80]!r}")
        timing = rung.timing
        if timing is None:
            continue
        for name in FIGURES:
            value = getattr(timing, name)
            if value is not None and not 0 <= value < MOST:
                raise PlainError(
                    f"{place}: {name} of {rung.rung}: expected 0 to {MOST:g}, got {value}"
                )
        times = {"ms": timing.ms, "pytorch_ms": timing.pytorch_ms, **timing.libraries}
        for name, ms in times.items():
            if ms is not None and not LEAST_MS <= ms < MOST:
                raise PlainError(
                    f"{place}: {name} of {rung.rung}: expected {LEAST_MS:g} to {MOST:g}, got {ms}"
                )


def read_plain(path: Path) -> Any:
    """Return the data of a JSON file. Raise ResultsError, naming the file."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ResultsError(f"{path} is no JSON: {error}") from None


@dataclass(frozen=True)
class _DaysMutants:
    day: int
    error: str
    complete: bool
    verdicts: list[Verdict]
    problems: list[str] = field(default_factory=list)
    rate: float | None = None


def write_mutants(path: Path, days: Sequence[dict[str, Any]], date: str) -> None:
    """Write the report of --mutants. days: dicts with "day", "error", "problems", "complete" (all
    standard mutants were tried), "rate" and "verdicts". date: of the run, as 2026-01-31."""
    report = {"format": FORMAT, "date": date, "mutants": days}
    write_atomically(path, json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def read_mutants(path: Path) -> list[Score] | None:
    """Return the scores in a report of --mutants; None for another file's data. Raise ResultsError
    if the report is invalid, or not all of a day's mutants were tried."""
    data = read_plain(path)
    if not isinstance(data, dict) or "mutants" not in data:
        return None
    found: list[Score] = []
    try:
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, not {FORMAT}")
        date = decode(str, data["date"], "date")
        for day in decode(list[_DaysMutants], data["mutants"], "mutants"):
            if day.day in {one.day for one in found} or not 0 < day.day < 1000:
                raise PlainError(f"mutants: expected one entry per day, got day {day.day}")
            if day.error or not (day.complete and day.verdicts):
                why = day.error or "not all of its standard mutants were tried"
                raise ResultsError(f"{path}: day {day.day} cannot be stored: {why}")
            found.append(score(day.day, day.verdicts, True, date))
    except (KeyError, ValueError) as error:
        raise ResultsError(f"{path} is no report of --mutants: {error}") from None
    return found


def outcomes_of(runs: Sequence[dict[str, Any]]) -> list[DayOutcome]:
    """Return all days of all runs, in order, without times measured on the CPU backend."""
    found = [
        outcome.without_times() if on_cpu(run) else outcome
        for run in runs
        for outcome in map(DayOutcome.from_json, run["days"])
    ]
    return sorted(found, key=lambda outcome: outcome.number)


def on_cpu(run: dict[str, Any]) -> bool:
    """Return True if the run was on the CPU backend."""
    return bool(run["where"]["device"] == "cpu")


def merge(reports: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the runs of several reports; those from equal machines on one date become one run.

    Raise ResultsError if a day occurs twice on the same device.
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
