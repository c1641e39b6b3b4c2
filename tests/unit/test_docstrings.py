"""Docstrings of the functions of common/ begin with a verb: "Return the rows that …"."""

from __future__ import annotations

import ast
import re

import pytest

from common.base.paths import ROOT

NO_VERB = frozenset(
    """
    a all an any as at by each either every for from how if in it its like none nothing of on one
    only others right so some that the their these they this those to true two what where whether
    which who why with
    """.split()  # noqa: SIM905
)
# "Returns", "Writes", "Does": a verb, but in the third person.
_THIRD_PERSON = re.compile(r"[A-Z][a-z]+[^s]s")
_FIRST = re.compile(r"[\w'’]+")


def fault(docstring: str) -> str:
    """Return what is wrong with the beginning of a docstring, "" if nothing is."""
    found = _FIRST.match(docstring.strip())
    if found is None:
        return "begins with no word"
    word = found[0]
    if word.lower() in NO_VERB:
        return f"begins with {word!r}, not with a verb"
    if _THIRD_PERSON.fullmatch(word):
        return f"begins with {word!r}: write the imperative"
    return ""


def test_docstrings_begin_with_a_verb() -> None:
    found, count = [], 0
    for path in sorted((ROOT / "common").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
                count += 1
                if why := fault(text):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {why}")
    assert count > 500, "the functions were not found"
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["What a call costs.", "Whether it ends.", "The rows.", "Returns a row.", '"…" of it']
)
def test_other_beginnings_are_seen(text: str) -> None:
    assert fault(text)
    assert not fault("Return what a call costs.") and not fault("Process it.")
