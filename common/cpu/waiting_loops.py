"""Loops in which a thread waits for another to write to memory: which they are, from their tokens.

On the CPU backend such a loop has to give way, or the other thread never runs. Recognised are
loops that a volatile read can end, and that themselves write to no memory:

    while (*flag == 0) ++trips;                 flag is declared volatile
    do { seen = load(flag); } while (!seen);    load() reads something volatile
    for (;;) { if (*(volatile int*)flag) break; }

and every `while` with nothing in it. A loop that writes does something meanwhile, and is left
alone.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from common.cpu.lexer import Token

_PAIRS = {"(": ")", "[": "]", "{": "}"}
_TYPES = frozenset(
    ("int", "unsigned", "signed", "char", "short", "long", "bool", "float", "double", "auto")
)
_COMPOUND = ("+", "-", "*", "/", "%", "&", "|", "^")
_LEAVING = ("break", "return", "goto")

Range = tuple[int, int]  # positions [begin, end)


@dataclass(slots=True)
class Loop:
    """A loop, by positions of its tokens."""

    kind: str  # "while", "do" or "for"
    condition: Range  # what is between the parentheses; of a `for`, between the semicolons
    step: int  # of a `for`: the position of the parenthesis that ends its head
    body: Range


def closing(tokens: Sequence[Token], p: int) -> int:
    """The position of the bracket that closes the one at p, or of the last token."""
    depth = 0
    for q in range(p, len(tokens)):
        if tokens[q].is_op(*_PAIRS):
            depth += 1
        elif tokens[q].is_op(*_PAIRS.values()):
            depth -= 1
            if depth == 0:
                return q
    return len(tokens) - 1


def volatile_names(tokens: Sequence[Token]) -> set[str]:
    """Variables that are declared volatile, or point to what is."""
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
        start = p
        while start > 0 and not tokens[start - 1].is_op(";", "{", "}"):
            start -= 1
        head = [t for t in tokens[start : min(start + 5, p)] if not t.is_word("const")]
        if len(head) > 2 and head[0].is_word("auto") and head[1].is_op("*", "&"):
            names.add(head[2].text)
    return names


def volatile_readers(
    tokens: Sequence[Token], bodies: Iterator[int], names: Set[str], known: Set[str]
) -> set[str]:
    """Functions that return something and read what is volatile; `bodies`: their braces."""
    readers = set()
    for brace in bodies:
        body = (brace, closing(tokens, brace))
        returns = any(
            tokens[p].is_word("return") and not tokens[p + 1].is_op(";") for p in range(*body)
        )
        q = brace - 1
        while q > 0 and tokens[q].is_word():  # const, noexcept
            q -= 1
        if not returns or not tokens[q].is_op(")") or not reads(tokens, body, names, known):
            continue
        depth = 1
        while q > 0 and depth > 0:
            q -= 1
            depth += tokens[q].is_op(")") - tokens[q].is_op("(")
        q -= 1
        if tokens[q].is_word():
            readers.add(tokens[q].text)
    return readers


def reads(tokens: Sequence[Token], where: Range, names: Set[str], readers: Set[str]) -> bool:
    """Whether something volatile is read there: by its name, a cast, or a function."""
    for p in range(*where):
        token = tokens[p]
        if not token.is_word():
            continue
        if token.text == "volatile" and not tokens[p - 1].is_word("asm", "__asm__"):
            return True
        if token.text in names:
            return True
        if token.text in readers and tokens[p + 1].is_op("(", "<"):
            return True
    return False


def loop_at(tokens: Sequence[Token], p: int) -> Loop | None:
    """The loop whose first word is at p; None if none begins there."""
    word = tokens[p]
    if word.is_word("do"):
        end = _statement_end(tokens, p + 1)
        if not (end + 2 < len(tokens) and tokens[end + 1].is_word("while")):
            return None
        return Loop("do", (end + 3, closing(tokens, end + 2)), 0, (p + 1, end + 1))
    if not word.is_word("while", "for") or not tokens[p + 1].is_op("("):
        return None
    close = closing(tokens, p + 1)
    body = (close + 1, _statement_end(tokens, close + 1) + 1)
    if word.is_word("while"):
        return Loop("while", (p + 2, close), 0, body)
    semicolons = [q for q in _top_level(tokens, p + 2, close) if tokens[q].is_op(";")]
    if len(semicolons) != 2:
        return None  # over a range
    return Loop("for", (semicolons[0] + 1, semicolons[1]), close, body)


def waits(tokens: Sequence[Token], loop: Loop, names: Set[str], readers: Set[str]) -> bool:
    """Whether the loop waits for memory to change."""
    body = loop.body
    empty = [t.text for t in tokens[slice(*body)]] in ([";"], ["{", "}"])
    if empty and loop.kind == "while":
        return True
    if _writes(tokens, body):
        return False
    seen = set(names)
    for p in range(*body):
        if _is_assignment(tokens, p) and tokens[p - 1].is_word():
            end = next((q for q in _top_level(tokens, p, body[1]) if tokens[q].is_op(";")), body[1])
            if reads(tokens, (p + 1, end), seen, readers):
                seen.add(tokens[p - 1].text)
    if reads(tokens, loop.condition, seen, readers):
        return True
    for p in range(*body):
        if tokens[p].is_word("if") and tokens[p + 1].is_op("("):
            close = closing(tokens, p + 1)
            then = (close + 1, _statement_end(tokens, close + 1) + 1)
            leaves = any(token.is_word(*_LEAVING) for token in tokens[slice(*then)])
            if leaves and reads(tokens, (p + 2, close), seen, readers):
                return True
    return False


def _top_level(tokens: Sequence[Token], start: int, end: int) -> Iterator[int]:
    """The positions in [start, end) that no bracket encloses."""
    p = start
    while p < end:
        yield p
        p = closing(tokens, p) + 1 if tokens[p].is_op(*_PAIRS) else p + 1


def _statement_end(tokens: Sequence[Token], p: int) -> int:
    """The position of the last token of the statement that begins at p."""
    if tokens[p].is_op("{"):
        return closing(tokens, p)
    if tokens[p].is_word("do"):
        end = _statement_end(tokens, p + 1)
        return closing(tokens, end + 2) + 1 if end + 3 < len(tokens) else end
    if tokens[p].is_word("if", "for", "while", "switch"):
        q = p + 1
        while q + 1 < len(tokens) and not tokens[q].is_op("("):
            q += 1
        end = _statement_end(tokens, min(closing(tokens, q) + 1, len(tokens) - 1))
        if end + 2 < len(tokens) and tokens[end + 1].is_word("else"):
            return _statement_end(tokens, end + 2)
        return end
    ends = (q for q in _top_level(tokens, p, len(tokens)) if tokens[q].is_op(";"))
    return next(ends, len(tokens) - 1)


def _is_assignment(tokens: Sequence[Token], p: int) -> bool:
    return tokens[p].is_op("=", "<<=", ">>=")


def _writes(tokens: Sequence[Token], body: Range) -> bool:
    """Whether something is assigned there that may be in memory: x[i], *x, or x->y."""
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
    """Whether what the ++ or -- at p changes may be in memory."""
    before, after = tokens[p - 1], tokens[p + 1]
    if before.is_word() and not before.is_word("else", "do"):  # x++, y->x++
        return tokens[p - 2].is_op("->")
    if after.is_word():  # ++x, ++x[i], ++x->y
        return tokens[p + 2].is_op("[", "->")
    return before.is_op("]", ")") or after.is_op("*", "(")
