"""Parse a `.cu` into its declarations and functions, and find the names that each of them uses.

The call graph is one of names: a function reaches all functions whose names occur in it, and all
overloaded operators. It may contain a function too many, but never one too few.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from common.base.days import Day
from common.cpu import conditions, models
from common.cpu.lexer import Token, directives
from common.cpu.syntax import (
    ATTRIBUTE_WORDS,
    STATEMENT_WORDS,
    TokenError,
    angle_closing,
    angle_opening,
    closing,
    is_op_at,
    opening,
)

_TYPES = ("struct", "class", "union", "enum")
_BINDINGS = re.compile(r"(HOST_)?RUNG|(STABLE_)?TORCH_LIBRARY\w*")
_KEYWORDS = STATEMENT_WORDS | {"if", "while", "for", "switch", "co_return", "constexpr"}


class Code:
    """The code of a file: its tokens without white space, comments, directives and excluded parts
    of preprocessor conditions.

    source: the file's text. tokens: all tokens. code: the tokens of the code. Positions are indices
    into `code`.
    """

    def __init__(self, text: str):
        self.source = text
        self.tokens = conditions.read(text, models.architecture(""))
        self._places = [
            i for i, t in enumerate(self.tokens) if t.is_code and t.active and not t.directive
        ]
        self.code = [self.tokens[i] for i in self._places]
        self._offsets = list(accumulate((len(token.text) for token in self.tokens), initial=0))

    def offset(self, p: int) -> int:
        """Return the offset in the file's text of the token at p."""
        return self._offsets[self._places[p]]

    def spaced(self, p: int) -> bool:
        """Return True if white space is on both sides of the token at p: clang-format writes binary
        operators so, but not unary ones, template brackets or pointers."""
        i = self._places[p]
        return (
            0 < i < len(self.tokens) - 1
            and not self.tokens[i - 1].is_code
            and not self.tokens[i + 1].is_code
        )

    def white_before(self, p: int) -> bool:
        """Return True if white space precedes the token at p."""
        i = self._places[p]
        return i > 0 and not self.tokens[i - 1].is_code

    def binary(self, p: int, *operators: str) -> bool:
        """Return True if one of these binary operators is at p."""
        token = self.code[p]
        if not token.is_op(*operators) or not self.spaced(p) or p == 0:
            return False
        before = self.code[p - 1]
        if before.is_word():
            return before.text not in _KEYWORDS
        return before.kind in ("number", "string", "char") or before.is_op(")", "]", "}")

    def compound(self, p: int, *operators: str) -> bool:
        """Return True if a compound assignment such as `+=`, two tokens of the lexer, is at p."""
        if not (self.code[p].is_op(*operators) and is_op_at(self.code, p + 1, "=")):
            return False
        return self._places[p + 1] == self._places[p] + 1

    def text(self, start: int, end: int) -> str:
        """Return the text of [start, end) on one line, without comments."""
        words = []
        for token in self.tokens[self._places[start] : self._places[end - 1] + 1]:
            if token.kind in ("space", "newline", "comment"):
                words.append(" ")
            elif token.active and not token.directive:
                words.append(token.text)
        return " ".join("".join(words).split())

    def replaced(self, start: int, end: int, text: str) -> str:
        """Return the file with `text` in place of [start, end), keeping line numbers."""
        first, last = self._places[start], self._places[end - 1]
        lost = "".join(token.text for token in self.tokens[first : last + 1]).count("\n")
        parts = [token.text for token in self.tokens[:first]]
        parts += [text, "\n" * (lost - text.count("\n"))]
        return "".join(parts + [token.text for token in self.tokens[last + 1 :]])

    def blanked(self, ranges: Iterable[tuple[int, int]]) -> str:
        """Return the file without these ranges, keeping line numbers."""
        parts = [token.text for token in self.tokens]
        for start, end in ranges:
            for i in range(self._places[start], self._places[end - 1] + 1):
                if not self.tokens[i].directive and self.tokens[i].kind != "newline":
                    parts[i] = "\n" * parts[i].count("\n")
        return "".join(parts)

    def operand_start(self, p: int) -> int:
        """Return the start of the operand whose last token is at p, including its unary
        operators."""
        p = self._postfix_start(p)
        while p > 0 and self.code[p - 1].is_op("-", "!", "~", "*", "&"):
            attached = not self.white_before(p) and self.white_before(p - 1)
            if not (attached or (p > 1 and self.code[p - 2].is_op("(", "["))):
                break
            p -= 1
        return p

    def _postfix_start(self, p: int) -> int:
        """Return the start of the name, call, subscript or number whose last token is at p."""
        code = self.code
        while True:
            token = code[p]
            if token.is_op(")", "]", "}"):
                p = opening(code, p)
                before = code[p - 1] if p > 0 else None
                if before is None or not (
                    (before.is_word() and before.text not in _KEYWORDS)
                    or before.is_op(")", "]")
                    or (before.is_op(">", ">>") and not self.spaced(p - 1))
                ):
                    return p
                p -= 1
            elif token.is_op(">", ">>"):
                p = angle_opening(code, p) - 1
            elif p > 1 and code[p - 1].is_op(".", "->", "::"):
                p -= 2
            else:
                return p

    def operand_end(self, p: int) -> int:
        """Return the position after the operand that starts at p, including its unary operators."""
        code = self.code
        while code[p].is_op("-", "+", "!", "~", "*", "&", "++", "--"):
            p += 1
        if code[p].is_op("(", "[", "{"):
            p = closing(code, p) + 1
        else:
            p += 1
        while p < len(code):
            if code[p].is_op("(", "[") or (code[p].is_op("{") and not self.spaced(p)):
                p = closing(code, p) + 1
            elif code[p].is_op(".", "->", "::"):
                p += 2
            elif code[p].is_op("<") and not self.spaced(p) and code[p - 1].is_word():
                p = angle_closing(code, p) + 1
            elif code[p].is_op("++", "--"):
                p += 1
            else:
                break
        return p


