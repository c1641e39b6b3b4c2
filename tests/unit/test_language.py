"""The words of the days: a term after the day that introduces it, and the field's own words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from common.base.days import Day, discover
from common.base.paths import ROOT
from common.report.glossary import introduced, terms

DAYS, _ = discover()

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


def test_no_term_is_used_before_its_day() -> None:
    assert DAYS
    assert used_too_early(DAYS) == []


def test_no_word_that_the_course_avoids() -> None:
    assert avoided_words(DAYS) == []


def test_the_glossary_and_the_days_agree() -> None:
    known, where = terms(), introduced(DAYS)
    assert set(where) - set(known) == set(), "introduced, but not in glossary.toml"
    assert set(known) - set(where) == set(), "in glossary.toml, but no day introduces it"
    for name, term in known.items():
        assert term.text.endswith(".") and len(term.text.split()) <= 27, name
        day = where[name]
        readme = (day.folder / "README.md").read_text(encoding="utf-8")
        assert term.pattern.search(readme), f"day {day.number} introduces {name!r}, never says it"


@pytest.fixture
def day(tmp_path: Path) -> Day:
    (tmp_path / "x.cu").write_text("int a;\n// Lanes without\n// bank conflicts.\nint bank;\n")
    (tmp_path / "README.md").write_text(
        "A halo (day 11).\n\nTwo halos.\n\n```\nhalo\n```\n`halo`\n"
    )
    return Day(3, tmp_path, "t", "t", ("t",), tmp_path / "x.cu")


def test_the_gate_sees_prose_and_comments_only(day: Day) -> None:
    later = replace(day, number=11, folder=Path("none"), source=Path("none.txt"))
    later = replace(later, introduces=("halo", "bank conflict"))
    found = used_too_early([day, later])
    assert len(found) == 2
    assert "README.md: 'halo' is taught on day 11: … Two halos. …" in found[0]
    assert "x.cu: 'bank conflict'" in found[1]


@pytest.mark.parametrize(
    "text", ["one block a row", "two barriers a level", "Nobody reads it", "they part ways"]
)
def test_avoided_words_are_seen(day: Day, text: str) -> None:
    (day.folder / "README.md").write_text(f"So {text}, always.\n")
    (found,) = avoided_words([day])
    assert "README.md" in found


@pytest.mark.parametrize("text", ["one block per row", "it loads a row", "a thread a day later"])
def test_ordinary_words_are_not(day: Day, text: str) -> None:
    (day.folder / "README.md").write_text(f"So {text}.\n")
    assert avoided_words([day]) == []


# Words of names, messages and comments, with their replacements.
IN_CODE = {
    "wanted": "expected, requested or selected",
    "told": "reported",
    "mend": "fix",
    "mends": "fixes",
    "mended": "fixed",
    "asked": "requested",
    "whoever": "name the thread or block",
    "anybody": "any thread",
    "nobody": "no thread",
}
_IN_CODE = re.compile(rf"(?<![A-Za-z])(?:{'|'.join(IN_CODE)})(?![A-Za-z])", re.IGNORECASE)
SUFFIXES = {".py", ".cu", ".cuh", ".cpp", ".toml"}


def home_made(text: str) -> list[str]:
    return [match.group().lower() for match in _IN_CODE.finditer(text)]


def test_no_home_made_word_in_code() -> None:
    """In common/ and tests/, except the runtime of the CPU backend, which has not been revised
    yet."""
    files = [run_day := ROOT / "run_day.py"]
    for top in ("common", "tests"):
        files += [path for path in (ROOT / top).rglob("*") if path.suffix in SUFFIXES]
    checked = [
        path
        for path in files
        if path != Path(__file__) and not path.is_relative_to(ROOT / "common" / "cpu" / "runtime")
    ]
    assert run_day in checked and len(checked) > 150, "the files were not found"
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word!r}: write {IN_CODE[word]}"
        for path in checked
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for word in home_made(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [("def gradients_wanted(", ["wanted"]), ("Nobody was told", ["nobody", "told"])],
)
def test_home_made_words_in_code_are_seen(text: str, words: list[str]) -> None:
    assert home_made(text) == words
    assert home_made("a recommended unwanted amendment") == []
