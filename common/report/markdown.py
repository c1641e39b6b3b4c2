"""Generate progress.md and blocks of the READMEs from stored results.

A block is the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->`:

    python        how the day's .cu files get into Python
    run           the output of `run_day.py N`
    results       the table of the day's rungs, and that of their kernels
    practice      the day's exercises
    neighbours    links to the day before and the day after
    ceilings      in the README of day 50: the stored ceilings of each GPU
    scoreboard    in some READMEs: CUDA against Triton or Numba, on all days of its part
    climb         on the front page: the chart of the matrix products
    recorded      on the front page: the picture of a run
    curriculum    on the front page: the parts, with their last days
"""

from __future__ import annotations

import os
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import geometric_mean

from common.base.ceilings import UNITS, Ceilings
from common.base.course_parts import part_of
from common.base.day_files import Step
from common.base.days import FURTHER_SHOWS, Day, discover
from common.base.figures import (
    counted,
    duration,
    library_name,
    numbers,
    printable,
    ratio,
    significant,
)
from common.base.ladder import has_ladder
from common.base.outcome import PASS, RungOutcome
from common.base.toolchain import sm
from common.base.verdict import Score
from common.base.where import versions
from common.report.columns import MARKDOWN, PROGRESS, in_markdown, markdown_table
from common.report.evidence import EVIDENCE, Evidence, evidence_block, from_text
from common.report.files import ResultsError
from common.report.front_chart import climb, steps_of
from common.report.glossary import glossary
from common.report.in_python import python_block
from common.report.plot import plot
from common.report.recording import recording
from common.report.scoreboard import Pair, pairs, twin_modules
from common.report.terminal import Line, header_line, rung_line

PLOT = "results/results.svg"  # in a day's folder
RECORDED = 56  # the day of the front page's recorded run
RECORDING = ".github/run.svg"
CHART = ".github/climb.svg"
CAUGHT = "planted bugs caught"  # the heading of the scores of mutants
SPREAD = "spread"  # the noise of a table's times
COLUMNS_TITLE = "What the columns mean"


@dataclass(frozen=True)
class Stored:
    """The stored results of a day on a GPU. where: see `common.base.where.where`. output: lines
    that the day printed."""

    day: int
    where: dict[str, str]
    rungs: list[RungOutcome]
    output: list[str] = field(default_factory=list)

    @property
    def best(self) -> RungOutcome:
        """Return the rung that represents the day."""
        return best_rung(self.main.rungs)

    @property
    def main(self) -> Stored:
        """Return the part of the day's main line."""
        rungs = [rung for rung in self.rungs if not rung.further]
        return replace(self, rungs=rungs, output=self.output[: self._further_shows])

    @property
    def further(self) -> Stored:
        """Return the part beyond the day's main line."""
        rungs = [rung for rung in self.rungs if rung.further]
        return replace(self, rungs=rungs, output=self.output[self._further_shows + 1 :])

    @property
    def _further_shows(self) -> int:
        """Return the index of the output line after which `further` prints; its end without such a
        line."""
        lines = [*self.output, FURTHER_SHOWS]
        return lines.index(FURTHER_SHOWS)


def best_rung(rungs: Sequence[RungOutcome]) -> RungOutcome:
    """Return the rung that represents a day: the fastest one of the problem to which the day leads,
    that of the last rung with a time and a target, else of the last timed one. A rung that is
    faster by less than the spread of both times is not faster. Without times, the last rung."""
    timed = [rung for rung in rungs if rung.timing is not None]
    aimed = [rung for rung in timed if rung.target]
    last = (aimed or timed or rungs)[-1]
    if last.timing is None:
        return last
    spread, slower = last.timing.spread, last.timing.ms
    faster = [
        (rung.timing.ms, rung)
        for rung in timed
        if rung.timing and rung.problem == last.problem and rung.status == PASS
        if slower / rung.timing.ms - 1 > spread + rung.timing.spread
    ]
    return min(faster, key=lambda pair: pair[0])[1] if faster else last


