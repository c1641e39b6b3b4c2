"""What a .cu file defines at its top level: where each function stands, and which others it uses.

Namespaces are looked into; what is inside functions and types is part of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from common.cpu.lexer import Token, tokenize
from common.cpu.syntax import ATTRIBUTE_WORDS, TokenError, angle_closing, closing

BINDING = "RUNG"


@dataclass(frozen=True)
class Definition:
    """One definition or declaration.

    name: of the function, type or variable; for a binding, of its rung. kind: "function",
    "binding" or "other". begin, end: offsets in the text, from the first character of its first
    token to behind its last. body: offsets of what stands between a function's braces, else None.
    returns_value: whether a function returns something. uses: all names that occur in it.
    """

    name: str
    kind: str
    begin: int
    end: int
    body: tuple[int, int] | None
    returns_value: bool
    uses: frozenset[str]


def definitions(text: str) -> list[Definition]:
    """The definitions of a source file, in order. Raises TokenError for unbalanced brackets."""
    offsets, tokens, at = [], [], 0
    for token in tokenize(text):
        if token.is_code and not token.directive and token.active:
            tokens.append(token)
            offsets.append(at)
        at += len(token.text)
    found = []
    p = 0
    while p < len(tokens):
        if (inner := _namespace(tokens, p)) is not None:
            p = inner
        elif tokens[p].is_op("}", ";"):
            p += 1  # the end of a namespace
        else:
            end, body = _extent(tokens, p)
            found.append(_definition(tokens, offsets, p, end, body))
            p = end
    return found


def _namespace(tokens: list[Token], p: int) -> int | None:
    """The position behind the `{` of the namespace, or `extern "C"`, that begins at p."""
    q = p
    if tokens[p].is_word("inline"):
        q += 1
    if q < len(tokens) and tokens[q].is_word("namespace"):
        while q < len(tokens) and not tokens[q].is_op("{", ";", "="):
            q += 1
        return q + 1 if q < len(tokens) and tokens[q].is_op("{") else None
    is_extern = tokens[p].is_word("extern") and p + 2 < len(tokens)
    return p + 3 if is_extern and tokens[p + 2].is_op("{") else None


def _extent(tokens: list[Token], p: int) -> tuple[int, tuple[int, int] | None]:
    """The position behind the definition that begins at p, and its function's braces."""
    q, assigned, typed = p, False, False
    while q < len(tokens):
        token = tokens[q]
        if token.is_op(";"):
            return q + 1, None
        if token.is_word("template") and q + 1 < len(tokens) and tokens[q + 1].is_op("<"):
            q = angle_closing(tokens, q + 1)
        elif token.is_op("="):
            assigned = True
        elif token.is_word("struct", "class", "enum", "union") and q == _first_word(tokens, p):
            typed = True
        elif token.is_op("(", "["):
            q = closing(tokens, q)
        elif token.is_op("{"):
            end = closing(tokens, q)
            if not assigned and not typed:
                return end + 1, (q, end)
            q = end
        q += 1
    return len(tokens), None


def _first_word(tokens: list[Token], p: int) -> int:
    """Where a definition begins behind its template parameters and attributes."""
    q = p
    while q < len(tokens):
        if tokens[q].is_word("template") and tokens[q + 1].is_op("<"):
            q = angle_closing(tokens, q + 1) + 1
        elif tokens[q].is_word("static", "inline", "constexpr", "const", "__device__"):
            q += 1
        else:
            break
    return q


def _definition(
    tokens: list[Token],
    offsets: list[int],
    p: int,
    end: int,
    braces: tuple[int, int] | None,
) -> Definition:
    run = tokens[p:end]
    uses = frozenset(token.text for token in run if token.is_word())
    begin, stop = offsets[p], offsets[end - 1] + len(tokens[end - 1].text)
    if run[0].is_word(BINDING) and len(run) > 4:
        return Definition(run[4].text, "binding", begin, stop, None, False, uses)
    if braces is None:
        return Definition(_declared(run), "other", begin, stop, None, False, uses)
    name = _function_name(tokens, p, braces[0])
    if name is None:
        return Definition(_declared(run), "other", begin, stop, None, False, uses)
    body = (offsets[braces[0]] + 1, offsets[braces[1]])
    returns = not any(
        token.is_word("void") and not tokens[q + 1].is_op("*", "&")
        for q, token in enumerate(tokens[:name])
        if q >= _first_word(tokens, p)
    )
    return Definition(tokens[name].text, "function", begin, stop, body, returns, uses)


def _function_name(tokens: list[Token], p: int, brace: int) -> int | None:
    """The position of the name before the parameters; None where there are none."""
    q = p
    while q < brace:
        if tokens[q].is_word("template") and tokens[q + 1].is_op("<"):
            q = angle_closing(tokens, q + 1)
        elif tokens[q].is_op("("):
            before = tokens[q - 1]
            if before.is_word() and not before.is_word(*ATTRIBUTE_WORDS):
                return q - 1
            q = closing(tokens, q)
        q += 1
    return None


def _declared(run: list[Token]) -> str:
    """The name of a type, variable or alias: the last word before what it is set to."""
    name = ""
    p = _first_word(run, 0)
    while p < len(run):
        token = run[p]
        if token.is_op("=", ";", "{", "[", ":") and name:
            break
        if token.is_op("<"):
            try:
                p = angle_closing(run, p)
            except TokenError:
                break
        elif token.is_op("("):
            p = closing(run, p)
        elif token.is_word():
            name = token.text
        p += 1
    return name


def reached(found: Iterable[Definition], names: Iterable[str]) -> set[str]:
    """The names of the definitions that `names` use, directly or through others, and themselves."""
    by_name: dict[str, set[str]] = {}
    for each in found:
        if each.kind != "binding":
            by_name.setdefault(each.name, set()).update(each.uses)
    seen: set[str] = set()
    todo = [name for name in names if name in by_name]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += [other for other in by_name[name] if other in by_name]
    return seen


def rungs_that_use(found: list[Definition], function: str) -> list[str]:
    """The rungs whose launcher reaches the function, in the order of their bindings."""
    rungs = [each.name for each in found if each.kind == "binding"]
    return [rung for rung in rungs if function in reached(found, [rung])]
