"""Replace each project header in an `#include` line, in quotes or angle brackets, by its rewritten
copy."""

from collections.abc import Container, Mapping

from common.cpu import features
from common.cpu.lexer import Directive, Token, directives
from common.cpu.stream import Edits
from common.cpu.syntax import TokenError


def named(tokens: list[Token]) -> list[str]:
    """Return the name in each `#include` that may be compiled, as written: "…" or <…>."""
    return [
        _written(tokens, line)
        for line in directives(tokens)
        if line.name == "include" and line.rest and tokens[line.start].active
    ]


def _written(tokens: list[Token], line: Directive) -> str:
    first = tokens[line.rest[0]]
    return first.text if first.kind == "string" else "".join(tokens[i].text for i in line.rest)


def edit(
    tokens: list[Token], edits: Edits, copies: Mapping[str, str], defined: Container[str]
) -> None:
    """Replace each header that is a key of `copies` by its rewritten copy. defined: macros.

    Raise TokenError for any other header that the backend lacks.
    """
    for line in directives(tokens):
        if line.name != "include" or not line.rest or not tokens[line.start].active:
            continue
        name = _written(tokens, line)
        if name in copies:
            for place in line.rest:
                edits.instead[place] = ""
            edits.instead[line.rest[0]] = f'"{copies[name]}"'
            continue
        path = name[1:-1]
        reason = features.missing_header(path, defined)
        if reason is not None:
            raise TokenError(tokens[line.rest[0]], f"#include <{path}>: {reason}")
