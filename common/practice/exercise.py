"""An exercise in a source file: where it stands, the file without it, what else was changed."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from common.base.days import Day
from common.base.declaration import Exercise
from common.cpu.lexer import tokenize
from common.cpu.syntax import TokenError
from common.practice.mutants.outline import (
    Code,
    Function,
    Outline,
    outline,
    outlines_of,
    reached_together,
)

MARK = "// your turn:"
_WIDTH = 98


class ExerciseError(Exception):
    """The exercise cannot be found in a file; the message says what is missing."""


def place(text: str, exercise: Exercise) -> tuple[int, int]:
    """The offsets in `text` of the lines that the learner writes. Raises ExerciseError."""
    code, function = function_in(text, exercise.function)
    begin, end = code.offset(function.body) + 1, code.offset(function.end - 1)
    if not exercise.first:
        return _whole_lines(text, begin, end)
    first = _line_with(text, begin, end, exercise.first)
    last = _line_with(text, begin, end, exercise.last or exercise.first)
    if last[0] < first[0]:
        raise ExerciseError(f"{exercise.last!r} stands before {exercise.first!r}")
    return first[0], last[1]


def function_in(text: str, name: str) -> tuple[Code, Function]:
    """The only function of this name, and the code that it stands in. Raises ExerciseError."""
    try:
        read = outline(text)
    except TokenError as error:
        raise ExerciseError(f"{error}: {name} cannot be found") from None
    found = [f for d in read.declarations for f in d.functions if f.name == name]
    if len(found) != 1:
        count = "is not there" if not found else f"is there {len(found)} times"
        raise ExerciseError(f"the function {name} {count}")
    return read.code, found[0]


def returns_value(text: str, name: str) -> bool:
    """Whether a function returns something: only `void` before its name says that it does not."""
    code, function = function_in(text, name)
    for p in range(function.start, function.body):
        if code.code[p].is_word(name):
            break
        if code.code[p].is_word("void") and not code.code[p + 1].is_op("*", "&"):
            return False
    return True


def rungs_that_use(outlines: Mapping[Path, Outline], source: Path, function: str) -> list[str]:
    """The rungs whose launchers reach a function of `source`, in the order of their bindings.

    outlines: of all files that are linked together, see `outlines_of`.
    """
    declared = (d for read in outlines.values() for d in read.declarations)
    rungs = dict.fromkeys(name for d in declared for name in sorted(d.operators))

    def uses_it(rung: str) -> bool:
        used = reached_together(outlines, [rung]).get(source, [])
        return any(f.name == function for d in used for f in d.functions)

    return [rung for rung in rungs if uses_it(rung)]


def with_backward(outlines: Mapping[Path, Outline], rungs: Sequence[str]) -> list[str]:
    """These rungs and the operators that compute their gradients: with "backward" in a name that is
    otherwise the rung's, as chain_backward_v1 for chain_v1, or with "gradient" in one that begins
    as the rung's does, as conv_weight_gradient_v1 for conv_v2."""
    bound = sorted({name for read in outlines.values() for name in read.operators} - {*rungs})
    return [*rungs, *(o for o in bound if _differentiates(o, rungs))]


def _differentiates(operator: str, rungs: Sequence[str]) -> bool:
    if match := re.match(r"(.+?_)((data|weight)_)?gradient(_|$)", operator):
        return any(rung.startswith(match[1]) for rung in rungs)
    return operator.replace("_backward", "") in rungs


def linked_for(day: Day, rungs: Sequence[str]) -> Day:
    """The day with those of its .cu files alone that these rungs reach, and with what they alone
    build in ways of their own; all of it for ()."""
    day = replace(day, only=tuple(rungs))
    try:
        outlines = outlines_of(day)
    except TokenError:
        return day  # a bracket is missing, which the compiler explains
    reached = reached_together(outlines, with_backward(outlines, rungs))
    used = [source for source in day.library_sources if source in reached]
    if not rungs or not used:
        return day
    return replace(day, source=used[0], extra_sources=(*used[1:], *day.other_sources))


