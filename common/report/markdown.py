"""What is generated from stored results: progress.md, and blocks of the READMEs.

A block stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`:

    run           what `run_day.py N` prints
    results       the table of the day's rungs
    practice      the day's exercises
    neighbours    links to the day before and the day after
    scoreboard    where a README has it: CUDA beside Triton or Numba, on all days of its part
    recorded      of the front page: the picture of a run
    curriculum    of the front page: all days, with their last rungs
"""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean

from common.base.days import Day, discover
from common.base.figures import counted, duration, numbers, ratio
from common.base.ladder import has_ladder
from common.base.outcome import PASS, RungOutcome
from common.base.parts import part_of
from common.base.toolchain import sm
from common.base.verdict import Score
from common.base.where import versions
from common.report.columns import MARKDOWN, PROGRESS, markdown_table
from common.report.files import ResultsError
from common.report.glossary import glossary
from common.report.plot import plot, plotted
from common.report.scoreboard import Pair, pairs, twin_modules
from common.report.terminal import Line, header_line, rung_line

PLOT = "results.svg"  # in a day's folder
RECORDED = 5  # the day whose run the front page shows
RECORDING = ".github/run.svg"


@dataclass(frozen=True)
class Stored:
    """What is stored of a day on a GPU. where: what was measured on, see
    `common.base.where.where`. output: lines that the day printed."""

    day: int
    where: dict[str, str]
    rungs: list[RungOutcome]
    output: list[str] = field(default_factory=list)

    @property
    def last(self) -> RungOutcome:
        """The rung that stands for the day."""
        return last_rung(self.rungs)


def last_rung(rungs: Sequence[RungOutcome]) -> RungOutcome:
    """Of a day's rungs the one that stands for it: the last one with a target, else the last one
    that was timed, else the last one."""
    timed = [rung for rung in rungs if rung.timing is not None]
    aimed = [rung for rung in timed if rung.target]
    return (aimed or timed or rungs)[-1]


def generated(
    root: Path, stored: dict[int, list[Stored]], scores: dict[int, Score] | None = None
) -> dict[Path, str]:
    """Every generated file with the text it must have: progress.md and the days' READMEs.

    Raises ResultsError where a day's README lacks a block.
    """
    days, _broken = discover(root / "days")
    files = {root / "progress.md": progress(days, stored, scores or {})}
    front = root / "README.md"
    if front.is_file():
        text = front.read_text(encoding="utf-8")
        text = replaced(front, text, "recorded", recorded_block(stored))
        files[front] = replaced(front, text, "curriculum", curriculum_block(days, stored))
        if RECORDED in stored:
            files[root / RECORDING] = recording(stored[RECORDED][0])
    for day, before, after in zip(days, [None, *days[:-1]], [*days[1:], None], strict=True):
        readme = day.folder / "README.md"
        if day.number not in stored and not readme.is_file():
            continue
        if not readme.is_file():
            raise ResultsError(f"{readme} is missing; it must hold {begin_of('results')}")
        text = readme.read_text(encoding="utf-8")
        blocks = {"results": results_block(stored.get(day.number, []))}
        blocks["run"] = run_block(stored.get(day.number, []))
        blocks["practice"] = practice_block(day)
        blocks["neighbours"] = neighbours_block(before, after)
        if begin_of("scoreboard") in text:
            part = [one for one in days if part_of(one.number) == part_of(day.number)]
            blocks["scoreboard"] = scoreboard_block(part, stored)
        for name, block in blocks.items():
            text = replaced(readme, text, name, block)
        files[readme] = text
        for one in stored.get(day.number, [])[:1]:
            if picture := plot(one.rungs):
                files[day.folder / PLOT] = picture
    return files


def begin_of(name: str) -> str:
    return f"<!-- {name}:begin -->"


def replaced(readme: Path, text: str, name: str, block: str) -> str:
    """The text with this block in its place."""
    begin, end = begin_of(name), f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _old, closed, after = rest.partition(end)
    if not found or not closed:
        raise ResultsError(f"{readme} must hold {begin} and, after it, {end}")
    return f"{before}{begin}\n{block}\n{end}{after}"


# --- a day's README ---------------------------------------------------------------------------


def practice_block(day: Day) -> str:
    """The day's exercises, as the first items of "Try it yourself"."""
    if day.exercise is None:
        return "- This day has no exercise yet."
    gap = f"`{day.exercise.function}` of `{day.exercise.source or day.source.name}`"
    items = [
        f"- **Write**, `{day.practice()}`: {gap} has a gap. {day.exercise.task}",
        f"- **Debug**, `{day.practice('debug')}`: one change is planted in the day's kernels. "
        "Find it.",
    ]
    if has_ladder(day):
        items.append(
            f"- **Speed**, `{day.practice('speed')}`: make the first rung as fast as the last. On "
            "the CPU backend, accesses to memory are counted."
        )
    return "\n".join(
        line for item in items for line in textwrap.wrap(item, 110, subsequent_indent="  ")
    )


