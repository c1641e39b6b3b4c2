"""Docstrings begin with a verb: "Return the rows that …"; they and comments use plain words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from common.base.paths import ROOT

QUESTIONS = frozenset(
    "as how those what whatever where whether which who whose why".split()  # noqa: SIM905
)
NO_VERB = QUESTIONS | frozenset(
    """
    a all also an and another any at both by each either even every for from here however if in
    inside it its like neither no none not nothing of on one only or others outside right so some
    such that the their there these they this to too true two under until with without
    """.split()  # noqa: SIM905
)
# A phrase that continues the name is neither a noun nor a sentence: "Of a day, or after another".
NO_NOUN = QUESTIONS | frozenset(("for", "like", "of", "under", "without"))
# "Returns", "Writes", "Does": a verb, but in the third person. Nouns look alike, so this pattern
# is for functions, and the list for classes, modules and tests, which may begin with a noun.
_THIRD_PERSON = re.compile(r"[A-Z][a-z]+[^s]s")
THIRD_PERSON = frozenset(
    """
    adds allocates answers asserts begins binds builds calls chooses collects compares compiles
    computes copies creates decides decodes derives describes does draws edits ends evaluates
    executes extracts finds generates gives guards hands has implements imports is keeps launches
    lets loads looks makes measures notes opens parses plays prints puts raises reads recognises
    records refuses registers removes replaces replays represents resolves returns rewrites saves
    says sends sets shows simulates skips splits starts stores summarises takes tells tries turns
    waits watches wraps writes yields
    """.split()  # noqa: SIM905
)
_FIRST = re.compile(r"[\w'’]+")

# Phrases of docstrings and comments, with their replacements.
PHRASES = {
    r"says?|tells?": "returns, prints, reports, shows",
    r"beside": "next to, in addition to, compared with",
    r"behind": "after",
    r"held against": "compared with",
    r"of (?:its|their|his) own": "own, separate, custom",
    r"(?<!there )(?:is|are) no(?! longer| more)": "is not a, has no",
    r"where there (?:is|are)": "if there is",
    r"looked at": "examined, checked",
    r"anew": "again",
}
# Not the name of a field, "says: …".
_PHRASE = re.compile(rf"\b({'|'.join(PHRASES)})\b(?![:;])", re.IGNORECASE)
_QUOTED = re.compile(r"`[^`]*`|\"[^\"\n]*\"")
LISTS = {Path(__file__)}  # this file names the phrases


def fault(docstring: str, may_be_noun: bool = False) -> str:
    """Return the fault of a docstring's beginning, "" if there is none."""
    found = _FIRST.match(docstring.strip())
    if found is None:
        return "" if may_be_noun else "begins with no word"
    word = found[0]
    if word.lower() in (NO_NOUN if may_be_noun else NO_VERB):
        return f"begins with {word!r}, not with a verb" + " or a noun" * may_be_noun
    if word.lower() in THIRD_PERSON or (not may_be_noun and _THIRD_PERSON.fullmatch(word)):
        return f"begins with {word!r}: write the imperative"
    return ""


def phrases(text: str) -> list[str]:
    """Return the phrases in a docstring or comment that have a plainer word."""
    return [found[0] for found in _PHRASE.finditer(_QUOTED.sub("", text))]


def sources() -> Iterator[Path]:
    yield ROOT / "run_day.py"
    for top in ("common", "tests"):
        yield from sorted((ROOT / top).rglob("*.py"))


@cache
def docstrings(path: Path) -> list[tuple[int, str, str, bool]]:
    """Return (line, name, docstring, True if it may begin with a noun) of a file's docstrings."""
    return docstrings_of(path.read_text(encoding="utf-8"))


def docstrings_of(text: str) -> list[tuple[int, str, str, bool]]:
    """Return the same of a file's text, functions inside of functions included."""
    functions, found = (ast.FunctionDef, ast.AsyncFunctionDef), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, *functions)):
            name = getattr(node, "name", "the module")
            may_be_noun = not isinstance(node, functions) or name.startswith("test_")
            if docstring := ast.get_docstring(node):
                found.append((getattr(node, "lineno", 1), name, docstring, may_be_noun))
    return found


def comments(path: Path) -> Iterator[tuple[int, str]]:
    lines = io.StringIO(path.read_text(encoding="utf-8"))
    for token in tokenize.generate_tokens(lines.readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_docstrings_begin_with_a_verb() -> None:
    found, count = [], 0
    for path in sources():
        for line, name, text, may_be_noun in docstrings(path):
            count += 1
            if why := fault(text, may_be_noun):
                found.append(f"{path.relative_to(ROOT)}:{line} {name} {why}")
    assert count > 1000, "the docstrings were not found"
    assert not found, "\n".join(found)


def test_docstrings_and_comments_use_plain_words() -> None:
    found, count = [], 0
    for path in sources():
        texts = [(line, text) for line, _, text, _ in docstrings(path)]
        for line, each in [*texts, *comments(path)] if path not in LISTS else ():
            count += 1
            found += [f"{path.relative_to(ROOT)}:{line}: {words!r}" for words in phrases(each)]
    assert count > 2000, "the docstrings and comments were not found"
    assert not found, "\n".join([*found, *(f"{old}: write {new}" for old, new in PHRASES.items())])


@pytest.mark.parametrize(
    "text", ["What a call costs.", "Whether it ends.", "The rows.", "Returns a row.", '"…" of it']
)
def test_other_beginnings_are_seen(text: str) -> None:
    assert fault(text)
    assert not fault("Return what a call costs.") and not fault("Process it.")


def test_a_function_inside_of_a_function_is_read() -> None:
    inner = 'def test_rows():\n    {} rows():\n        """The rows of a table."""\n'
    for kind in ("def", "async def"):
        ((line, name, text, may_be_noun),) = docstrings_of(inner.format(kind))
        assert (line, name) == (2, "rows") and fault(text, may_be_noun)


@pytest.mark.parametrize(
    "text",
    ["Of a day, or after another.", "How a rung is called.", "Those in use.", "Prints the table."],
)
def test_other_beginnings_of_classes_and_modules_are_seen(text: str) -> None:
    assert fault(text, may_be_noun=True)
    assert not fault("The rows of a table.", may_be_noun=True)


@pytest.mark.parametrize(
    "text", ["It says why.", "a row beside it", "in a process of its own", "that is no row"]
)
def test_phrases_are_seen(text: str) -> None:
    assert phrases(text)
    assert not phrases('if there is no row, of "says" and `beside`; says: a field')
