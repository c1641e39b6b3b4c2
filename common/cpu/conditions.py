"""Decide `#if` and similar conditions: select the code where nvcc would compile several times.

nvcc compiles a `.cu` once for the host, where `__CUDA_ARCH__` is not defined, and once for each
architecture, where it is. The backend compiles once, with host and device code together.
So `__CUDA_ARCH__` is defined or not depending on the place of a condition:

- in the body of a `__device__` or `__global__` function, it is the model's (860 for 8.6), even
  if the function is also `__host__`, since kernels are to be run;
- in the body of any other function, it is not defined;
- between functions it is the model's; but a group without an #else or #elif that selects the
  host's compilation (`#ifndef __CUDA_ARCH__`, `!defined(__CUDA_ARCH__) || …`) is compiled, too.
  Code that nvcc compiles for the host because an undefined name is 0 (`__CUDA_ARCH__ < 600`)
  is not.

`__CUDACC__` and `__NVCC__` are always defined, and the macros of the a-variants for their models.

The conditions are decided here, and replaced by their value. The compiler never has these macros:
the headers of CUDA, libcu++, PyTorch and the standard library use them to detect nvcc, and then
contain code that only nvcc can compile. A file that does not use `__CUDA_ARCH__` is the same for
all models, and so are its builds.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from common.cpu.lexer import Directive, Token, directives, tokenize
from common.cpu.stream import Edits, classify
from common.cpu.syntax import statement_start

# Macros of the CPU backend's compiler, as far as the files of this project use them.
_DEFINED = {"CUDA_ON_CPU": 1, "__cplusplus": 202002, "__linux__": 1, "__GNUC__": 12}
_UNDEFINED = {
    "__CUDACC_RTC__", "__CUDACC_EXTENDED_LAMBDA__", "__HIPCC__", "__HIP_DEVICE_COMPILE__",
    "_MSC_VER", "_WIN32", "__APPLE__",
}  # fmt: skip

_ARCH = "__CUDA_ARCH__"
_NVCC = {"__CUDACC__": 1, "__NVCC__": 1}
# Macros of the a-variants, by model.
_SPECIFIC = {
    "__CUDA_ARCH_FEAT_SM90_ALL": 900,
    "__CUDA_ARCH_FEAT_SM100_ALL": 1000,
    "__CUDA_ARCH_FEAT_SM120_ALL": 1200,
}
_OURS = {_ARCH, *_NVCC, *_SPECIFIC}

_CONDITIONALS = ("if", "ifdef", "ifndef", "elif", "elifdef", "elifndef")
_DEVICE_WORDS = frozenset(("__device__", "__global__"))


@dataclass(frozen=True, slots=True)
class Macros:
    """Knowledge of macros in addition to the text.

    given: macros defined from outside, with values as numbers, None for any other value. possible:
    all that some file defines; a macro in neither is undefined. None: any may be defined.
    """

    given: Mapping[str, int | None] = field(default_factory=dict)
    possible: frozenset[str] | None = None


_NOTHING_KNOWN = Macros()


def read(text: str, arch: int, macros: Macros = _NOTHING_KNOWN) -> list[Token]:
    """Return the tokens of a file, `active` set on each for a model with this `__CUDA_ARCH__`."""
    return resolve(text, arch, macros=macros)[0]


def resolve(
    text: str, arch: int, device_words: Iterable[str] = (), macros: Macros = _NOTHING_KNOWN
) -> tuple[list[Token], Edits]:
    """Return these tokens, and the edits that replace conditions and names by their values.

    device_words: macros that stand for `__device__` or `__global__`, of files read before; the
    file's own are found by `device_macros`.
    """
    tokens = tokenize(text)
    edits = Edits()
    words = _DEVICE_WORDS | set(device_words) | device_macros(tokens)
    _Reader(tokens, edits, arch, words, macros).run()
    return tokens, edits


def device_macros(tokens: list[Token]) -> set[str]:
    """Return macros of a file that stand for `__device__` or `__global__`, with or without
    `__host__`."""
    found: set[str] = set()
    for line in directives(tokens):
        if line.name == "define" and line.rest:
            body = {tokens[i].text for i in line.rest[1:]}
            if body & (_DEVICE_WORDS | found):
                found.add(tokens[line.rest[0]].text)
    return found


@dataclass(slots=True)
class _Names:
    """Values of macros; `get` returns None for an unknown one."""

    known: dict[str, int]
    undefined: set[str]
    macros: Macros
    vague: set[str] = field(default_factory=set)  # undefined, and not to be compared with

    def is_defined(self, word: str) -> bool | None:
        if word in self.known:
            return True
        if word in self.undefined or word in self.vague:
            return False
        if word in self.macros.given:
            return True
        possible = self.macros.possible
        return False if possible is not None and word not in possible else None

    def get(self, word: str) -> int | None:
        if word in self.vague:
            return None
        if word in self.known:
            return self.known[word]
        return 0 if self.is_defined(word) is False else self.macros.given.get(word)


@dataclass(slots=True)
class _Group:
    """An open #if."""

    outer: bool  # the code around it is active
    taken: bool  # one of its branches is surely compiled
    braces: int  # open at its #if


@dataclass(slots=True)
class _Scope:
    in_function: bool
    on_device: bool