def neighbours_block(before: Day | None, after: Day | None) -> str:
    """Links to the days before and after."""
    links = [
        f"[Day {day.number}: {day.title}](../{day.name}/README.md)"
        for day in (before, after)
        if day
    ]
    return f"- {' · '.join(links)}" if links else "- This is the only day."


def run_block(stored: Sequence[Stored]) -> str:
    """What `run_day.py N` printed, on the first GPU of these results: a console block."""
    if not stored:
        return "Not measured yet."
    texts = ["".join(text for text, _ in line).rstrip() for line in run_lines(stored[0])]
    return "\n".join(["```text", *texts, "```"])


def run_lines(one: Stored) -> list[Line]:
    """What a run of the day prints, as lines of styled pieces."""
    several = len({rung.problem for rung in one.rungs}) > 1
    lines: list[Line] = [[(_platform(one.where), "")], header_line()]
    problem = ""
    for rung in one.rungs:
        if several and rung.problem != problem:
            problem = rung.problem
            lines.append([(f"{one.day:>3} {problem}:", "")])
        lines.append(rung_line(one.day, rung))
    return lines + [[(f"      | {line}", "")] for line in one.output]


def _platform(where: dict[str, str]) -> str:
    """The first line of a run there."""
    return f"{where['gpu']}, sm_{sm(where['arch'])}, nvcc {where['nvcc']}, torch {where['torch']}"


def results_block(stored: Sequence[Stored]) -> str:
    """The results of one day on the GPUs that it is stored for."""
    parts = [_results_on(one) for one in stored]
    if parts and plotted(stored[0].rungs):
        parts.append(f"![The rate of each rung, beside PyTorch and the machine's ceiling]({PLOT})")
    return "\n\n".join(parts) or "Not measured yet."


def _results_on(one: Stored) -> str:
    untimed = _only_checked(one.rungs)
    rungs = [rung for rung in one.rungs if rung.problem not in untimed]
    header = ["problem", "rung", "idea", *(column.heading for column in MARKDOWN)]
    left = [True, True, True, *(column.left for column in MARKDOWN)]
    rows = [
        [rung.problem, f"`{rung.rung}`", rung.idea, *(column.text(rung) for column in MARKDOWN)]
        for rung in rungs
    ]
    # What no row fills is left out, and so is the problem where there is one only.
    keep = [i for i in range(1, len(header)) if any(row[i] for row in rows)]
    if len({rung.problem for rung in rungs}) > 1:
        keep = [0, *keep]
    table = markdown_table(
        [header[i] for i in keep],
        [left[i] for i in keep],
        [[row[i] for i in keep] for row in rows],
    )
    cases = list(dict.fromkeys(rung.timing.case for rung in one.rungs if rung.timing))
    below = f"{versions(one.where)}."
    if cases:
        below += f" Timed: {'; '.join(cases)}."
    if untimed:
        names = (f"{name} ({counted(n, 'rung')})" for name, n in untimed.items())
        below += f" Checked, not timed: {'; '.join(names)}."
    return "\n".join([f"**{one.where['gpu']}**", "", *table, "", below])


def _only_checked(rungs: Sequence[RungOutcome]) -> dict[str, int]:
    """Problems whose rungs all passed with no figure to show, and how many rungs each has.

    Empty where nothing is timed: then the table shows what is checked.
    """
    shown = {rung.problem for rung in rungs if rung.status != PASS or rung.timing or rung.build_s}
    counts = Counter(rung.problem for rung in rungs if rung.problem not in shown)
    return dict(counts) if any(rung.timing for rung in rungs) else {}


# --- the scoreboard ---------------------------------------------------------------------------


def scoreboard_block(days: Sequence[Day], stored: dict[int, list[Stored]]) -> str:
    """The days' fastest rungs in CUDA and in Triton or Numba, on the first GPU that has a pair.

    Days without a module in Triton or Numba are left out.
    """
    header = ["day", "problem", "CUDA", "time", "lines", "twin", "time", "lines", "× CUDA"]
    left = [False, True, True, False, False, True, False, False, False]
    rows: list[list[str]] = []
    listed: list[Pair] = []
    machines: dict[str, list[int]] = {}
    for day in days:
        if not twin_modules(day):
            continue
        link = f"[{day.number}](../{day.name}/README.md)"
        results = stored.get(day.number, [])
        found: list[Pair] = []
        for one in results:
            if found := pairs(day, one.rungs):
                machines.setdefault(one.where["gpu"], []).append(day.number)
                break
        else:
            state = "no pair is timed" if results else "not measured yet"
            rows.append([link, state, *[""] * (len(header) - 2)])
            continue
        for pair in found:
            row = [link, pair.problem]
            for side in (pair.cuda, pair.twin):
                row += [f"`{side.rung}`", duration(side.ms / 1e3), str(side.lines)]
            rows.append([*row, ratio(pair.cuda.ms, pair.twin.ms)])
        listed += found
    table = "\n".join(markdown_table(header, left, rows))
    if not listed:
        return table
    where = " and ".join(f"{gpu} (day {numbers(known)})" for gpu, known in machines.items())
    faster = sum(pair.speed > 1 for pair in listed)
    speed = geometric_mean(pair.speed for pair in listed)
    lines = geometric_mean(pair.twin.lines / pair.cuda.lines for pair in listed)
    return (
        f"{table}\n\nMeasured on {where}: {counted(len(listed), 'pair')}, of which the twin is "
        f"faster in {faster}. The twins have {speed:.2f} × the speed of CUDA and {lines:.2f} × its "
        "lines (geometric means)."
    )


