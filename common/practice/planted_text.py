"""Rewrite a planted change as a programmer would have written it, without a trace of the edit.

A mutant replaces an expression in place: a check becomes `if (true)`, a barrier an empty statement.
A learner would find that without understanding it, so this module removes the check, with its
braces and the comment that explains it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from common.cpu.syntax import TokenError, closing, is_op_at, opening, split, statement_end
from common.mutants.derive import Mutant
from common.mutants.outline import Code

_INDENT = 2
_COLUMNS = 100
_COMMENTED = re.compile(r"(\s*\S.*?)( +)(//.*)")  # code and the comment after it
_OPERAND = re.compile(r"[\w.:]+(<[\w ]*>)?(\([^()]*\)|\[[^][]*\]|\{[^{}]*\})*")
_NEVER_PLAIN = ("if", "while", "for", "switch", "sizeof", "alignof")


@dataclass(frozen=True)
class _Change:
    """A replacement of the characters [start, end) of the file by `text`."""

    start: int
    end: int
    text: str


def planted_text(mutant: Mutant) -> str | None:
    """Return the changed file for the learner; None if the change would reveal itself in every
    form."""
    original = mutant.code.source
    try:
        change = _change(mutant, original)
    except (TokenError, IndexError):
        return None
    if change is None:
        return None
    changed = original[: change.start] + change.text + original[change.end :]
    return _aligned(original, changed)


def _change(mutant: Mutant, original: str) -> _Change | None:
    code, edit = mutant.code, mutant.edit
    start, end, text = edit.start, edit.end, edit.text
    if text in ("true", "false") and mutant.kind.name == "bounds check dropped":
        return _without_condition(code, original, start, end, leaves=text == "false")
    if text.startswith("[&]"):
        return _plain_update(code, original, start, end)
    if not text and is_op_at(code.code, end, ";") and _begins_statement(code, start):
        return _without_statement(code, original, start, end)
    if not text:
        return _without_operand(code, original, start, end)
    if mutant.kind.name == "loop bound off by one":
        while code.binary(end, "+", "-", "*", "/", "%"):
            end = code.operand_end(end + 1)
        text = f"{code.text(start, end)} - 1"
    divides = re.fullmatch(r"\(\((.*)\) / \((.*)\)\)", text)
    if divides:
        text = f"{_factor(divides[1])} / {_factor(divides[2], right=True)}"
        if code.binary(start - 1, "*", "/", "%"):
            text = f"({text})"
    return _Change(*_span(code, start, end), _simplified(text))


def _span(code: Code, start: int, end: int) -> tuple[int, int]:
    return code.offset(start), code.offset(end - 1) + len(code.code[end - 1].text)


def _begins_statement(code: Code, p: int) -> bool:
    before = code.code[p - 1]
    if before.is_op(")"):
        return code.code[opening(code.code, p - 1) - 1].is_word("if", "for", "while", "switch")
    return before.is_op(";", "{", "}", ":") or before.is_word("else", "do")


# ---------------------------------------------------------------- expressions


def _simplified(text: str) -> str:
    """Return an expression composed by an edit without unneeded parentheses, and with numbers
    added."""
    found = re.fullmatch(r"\((.*)\) ([-+/]) (\d+)", text)
    if found and _balanced(found[1]):
        operator, number = found[2], found[3]
        inner = _factor(found[1]) if operator == "/" else found[1]
        text = f"{inner} {operator} {number}"
    if found := re.fullmatch(r"(\d+) ([-+/]) (\d+)", text):
        a, b = int(found[1]), int(found[3])
        return str({"+": a + b, "-": a - b, "/": a // b}[found[2]])
    if found := re.fullmatch(r"2 \* (\d+)", text):
        return str(2 * int(found[1]))
    if found := re.fullmatch(r"(.*) ([-+]) (\d+) ([-+]) (\d+)", text):
        total = int(found[2] + found[3]) + int(found[4] + found[5])
        return f"{found[1]} {'-' if total < 0 else '+'} {abs(total)}" if total else found[1]
    return text


def _balanced(text: str) -> bool:
    """Return True if all brackets in the text match."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _factor(text: str, right: bool = False) -> str:
    """Return an expression as an operand of `/`, with parentheses if needed. right: it is the
    divisor."""
    bare = text
    while (shorter := re.sub(r"\([^()]*\)|\[[^][]*\]|\{[^{}]*\}|<[^<> ]*>", "", bare)) != bare:
        bare = shorter
    weaker = re.search(r" [^*/%\s]+ " if not right else r" \S+ ", f"{bare} ")
    return f"({text})" if weaker else text


