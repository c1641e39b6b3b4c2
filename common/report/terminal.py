"""Show a run to the user: one line per rung as it finishes, a live line, a summary.

Every line is made once, as styled pieces of text. On a terminal rich draws them in colour above the
live line; elsewhere the same text is printed plain, without the live line.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from common.base.days import Day
from common.base.figures import counted, duration, mark, printable
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome
from common.report.columns import TERMINAL
from common.report.drawn_call import DrawnCall

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.theme import Theme

Line = list[tuple[str, str]]  # (text, name of a style in rich)

STYLES = {PASS: "bold green", FAIL: "bold red", SKIP: "yellow"}
# By the number of a terminal of 256 colours: readable on a light and on a dark background. Of the
# sixteen chosen by the terminal, yellow vanishes on white, and bold often means brighter.
COLOURS = {"red": 196, "green": 29, "yellow": 136, "cyan": 31, "dim": 243}
# For terminals with sixteen, as in tmux and screen without a configuration: of xterm's, only red
# (1) and magenta (5) can be read on white and on black.
OF_SIXTEEN = {
    **{"red": "color(1)", "yellow": "color(5)"},
    **{"green": "default", "cyan": "default", "dim": "dim"},
}
SHOWN_DETAILS = 40  # lines that explain one failure
SHOWN_OUTPUT = 60  # lines of a day's output
PROSE = 78  # characters per line of a text in sentences
_INDENT = 6  # of lines that explain a rung


def _theme(colours: str | None) -> Theme:
    """Return the styles of lines in our colours. colours: rich's name of the terminal's colours."""
    from rich.theme import Theme

    plain = {name: f"color({number})" for name, number in COLOURS.items()}
    if colours == "standard":
        plain = OF_SIXTEEN
    return Theme(plain | {f"bold {name}": f"bold {colour}" for name, colour in plain.items()})


def header_line(times: bool = True) -> Line:
    """Return the heading of the rungs' lines, with or without the columns of times."""
    figures = "".join(f" {column.short:>{column.width}}" for column in TERMINAL)
    return [(f"{'day':>3} {'rung':<29} {'':<4}{figures if times else ' what was checked'}", "dim")]


def legend(outcomes: Sequence[DayOutcome], times: bool) -> list[str]:
    """Return the meaning of the rungs' lines for a newcomer; [] if there are none.

    times: times are shown, if there are any.
    """
    rungs = [rung for outcome in outcomes for rung in outcome.rungs]
    if not rungs:
        return []
    words = [
        "rung: one version of the day's kernel",
        "PASS: it agrees with PyTorch in every case, and refuses bad input or computes it right",
    ]
    if times:
        shown = [c for c in TERMINAL if c.meaning and any(map(c.text, rungs))]
        return [*words, *(f"{column.short}: {column.meaning}" for column in shown)]
    alone = len(outcomes) == 1
    where = f"days/{outcomes[0].name}/README.md" if alone else "progress.md"
    return [*words, f"{NO_TIMES}; see {where} for measured ones"]


NO_TIMES = "times on the CPU backend say nothing of a GPU"


def rung_line(number: int, outcome: RungOutcome) -> Line:
    """Return one rung: 80 columns unless its names are unusually long."""
    line = [
        (f"{number:>3} {outcome.rung:<29} ", ""),
        (f"{outcome.status:<4}", STYLES[outcome.status]),
    ]
    if outcome.status != PASS:
        line.append((f" {outcome.reason}", STYLES[outcome.status].removeprefix("bold ")))
    elif outcome.timing is None:
        line.append((f" {checked(outcome)}", "dim"))
    else:
        figures = "".join(f" {column.text(outcome):>{column.width}}" for column in TERMINAL)
        line.append((figures, ""))
        line.append((f" {mark(outcome)}", "green" if outcome.target_met else "yellow"))
    last, style = line[-1]
    line[-1] = (last.rstrip(), style)
    return line


def checked(outcome: RungOutcome) -> str:
    """Return the number of checks: "30 cases, 58 bad inputs"; the idea if nothing is counted."""
    counts = []
    if outcome.checked:
        counts.append(counted(outcome.checked, "case"))
    if outcome.bad_inputs:
        counts.append(counted(outcome.bad_inputs, "bad input"))
    return ", ".join(counts) or outcome.idea


def detail_line(text: str) -> Line:
    """Return a line that explains a failure; a compiler's or Python's place in a file is
    highlighted."""
    match = re.match(r"^([\w./+-]+\.(?:cu|cuh|cpp|h|py)[:(]\d+[^\s:]*:?\d*:?)(.*)$", text)
    if match:
        rest = match.group(2)
        return [(f"      {match.group(1)}", "cyan"), (rest, "red" if "error" in rest else "")]
    return [(f"      {text}", "")]


def example_line(text: str) -> Line:
    """Return a line of a tiny case; numbers marked as wrong are highlighted."""
    pieces = re.split(r"(\S+\*)", text)
    return [(" " * _INDENT, ""), *((piece, "red" if piece[-1:] == "*" else "") for piece in pieces)]


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as plain lines, indented, the first column left-aligned and the others
    right-aligned."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [
            row[0].ljust(widths[0]),
            *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(["", *cells]).rstrip())
    return lines


