"""Split a CUDA C++ file into tokens, and find its preprocessor lines.

This is not a C++ parser. It recognises comments, every kind of string and line continuations, which
is enough to edit a file without touching a string or a comment. conditions.py decides which
branches of an `#if` are compiled.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Order matters: longer operators first, and strings before anything that may occur inside them.
_TOKEN = re.compile(
    r"""
  (?P<newline>\n)
 |(?P<space>(?:[ \t\r\f\v]|\\\r?\n)+)
 |(?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?\*/)
 |(?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")
 |(?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
 |(?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
 |(?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9a-zA-Z]|[0-9a-zA-Z_.])*)
 |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
 |(?P<op><<<|>>>|::|->\*|->|<<=|>>=|<=>|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|\#\#|.)
""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(slots=True)
class Token:
    """A token: its text, the line it starts on, and its preprocessor state."""

    kind: str
    text: str
    line: int
    active: bool = True  # False inside a branch that this backend surely does not compile
    directive: bool = False  # True inside a `#...` line, its continuation lines included

    @property
    def is_code(self) -> bool:
        """Return True if it is neither white space nor a comment."""
        return self.kind not in ("newline", "space", "comment")

    def is_op(self, *texts: str) -> bool:
        """Return True for one of these operators (never for the same text within a string)."""
        return self.kind == "op" and self.text in texts

    def is_word(self, *texts: str) -> bool:
        """Return True for one of these identifiers or keywords; for any, without arguments."""
        return self.kind == "word" and (not texts or self.text in texts)


def tokenize(text: str) -> list[Token]:
    """Split a source file into tokens that join to exactly the same text."""
    tokens = []
    line = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "op"
        tokens.append(Token("raw" if kind == "delimiter" else kind, match.group(0), line))
        line += match.group(0).count("\n")
    _mark_directives(tokens)
    return tokens


@dataclass(slots=True)
class Directive:
    """A preprocessor line: `#name` and the indices of the code tokens that follow."""

    name: str
    start: int  # index of the `#`
    rest: list[int]


def directives(tokens: list[Token]) -> Iterator[Directive]:
    """Yield each preprocessor line of the file."""
    i = 0
    while i < len(tokens):
        if not tokens[i].directive:
            i += 1
            continue
        end = i
        while end < len(tokens) and tokens[end].directive:
            end += 1
        code = [k for k in range(i, end) if tokens[k].is_code]
        if len(code) > 1:
            yield Directive(tokens[code[1]].text, i, code[2:])
        i = end + 1


def _mark_directives(tokens: list[Token]) -> None:
    """Set `directive` on every token."""
    first_on_line, in_directive = True, False
    for token in tokens:
        if token.kind == "newline":
            first_on_line, in_directive = True, False
        elif token.is_code and first_on_line:
            first_on_line, in_directive = False, token.is_op("#")
        token.directive = in_directive
