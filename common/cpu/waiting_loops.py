"""Make loops in which a thread waits for another one to write to memory yield to that thread.

On the CPU backend the other thread would otherwise never run. These loops are recognised by their
tokens: those that a volatile read can end, and that do not write to memory themselves,

    while (*flag == 0) ++trips;                 flag is declared volatile
    do { seen = load(flag); } while (!seen);    load() reads something volatile
    for (;;) { if (*(volatile int*)flag) break; }

and every `while` with an empty body. A loop that writes to memory is not changed.
"""

import itertools
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from common.cpu.lexer import Token
from common.cpu.stream import Stream
from common.cpu.syntax import (
    closing,
    is_op_at,
    semicolons,
    statement_end,
    statement_start,
    top_level,
)

_TYPES = frozenset(
    ("int", "unsigned", "signed", "char", "short", "long", "bool", "float", "double", "auto")
)
_COMPOUND = ("+", "-", "*", "/", "%", "&", "|", "^")
_LEAVING = ("break", "return", "goto")

_Range = tuple[int, int]  # positions [begin, end)


@dataclass(slots=True)
class _Loop:
    """A loop, by positions of its tokens."""

    kind: str  # "while", "do" or "for"
    condition: _Range  # between the parentheses; for a `for`, between the semicolons
    step: int  # of a `for`: the position of the parenthesis that ends its head
    body: _Range


def edit(stream: Stream, names: Set[str], readers: set[str]) -> None:
    """Make loops in device code that wait for another thread call `cudacpu::spin_wait`.

    names: volatile variables, by `volatile_names`. readers: functions of the project that read
    something volatile; this file's are added.
    """
    tokens = stream.tokens
    bodies = (
        scope.start
        for outer, scope in itertools.pairwise(stream.scopes)
        if scope is not None and scope.in_function and not (outer and outer.in_function)
    )
    readers |= _volatile_readers(tokens, bodies, names, readers)
    ends_of_do_loops = set()
    for p, token in enumerate(tokens):
        if not token.is_word("while", "do", "for") or not stream.on_device(p):
            continue
        loop = _loop_at(tokens, p)
        if loop is None or p in ends_of_do_loops:
            continue
        if loop.kind == "do":
            ends_of_do_loops.add(loop.condition[0] - 2)
        if _waits(tokens, loop, names, readers):
            _give_way(stream, loop)


def _give_way(stream: Stream, loop: _Loop) -> None:
    """Add a call between one trip of the loop and the next."""
    tokens = stream.tokens
    begin, end = loop.condition
    body = loop.body[0]
    if loop.kind == "for":
        separator = "" if tokens[loop.step - 1].is_op(";") else ", "
        stream.insert_before(loop.step, f"{separator}::cudacpu::spin_wait()")
    elif [t.text for t in tokens[begin:end]] in (["true"], ["1"]) and tokens[body].is_op("{"):
        # A condition that is not constant would give the loop an end, and warnings.
        stream.insert_after(body, " ::cudacpu::spin_wait();")
    elif not any(tokens[p].is_op("=") for p in top_level(tokens, begin, end)):
        # (A variable that is declared in the condition cannot be put into parentheses.)
        stream.insert_before(begin, "(")
        stream.insert_before(end, ") && ::cudacpu::spin_wait()")


def volatile_names(tokens: Sequence[Token]) -> set[str]:
    """Return variables that are declared volatile, or point to something volatile."""
    names = set()
    for p, token in enumerate(tokens):
        if not token.is_word("volatile") or (p and tokens[p - 1].is_word("asm", "__asm__")):
            continue
        q = p + 1
        while q < len(tokens) and (tokens[q].is_word() or tokens[q].is_op("*", "&", "::")):
            q += 1
        is_declared = q < len(tokens) and tokens[q].is_op(";", ",", ")", "=", "[", "{")
        if is_declared and tokens[q - 1].is_word() and tokens[q - 1].text not in _TYPES:
            names.add(tokens[q - 1].text)
        # auto* flag = (volatile int*)p;
        start = statement_start(tokens, p)
        head = [t for t in tokens[start : min(start + 5, p)] if not t.is_word("const")]
        if len(head) > 2 and head[0].is_word("auto") and head[1].is_op("*", "&"):
            names.add(head[2].text)
    return names