def _without_operand(code: Code, original: str, start: int, end: int) -> _Change:
    """Return the removal of an operand and its operator."""
    first, last = _span(code, start, end)
    left, right = original[:first].rstrip(), original[last:].lstrip()
    if "//" in left.rpartition("\n")[2]:
        left = original[:first]  # a comment ends this line
    text = "" if left[-1:] in "([" or right[:1] in (")", "]", ",", ";") else " "
    if original[:first].endswith("\n") or original[len(left) : first].count("\n"):
        if text:  # the operand began a line, which now begins with its successor
            left, text = original[:first], ""
    elif original[last:].startswith("\n") and text:
        right, text = original[last:], ""
    begin, stop = len(left), len(original) - len(right)
    if left.endswith(")") and right.startswith(";"):
        opened = _enclosing(left[:-1])
        if re.search(r"(\breturn|=) $", original[:opened]):
            return _Change(opened, stop, left[opened + 1 : -1])
    change = _Change(begin, stop, text)
    return _without_parentheses(original, change) or change


def _without_parentheses(original: str, change: _Change) -> _Change | None:
    """Return the same change, also removing parentheses that then contain one operand and are not a
    call's."""
    left, right = original[: change.start], original[change.end :]
    opened = _enclosing(left)
    closed = _enclosing(right[::-1], "([{", ")]}")
    if opened < 0 or closed < 0:
        return None
    closed = len(right) - 1 - closed
    inner = left[opened + 1 :] + change.text + right[:closed]
    before = left[:opened]
    word = re.search(r"(\w+) $", before)
    calls = bool(re.search(r"[\w\])>]$", before)) or bool(word and word[1] in _NEVER_PLAIN)
    doubled = inner.startswith("(") and inner.endswith(")") and _balanced(inner[1:-1])
    if doubled:
        return _Change(opened + 1, change.end + closed, inner[1:-1])
    if calls or not _OPERAND.fullmatch(inner):
        return None
    return _Change(opened, change.end + closed + 1, inner)


