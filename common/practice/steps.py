"""Find a step in a source file: its lines, the file without them, changes elsewhere.

A step's function is in a .cu file, or in the Python file of a day's Triton or Numba kernels.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from common.base.compiling import sources_of
from common.base.day_files import Step
from common.base.days import Day
from common.base.refusal import UsageError
from common.cpu.lexer import tokenize
from common.cpu.syntax import TokenError
from common.mutants.outline import (
    Code,
    Function,
    Outline,
    outline,
    outlines_of,
    reached_together,
)
from common.practice import python_code

T = TypeVar("T")

MARK = "your turn:"  # in a comment
_WIDTH = 98


class ExerciseError(UsageError):
    """The exercise cannot be found in a file; the message names the missing part."""


class UnreadableError(ExerciseError):
    """The file cannot be parsed: a bracket is missing, which the compiler reports."""


def place(text: str, step: Step) -> tuple[int, int]:
    """Return the offsets in `text` of the lines that the learner writes. Raise ExerciseError."""
    begin, end = _body(text, step)
    if step.whole:
        return begin, end
    first = _line_with(text, begin, end, step.first)
    last = _line_with(text, begin, end, step.last or step.first)
    if last[0] < first[0]:
        raise ExerciseError(f"{step.last!r} stands before {step.first!r}")
    return first[0], last[1]


def in_python(step: Step) -> bool:
    """Return True if the step's function is in a Python file."""
    return step.source.endswith(".py")


def _body(text: str, step: Step) -> tuple[int, int]:
    """Return the offsets of the lines of the body of the step's function."""
    if in_python(step):
        return _of_python(python_code.body_of, text, step)
    code, function = function_in(text, step.function)
    return _whole_lines(text, code.offset(function.body) + 1, code.offset(function.end - 1))


def _of_python(find: Callable[[str, str], T], text: str, step: Step) -> T:
    """Call a function of `python_code` for a step's function. Raise ExerciseError."""
    try:
        return find(text, step.function)
    except SyntaxError as error:
        raise UnreadableError(
            f"line {error.lineno}: {error.msg}: {step.function} cannot be found"
        ) from None
    except LookupError as error:
        raise ExerciseError(str(error)) from None


def function_in(text: str, name: str) -> tuple[Code, Function]:
    """Return the only function of this name in a .cu file, and its code. Raise ExerciseError."""
    try:
        read = outline(text)
    except TokenError as error:
        raise UnreadableError(f"{error}: {name} cannot be found") from None
    found = [f for d in read.declarations for f in d.functions if f.name == name]
    if len(found) != 1:
        often = f"is there {len(found)} times" if found else "is not there"
        raise ExerciseError(f"the function {name} {often}")
    return read.code, found[0]


def returns_value(text: str, name: str) -> bool:
    """Return True if a function returns a value: False only if `void` precedes its name."""
    code, function = function_in(text, name)
    for p in range(function.start, function.body):
        if code.code[p].is_word(name):
            break
        if code.code[p].is_word("void") and not code.code[p + 1].is_op("*", "&"):
            return False
    return True


def rungs_that_use(outlines: Mapping[Path, Outline], source: Path, function: str) -> list[str]:
    """Return the rungs whose launchers reach a function of `source`, in the order of their
    bindings.

    outlines: of all files that are linked together, see `outlines_of`.
    """
    declared = (d for read in outlines.values() for d in read.declarations)
    rungs = dict.fromkeys(name for d in declared for name in sorted(d.operators))

    def uses_it(rung: str) -> bool:
        used = reached_together(outlines, [rung]).get(source, [])
        return any(f.name == function for d in used for f in d.functions)

    return [rung for rung in rungs if uses_it(rung)]


def with_backward(outlines: Mapping[Path, Outline], rungs: Sequence[str]) -> list[str]:
    """Return these rungs and the operators of their gradients: with "backward" in a name that is
    otherwise the rung's, as chain_backward_v1 for chain_v1, or with "gradient" in one with the same
    beginning as the rung's, as conv_weight_gradient_v1 for conv_v2."""
    bound = sorted({name for read in outlines.values() for name in read.operators} - {*rungs})
    return [*rungs, *(o for o in bound if _differentiates(o, rungs))]


def _differentiates(operator: str, rungs: Sequence[str]) -> bool:
    if match := re.match(r"(.+?_)((data|weight)_)?gradient(_|$)", operator):
        return any(rung.startswith(match[1]) for rung in rungs)
    return operator.replace("_backward", "") in rungs


