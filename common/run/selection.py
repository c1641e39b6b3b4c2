"""Select days from a command line: numbers, ranges, lists, `all`, topics; and a shard."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.base.day_files import DayError
from common.base.days import Day, discover
from common.base.figures import numbers
from common.base.refusal import UsageError
from common.practice.journal import Journal, practice_folder
from common.practice.progress import MARKS, marks, progress_lines


@dataclass(frozen=True)
class Selection:
    """The selected days in order; broken: errors of selected folders that are not valid days, by
    number; notes: messages to the user about the selection."""

    days: tuple[Day, ...]
    broken: dict[int, DayError]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.days) + len(self.broken)


# In a path, as a shell completes it or an editor passes it: days/day05/, practice/day05/x.cu.
_FILE = re.compile(r"(?:^|/)(day[0-9]+)(?=/|$)")
_STOP_WORDS = {"a", "an", "and", "as", "by", "for", "from", "in", "of", "on", "the", "to", "with"}


def folder_number(folder: Path) -> int | None:
    """Return the number in a folder's name: 5 for day05; None without one."""
    match = re.search(r"[0-9]+", folder.name)
    return int(match.group()) if match else None


def words(day: Day) -> set[str]:
    """Return the words that select the day, in lower case: its topics, and words of its title and
    source."""
    found = {topic.lower() for topic in day.topics}
    for text in (*day.topics, day.title, day.source.stem):
        found |= set(re.findall(r"[a-z0-9]+", text.lower()))
    return {word for word in found if word not in _STOP_WORDS and not word.isdigit()}


def select(
    selected: Sequence[str], root: Path, shard: str = "", further: bool = False
) -> Selection:
    """Return the days under `root` that `selected` names, e.g. ["1-3,7", "softmax"] or ["all"].

    shard: "i/n" takes every n-th of them, starting with the i-th. further: take each with the part
    beyond its main line, as "all" does. Raise UsageError for a word that names no day, and if
    there are no days.
    """
    days, errors = discover(root)
    broken: dict[int, DayError] = {}
    unnumbered: list[str] = []
    for error in errors:
        number = folder_number(error.folder) if error.folder else None
        if number is None:
            unnumbered.append(str(error))
        else:
            broken[number] = error
    by_number = {day.number: day for day in days}
    existing = sorted({*by_number, *broken})
    if not existing:
        raise UsageError(f"no day found in {root}: its folders are named day01, day02, …")
    chosen: set[int] = set()
    notes = list(unnumbered)
    topics = _by_word(days)
    for argument in selected:
        further = further or argument.strip().lower() == "all"
        whole = argument.strip().lower()  # a topic may have several words: "shared memory"
        if "/" in whole and (found := _FILE.search(whole)):
            further = further or "further" in whole.split("/")
            whole = found.group(1)
        tokens = [whole] if whole in topics else re.split(r"[,\s]+", whole)
        for token in filter(None, tokens):
            chosen |= _of_token(token, existing, topics, notes)
    if not chosen:
        raise UsageError("no day given: name a number, a range, a topic, or all")
    if shard:
        chosen = set(_shard(sorted(chosen), shard))
    return Selection(
        tuple(
            by_number[n].with_further() if further else by_number[n]
            for n in sorted(chosen)
            if n in by_number
        ),
        {n: broken[n] for n in sorted(chosen) if n not in by_number},
        tuple(notes),
    )


def _by_word(days: Sequence[Day]) -> dict[str, set[int]]:
    known: dict[str, set[int]] = {}
    for day in days:
        for word in words(day):
            known.setdefault(word, set()).add(day.number)
    return known


def _of_token(
    token: str, existing: list[int], topics: dict[str, set[int]], notes: list[str]
) -> set[int]:
    if token == "all":
        return set(existing)
    if match := re.fullmatch(r"(?:day)?0*([0-9]{1,18})", token):
        number = int(match.group(1))
        if number not in existing:
            raise UsageError(f"there is no day {number}; there are days {numbers(existing)}")
        return {number}
    if match := re.fullmatch(r"([0-9]{1,18})(?:-|\.\.|–)([0-9]{1,18})", token):
        first, last = int(match.group(1)), int(match.group(2))
        if first > last:
            raise UsageError(f"range {token} runs backwards; write {last}-{first}")
        inside = {n for n in existing if first <= n <= last}
        if not inside:
            raise UsageError(f"no day in range {token}; there are days {numbers(existing)}")
        # Stop at the last day, since the range's end may be far beyond it.
        missing = [n for n in range(first, min(last, max(existing)) + 1) if n not in inside]
        if last > max(existing):
            notes.append(f"of {token}, there are days up to {max(existing)} only")
        if missing:
            notes.append(f"of {token}, these do not exist yet: {numbers(missing)}")
        return inside
    if token in topics:
        return topics[token]
    near = difflib.get_close_matches(token, topics, n=1, cutoff=0.6)
    if near:
        hint = f"did you mean {near[0]!r} (day {numbers(topics[near[0]])})?"
    else:
        hint = "python run_day.py --list shows days and topics"
    raise UsageError(f"{token!r} is no day and no topic; {hint}")


def _shard(chosen: list[int], shard: str) -> list[int]:
    match = re.fullmatch(r"([0-9]{1,18})/([0-9]{1,18})", shard)
    if not match:
        raise UsageError(f"--shard: {shard!r} is not i/n, e.g. 2/8")
    index, count = int(match.group(1)), int(match.group(2))
    if not 1 <= index <= count:
        raise UsageError(f"--shard: {shard} must have 1 <= i <= n")
    taken = chosen[index - 1 :: count]
    if not taken:
        raise UsageError(f"--shard: {shard} is empty, only {len(chosen)} of the days are selected")
    return taken


def listing(selected: Sequence[str], root: Path) -> tuple[str, list[str]]:
    """Return the text of `--list` for the selected days (all if none is named), and broken days'
    errors.

    Raise UsageError like `select`.
    """
    selection = select(selected or ["all"], root)
    journal = Journal(practice_folder(root))
    width = max((len(day.title) for day in selection.days), default=0)
    marked = [marks(day, journal) for day in selection.days]
    wide = max(map(len, marked), default=0)
    lines = [
        f"{day.number:>3} {marks:<{wide}} {day.title:<{width}}  {', '.join(day.topics)}"
        for day, marks in zip(selection.days, marked, strict=True)
    ]
    if not selected and (below := progress_lines(selection.days, journal)):
        lines += ["", MARKS, "", *below]
    return "\n".join(lines), [str(error) for error in selection.broken.values()]


def overview(root: Path) -> str:
    """Return the script's output without arguments: the learner's progress and the main commands.

    Raise UsageError like `select`.
    """
    days = select(["all"], root).days
    lines = [
        "A hundred days of CUDA. Each day is a folder under days/: begin with its README.",
        "",
        *progress_lines(days, Journal(practice_folder(root))),
        "",
        "python run_day.py 5        build, check and time day 5",
        "python run_day.py --list   every day and its topics",
        "python run_day.py --help   everything else",
    ]
    return "\n".join(lines)