def _volatile_readers(
    tokens: Sequence[Token], bodies: Iterator[int], names: Set[str], known: Set[str]
) -> set[str]:
    """Return functions that return a value and read something volatile; `bodies`: their braces."""
    readers = set()
    for brace in bodies:
        body = (brace, closing(tokens, brace, or_last=True))
        returns = any(
            tokens[p].is_word("return") and not is_op_at(tokens, p + 1, ";") for p in range(*body)
        )
        q = brace - 1
        while q > 0 and tokens[q].is_word():  # const, noexcept
            q -= 1
        if not returns or not tokens[q].is_op(")") or not _reads(tokens, body, names, known):
            continue
        depth = 1
        while q > 0 and depth > 0:
            q -= 1
            depth += tokens[q].is_op(")") - tokens[q].is_op("(")
        q -= 1
        if tokens[q].is_word():
            readers.add(tokens[q].text)
    return readers


def _reads(tokens: Sequence[Token], where: _Range, names: Set[str], readers: Set[str]) -> bool:
    """Return True if something volatile is read there: by its name, a cast, or a function."""
    for p in range(*where):
        token = tokens[p]
        if not token.is_word():
            continue
        if token.text == "volatile" and not tokens[p - 1].is_word("asm", "__asm__"):
            return True
        if token.text in names:
            return True
        if token.text in readers and is_op_at(tokens, p + 1, "(", "<"):
            return True
    return False


def _loop_at(tokens: Sequence[Token], p: int) -> _Loop | None:
    """Return the loop whose first word is at p, or None."""
    word = tokens[p]
    if word.is_word("do"):
        end = statement_end(tokens, p + 1)
        if not (end + 2 < len(tokens) and tokens[end + 1].is_word("while")):
            return None
        return _Loop("do", (end + 3, closing(tokens, end + 2, or_last=True)), 0, (p + 1, end + 1))
    if not word.is_word("while", "for") or not is_op_at(tokens, p + 1, "("):
        return None
    close = closing(tokens, p + 1, or_last=True)
    body = (close + 1, statement_end(tokens, close + 1) + 1)
    if word.is_word("while"):
        return _Loop("while", (p + 2, close), 0, body)
    ends = list(semicolons(tokens, p + 2, close, or_last=True))
    if len(ends) != 2:
        return None  # over a range
    return _Loop("for", (ends[0] + 1, ends[1]), close, body)


def _waits(tokens: Sequence[Token], loop: _Loop, names: Set[str], readers: Set[str]) -> bool:
    """Return True if the loop waits for memory to change."""
    body = loop.body
    empty = [t.text for t in tokens[slice(*body)]] in ([";"], ["{", "}"])
    if empty and loop.kind == "while":
        return True
    if _writes(tokens, body):
        return False
    seen = set(names)
    for p in range(*body):
        if _is_assignment(tokens, p) and tokens[p - 1].is_word():
            end = next(semicolons(tokens, p, body[1], or_last=True), body[1])
            if _reads(tokens, (p + 1, end), seen, readers):
                seen.add(tokens[p - 1].text)
    if _reads(tokens, loop.condition, seen, readers):
        return True
    for p in range(*body):
        if tokens[p].is_word("if") and is_op_at(tokens, p + 1, "("):
            close = closing(tokens, p + 1, or_last=True)
            then = (close + 1, statement_end(tokens, close + 1) + 1)
            leaves = any(token.is_word(*_LEAVING) for token in tokens[slice(*then)])
            if leaves and _reads(tokens, (p + 2, close), seen, readers):
                return True
    return False


def _is_assignment(tokens: Sequence[Token], p: int) -> bool:
    return tokens[p].is_op("=", "<<=", ">>=")


def _writes(tokens: Sequence[Token], body: _Range) -> bool:
    """Return True if something is assigned there that may be in memory: x[i], *x, or x->y."""
    for p in range(*body):
        if _is_assignment(tokens, p):
            q = p - 2 if tokens[p - 1].is_op(*_COMPOUND) else p - 1
            if not tokens[q].is_word():
                return True
            while tokens[q - 1].is_op(".", "::") and tokens[q - 2].is_word():
                q -= 2
            if tokens[q - 1].is_op("->"):
                return True
            dereferenced = tokens[q - 1].is_op("*") and not tokens[q - 2].is_word()
            if dereferenced and not tokens[q - 2].is_op("*", ">"):
                return True
        if tokens[p].is_op("++", "--") and _steps_memory(tokens, p):
            return True
    return False


def _steps_memory(tokens: Sequence[Token], p: int) -> bool:
    """Return True if the ++ or -- at p may change memory."""
    before, after = tokens[p - 1], tokens[min(p + 1, len(tokens) - 1)]
    if before.is_word() and not before.is_word("else", "do"):  # x++, y->x++
        return tokens[p - 2].is_op("->")
    if after.is_word():  # ++x, ++x[i], ++x->y
        return is_op_at(tokens, p + 2, "[", "->")
    return before.is_op("]", ")") or after.is_op("*", "(")