def generated(
    root: Path,
    stored: dict[int, list[Stored]],
    scores: dict[int, Score],
    ceilings: Mapping[str, Ceilings],
) -> dict[Path, str]:
    """Return every generated file with its text: progress.md, READMEs and pictures.

    ceilings: of GPUs by their slugs. Raise ResultsError if a day's README lacks a block.
    """
    days, _broken = discover(root / "days")
    everything, stored = stored, _with_a_main_line(stored)
    files = {root / "progress.md": progress(days, stored, scores)}
    front = root / "README.md"
    if front.is_file():
        text = front.read_text(encoding="utf-8")
        text = replaced(front, text, "climb", climb_block(days, stored))
        text = replaced(front, text, "recorded", recorded_block(stored))
        files[front] = replaced(front, text, "curriculum", curriculum_block(days, stored))
        if RECORDED in stored:
            lines = run_lines(stored[RECORDED][0].main)
            files[root / RECORDING] = recording(f"python run_day.py {RECORDED}", lines)
        if chart := climb(days, first_results(stored)):
            files[root / CHART] = chart
    for day, before, after in zip(days, [None, *days[:-1]], [*days[1:], None], strict=True):
        readme = day.folder / "README.md"
        if day.number not in stored and not readme.is_file():
            continue
        if not readme.is_file():
            raise ResultsError(f"{readme} is missing; it must hold {begin_of('results')}")
        text = readme.read_text(encoding="utf-8")
        results = [one.main for one in stored.get(day.number, [])]
        evidence = read_evidence(day)
        kernels = evidence_block(evidence, further=False)
        blocks = {"results": "\n\n".join(filter(None, [results_block(results), kernels]))}
        blocks["python"] = python_block(day)
        blocks["run"] = run_block(results)
        blocks["practice"] = practice_block(day)
        blocks["neighbours"] = neighbours_block(before, after)
        if begin_of("ceilings") in text:
            blocks["ceilings"] = ceilings_block(ceilings)
        if begin_of("scoreboard") in text:
            part = [one for one in days if part_of(one.number) == part_of(day.number)]
            blocks["scoreboard"] = scoreboard_block(part, stored)
        for name, block in blocks.items():
            text = replaced(readme, text, name, block)
        files[readme] = text
        for one in results[:1]:
            if picture := plot(one.rungs):
                files[day.folder / PLOT] = picture
        if day.further:
            results = everything.get(day.number, [])
            files |= _generated_further(day.further.folder, results, evidence)
    return files


def _with_a_main_line(stored: dict[int, list[Stored]]) -> dict[int, list[Stored]]:
    """Return the results that hold rungs of the main line; other days are not measured yet."""
    found = {day: [one for one in results if one.main.rungs] for day, results in stored.items()}
    return {day: results for day, results in found.items() if results}


def read_evidence(day: Day) -> Evidence | None:
    """Return the stored evidence of a day's kernels, or None. Raise ResultsError for an invalid
    file."""
    path = day.folder / "results" / EVIDENCE
    return from_text(path) if os.path.lexists(path) else None


def _generated_further(
    folder: Path, stored: Sequence[Stored], evidence: Evidence | None
) -> dict[Path, str]:
    """Return the README of the part beyond a day's main line, and its plot."""
    readme = folder / "README.md"
    beyond = [one.further for one in stored if one.further.rungs]
    block = results_block(beyond, "../../..")
    if beyond and (output := beyond[0].output):
        shown = [f"| {printable(line)}" for line in output]
        block = "\n".join([block, "", "```text", *shown, "```"])
    block = "\n\n".join(filter(None, [block, evidence_block(evidence, further=True)]))
    text = replaced(readme, readme.read_text(encoding="utf-8"), "results", block)
    picture = plot(beyond[0].rungs) if beyond else ""
    return {readme: text} | ({folder / PLOT: picture} if picture else {})


def begin_of(name: str) -> str:
    return f"<!-- {name}:begin -->"