@dataclass(frozen=True)
class Function:
    """A function with a body, [start, end) in `Code.code`; its body's brace is at `body`.

    name: qualified by the type around it, if there is one: "DeviceArray::get". on_device: it is a
    kernel, or code that kernels call.
    """

    name: str
    start: int
    body: int
    end: int
    on_device: bool


@dataclass(frozen=True)
class Declaration:
    """A declaration at file scope, [start, end) in `Code.code`.

    name: the declared name. uses: all words in it. functions: itself, or those of a type.
    operators: names of the operators that a binding binds. schemas: for these operators, if the
    binding has schemas: the number of tensors that each takes; a list of tensors counts as two.
    """

    name: str
    start: int
    end: int
    uses: frozenset[str]
    functions: tuple[Function, ...] = ()
    is_function: bool = False
    operators: frozenset[str] = frozenset()
    schemas: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def is_overload(self) -> bool:
        """Return True if it is a function such as `operator+`, which is called without its name."""
        return self.is_function and self.name.startswith("operator")


@dataclass(frozen=True)
class Outline:
    """The declarations of a file, in order."""

    code: Code
    declarations: tuple[Declaration, ...]

    @property
    def operators(self) -> set[str]:
        """Return the operators that the file binds."""
        return {name for each in self.declarations for name in each.operators}

    def launchers(self, operators: Iterable[str]) -> set[str]:
        """Return the words in the bindings of these operators, including their launchers' names."""
        needed = set(operators)
        bound = (d for d in self.declarations if d.operators & needed)
        return {word for d in bound for word in d.uses}

    def reached(self, operators: Iterable[str] | None = None) -> list[Declaration]:
        """Return the declarations that these operators' launchers use, directly or not, without
        bindings; without operators, or in a file that binds none, all declarations."""
        if operators is None or not self.operators:
            return [d for d in self.declarations if not d.operators]
        return self.used_by(self.launchers(operators))

    def used_by(self, words: set[str]) -> list[Declaration]:
        """Return the declarations of these names and, transitively, of the names in them."""
        found: set[int] = set()
        while True:
            fresh = {
                i
                for i, d in enumerate(self.declarations)
                if (d.name in words or d.is_overload) and i not in found and not d.operators
            }
            if not fresh:
                return [self.declarations[i] for i in sorted(found)]
            found |= fresh
            words = words.union(*(self.declarations[i].uses for i in fresh))


@lru_cache(maxsize=32)
def outline(text: str) -> Outline:
    """Parse a `.cu`, with the preprocessor conditions of the default card; results for the latest
    texts are cached. Raise TokenError if a bracket is never closed."""
    code = Code(text)
    macros = _macros(code.tokens)
    parts = _parts(code, 0, len(code.code))
    return Outline(code, tuple(_declaration(code, *part, macros) for part in parts))