def summary_lines(outcomes: Sequence[DayOutcome], wall_s: float) -> list[Line]:
    """Return the counts, the days that failed or were skipped, and the time spent."""
    days = {status: [o for o in outcomes if o.status == status] for status in STYLES}
    rungs = [rung for outcome in outcomes for rung in outcome.rungs]
    counts: Line = [(counted(len(outcomes), "day"), "bold"), (":", "")]
    words = {PASS: "passed", FAIL: "failed", SKIP: "skipped"}
    for status, found in days.items():
        if found:
            which = "" if status == PASS else f" ({', '.join(str(o.number) for o in found)})"
            comma = "," if len(counts) > 2 else ""
            counts.append((f"{comma} {len(found)} {words[status]}{which}", STYLES[status]))
    tally = [f"{sum(r.status == s for r in rungs)} {s}" for s in STYLES]
    tally = [text for text in tally if not text.startswith("0 ")]
    counts.append((f"; {counted(len(rungs), 'rung')}: {', '.join(tally)}" if rungs else "", ""))
    return [counts, *([(text, "dim")] for text in _times(outcomes, wall_s))]


SLOWEST = 5  # days that are named


def _times(outcomes: Sequence[DayOutcome], wall_s: float) -> list[str]:
    """Return the time spent: in all, by activity, and of the slowest days.

    Days are built and checked side by side, so their seconds add up to more than the total.
    """
    if len(outcomes) < 2:
        built = sum(outcome.build_s for outcome in outcomes)
        return [f"{duration(wall_s)} in all" + (f", {duration(built)} building" if built else "")]
    spent = Counter({"building": sum(outcome.build_s for outcome in outcomes)})
    for outcome in outcomes:
        spent.update(outcome.spent)
    parts = [f"{what} {duration(seconds)}" for what, seconds in spent.most_common() if seconds >= 1]
    lines = [
        f"{duration(wall_s)} in all" + (f"; summed over days: {', '.join(parts)}" if parts else "")
    ]
    slowest = sorted(outcomes, key=lambda o: o.build_s + o.run_s, reverse=True)[:SLOWEST]
    named = [f"day {o.number} {duration(o.build_s + o.run_s)}" for o in slowest if o.run_s]
    return [*lines, f"slowest: {', '.join(named)}"] if named else lines


