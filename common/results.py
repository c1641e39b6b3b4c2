"""Stored results: one JSON file per day and device, and the tables generated from them.

    common/results/<device>/dayNN.json    what was measured: written by --write alone
    days/dayNN/README.md                  the block between the two markers
    progress.md                           all of it

Everything generated can be generated again from the stored files; `check` tells where it differs.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform as machine
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.day import ROOT, Day, discover
from common.figures import counted, duration, mark, numbers, rate, ratio, share
from common.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome
from common.toolchain import Platform, torch_cuda

FORMAT = 1
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


class ResultsError(Exception):
    """Results cannot be read, written or stored; the message says what and why."""


@dataclass(frozen=True)
class Stored:
    """What is stored of a day on a device. where: what was measured on, see `describe`."""

    day: int
    where: dict[str, str]
    rungs: list[RungOutcome]

    @property
    def last(self) -> RungOutcome:
        """The rung that stands for the day: the last one with a target, else the last one that was
        timed, else the last one."""
        timed = [rung for rung in self.rungs if rung.timing is not None]
        aimed = [rung for rung in timed if rung.target]
        return (aimed or timed or self.rungs)[-1]


def write_atomically(path: Path, text: str) -> None:
    """Writes the file whole or leaves it as it was. Raises ResultsError, naming the file."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, path.stat().st_mode if path.exists() else 0o644)
        os.replace(temporary, path)
    except OSError as error:
        state = "is unchanged" if path.exists() else "was not written"
        raise ResultsError(f"cannot write {path}, which {state}: {error.strerror}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            if temporary:
                os.unlink(temporary)


def describe(platform: Platform, outcomes: Sequence[DayOutcome], complete: bool) -> dict[str, Any]:
    """One run as plain data: where and when it was, and what came of each day.

    complete: everything was checked and timed, as results that are stored must be.
    """
    cuda = platform.device == "cuda"
    where = {
        "device": platform.device,
        "gpu": platform.gpu if cuda else "",
        "arch": platform.arch if cuda else "",
        "driver": driver() if cuda else "",
        "driver_cuda": platform.driver if cuda else "",
        "nvcc": platform.toolkit.version if cuda and platform.toolkit else "",
        "torch": platform.torch,
        "torch_cuda": torch_cuda() if cuda else "",
        "compiler": platform.compiler_version,
        "python": machine.python_version(),
        "processor": "" if cuda else processor(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    return {
        "where": where,
        "complete": complete,
        "days": [outcome.to_json() for outcome in outcomes],
    }


def driver() -> str:
    """The NVIDIA driver's version, e.g. "580.95.05"; "" where the system does not tell."""
    file = Path("/proc/driver/nvidia/version")
    text = file.read_text(errors="replace") if file.is_file() else ""
    match = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else ""


def processor() -> str:
    """The processor's name and the cores this process may use, e.g. "AMD EPYC 9354, 2 cores"."""
    name = machine.processor() or machine.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file() and (
        match := re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
    ):
        name = match.group(1).strip()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {counted(cores or 1, 'core')}"


def slug(where: dict[str, str]) -> str:
    """The folder of a device's results: "nvidia-h200", "cpu"."""
    name = where["gpu"] if where["device"] == "cuda" else "cpu"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# --- reports of runs: --json, --merge ---------------------------------------------------------


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


# --- stored results ---------------------------------------------------------------------------


def unfit(outcome: DayOutcome) -> str:
    """Why a day's outcome is not stored; "" if it is."""
    if outcome.status == FAIL:
        return "it failed"
    if outcome.status == SKIP:
        return f"it was skipped ({outcome.reason})"
    return ""


def store(run: dict[str, Any], root: Path = ROOT) -> list[str]:
    """Stores a run's days and writes again what is generated from them; returns what to tell.

    A failed day keeps its old results. Raises ResultsError where a file cannot be written.
    """
    if not run["complete"]:
        raise ResultsError("nothing is stored: the run was --quick or --no-bench")
    told = []
    folder = root / "common" / "results" / slug(run["where"])
    stored: list[int] = []
    for day in run["days"]:
        outcome = DayOutcome.from_json(day)
        if reason := unfit(outcome):
            told.append(f"day {outcome.number} is not stored: {reason}")
            continue
        rungs = [rung.to_json() for rung in outcome.rungs]
        data = {"format": FORMAT, "day": outcome.number, "where": run["where"], "rungs": rungs}
        data["output"] = outcome.output.splitlines()
        text = json.dumps(data, indent=1, ensure_ascii=False)
        write_atomically(folder / f"{outcome.name}.json", text + "\n")
        stored.append(outcome.number)
    if stored:
        told.append(f"stored day {numbers(stored)} in {folder.relative_to(root)}")
    return told + regenerate(root)


def regenerate(root: Path = ROOT) -> list[str]:
    """Writes what is generated from the stored results and differs from it; returns what to tell.

    Raises ResultsError where a file cannot be written.
    """
    told = []
    for path, text in generated(root).items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
            told.append(f"wrote {path.relative_to(root)}")
    return told


def read_stored(root: Path = ROOT) -> dict[int, list[Stored]]:
    """All stored results by day: GPUs first, then the CPU, each in the order of their names."""
    found: dict[int, list[Stored]] = {}
    files = (root / "common" / "results").glob("*/day*.json")
    for file in sorted(files, key=lambda f: (f.parent.name == "cpu", f.parent.name, f.name)):
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            rungs = [RungOutcome.from_json(rung) for rung in data["rungs"]]
            one = Stored(data["day"], data["where"], rungs)
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{file} holds no stored result: {error!r}") from None
        found.setdefault(one.day, []).append(one)
    return found


def generated(root: Path = ROOT) -> dict[Path, str]:
    """Every generated file with the text it must have: progress.md and the days' READMEs.

    Raises ResultsError where a day's README lacks the markers.
    """
    days, _broken = discover(root / "days")
    stored = read_stored(root)
    files = {root / "progress.md": progress(days, stored)}
    for day in days:
        readme = day.folder / "README.md"
        if day.number not in stored and not readme.is_file():
            continue
        if not readme.is_file():
            raise ResultsError(f"{readme} is missing; it must hold {BEGIN} and {END}")
        text = readme.read_text(encoding="utf-8")
        before, begin, rest = text.partition(BEGIN)
        _old, end, after = rest.partition(END)
        if not begin or not end:
            raise ResultsError(f"{readme} must hold {BEGIN} and, after it, {END}")
        block = readme_block(stored.get(day.number, []))
        files[readme] = f"{before}{BEGIN}\n{block}\n{END}{after}"
    return files


def check(root: Path = ROOT) -> list[str]:
    """Generated files that differ from the stored results, each with the mend; [] if none does."""
    problems = []
    try:
        files = generated(root)
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


# --- tables -----------------------------------------------------------------------------------


def _table(header: Sequence[str], align: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; align: one letter a column, "l" or "r"."""
    lines = [f"| {' | '.join(header)} |"]
    lines.append("|" + "|".join("---:" if a == "r" else "---" for a in align) + "|")
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return lines


def device_name(where: dict[str, str]) -> str:
    """ "NVIDIA H200", or "CPU backend"."""
    return where["gpu"] if where["device"] == "cuda" else "CPU backend"


def versions(where: dict[str, str]) -> str:
    """What it was measured with and when, in a line."""
    if where["device"] == "cuda":
        known = where["driver"] or f"for CUDA {where['driver_cuda']}"
        parts = [f"driver {known}", f"nvcc {where['nvcc']}"]
    else:
        parts = [where["processor"], where["compiler"]]
    return ", ".join([*parts, f"torch {where['torch']}", where["date"]])


def readme_block(stored: Sequence[Stored]) -> str:
    """The results of one day on every device it is stored for, as Markdown."""
    if not stored:
        return "Not measured yet."
    parts = []
    for one in stored:
        on_gpu = one.where["device"] == "cuda"
        untimed = _only_checked(one.rungs)
        rungs = [rung for rung in one.rungs if rung.problem not in untimed]
        rows = [_readme_row(rung, on_gpu) for rung in rungs]
        header = [
            "problem",
            "rung",
            "idea",
            "time",
            "rate",
            "of peak",
            "× PyTorch",
            "× compile",
            "build",
            "target",
        ]
        align = "lllrrrrrrl"
        # What no row fills is left out, and so is the problem where there is one only.
        keep = [i for i in range(1, len(header)) if any(row[i] for row in rows)]
        if len({rung.problem for rung in rungs}) > 1:
            keep = [0, *keep]
        table = _table(
            [header[i] for i in keep],
            "".join(align[i] for i in keep),
            [[row[i] for i in keep] for row in rows],
        )
        cases = list(dict.fromkeys(rung.timing.case for rung in one.rungs if rung.timing))
        below = f"{versions(one.where)}."
        if cases:
            below += f" Timed: {'; '.join(cases)}."
        if untimed:
            names = (f"{name} ({counted(n, 'rung')})" for name, n in untimed.items())
            below += f" Checked, not timed: {'; '.join(names)}."
        name = device_name(one.where)
        lines = ["", *table, "", below]
        if on_gpu or len(stored) == 1:
            lines = [f"**{name}**", *lines]
        else:  # whoever reads on wants to compare the text with the GPU's table
            lines = [f"<details><summary>{name}</summary>", *lines, "", "</details>"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _only_checked(rungs: Sequence[RungOutcome]) -> dict[str, int]:
    """Problems whose rungs all passed with no figure to show, and how many rungs each has.

    Empty where nothing is timed: then the table shows what is checked.
    """
    shown = {rung.problem for rung in rungs if rung.status != PASS or rung.timing or rung.build_s}
    counts = Counter(rung.problem for rung in rungs if rung.problem not in shown)
    return dict(counts) if any(rung.timing for rung in rungs) else {}


def _readme_row(rung: RungOutcome, on_gpu: bool) -> list[str]:
    timing = rung.timing
    target = f"{rung.target} {mark(rung)}".strip() if on_gpu else ""
    built = duration(rung.build_s) if rung.build_s is not None else ""
    if rung.status != PASS or timing is None:
        state = "checked" if rung.status == PASS else f"{rung.status}: {rung.reason}"
        return [rung.problem, f"`{rung.rung}`", rung.idea, state, "", "", "", "", built, target]
    peak = f"{share(timing)} {timing.bound}".strip() if timing.share is not None else ""
    return [
        rung.problem,
        f"`{rung.rung}`",
        rung.idea,
        duration(timing.ms / 1e3),
        rate(timing),
        peak,
        ratio(timing.pytorch_ms, timing.ms),
        ratio(timing.compile_ms, timing.ms),
        built,
        target,
    ]


def progress(days: Sequence[Day], stored: dict[int, list[Stored]]) -> str:
    """The text of progress.md."""
    notes: dict[str, str] = {}
    rows, on_gpu, on_cpu, targets = [], 0, 0, [0, 0]
    for day in days:
        results = stored.get(day.number, [])
        gpu = [one for one in results if one.where["device"] == "cuda"]
        cpu = [one for one in results if one.where["device"] == "cpu"]
        on_gpu, on_cpu = on_gpu + bool(gpu), on_cpu + bool(cpu)
        for rung in gpu[0].rungs if gpu else []:
            if rung.target_met is not None:
                targets[0] += rung.target_met
                targets[1] += 1
        state = " and ".join(["GPU"] * bool(gpu) + ["CPU"] * bool(cpu))
        state = f"passed on {state}" if state else "not measured"
        link = f"[{day.title}](days/{day.name}/README.md)"
        shown = gpu or cpu
        if not shown:
            rows.append([str(day.number), link, state, "", "", "", "", "", "", day.teaches])
            continue
        note = f"{device_name(shown[0].where)}: {versions(shown[0].where)}"
        letter = notes.setdefault(note, _letter(len(notes)))
        last, timing = shown[0].last, shown[0].last.timing
        rows.append(
            [
                str(day.number),
                link,
                state,
                f"`{last.rung}`",
                duration(timing.ms / 1e3) if timing else "",
                rate(timing) if timing else "",
                f"{share(timing)} {timing.bound}".strip() if timing and timing.share else "",
                ratio(timing.pytorch_ms, timing.ms) if timing else "",
                f"{device_name(shown[0].where)} [{letter}]",
                day.teaches,
            ]
        )
    header = [
        "day",
        "title",
        "state",
        "last rung",
        "time",
        "rate",
        "of peak",
        "× PyTorch",
        "on",
        "it teaches",
    ]
    totals = f"{counted(len(days), 'day')}: {on_gpu} passed on a GPU, {on_cpu} on the CPU backend"
    if targets[1]:
        totals += f"; {targets[0]} of {counted(targets[1], 'target')} met"
    lines = [
        "# Progress",
        "",
        "Generated by `python run_day.py all --write` from `common/results/`; not edited by hand.",
        "",
        f"{totals}.",
        "",
        *_table(header, "rlllrrrrll", rows),
    ]
    if notes:
        lines += ["", *(f"- [{letter}] {note}" for note, letter in notes.items())]
    return "\n".join(lines) + "\n"


def _letter(index: int) -> str:
    """0, 1, … 25, 26 as a, b, … z, aa."""
    text = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        text = chr(ord("a") + rest) + text
    return text
