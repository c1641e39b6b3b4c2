"""Hold code to edit: its tokens, the brace that encloses each, and the edits to a file."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.cpu.lexer import Token, directives
from common.cpu.syntax import statement_start


@dataclass(slots=True)
class Edits:
    """The edits to a file, by the index of a token in it."""

    before: dict[int, str] = field(default_factory=dict)
    after: dict[int, str] = field(default_factory=dict)
    instead: dict[int, str] = field(default_factory=dict)

    def applied_to(self, tokens: Sequence[Token]) -> str:
        """Return the edited text of the file that has these tokens."""
        parts = []
        for i, token in enumerate(tokens):
            parts.append(self.before.get(i, ""))
            parts.append(self.instead.get(i, token.text))
            parts.append(self.after.get(i, ""))
        return "".join(parts)


@dataclass(slots=True)
class Scope:
    """An open brace."""

    start: int  # position of the brace in the stream
    in_function: bool = False
    on_device: bool = False  # device code only: neither __host__ nor unmarked


@dataclass(slots=True)
class Stream:
    """A run of code: a file without its directives, or the body of one `#define`."""

    tokens: list[Token]
    scopes: list[Scope | None]  # the innermost open brace at each position
    is_macro: bool
    _indices: list[int]  # of these tokens in the file
    _edits: Edits  # of the file

    def on_device(self, p: int) -> bool:
        """Return True if the code at p is device code only."""
        scope = self.scopes[p]
        return scope is not None and scope.on_device

    def line_of(self, p: int) -> str:
        """Return an expression for the line of the token at p; in a macro, of the line that uses
        it."""
        return "__LINE__" if self.is_macro else str(self.tokens[p].line)

    def insert_before(self, p: int, text: str) -> None:
        """Insert text before the token at p, and before earlier insertions there."""
        index = self._indices[p]
        self._edits.before[index] = text + self._edits.before.get(index, "")

    def insert_after(self, p: int, text: str) -> None:
        """Insert text after the token at p, replacing an earlier insertion there."""
        self._edits.after[self._indices[p]] = text

    def replace(self, p: int, text: str) -> None:
        """Replace the token at p by text."""
        self._edits.instead[self._indices[p]] = text


def main_stream(tokens: list[Token], edits: Edits) -> Stream:
    """Return the code of a file that is outside of directives and may be compiled."""
    indices = [i for i, t in enumerate(tokens) if t.is_code and t.active and not t.directive]
    code = [tokens[i] for i in indices]
    return Stream(code, _scopes(code, _conditionals(tokens, indices)), False, indices, edits)


def macro_streams(tokens: list[Token], edits: Edits) -> list[Stream]:
    """Return the stream of each `#define` that may be compiled, from the macro's name on."""
    streams = []
    for line in directives(tokens):
        if line.name == "define" and line.rest and tokens[line.start].active:
            code = [tokens[i] for i in line.rest]
            streams.append(Stream(code, [None] * len(code), True, line.rest, edits))
    return streams


def _conditionals(tokens: list[Token], indices: list[int]) -> dict[int, list[str]]:
    """Return names of the #if, #else, … lines that stand right before each position of a stream."""
    found: dict[int, list[str]] = {}
    for line in directives(tokens):
        if line.name.startswith(("if", "el", "endif")):
            found.setdefault(bisect_left(indices, line.start), []).append(line.name)
    return found


def _scopes(tokens: list[Token], conditionals: dict[int, list[str]]) -> list[Scope | None]:
    """Return the innermost open brace at each position."""
    # A branch that may or may not be compiled can open a brace that its #else opens again:
    # each branch starts from the braces that were open at its #if.
    saved: list[list[Scope]] = []
    open_scopes: list[Scope] = []
    result: list[Scope | None] = []
    for p, token in enumerate(tokens):
        for name in conditionals.get(p, ()):
            if name in ("if", "ifdef", "ifndef"):
                saved.append(list(open_scopes))
            elif name == "endif" and saved:
                saved.pop()
            elif saved:
                open_scopes = list(saved[-1])
        outer = open_scopes[-1] if open_scopes else None
        result.append(outer)
        if token.is_op("{"):
            head = tokens[statement_start(tokens, p) : p]
            around = (outer.in_function, outer.on_device) if outer else (False, False)
            open_scopes.append(Scope(p, *classify(head, *around)))
        elif token.is_op("}") and open_scopes:
            open_scopes.pop()
    return result


def classify(head: Sequence[Token], in_function: bool, on_device: bool) -> tuple[bool, bool]:
    """Return True or False for a brace that opens code of a function, and for one that opens device
    code only, from the statement before it and the state around it."""
    words = {token.text for token in head if token.kind == "word"}
    device = bool({"__global__", "__device__"} & words) and "__host__" not in words
    if in_function:
        return True, on_device or device
    has_parameters = any(token.is_op("(") for token in head)
    if "namespace" in words or not has_parameters:
        return False, False
    return True, device