def _enclosing(text: str, closers: str = ")]}", openers: str = "([{") -> int:
    """Return the index of the parenthesis open at the end of `text`; -1 if there is none."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        if text[at] in closers:
            depth += 1
        elif text[at] in openers:
            if depth == 0:
                return at if text[at] in "()" else -1
            depth -= 1
        elif text[at] == ";":
            return -1
    return -1


# ---------------------------------------------------------------- statements


def _without_statement(code: Code, original: str, start: int, end: int) -> _Change | None:
    """Return the removal of a statement and its semicolon, and of an `if` left without one."""
    if code.code[start - 1].is_op(")"):
        condition = opening(code.code, start - 1)
        if not code.code[condition - 1].is_word("if") or code.code[end + 1].is_word("else"):
            return None
        start = condition - 1
    if code.code[start - 1].is_word("else", "do"):
        return None
    return _without_lines(original, *_span(code, start, end + 1))


def _without_lines(original: str, first: int, last: int) -> _Change | None:
    """Return the removal of whole lines, with the comments after and above them, which belong to
    them; one of two blank lines stays."""
    begin = original.rfind("\n", 0, first) + 1
    stop = original.find("\n", last) + 1
    rest = original[last : stop - 1].strip()
    if original[begin:first].strip() or (rest and not rest.startswith("//")):
        start = first if original[begin:first].strip() else begin
        if start == begin:
            return None  # another statement follows on the line
        return _Change(len(original[:first].rstrip(" ")), last, "")
    while begin and (above := _line_before(original, begin)).strip().startswith("//"):
        begin -= len(above)
    blank = not _line_before(original, begin).strip()
    following = original[stop : original.find("\n", stop)].strip()
    if blank and following in ("", "}"):
        begin -= len(_line_before(original, begin))
    elif not following and _line_before(original, begin).rstrip().endswith("{"):
        stop = original.find("\n", stop) + 1
    return _Change(begin, stop, "")


def _line_before(text: str, at: int) -> str:
    """Return the line that ends before the line that begins at `at`, with its newline."""
    return text[text.rfind("\n", 0, at - 1) + 1 : at] if at else ""


def _without_condition(
    code: Code, original: str, start: int, end: int, *, leaves: bool
) -> _Change | None:
    """Return the change that always runs what the condition at [start, end) guards; leaves:
    never."""
    if is_op_at(code.code, end, "?"):
        return _first_choice(code, original, start, end)
    begin = start - 2  # if (
    follow = end + 1
    stop = statement_end(code.code, follow) + 1
    if leaves:
        if code.code[begin - 1].is_word("else") or code.code[begin - 1].is_op(")"):
            return None
        return _without_lines(original, *_span(code, begin, stop))
    if code.code[begin - 1].is_op(")"):
        return None  # in a loop or a condition without braces
    first, last = code.offset(begin), code.offset(follow)
    if code.code[begin - 1].is_word("else"):
        return _Change(first, last, "")
    if not code.code[follow].is_op("{"):
        _, over = _span(code, follow, stop)
        line = original.rfind("\n", 0, last) + 1
        width = last - max(first, line) if line <= first else _INDENT
        over = original.find("\n", over)
        return _Change(first, over, _shifted(_uncommented(original[last:over]), width))
    close = code.offset(closing(code.code, follow))
    opened = original.find("\n", last) + 1
    closed = original.rfind("\n", 0, close) + 1
    if not opened <= closed:
        return None
    line = original.rfind("\n", 0, first) + 1
    if original[line:first].strip() or original[closed:close].strip():
        return None
    inner = f"\n{original[opened:closed]}".replace(f"\n{' ' * _INDENT}", "\n")[1:]
    over = original.find("\n", close) + 1
    if original[close + 1 : over].strip():
        return None
    return _Change(line, over, inner)


def _uncommented(text: str) -> str:
    """Return the text without the comment at its end."""
    found = _COMMENTED.fullmatch(text.rpartition("\n")[2])
    return text if not found else text[: len(text) - len(found[2] + found[3])]


def _shifted(text: str, width: int) -> str:
    """Return the text with all lines but the first moved left by `width`."""
    return re.sub(rf"\n {{{width}}}", "\n", text)


def _first_choice(code: Code, original: str, start: int, end: int) -> _Change | None:
    """Replace `condition ? a : b` by a."""
    colon, depth, p = -1, 0, end + 1
    while not code.code[p].is_op(")", "]", "}", ";", ","):
        if code.code[p].is_op("(", "[", "{"):
            p = closing(code.code, p)
        elif code.code[p].is_op("?"):
            depth += 1
        elif code.code[p].is_op(":"):
            if depth == 0 and colon < 0:
                colon = p
            depth -= 1
        p += 1
    if colon - end < 3:  # a single word would reveal the missing choice
        return None
    first, last = _span(code, start, p)
    change = _Change(first, last, original[slice(*_span(code, end + 1, colon))])
    if "\n" in original[first:last]:
        change = _Change(first, last, " ".join(change.text.split()))
    return _without_parentheses(original, change) or change


def _plain_update(code: Code, original: str, start: int, end: int) -> _Change | None:
    """Return the atomic update as a plain one, such as `+=`; `++` for a counter."""
    name = code.code[start].text
    parts = split(code.code, start + 2, end - 1)
    if len(parts) != 2:
        return None
    target, given = _target(code, *parts[0]), code.text(*parts[1])
    statement = is_op_at(code.code, end, ";") and _begins_statement(code, start)
    operators = {"Add": "+=", "Sub": "-=", "Or": "|=", "And": "&=", "Xor": "^=", "Exch": "="}
    change = name.removeprefix("atomic")
    if statement and change in operators:
        text = f"{target} {operators[change]} {given}"
    elif statement and change in ("Max", "Min"):
        text = f"{target} = {change.lower()}({target}, {given})"
    elif change == "Add" and re.fullmatch(r"1[ul]*", given):
        text = f"({target})++" if target.startswith("*") else f"{target}++"
    else:
        return None
    return _Change(*_span(code, start, end), text)


def _target(code: Code, start: int, end: int) -> str:
    """Return the expression that the pointer at [start, end) points to."""
    text = code.text(start, end)
    if code.code[start].is_op("&") and code.operand_end(start + 1) == end:
        return code.text(start + 1, end)
    middle = code.operand_end(start)
    if middle < end and code.binary(middle, "+"):
        return f"{code.text(start, middle)}[{code.text(middle + 1, end)}]"
    return f"*{text}" if middle == end else f"*({text})"


# ---------------------------------------------------------------- lines


def _aligned(original: str, changed: str) -> str:
    """Format the text like clang-format: join a statement that fits on one line, and align the
    comments after neighbouring lines."""
    before, after = original.split("\n"), changed.split("\n")
    first = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    tail = zip(reversed(before[first:]), reversed(after[first:]), strict=False)
    same = next((i for i, (a, b) in enumerate(tail) if a != b), 0)
    first, last = _joined(after, first, len(after) - same)
    while first and _COMMENTED.fullmatch(after[first - 1]):
        first -= 1
    while last < len(after) and _COMMENTED.fullmatch(after[last]):
        last += 1
    group: list[int] = []
    for i in range(first, last + 1):
        if i < last and _COMMENTED.fullmatch(after[i]):
            group.append(i)
        elif group:
            _align(after, group)
            group = []
    return "\n".join(after)


def _joined(lines: list[str], first: int, last: int) -> tuple[int, int]:
    """Join [first, last), if it is one line, with the line before or after that belongs to its
    statement, if both fit on one. Return the new [first, last)."""
    for upper in (first, first - 1) if last == first + 1 else ():
        above, below = lines[upper], lines[upper + 1].lstrip()
        whole = f"{above} {below}"
        goes_on = above.strip() and (above[-1] not in ";{}" or below[:1] in (":", "?"))
        fits = below.endswith(";") and len(whole) <= _COLUMNS
        if goes_on and fits and "//" not in whole and not above.startswith("#"):
            lines[upper : upper + 2] = [whole]
            return upper, upper + 1
    return first, last


def _align(lines: list[str], group: list[int]) -> None:
    parts = [_COMMENTED.fullmatch(lines[i]) for i in group]
    codes = [part[1] for part in parts if part]
    comments = [part[3] for part in parts if part]
    column = max(map(len, codes)) + 2
    if column + max(map(len, comments)) > _COLUMNS:
        return
    for i, code, comment in zip(group, codes, comments, strict=True):
        lines[i] = f"{code:<{column}}{comment}"