# --- the front page ---------------------------------------------------------------------------


def recorded_block(stored: dict[int, list[Stored]]) -> str:
    """The picture of a run."""
    if RECORDED not in stored:
        return "Not measured yet."
    return f"![What python run_day.py {RECORDED} prints]({RECORDING})"


def recording(one: Stored) -> str:
    """The SVG of what a run of the day prints on a terminal."""
    from rich.console import Console
    from rich.text import Text

    lines = [Text.assemble(*line) for line in run_lines(one)]
    width = max(len(line.plain) for line in lines)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(line, highlight=False)
    return console.export_svg(title=f"python run_day.py {one.day}", unique_id="run") + "\n"


def curriculum_block(days: Sequence[Day], stored: dict[int, list[Stored]]) -> str:
    """The days by parts, each with its last rung on the first GPU of its results."""
    columns = [column for column in PROGRESS if column.heading != "time"]
    header = ["day", "title", "last rung", *(column.heading for column in columns)]
    left = [False, True, True, *(column.left for column in columns)]
    lines = []
    for part in dict.fromkeys(part_of(day.number) for day in days):
        rows = []
        for day in days:
            if part_of(day.number) != part:
                continue
            row = [str(day.number), f"[{day.title}](days/{day.name}/README.md)"]
            if found := stored.get(day.number):
                last = found[0].last
                row += [f"`{last.rung}`", *(column.text(last) for column in columns)]
            rows.append(row + [""] * (len(header) - len(row)))
        lines += [f"**{part}**", "", *markdown_table(header, left, rows), ""]
    machines = dict.fromkeys(one.where["gpu"] for found in stored.values() for one in found[:1])
    return "\n".join([*lines, f"Measured on {' and '.join(machines)}." if machines else ""]).strip()


# --- progress.md ------------------------------------------------------------------------------


def progress(days: Sequence[Day], stored: dict[int, list[Stored]], scores: dict[int, Score]) -> str:
    """The text of progress.md."""
    notes: dict[str, str] = {}
    rows, measured, targets = [], 0, [0, 0]
    for day in days:
        title = f"[{day.title}](days/{day.name}/README.md)"
        results = stored.get(day.number, [])
        if not results:
            empty = [""] * (len(PROGRESS) + 2)
            score = kills(day, scores)
            rows.append([str(day.number), title, "not measured", *empty, *score, day.teaches])
            continue
        measured += 1
        first = results[0]
        for rung in first.rungs:
            if rung.target_met is not None:
                targets[0] += rung.target_met
                targets[1] += 1
        gpu = first.where["gpu"]
        note = f"{gpu}: {versions(first.where)}"
        letter = notes.setdefault(note, _letter(len(notes)))
        row = [str(day.number), title, "passed", f"`{first.last.rung}`"]
        row += [column.text(first.last) for column in PROGRESS]
        rows.append([*row, f"{gpu} [{letter}]", *kills(day, scores), day.teaches])
    header = ["day", "title", "state", "last rung", *(c.heading for c in PROGRESS), "on"]
    left = [False, True, True, True, *(column.left for column in PROGRESS), True]
    if scores:
        header.append("mutants killed")
        left.append(False)
    header.append("it teaches")
    left.append(True)
    totals = f"{counted(len(days), 'day')}: {measured} passed on a GPU"
    if targets[1]:
        totals += f"; {targets[0]} of {counted(targets[1], 'target')} met"
    lines = [
        "# Progress",
        "",
        "Generated by `python run_day.py all --write` from `common/results/`; not edited by hand.",
        "",
        f"{totals}.",
        "",
        *markdown_table(header, left, rows),
    ]
    if notes:
        lines += ["", *(f"- [{letter}] {note}" for note, letter in notes.items())]
    if any(day.introduces for day in days):
        lines += ["", "## Glossary", "", *glossary(days)]
    return "\n".join(lines) + "\n"


def kills(day: Day, scores: dict[int, Score]) -> list[str]:
    """The cell of the column for mutants: "97 % of 38, 2026-01-31", where the date tells what state
    of the day was tried; no cell where no day has a score."""
    if not scores:
        return []
    if (score := scores.get(day.number)) is None:
        return [""]
    return [f"{100 * score.rate:.0f} % of {score.counted}, {score.date}"]


def _letter(index: int) -> str:
    """0, 1, … 25, 26 as a, b, … z, aa."""
    text = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        text = chr(ord("a") + rest) + text
    return text
