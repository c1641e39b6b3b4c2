"""Collect the course's terms with their meanings and days, and find uses before these days."""

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


GENERATED = re.compile(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", re.DOTALL)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
_COMMENT = re.compile(r"(?:^[ \t]*//.*\n?)+|//.*", re.MULTILINE)


def prose_of(day: Day) -> dict[Path, list[str]]:
    """Return the prose of a day, by file, in paragraphs: the README without code and generated
    blocks, and the comments of its sources."""
    found: dict[Path, list[str]] = {}
    readme = day.folder / "README.md"
    if readme.is_file():
        text = readme.read_text(encoding="utf-8")
        for pattern in (GENERATED, _FENCED, _CODE):
            text = pattern.sub(" ", text)
        found[readme] = re.split(r"\n\s*\n|\n(?=- |\d+\. )", text)
    for source in (day.source, *day.extra_sources, *day.headers):
        if source.suffix in (".cu", ".cpp", ".cuh"):
            text = source.read_text(encoding="utf-8")
            found[source] = [re.sub(r"^\s*//", "", c, flags=re.M) for c in _COMMENT.findall(text)]
    return found


def used_too_early(days: Sequence[Day]) -> list[str]:
    """Return a line for each term that a day uses before the day that introduces it.

    A paragraph that names that day ("bank conflicts (day 14)") may use its terms.
    """
    known, where = terms(), introduced(days)
    found = []
    for day in days:
        later = [known[n] for n, at in where.items() if at.number > day.number and n in known]
        for file, paragraphs in prose_of(day).items():
            for paragraph in paragraphs:
                for term in later:
                    at = where[term.name].number
                    match = term.pattern.search(paragraph)
                    if match and not re.search(rf"\bday(?:s \d+ (?:to|and))? {at}\b", paragraph):
                        around = paragraph[max(0, match.start() - 40) : match.end() + 40]
                        said = " ".join(around.split())
                        name = f"{file.parent.name}/{file.name}: {term.name!r}"
                        found.append(f"{name} is taught on day {at}: … {said} …")
    return found


# Words that Nsight's reports, NVIDIA's guide and papers do not use, with their replacements.
_UNIT = (
    r"(?:row|thread|block|warp|element|step|level|sum|launch|call|tile|lane|multiprocessor|clock|"
    r"pixel|column|head|key|query|rung)"
)
_VERB = r"(?! (?:may|can|must|has|needs|is|does|uses|holds|reads))"
AVOIDED = {
    rf"(?:bytes|barriers?|numbers?|operations|atomics?|elements|registers|outputs|blocks?|warps?|"
    rf"threads?|two|three|four|eight|\d+) an? {_UNIT}{_VERB}": "per: one block per row",
    r"turned (?:matrix|tile|copy|round)": "transposed",
    r"on (?:its|their) way": "in flight",
    r"parts? ways": "diverge",
    r"anybody|nobody|whoever": "name the threads or blocks",
    r"mend(?:s|ed)?": "fix",
}


def avoided_words(days: Sequence[Day]) -> list[str]:
    """Return a line for each use of a word that the course avoids, with what to write instead."""
    found = []
    for day in days:
        for file, paragraphs in prose_of(day).items():
            for paragraph in paragraphs:
                for words, instead in AVOIDED.items():
                    for match in re.finditer(rf"\b(?:{words})\b", paragraph, re.IGNORECASE):
                        said = " ".join(match.group().split())
                        found.append(f"{file.parent.name}/{file.name}: {said!r}: write {instead}")
    return found