def _wrapped(line: str) -> list[str]:
    """Return a sentence as lines that fit below a rung; a row of a table or of code unchanged."""
    words = line.strip()
    margin = " " * (len(line) - len(words))
    if "  " in words or len(margin) > 2 or re.match(r"\d* \|", words):
        return [line]
    return textwrap.wrap(
        words,
        PROSE - _INDENT,
        initial_indent=margin,
        subsequent_indent="      " if line.startswith("hint:") else f"{margin}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _margin(line: str) -> int:
    """Return the number of spaces that a line begins with."""
    return len(line) - len(line.lstrip(" "))


class Report:
    """Print a run to `stream`, as a terminal or plainly.

    colour: False switches colours off on a terminal too; so do NO_COLOR and TERM=dumb.
    shown_details: lines that explain one failure. narrow: wrap sentences about a rung, and count
    each line; explain only the first failure, print a remark once, and show a rung once if it has
    the same outcome in several problems. verbose: also show how rungs were checked. times: show
    times and rates, which on the CPU backend do not predict a GPU's.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        colour: bool = True,
        shown_details: int = SHOWN_DETAILS,
        narrow: bool = False,
        verbose: bool = False,
    ):
        self.times = True
        self._verbose = verbose
        self._stream = stream or sys.stdout
        self._shown_details = shown_details
        self._narrow = narrow
        self._explained = False
        self._remarks = set[str]()
        self._states = set[tuple[str, str]]()
        self._console: Console | None = None
        self._live: Live | None = None
        self._status = ""
        self._header_shown = False
        self._problem = (0, "")
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console

            no_colour = not colour or bool(os.environ.get("NO_COLOR"))
            self._console = Console(
                file=self._stream,
                no_color=no_colour,
                highlight=False,
                soft_wrap=True,
            )
            self._console.push_theme(_theme(self._console.color_system))

    def line(self, line: Line) -> None:
        """Print one line above the live line, with control characters shown as text."""
        line = [(printable(text), style) for text, style in line]
        if self._console is None:
            print("".join(text for text, _ in line).rstrip(), file=self._stream, flush=True)
            return
        from rich.text import Text

        self._console.print(Text.assemble(*line))

    def text(self, text: str, style: str = "") -> None:
        """Print text, keeping its lines."""
        for each in text.splitlines():
            self.line([(each, style)])

    def prose(self, text: str, style: str = "", indent: int = 0) -> None:
        """Print a text of any length, in lines of 78 characters; indent: of all but the first
        line."""
        margin = " " * indent
        for each in textwrap.wrap(text, PROSE, subsequent_indent=margin):
            self.line([(each, style)])

    def status(self, text: str) -> None:
        """Replace the live line: builds, runs, days left. Does nothing without a terminal.

        Draws immediately, not in a thread: a process that forks must not be drawing meanwhile.
        """
        if self._console is None or text == self._status:
            return
        from rich.live import Live
        from rich.text import Text

        self._status = text
        shown = Text(text, style="dim", no_wrap=True, overflow="ellipsis")
        if self._live is None:
            self._live = Live(
                shown,
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
            # A killed process would leave a hidden cursor hidden.
            self._console.show_cursor(True)
        self._live.update(shown, refresh=True)

    def close(self) -> None:
        """Remove the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._status = ""

    def rung(
        self, number: int, outcome: RungOutcome, problem: str = "", remarks: bool = False
    ) -> None:
        """Show a rung's line, and below it the explanation of a failure.

        problem: printed above the first of its rungs, for a day that has several.
        """
        if not self.times:
            outcome = outcome.without_time()
        state = outcome.rung, outcome.status
        if self._narrow and outcome.timing is None and state in self._states:
            return
        self._states.add(state)
        if not self._header_shown:
            self._header_shown = True
            self.line(header_line(self.times))
        if problem and (number, problem) != self._problem:
            self._problem = (number, problem)
            self.line([(f"{number:>3} {problem}:", "dim")])
        line = rung_line(number, outcome)
        # Only the first failed rung is explained, except for the sanitizer's tools, which differ.
        alike = self._narrow and self._explained and outcome.problem != "sanitize"
        too_long = sum(len(text) for text, _ in line) > PROSE and outcome.timing is None
        if self._narrow and (outcome.status != PASS or too_long):
            *before, (reason, style) = line
            if alike and outcome.status == FAIL:
                left = max(PROSE - sum(len(text) for text, _ in before) - 1, 0)
                short = textwrap.shorten(reason.strip(), left, placeholder=" …")
                self.line([*before, (f" {short}", style)])
            else:
                self.line(before)
                for part in textwrap.wrap(reason.strip(), PROSE - _INDENT):
                    self.line([(f"{' ' * _INDENT}{part}", style)])
        else:
            self.line(line)
        if not alike:
            self.details(outcome.details)
            for text in outcome.example:
                self.line(example_line(text))
        self._explained = self._explained or bool(outcome.details)
        if outcome.drawing:
            for text in DrawnCall.from_json(outcome.drawing).lines():
                self.line([(text, "" if text.startswith(" ") else "bold")])
        if remarks:
            for remark in [*outcome.remarks, *(outcome.asides if self._verbose else [])]:
                if self._narrow and remark in self._remarks:
                    continue
                self._remarks.add(remark)
                note = f"note: {remark}"
                parts = textwrap.wrap(note, PROSE - _INDENT) if self._narrow else [note]
                for part in parts:
                    self.line([(f"{' ' * _INDENT}{part}", "dim")])

    def day(self, day: DayOutcome) -> None:
        """Show a day that failed or was skipped as a whole: the reason, and any compiler's
        message."""
        style = STYLES[day.status]
        line: Line = [(f"{day.number:>3} {day.title:<29} ", ""), (f"{day.status:<4}", style)]
        line.append((f" {day.reason}", style.removeprefix("bold ")))
        self.line(line)
        self.details(day.details)

    def details(self, lines: Sequence[str]) -> None:
        """Show lines that explain, at most shown_details: templates can cause hundreds."""
        if self._narrow:
            lines = [part for line in lines for part in _wrapped(line)]
        shown = list(lines[: self._shown_details])
        # A heading is not shown without its first line.
        if lines[len(shown) :] and _margin(lines[len(shown)]) > _margin(shown[-1]):
            shown.pop()
        for text in shown:
            self.line(detail_line(text))
        if (left := len(lines) - len(shown)) > 0:
            where = "" if self._narrow else "; --json has all"
            self.line([(f"      … {counted(left, 'more line')}{where}", "dim")])

    def output(self, day: Day, text: str) -> None:
        """Show a day's output, without its middle part if it is long."""
        lines = text.rstrip().splitlines()
        if not lines:
            return
        if len(lines) > SHOWN_OUTPUT:
            half = SHOWN_OUTPUT // 2
            gap = f"… {len(lines) - 2 * half} lines left out …"
            lines = [*lines[:half], gap, *lines[-half:]]
        self.line([(f"      printed by {day.name}:", "dim")])
        for each in lines:
            self.line([(f"      | {each}", "dim")])

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table of the day, e.g. of a profiler's results."""
        if title:
            self.line([(title, "bold")])
        for text in table_lines(header, rows):
            self.line([(text, "")])

    def legend(self, outcomes: Sequence[DayOutcome]) -> None:
        """Show the meaning of the rungs' lines."""
        self.close()
        for text in legend(outcomes, self.times):
            self.prose(text, "dim", indent=2)

    def summary(self, outcomes: Sequence[DayOutcome], wall_s: float) -> None:
        """Show the end of a run."""
        self.close()
        for line in summary_lines(outcomes, wall_s):
            self.line(line)