def linked_for(day: Day, rungs: Sequence[str]) -> Day:
    """Return the day with only the .cu files and custom builds that these rungs need; all of it for
    ()."""
    day = replace(day, only=tuple(rungs))
    try:
        outlines = outlines_of(day)
    except TokenError:
        return day  # a bracket is missing, which the compiler reports
    operators = {*with_backward(outlines, rungs)}
    binding = {path for path in day.library_sources if outlines[path].operators & operators}
    needed = _linked_with(outlines, binding)
    used = [source for source in day.library_sources if source in needed]
    if not rungs or not used:
        return day
    return replace(day, source=used[0], extra_sources=(*used[1:], *day.other_sources))


def _linked_with(outlines: Mapping[Path, Outline], sources: Iterable[Path]) -> set[Path]:
    """Return these .cu files and, transitively, those that define functions called in them: each is
    linked completely, including parts that no rung needs.

    A name alone is not a call: a function of another file is declared in the calling one, or in a
    header that it includes.
    """
    found = {*sources}
    todo = [*found]
    while todo:
        source = todo.pop()
        # Compare the ends of paths: a copy of a day includes the headers of the original day.
        included = {path.parts[-2:] for path in sources_of(source)}
        own = [read for path, read in outlines.items() if path.parts[-2:] in included]
        declared = [d for read in own for d in read.declarations]
        defined = {d.name for d in declared if d.is_function}
        foreign = {d.name for d in declared if d.name} - defined
        calls = {word for d in declared for word in d.uses & foreign if word != d.name}
        more = {
            path
            for path, read in outlines.items()
            if path.suffix == ".cu"
            and any(d.is_function and d.name in calls for d in read.declarations)
        }
        todo += more - found
        found |= more
    return found


def _whole_lines(text: str, begin: int, end: int) -> tuple[int, int]:
    """Return the lines between two braces; without the braces' lines if each has its own."""
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


def stub(text: str, step: Step, command: str) -> str:
    """Return `text` with a comment in place of the step's lines. It compiles, but is wrong.

    command: the command that checks it, named in the comment.
    """
    begin, end = place(text, step)
    indent = _indent_of(text[begin:end])
    comment = "#" if in_python(step) else "//"
    lines = commented(f"{MARK} {step.task}", indent, comment)
    lines += [f"{indent}{comment} Then: {command}"]
    lines += [f"{indent}{line}".rstrip() for line in instead(text, step)]
    body = "".join(f"{line}\n" for line in lines)
    if text[begin - 1] != "\n":  # the braces are on one line
        body = f"\n{body}"
    return text[:begin] + body + text[end:]


def instead(text: str, step: Step) -> list[str]:
    """Return the lines of code that fill the gap, so that the file compiles."""
    if step.instead:
        return textwrap.dedent(step.instead).strip("\n").split("\n")
    if not step.whole:
        return []
    if in_python(step):
        return ["pass"]
    return ["return {};"] if returns_value(text, step.function) else []


def _indent_of(text: str) -> str:
    """Return the indentation of the first of these lines except directives; a function's if there
    are none."""
    for line in text.split("\n")[:-1]:
        if line.strip() and not line.startswith("#"):
            return line[: len(line) - len(line.lstrip())]
    return "  "


def commented(words: str, indent: str = "", comment: str = "//") -> list[str]:
    """Return a comment, wrapped to lines."""
    width = _WIDTH - len(comment) - 1 - len(indent)
    return [f"{indent}{comment} {line}" for line in textwrap.wrap(words, width)]


def same_code(text: str, start: str, step: Step) -> bool:
    """Return True if the function in `text` has the same code as in `start`, ignoring comments."""
    mine, theirs = (_code(each, step) for each in (text, start))
    return mine == theirs


def _code(text: str, step: Step) -> list[str]:
    if in_python(step):
        return _of_python(python_code.code_of, text, step)
    begin, end = place_in_stub(text, step)
    return [token.text for token in tokenize(text[begin:end]) if token.is_code]


def place_in_stub(text: str, step: Step) -> tuple[int, int]:
    """Return the function's lines in a file with any content in it. Raise ExerciseError."""
    return place(text, replace(step, first="", last=""))


def line_of(text: str, step: Step) -> int:
    """Return the number of the line to start at: the mark's, or the function's first."""
    begin, end = place_in_stub(text, step)
    marked = text.find(MARK, begin, end)
    return text.count("\n", 0, begin if marked == -1 else marked) + 1


def solution(text: str, step: Step) -> str:
    """Return the lines of the original that the step omits, without their common indentation."""
    begin, end = place(text, step)
    return textwrap.dedent(text[begin:end]).strip("\n")


def changed_around(start: str, theirs: str, step: Step) -> list[int]:
    """Return the numbers of lines in `theirs` that differ from `start` outside the function."""
    begin, end = place_in_stub(start, step)
    my_begin, my_end = place_in_stub(theirs, step)
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