def _whole_lines(text: str, begin: int, end: int) -> tuple[int, int]:
    """The lines between two braces; without their lines where each has one of its own."""
    first = text.find("\n", begin, end)
    last = text.rfind("\n", begin, end)
    if first == -1:
        return begin, end
    return first + 1, last + 1


def _line_with(text: str, begin: int, end: int, part: str) -> tuple[int, int]:
    at = text.find(part, begin, end)
    if at == -1:
        raise ExerciseError(f"no line of the function has {part!r}")
    if text.find(part, at + 1, end) != -1:
        raise ExerciseError(f"more than one line of the function has {part!r}")
    behind = text.find("\n", at)
    return text.rfind("\n", 0, at) + 1, len(text) if behind == -1 else behind + 1


def stub(text: str, exercise: Exercise, command: str) -> str:
    """`text` with a comment in place of the exercise. It compiles, and is wrong.

    command: what checks it, named in the comment.
    """
    begin, end = place(text, exercise)
    indent = _indent_of(text[begin:end])
    lines = commented(f"{MARK[3:]} {exercise.task} Then: {command}", indent)
    body = "".join(f"{line}\n" for line in lines)
    if not exercise.first and returns_value(text, exercise.function):
        body += f"{indent}return {{}};\n"
    if text[begin - 1] != "\n":  # the braces are on one line
        body = f"\n{body}"
    return text[:begin] + body + text[end:]


def _indent_of(text: str) -> str:
    """What the first of these lines begins with, directives aside; a function's where there are
    none."""
    for line in text.split("\n")[:-1]:
        if line.strip() and not line.lstrip().startswith("#"):
            return line[: len(line) - len(line.lstrip())]
    return "  "


def commented(words: str, indent: str = "") -> list[str]:
    """A comment of as many lines as it takes."""
    return [f"{indent}// {line}" for line in textwrap.wrap(words, _WIDTH - 3 - len(indent))]


def is_stub(text: str, start: str, exercise: Exercise) -> bool:
    """Whether the function in `text` has the same code as in `start`, comments aside."""
    codes = []
    for each in (text, start):
        begin, end = place_in_stub(each, exercise)
        codes.append([token.text for token in tokenize(each[begin:end]) if token.is_code])
    return codes[0] == codes[1]


def place_in_stub(text: str, exercise: Exercise) -> tuple[int, int]:
    """The function's lines in a file that may hold anything in it. Raises ExerciseError."""
    return place(text, replace(exercise, first="", last=""))


def line_of(text: str, exercise: Exercise) -> int:
    """The number of the line to begin at: the mark's, or the function's first."""
    begin, end = place_in_stub(text, exercise)
    marked = text.find(MARK, begin, end)
    return text.count("\n", 0, begin if marked == -1 else marked) + 1


def solution(text: str, exercise: Exercise) -> str:
    """The lines of the original that the exercise leaves out, without their common indentation."""
    begin, end = place(text, exercise)
    return textwrap.dedent(text[begin:end]).strip("\n")


def changed_around(start: str, theirs: str, exercise: Exercise) -> list[int]:
    """The numbers of lines in `theirs` that differ from those of `start` outside the function."""
    begin, end = place_in_stub(start, exercise)
    my_begin, my_end = place_in_stub(theirs, exercise)
    found: list[int] = []
    for a, b, offset in (
        (start[:begin], theirs[:my_begin], 0),
        (start[end:], theirs[my_end:], theirs.count("\n", 0, my_end)),
    ):
        matcher = difflib.SequenceMatcher(None, a.splitlines(), b.splitlines(), autojunk=False)
        for tag, _, _, low, high in matcher.get_opcodes():
            if tag != "equal":
                found += range(offset + low + 1, offset + max(high, low + 1) + 1)
    return found
