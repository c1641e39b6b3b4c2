"""Collect the course's terms with their meanings and days."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from common.base.days import Day
from common.report.columns import markdown_table

_FILE = Path(__file__).with_name("glossary.toml")


@dataclass(frozen=True)
class Term:
    """A term. name: as in a day's INTRODUCES. text: one sentence. also: other spellings."""

    name: str
    text: str
    also: tuple[str, ...] = ()

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Return a regex for the term in prose: whole words, with plurals, across line breaks."""
        spellings = "|".join(re.escape(s).replace(r"\ ", r"\s+") for s in (self.name, *self.also))
        return re.compile(rf"(?<![\w-])(?:{spellings})s?(?![\w-])", re.IGNORECASE)


def terms() -> dict[str, Term]:
    """Return all terms by name."""
    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return {
        name: Term(name, entry["text"], tuple(entry.get("also", ())))
        for name, entry in data.items()
    }


def introduced(days: Sequence[Day]) -> dict[str, Day]:
    """Return the day that introduces each term; the earlier one of two."""
    found: dict[str, Day] = {}
    for day in sorted(days, key=lambda day: day.number):
        for name in day.introduces:
            found.setdefault(name, day)
    return found


def glossary(days: Sequence[Day]) -> list[str]:
    """Return the generated glossary as lines of Markdown."""
    where = introduced(days)
    rows = [
        [_shown(term), term.text, f"[{where[name].number}](days/{where[name].name}/README.md)"]
        for name, term in sorted(terms().items(), key=lambda item: item[0].lower())
        if name in where
    ]
    return markdown_table(["term", "meaning", "day"], [True, True, False], rows)


def _shown(term: Term) -> str:
    return f"{term.name} ({', '.join(term.also)})" if term.also else term.name
