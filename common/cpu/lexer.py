"""Tokens of a CUDA C++ file, with what the preprocessor will do to each of them.

This is not a C++ parser. It knows comments, every kind of string, line continuations and `#if`
branches, which is what it takes to edit a file without ever touching a string, a comment or a
branch that the CPU backend does not compile.
"""

import operator
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

# What the CPU backend's compiler has defined, as far as the files of this project ask.
_DEFINED = {"CUDA_ON_CPU": 1, "__cplusplus": 202002, "__linux__": 1, "__GNUC__": 12}
_UNDEFINED = {
    "__CUDACC__", "__CUDACC_RTC__", "__CUDACC_EXTENDED_LAMBDA__", "__CUDA_ARCH__", "__NVCC__",
    "__CUDA_ARCH_FEAT_SM90_ALL", "__HIPCC__", "__HIP_DEVICE_COMPILE__", "_MSC_VER", "_WIN32",
    "__APPLE__",
}  # fmt: skip


@dataclass(slots=True)
class Token:
    """One token: its text, the line it starts on, and its place in the preprocessor's world."""

    kind: str
    text: str
    line: int
    active: bool = True  # False inside a branch that this backend surely does not compile
    directive: bool = False  # True inside a `#...` line, its continuation lines included

    @property
    def is_code(self) -> bool:
        """Neither white space nor a comment."""
        return self.kind not in ("newline", "space", "comment")

    def is_op(self, *texts: str) -> bool:
        """True for one of these operators (never for the same text within a string)."""
        return self.kind == "op" and self.text in texts

    def is_word(self, *texts: str) -> bool:
        """True for one of these identifiers or keywords; for any, without arguments."""
        return self.kind == "word" and (not texts or self.text in texts)


def tokenize(text: str) -> list[Token]:
    """Splits a source file into tokens that join to exactly the same text."""
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
    """Each preprocessor line of the file."""
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
    """Sets `directive` and `active` on every token."""
    # One entry for each open #if: (enclosing code is active, a branch was surely taken already).
    stack: list[tuple[bool, bool]] = []
    active = True
    i = 0
    first_on_line = True
    while i < len(tokens):
        token = tokens[i]
        token.active = active
        if token.kind == "newline":
            first_on_line = True
        elif token.is_code:
            if first_on_line and token.is_op("#"):
                end = i
                while end < len(tokens) and tokens[end].kind != "newline":
                    tokens[end].directive = True
                    tokens[end].active = active
                    end += 1
                active = _apply_directive(tokens[i:end], active, stack)
                i = end
                continue
            first_on_line = False
        i += 1


def _apply_directive(line: list[Token], active: bool, stack: list[tuple[bool, bool]]) -> bool:
    """Whether the code after this preprocessor line may be compiled."""
    words = [token.text for token in line if token.is_code][1:]
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name in ("if", "ifdef", "ifndef"):
        value = _branch_value(name, rest)
        stack.append((active, value is True))
        return active and value is not False
    if name in ("elif", "elifdef", "elifndef", "else") and stack:
        outer, taken = stack[-1]
        value = True if name == "else" else _branch_value(name.removeprefix("el"), rest)
        stack[-1] = (outer, taken or value is True)
        return outer and not taken and value is not False
    if name == "endif" and stack:
        return stack.pop()[0]
    return active


def _branch_value(name: str, words: list[str]) -> bool | None:
    """True, False, or None where it depends on something that this module does not know."""
    if name in ("ifdef", "ifndef"):
        known = _is_defined(words[0]) if words else None
        return known if known is None or name == "ifdef" else not known
    try:
        value = _Condition(words).parse()
    except (IndexError, ValueError):
        return None
    return None if value is None else bool(value)


def _is_defined(word: str) -> bool | None:
    return True if word in _DEFINED else False if word in _UNDEFINED else None


_COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


class _Condition:
    """The expression of an `#if`, in three-valued logic: a number, or None for unknown."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.at = 0

    def parse(self) -> int | None:
        value = self._or()
        if self.at != len(self.words):
            raise ValueError("more than this small grammar knows")
        return value

    def _next(self) -> str:
        self.at += 1
        return self.words[self.at - 1]

    def _peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _or(self) -> int | None:
        value = self._and()
        while self._peek() == "||":
            self._next()
            right = self._and()
            value = 1 if value or right else None if value is None or right is None else 0
        return value

    def _and(self) -> int | None:
        value = self._comparison()
        while self._peek() == "&&":
            self._next()
            right = self._comparison()
            unknown = value is None or right is None
            value = 0 if value == 0 or right == 0 else None if unknown else 1
        return value

    def _comparison(self) -> int | None:
        value = self._primary()
        while self._peek() in _COMPARE:
            compare = _COMPARE[self._next()]
            right = self._primary()
            value = None if value is None or right is None else int(compare(value, right))
        return value

    def _primary(self) -> int | None:
        word = self._next()
        if word == "!":
            value = self._primary()
            return None if value is None else int(not value)
        if word == "(":
            value = self._or()
            if self._next() != ")":
                raise ValueError("unbalanced")
            return value
        if word == "defined":
            name = self._next()
            if name == "(":
                name = self._next()
                self._next()
            known = _is_defined(name)
            return None if known is None else int(known)
        if word[0].isdigit():
            return int(word.replace("'", "").rstrip("uUlL"), 0)
        if word[0].isalpha() or word[0] == "_":
            return 0 if word in _UNDEFINED else _DEFINED.get(word)
        raise ValueError(word)