class _Reader:
    def __init__(
        self, tokens: list[Token], edits: Edits, arch: int, words: frozenset[str], macros: Macros
    ) -> None:
        self.tokens, self.edits, self.words = tokens, edits, words
        self.arch = arch
        specific = {name: 1 for name, model in _SPECIFIC.items() if model == arch}
        without = _UNDEFINED | set(_SPECIFIC)
        on_device = _DEFINED | _NVCC | specific | {_ARCH: arch}
        self.device = _Names(on_device, without - set(specific), macros)
        self.host = _Names(_DEFINED | _NVCC, without | {_ARCH}, macros)
        self.on_host = _Names(_DEFINED | _NVCC, without, macros, {_ARCH})
        self.lines = {line.start: line for line in directives(tokens)}
        self.alone = _without_alternative(self.lines.values())
        self.groups: list[_Group] = []
        self.code: list[Token] = []
        self.scopes: list[_Scope] = []
        self.saved: list[list[_Scope]] = []

    def run(self) -> None:
        active = True
        for i, token in enumerate(self.tokens):
            token.active = active
            if line := self.lines.get(i):
                active = self._after(line, active)
            elif token.directive:
                continue
            elif active and token.is_code:
                self._code(i, token)
        for line in self.lines.values():  # macros that may be used
            if line.name == "define" and self.tokens[line.start].active:
                for place in line.rest[1:]:
                    self._replace_use(place)

    # Code -----------------------------------------------------------------------------------------

    def _code(self, i: int, token: Token) -> None:
        if token.kind == "word":
            self._replace_use(i)
        elif token.is_op("{"):
            head = self.code[statement_start(self.code, len(self.code)) :]
            outer = self.scopes[-1] if self.scopes else None
            in_function, on_device = classify(
                head, outer.in_function if outer else False, outer.on_device if outer else False
            )
            if in_function and any(word.text in self.words for word in head):
                on_device = True
            self.scopes.append(_Scope(in_function, on_device))
        elif token.is_op("}") and self.scopes:
            self.scopes.pop()
        self.code.append(token)

    def _replace_use(self, i: int) -> None:
        """Replace a name that is used as a value, outside of conditions."""
        token = self.tokens[i]
        if token.is_word(*_OURS) and (value := self.device.get(token.text)) is not None:
            self.edits.instead[i] = str(value)

    # Conditions -----------------------------------------------------------------------------------

    def _after(self, line: Directive, active: bool) -> bool:
        """Return True if the code after this line may be compiled."""
        name = line.name
        if name in ("if", "ifdef", "ifndef"):
            self.saved.append(list(self.scopes))
            value = self._decide(line) if active else None
            self.groups.append(_Group(active, value is True, len(self.scopes)))
            return active and value is not False
        if name in ("elif", "elifdef", "elifndef", "else") and self.groups:
            group = self.groups[-1]
            self.scopes = list(self.saved[-1])
            live = group.outer and not group.taken
            value = True if name == "else" else self._decide(line) if live else None
            group.taken = group.taken or value is True
            return live and value is not False
        if name == "endif" and self.groups:
            self.saved.pop()
            return self.groups.pop().outer
        return active

    def _decide(self, line: Directive) -> bool | None:
        """Return the value of an active condition, None if only the compiler knows it; replace its
        known part."""
        words = [self.tokens[i].text for i in line.rest]
        scope = self.scopes[-1] if self.scopes else None
        in_host = scope is not None and scope.in_function and not scope.on_device
        names = self.host if in_host else self.device
        value = _value(line.name, words, names)
        if not _OURS & set(words):
            return value
        if value is False and not (scope and scope.in_function) and line.start in self.alone:
            value = bool(_value(line.name, words, self.on_host))
        if value is None:
            self._replace_names(line, names)
        else:
            self._replace_condition(line, value)
        return value

    def _replace_condition(self, line: Directive, value: bool) -> None:
        word = line.start + 1
        while not self.tokens[word].is_word():
            word += 1
        self.edits.instead[word] = "elif" if line.name.startswith("el") else "if"
        for place in line.rest:
            self.edits.instead[place] = ""
        if line.rest:
            self.edits.instead[line.rest[0]] = str(int(value))

    def _replace_names(self, line: Directive, names: _Names) -> None:
        """Replace the names in a condition that also asks for what only the compiler knows."""
        for at, place in enumerate(line.rest):
            word = self.tokens[place].text
            if word not in _OURS:
                continue
            before = [self.tokens[i].text for i in line.rest[max(0, at - 2) : at]]
            if before[-1:] == ["defined"]:
                self.edits.instead[line.rest[at - 1]] = ""
            elif before == ["defined", "("]:
                self.edits.instead[line.rest[at - 2]] = ""
            else:
                self.edits.instead[place] = str(names.get(word) or 0)
                continue
            self.edits.instead[place] = str(int(bool(names.is_defined(word))))


def _without_alternative(lines: Iterable[Directive]) -> set[int]:
    """Return where each #if begins whose #endif follows without an #else or #elif."""
    found: set[int] = set()
    stack: list[int | None] = []
    for line in lines:
        if line.name in ("if", "ifdef", "ifndef"):
            stack.append(line.start)
        elif line.name.startswith("el") and stack:
            stack[-1] = None
        elif line.name == "endif" and stack and (start := stack.pop()) is not None:
            found.add(start)
    return found


def _value(name: str, words: list[str], names: _Names) -> bool | None:
    """Return True, False, or None where it depends on something that this module does not know."""
    kind = name.removeprefix("el")
    if kind in ("ifdef", "ifndef"):
        known = names.is_defined(words[0]) if words else None
        return known if known is None or kind == "ifdef" else not known
    try:
        value = _Condition(words, names).parse()
    except (IndexError, ValueError):
        return None
    return None if value is None else bool(value)


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


class _Condition:
    """The expression of an `#if`, in three-valued logic: a number, or None for unknown."""

    def __init__(self, words: list[str], names: _Names) -> None:
        self.words, self.names = words, names
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
            known = self.names.is_defined(name)
            return None if known is None else int(known)
        if word[0].isdigit():
            return int(word.replace("'", "").rstrip("uUlL"), 0)
        if word[0].isalpha() or word[0] == "_":
            return self.names.get(word)
        raise ValueError(word)