def trimmed(text: str, operators: Iterable[str], functions: Iterable[str] = ()) -> str:
    """Return the file without the bindings of operators other than these, and without functions
    that only those need; line numbers stay. A file that binds nothing stays complete.

    functions: names of further functions that other files need.
    """
    found = outline(text)
    needed = set(operators)
    if not found.operators:
        return text
    kept = [d for d in found.declarations if not d.is_function and not d.operators]
    kept += [d for d in found.declarations if d.operators & needed]
    kept += found.used_by({word for d in kept for word in d.uses} | set(functions))
    starts = {d.start for d in kept}
    return found.code.blanked((d.start, d.end) for d in found.declarations if d.start not in starts)


def outlines_of(day: Day) -> dict[Path, Outline]:
    """Return the outlines of the day's `.cu` files and of the headers in its folder, through which
    files use each other."""
    files = [*day.library_sources, *day.headers]
    return {path: outline(path.read_text(encoding="utf-8")) for path in files}


def reached_together(
    outlines: Mapping[Path, Outline], operators: Iterable[str]
) -> dict[Path, list[Declaration]]:
    """Return, by file, the declarations that these operators' launchers use in files that are
    linked together, and in their headers; files without any are left out."""
    needed = set(operators)
    words = {word for read in outlines.values() for word in read.launchers(needed)}
    while True:
        found = {path: read.used_by(words) for path, read in outlines.items()}
        more = {word for used in found.values() for d in used for word in d.uses} - words
        if not more:
            break
        words |= more
    return {
        path: used
        for path, used in found.items()
        if outlines[path].operators & needed or _has_code(path, used)
    }


def _has_code(path: Path, used: Iterable[Declaration]) -> bool:
    """Return True if a file is needed for the declarations used from it. Each linked file has its
    own copy of a type, and a header's types belong to its includers."""
    return any(d.functions if path.suffix == ".cuh" else d.is_function for d in used)