def replaced(readme: Path, text: str, name: str, block: str) -> str:
    """Return the text with this block replaced. Raise ResultsError if it is missing."""
    begin, end = begin_of(name), f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _old, closed, after = rest.partition(end)
    if not found or not closed:
        raise ResultsError(f"{readme} must hold {begin} and, after it, {end}")
    block = block.replace("<!--", "&lt;!--")  # output must not end the block
    return f"{before}{begin}\n{block}\n{end}{after}"


# --- a day's README ---------------------------------------------------------------------------


def practice_block(day: Day) -> str:
    """Return the day's exercises, as the first items of "Try it yourself"."""
    if not day.steps:
        return "- This day has no exercise yet."
    several = len(day.steps) > 1
    items = [_write_item(day, step, several) for step in day.steps]
    items.append(
        f"- **Debug**, `{day.practice('debug')}`: one change is planted in the day's kernels. "
        "Find it."
    )
    if has_ladder(day):
        items.append(
            f"- **Speed**, `{day.practice('speed')}`: make the first timed rung as fast as the "
            "last. On the CPU backend, accesses to memory are counted."
        )
    return "\n".join(
        line for item in items for line in textwrap.wrap(item, 110, subsequent_indent="  ")
    )


def _write_item(day: Day, step: Step, several: bool) -> str:
    if several:
        return f"- **Write {step.name}**, `{day.practice(step.name)}`: {step.task}"
    gap = f"`{step.function}` of `{step.source or day.source.name}`"
    return f"- **Write**, `{day.practice()}`: {gap} has a gap. {step.task}"


def neighbours_block(before: Day | None, after: Day | None) -> str:
    """Return links to the days before and after."""
    links = [
        f"[Day {day.number}: {day.title}](../{day.name}/README.md)"
        for day in (before, after)
        if day
    ]
    return f"- {' · '.join(links)}" if links else "- This is the only day."


def run_block(stored: Sequence[Stored]) -> str:
    """Return the output of `run_day.py N` on the first GPU of these results: a console block."""
    if not stored:
        return "Not measured yet."
    texts = [printable("".join(text for text, _ in line)).rstrip() for line in run_lines(stored[0])]
    return "\n".join(["```text", *texts, "```"])


def run_lines(one: Stored) -> list[Line]:
    """Return the output of a run of the day, as lines of styled pieces."""
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
    """Return the first line of a run on this machine."""
    return f"{where['gpu']}, sm_{sm(where['arch'])}, nvcc {where['nvcc']}, torch {where['torch']}"


def results_block(stored: Sequence[Stored], top: str = "../..") -> str:
    """Return the results of one day on each stored GPU. top: path to the folder of progress.md."""
    parts = [_results_on(one, top) for one in stored]
    if parts and plot(stored[0].rungs):
        parts.append(f"![The rate of each rung, beside PyTorch and the machine's ceiling]({PLOT})")
    return "\n\n".join(parts) or "Not measured yet."


def _results_on(one: Stored, top: str) -> str:
    untimed = _only_checked(one.rungs)
    rungs = [rung for rung in one.rungs if rung.problem not in untimed]
    header = ["problem", "rung", "idea", *(column.heading for column in MARKDOWN)]
    left = [True, True, True, *(column.left for column in MARKDOWN)]
    rows = [
        [rung.problem, f"`{rung.rung}`", rung.idea, *(column.text(rung) for column in MARKDOWN)]
        for rung in rungs
    ]
    # Empty columns are left out, and so is a single problem's name.
    keep = [i for i in range(1, len(header)) if any(row[i] for row in rows)]
    if len({rung.problem for rung in rungs}) > 1:
        keep = [0, *keep]
    table = markdown_table(
        [header[i] for i in keep],
        [left[i] for i in keep],
        [[row[i] for i in keep] for row in rows],
    )
    cases = list(dict.fromkeys(rung.timing.case for rung in one.rungs if rung.timing))
    below = f"{in_markdown(versions(one.where))}."
    if cases:
        spread = max(rung.timing.spread for rung in one.rungs if rung.timing)
        below += f" Timed: {'; '.join(map(in_markdown, cases))}."
        below += f" {SPREAD.capitalize()}: ±{significant(100 * spread, 2)} % at most."
    if untimed:
        names = (f"{in_markdown(name)} ({counted(n, 'rung')})" for name, n in untimed.items())
        below += f" Checked, not timed: {'; '.join(names)}."
    anchor = COLUMNS_TITLE.lower().replace(" ", "-")
    below += f" [{COLUMNS_TITLE}]({top}/progress.md#{anchor})."
    return "\n".join([f"**{in_markdown(one.where['gpu'])}**", "", *table, "", below])


