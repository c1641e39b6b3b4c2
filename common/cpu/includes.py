"""`#include` lines: each project header is replaced by its rewritten copy."""

from collections.abc import Mapping

from common.cpu import features
from common.cpu.lexer import Token, directives
from common.cpu.stream import Edits
from common.cpu.syntax import TokenError


def quoted(tokens: list[Token]) -> list[str]:
    """The names of each `#include "…"` that may be compiled."""
    names = []
    for line in directives(tokens):
        if line.name == "include" and line.rest:
            name = tokens[line.rest[0]]
            if name.active and name.kind == "string":
                names.append(name.text[1:-1])
    return names


def edit(tokens: list[Token], edits: Edits, copies: Mapping[str, str]) -> None:
    """Replaces each header that is a key of `copies` by its rewritten copy.

    Raises TokenError for any other header that the backend does not have.
    """
    for line in directives(tokens):
        if line.name != "include" or not line.rest or not tokens[line.start].active:
            continue
        first = tokens[line.rest[0]]
        if first.kind == "string":
            path = first.text[1:-1]
            if path in copies:
                edits.instead[line.rest[0]] = f'"{copies[path]}"'
                continue
        else:
            path = "".join(tokens[i].text for i in line.rest[1:-1])
        reason = features.missing_header(path)
        if reason is not None:
            raise TokenError(first, f"#include <{path}>: {reason}")