def _parts(code: Code, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, position of the body's brace or -1) of each declaration in [start,
    end)."""
    tokens = code.code
    p = start
    while p < end:
        if tokens[p].is_op(";", "}"):  # the brace of a namespace
            p += 1
        elif tokens[p].is_word("public", "private", "protected") and is_op_at(tokens, p + 1, ":"):
            p += 2
        elif brace := _scope(tokens, p, end):
            p = brace + 1
        else:
            stop, body = _part_end(tokens, p, end)
            yield p, stop, body
            p = stop


def _scope(tokens: Sequence[Token], p: int, end: int) -> int:
    """Return the brace of the namespace or `extern "C"` block that begins at p; 0 if none does."""
    if tokens[p].is_word("namespace", "inline", "extern"):
        q = p
        while q < end and (tokens[q].is_word() or tokens[q].kind == "string"):
            q += 1
        while q < end and (tokens[q].is_op("::") or tokens[q].is_word()):
            q += 1
        words = {token.text for token in tokens[p:q]}
        if is_op_at(tokens, q, "{") and ("namespace" in words or tokens[q - 1].kind == "string"):
            return q
    return 0


def _part_end(tokens: Sequence[Token], start: int, end: int) -> tuple[int, int]:
    """Return the end of the declaration that begins at `start`, and the brace of its body or -1."""
    parameters = value = False
    p = _past_template(tokens, start)
    is_type = tokens[p].is_word(*_TYPES)
    while p < end:
        token = tokens[p]
        if token.is_op("("):
            attribute = tokens[p - 1].is_word(*ATTRIBUTE_WORDS, "requires")
            parameters = parameters or not attribute
            p = closing(tokens, p)
        elif token.is_op("["):
            p = closing(tokens, p)
        elif token.is_op("{"):
            close = closing(tokens, p)
            if parameters and not value and not is_type:
                return close + 1, p
            p = close
        elif token.is_op("="):
            value = True
        elif token.is_op(";"):
            return p + 1, -1
        p += 1
    return end, -1


def _past_template(tokens: Sequence[Token], p: int) -> int:
    while tokens[p].is_word("template") and is_op_at(tokens, p + 1, "<"):
        p = angle_closing(tokens, p + 1) + 1
    return p


def _declaration(
    code: Code, start: int, end: int, body: int, macros: dict[str, set[str]]
) -> Declaration:
    tokens = code.code
    words = {token.text for token in tokens[start:end] if token.is_word()}
    uses = frozenset(words.union(*(macros[word] for word in words & set(macros))))
    first = tokens[start].text
    if _BINDINGS.fullmatch(first):
        bound = {
            match[1]
            for token in tokens[start:end]
            if token.kind == "string" and (match := re.match(r'"(\w+)', token.text))
        }
        if first in ("RUNG", "HOST_RUNG"):
            bound = {tokens[start + 4].text}
        # A library block that names no operator belongs to all of them.
        return Declaration(
            "",
            start,
            end,
            uses,
            operators=frozenset(bound or {"*"}),
            schemas=_schemas(tokens, start, end),
        )
    head = _past_template(tokens, start)
    if tokens[head].is_word(*_TYPES):
        name, inside = _type_name(tokens, head, end)
        functions = []
        if inside:
            for a, b, brace in _parts(code, inside + 1, closing(tokens, inside)):
                if brace >= 0:
                    functions.append(_function(tokens, a, b, brace, f"{name}::"))
        return Declaration(name, start, end, uses, tuple(functions))
    if body >= 0:
        function = _function(tokens, start, end, body)
        return Declaration(function.name, start, end, uses, (function,), is_function=True)
    return Declaration(_variable_name(tokens, head, end), start, end, uses)


def _schemas(tokens: Sequence[Token], start: int, end: int) -> dict[str, int]:
    """Return the number of tensors that each operator of a binding takes, by name."""
    found: dict[str, int] = {}
    text = ""
    for p in range(start, end):
        if tokens[p].kind == "string":
            text += tokens[p].text.strip('"')
            continue
        match = re.match(r"(\w*)\((.*)\) ->", text)
        if match:
            name = match[1] or tokens[start + 4].text  # RUNG(day05, name, "(Tensor x) -> Tensor")
            lists = re.findall(r"\bTensor\b(?:\(\w+!?\))?(\[)?", match[2])
            found[name] = sum(2 if each else 1 for each in lists)
        text = ""
    return found


def _function(
    tokens: Sequence[Token], start: int, end: int, body: int, prefix: str = ""
) -> Function:
    p = _past_template(tokens, start)
    name = ""
    words = set()
    while p < body:
        words.add(tokens[p].text)
        if tokens[p].is_op("(") and not tokens[p - 1].is_word(*ATTRIBUTE_WORDS, "requires"):
            name = _called(tokens, p)
            break
        if tokens[p].is_op("("):
            p = closing(tokens, p)
        p += 1
    on_device = bool(words & {"__device__", "__global__"}) and "__host__" not in words
    return Function(prefix + name, start, body, end, on_device)


def _called(tokens: Sequence[Token], p: int) -> str:
    """Return the name before the parenthesis at p: "store", "operator+"."""
    before = p - 1
    if not tokens[before].is_word():
        for q in range(max(0, before - 2), before):
            if tokens[q].is_word("operator"):
                return "".join(token.text for token in tokens[q:p])
    if tokens[before].is_op(">", ">>"):  # a specialisation's arguments
        before = angle_opening(tokens, before) - 1
    return tokens[before].text


def _type_name(tokens: Sequence[Token], p: int, end: int) -> tuple[str, int]:
    """Return the name of the type that begins at p, and the position of its brace or 0."""
    name = ""
    p += 1
    while p < end and not tokens[p].is_op("{", ";"):
        if tokens[p].is_op("("):
            p = closing(tokens, p)
        elif tokens[p].is_op(":"):
            break
        elif tokens[p].is_word() and not tokens[p].is_word(*ATTRIBUTE_WORDS, *_TYPES):
            name = name or tokens[p].text
        p += 1
    while p < end and not tokens[p].is_op("{", ";"):
        p += 1
    return name, p if is_op_at(tokens, p, "{") else 0


def _variable_name(tokens: Sequence[Token], p: int, end: int) -> str:
    """Return the name that a declaration without a body declares: the last one before its value or
    its end."""
    if tokens[p].is_word("using") and p + 1 < end:
        return tokens[end - 2].text if not is_op_at(tokens, p + 2, "=") else tokens[p + 1].text
    name = ""
    while p < end and not tokens[p].is_op("=", ";", "[", "{", "("):
        if tokens[p].is_word(*ATTRIBUTE_WORDS) and is_op_at(tokens, p + 1, "("):
            p = closing(tokens, p + 1)  # alignas(16)
        elif tokens[p].is_op("<"):
            try:
                p = angle_closing(tokens, p)
            except TokenError:
                return name
        elif tokens[p].is_word():
            name = tokens[p].text
        p += 1
    return name


def _macros(tokens: list[Token]) -> dict[str, set[str]]:
    """Return the words in each macro of the file."""
    found: dict[str, set[str]] = {}
    for line in directives(tokens):
        if line.name == "define" and line.rest and tokens[line.start].active:
            name = tokens[line.rest[0]].text
            found[name] = {tokens[i].text for i in line.rest[1:] if tokens[i].is_word()}
    return found