def _only_checked(rungs: Sequence[RungOutcome]) -> dict[str, int]:
    """Return problems whose rungs all passed without a figure, with their numbers of rungs.

    {} if nothing is timed: then the table shows the checked rungs.
    """
    shown = {rung.problem for rung in rungs if rung.status != PASS or rung.timing or rung.build_s}
    counts = Counter(rung.problem for rung in rungs if rung.problem not in shown)
    return dict(counts) if any(rung.timing for rung in rungs) else {}


def ceilings_block(ceilings: Mapping[str, Ceilings]) -> str:
    """Return a table of the ceilings of each GPU, with the clock under which each was measured."""
    parts = []
    for one in ceilings.values():
        clocks = {name: f"{mhz:.0f} MHz" for name, mhz in one.mhz.items()}
        rows = [
            [name, f"{significant(rate, 4)} {UNITS[name]}", clocks.get(name, "")]
            for name, rate in one.rates.items()
        ]
        table = markdown_table(["ceiling", "rate", "mean clock"], [True, False, False], rows)
        parts.append("\n".join([f"**{in_markdown(one.gpu)}**, {one.date}", "", *table]))
    return "\n\n".join(parts) or "Not measured yet."


# --- the scoreboard ---------------------------------------------------------------------------


def scoreboard_block(days: Sequence[Day], stored: dict[int, list[Stored]]) -> str:
    """Return the days' fastest rungs in CUDA and in Triton or Numba, on the first GPU with a pair.

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
    where = " and ".join(
        f"{in_markdown(gpu)} (day {numbers(known)})" for gpu, known in machines.items()
    )
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
    """Return the picture of a run."""
    if RECORDED not in stored:
        return "Not measured yet."
    return f"![What python run_day.py {RECORDED} prints]({RECORDING})"


def climb_block(days: Sequence[Day], stored: dict[int, list[Stored]]) -> str:
    """Return the chart of the matrix products, and its description."""
    steps = steps_of(days, first_results(stored))
    if not steps:
        return "Not measured yet."
    (first, slow), *_, (last, fast) = steps
    where = stored[last][0].where["gpu"]
    words = (
        f"Matrix products on {in_markdown(where)}, from the first kernel of day {first} "
        f"({slow.text}) to day {last} ({fast.text}). The line across the bars is "
        "NVIDIA's own library, cuBLAS, as PyTorch calls it; grey ends where the chip does."
    )
    picture = f"![The rates of matrix products from day {first} to day {last}]({CHART})"
    return "\n".join([picture, "", *textwrap.wrap(words, 110)])


def first_results(stored: dict[int, list[Stored]]) -> dict[int, list[RungOutcome]]:
    """Return the rungs of each day's main line on the first GPU of its results."""
    return {day: found[0].main.rungs for day, found in stored.items()}


def curriculum_block(days: Sequence[Day], stored: dict[int, list[Stored]]) -> str:
    """Return the parts of the course: their days, the last one, and the day whose best rung is
    furthest ahead of the strongest library, on the first GPU of its results."""
    header = ["part", "days", "it ends with", "best rung, furthest ahead of a library"]
    rows = []
    for part in dict.fromkeys(part_of(day.number) for day in days):
        own = [day for day in days if part_of(day.number) == part]
        best = max(
            (found for day in own if (found := _ahead(day, stored.get(day.number, [])))),
            default=(0.0, ""),
        )
        last = f"[{own[-1].title}](days/{own[-1].name}/README.md)"
        rows.append([part.name, numbers(day.number for day in own), last, best[1]])
    machines = dict.fromkeys(one.where["gpu"] for found in stored.values() for one in found[:1])
    where = " and ".join(map(in_markdown, machines))
    table = markdown_table(header, [True, False, True, True], rows)
    return "\n".join([*table, *(["", f"Measured on {where}."] if machines else [])])


def _ahead(day: Day, results: Sequence[Stored]) -> tuple[float, str] | None:
    """Return how many times as fast as the library the day's best rung is, as a number and as text;
    None if no library was timed."""
    timing = results[0].best.timing if results else None
    if timing is None or timing.best_library is None:
        return None
    name, ms = timing.best_library
    link = f"[day {day.number}](days/{day.name}/README.md)"
    return ms / timing.ms, f"{ratio(ms, timing.ms)} {library_name(name)}, {link}"


# --- progress.md ------------------------------------------------------------------------------


def progress(days: Sequence[Day], stored: dict[int, list[Stored]], scores: dict[int, Score]) -> str:
    """Return the text of progress.md."""
    notes: dict[str, str] = {}
    rows, measured, targets = [], 0, [0, 0]
    for day in days:
        title = f"[{day.title}](days/{day.name}/README.md)"
        results = stored.get(day.number, [])
        if not results:
            empty = [""] * (len(PROGRESS) + 3)
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
        note = in_markdown(f"{gpu}: {versions(first.where)}")
        letter = notes.setdefault(note, _letter(len(notes)))
        best = first.best
        row = [str(day.number), title, "passed", best.problem, f"`{best.rung}`"]
        row += [column.text(best) for column in PROGRESS]
        rows.append([*row, f"{gpu} [{letter}]", *kills(day, scores), day.teaches])
    header = ["day", "title", "state", "problem", "best rung"]
    header += [*(column.heading for column in PROGRESS), "on"]
    left = [False, True, True, True, True, *(column.left for column in PROGRESS), True]
    if scores:
        header.append(CAUGHT)
        left.append(False)
    header.append("it teaches")
    left.append(True)
    totals = f"{counted(len(days), 'day')}: {measured} passed on a GPU"
    if targets[1]:
        totals += f"; {targets[0]} of {counted(targets[1], 'target')} met"
    lines = [
        "# Progress",
        "",
        "Generated by `python run_day.py all --write` from `days/*/results/`; not edited by hand.",
        "",
        f"{totals}.",
        "",
        *markdown_table(header, left, rows),
    ]
    if notes:
        lines += ["", *(f"- [{letter}] {note}" for note, letter in notes.items())]
    lines += ["", f"## {COLUMNS_TITLE}", "", *_columns()]
    if any(day.introduces for day in days):
        lines += ["", "## Glossary", "", *glossary(days)]
    return "\n".join(lines) + "\n"


def _columns() -> list[str]:
    """Return the meanings of the columns of all tables, as a list."""
    words = {
        "best rung": "the fastest version of the day's kernel, for the problem to which it leads"
    }
    words |= {column.heading: column.meaning for column in MARKDOWN if column.meaning}
    words[SPREAD] = (
        "half of the samples of a time, which is their median, lie within it; smaller differences "
        "between two rungs mean nothing"
    )
    words[CAUGHT] = (
        "how many changes of one place in the day's source its checks reject, of those that were "
        "tried (`--mutants`)"
    )
    return [f"- **{heading}**: {meaning}." for heading, meaning in words.items()]


def kills(day: Day, scores: dict[int, Score]) -> list[str]:
    """Return the cell of the column for mutants: "97 % of 38, 2026-01-31", where the date
    identifies the tried state of the day; no cell if no day has a score."""
    if not scores:
        return []
    if (score := scores.get(day.number)) is None:
        return [""]
    return [f"{100 * score.rate:.0f} % of {score.counted}, {score.date}"]


def _letter(index: int) -> str:
    """Return 0, 1, … 25, 26 as a, b, … z, aa."""
    text = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        text = chr(ord("a") + rest) + text
    return text
