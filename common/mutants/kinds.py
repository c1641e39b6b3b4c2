"""Define the kinds of single-change mutants, and find their places in a function.

The meaning of names is unknown here. A binary operator is recognised by the white space around it,
which clang-format inserts; a mutant that does not compile is dropped later.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from common.cpu.launches import configuration
from common.cpu.syntax import TokenError, closing, is_op_at, opening, split, statement_end
from common.mutants.outline import Code, Function


@dataclass(frozen=True)
class Edit:
    """A change of [start, end) of a `Code` into `text`.

    shown: the range that describes it, e.g. the whole comparison whose operator changes; None for
    the changed range.
    """

    start: int
    end: int
    text: str
    shown: tuple[int, int] | None = None


Find = Callable[[Code, Function], Iterator[Edit]]


@dataclass(frozen=True)
class Kind:
    """A kind of mutant. name: for reports. explanation: the bug's effect, in a sentence for a
    learner. where: "device", "host" (launchers) or "both". left_out: the CPU backend's headers may
    omit the changed code, so that equal machine code proves nothing. watched: builds that watch
    memory may detect it even if the plain check does not. narrows: 64 bits become 32, which a check
    at compile time detects (common/build/narrowing.py)."""

    name: str
    explanation: str
    where: str
    find: Find
    left_out: bool = False
    watched: bool = True
    narrows: bool = False


KINDS: list[Kind] = []


def _kind(name: str, where: str, explanation: str, **options: bool) -> Callable[[Find], Find]:
    def add(find: Find) -> Find:
        KINDS.append(Kind(name, explanation, where, find, **options))
        return find

    return add


# Helpers ------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)  # all kinds use it
def _body(code: Code, function: Function) -> tuple[int, ...]:
    """Return the positions in the function's body, except those in a static_assert or in a
    message."""
    return tuple(_positions(code, function))


def _positions(code: Code, function: Function) -> Iterator[int]:
    p = function.body + 1
    while p < function.end - 1:
        token = code.code[p]
        if token.is_word("static_assert") and is_op_at(code.code, p + 1, "("):
            p = closing(code.code, p + 1)
        elif token.is_word("STD_TORCH_CHECK", "TORCH_CHECK") and is_op_at(code.code, p + 1, "("):
            parts = split(code.code, p + 2, closing(code.code, p + 1))
            if parts:
                yield from range(*parts[0])
            p = closing(code.code, p + 1)
        else:
            yield p
        p += 1


def _calls(code: Code, function: Function, pattern: str) -> Iterator[tuple[int, int, int]]:
    """Yield (name, open parenthesis, close parenthesis) of calls of functions that match
    `pattern`."""
    for p in _body(code, function):
        token, q = code.code[p], p + 1
        called = is_op_at(code.code, q, "(", "<")
        if not (called and token.is_word() and re.fullmatch(pattern, token.text)):
            continue
        if is_op_at(code.code, q, "<") and not code.spaced(q):
            q = code.operand_end(p)
            if not code.code[q - 1].is_op(")"):
                continue
            q = opening(code.code, q - 1)
        if is_op_at(code.code, q, "("):
            yield p, q, closing(code.code, q)


def _statement(code: Code, start: int, end: int) -> bool:
    """Return True if [start, end) is a whole expression statement, up to its semicolon."""
    before = code.code[start - 1]
    begins = before.is_op(";", "{", "}", ")", ":") or before.is_word("else", "do")
    return begins and is_op_at(code.code, end, ";")


def _around(code: Code, p: int) -> tuple[int, int]:
    """Return a binary operator with its operands."""
    return code.operand_start(p - 1), code.operand_end(p + 1)


def _conditions(code: Code, function: Function) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, position after the closing parenthesis) of the condition of each `if`."""
    for p in _body(code, function):
        if code.code[p].is_word("if"):
            q = p + 2 if code.code[p + 1].is_word("constexpr") else p + 1
            if q == p + 1 and is_op_at(code.code, q, "("):
                close = closing(code.code, q)
                yield q + 1, close, close + 1


def _top(code: Code, start: int, end: int, *operators: str) -> list[int]:
    """Return the positions of these binary operators in [start, end) outside of brackets."""
    found = []
    p = start
    while p < end:
        if code.code[p].is_op("(", "[", "{"):
            p = closing(code.code, p)
        elif code.binary(p, *operators):
            found.append(p)
        p += 1
    return found


COMPARISONS = ("<", "<=", ">", ">=")


def _number(text: str) -> int | None:
    """Return the value of a decimal integer literal without suffix."""
    return int(text) if re.fullmatch(r"0|[1-9][0-9]*", text) else None


# Barriers and memory ------------------------------------------------------------------------------

_WAITS = (
    r"__syncthreads|__syncwarp|sync|wait|arrive_and_wait|cluster_(sync|wait)|cp_async_wait\w*|"
    r"m?barrier_(wait\w*|sync)|bulk_wait\w*|wgmma_wait|grid_dependency_wait"
)


@_kind("barrier removed", "device", "Threads no longer wait for each other: a race.")
def _barrier(code: Code, function: Function) -> Iterator[Edit]:
    for name, _, close in _calls(code, function, _WAITS):
        start = code.operand_start(name)
        if _statement(code, start, close + 1):
            yield Edit(start, close + 1, "")


@_kind(
    "fence or memory order",
    "device",
    "Another block may see the flag before the data that it announces.",
)
def _fence(code: Code, function: Function) -> Iterator[Edit]:
    for name, _, close in _calls(code, function, r"__threadfence\w*|fence_\w+|wgmma_fence"):
        if _statement(code, name, close + 1):
            yield Edit(name, close + 1, "")
    for p in _body(code, function):
        token = code.code[p]
        match = token.is_word() and re.fullmatch(
            r"(memory_order_)?(acquire|release|acq_rel|seq_cst)", token.text
        )
        if match and code.code[p - 1].is_op("::"):
            yield Edit(p, p + 1, f"{match[1] or ''}relaxed")


@_kind("atomic made plain", "device", "Read, add and write become three steps: updates get lost.")
def _atomic(code: Code, function: Function) -> Iterator[Edit]:
    values = {
        "atomicAdd": "old_ + ({0})",
        "atomicSub": "old_ - ({0})",
        "atomicMax": "old_ > ({0}) ? old_ : ({0})",
        "atomicMin": "old_ < ({0}) ? old_ : ({0})",
        "atomicOr": "old_ | ({0})",
        "atomicAnd": "old_ & ({0})",
        "atomicXor": "old_ ^ ({0})",
        "atomicExch": "({0})",
        "atomicCAS": "old_ == ({0}) ? ({1}) : old_",
    }
    for name, start, close in _calls(code, function, "|".join(values)):
        place, *rest = (code.text(a, b) for a, b in split(code.code, start + 1, close))
        value = values[code.code[name].text].format(*rest, *rest)
        # Names that no argument has: in C++, a name refers to itself in its own initialiser.
        plain = (
            f"[&] {{ auto* at_ = ({place}); const auto old_ = *at_; "
            f"*at_ = {value}; return old_; }}()"
        )
        yield Edit(name, close + 1, plain)


@_kind("shuffle", "device", "A lane reads the register of a wrong lane, or of none.")
def _shuffle(code: Code, function: Function) -> Iterator[Edit]:
    for name, start, close in _calls(code, function, r"__(shfl\w*|ballot|any|all|reduce\w*)_sync"):
        parts = split(code.code, start + 1, close)
        yield Edit(*parts[0], "0x0000ffffu", (name, close + 1))
        if len(parts) > 2:
            text = code.text(*parts[2])
            # With xor, offsets that are all one larger still reach every lane.
            other = f"({text}) / 2" if "xor" in code.code[name].text else f"({text}) + 1"
            yield Edit(*parts[2], other, (name, close + 1))


@_kind("shared memory too small", "both", "The last bytes lie in memory that belongs to no array.")
def _shared(code: Code, function: Function) -> Iterator[Edit]:
    for p in _body(code, function):
        if code.code[p].is_word("__shared__") and not code.code[p - 1].is_word("extern"):
            end = statement_end(code.code, p)
            for q in range(p, end):
                declares = code.code[q - 1].is_word() and is_op_at(code.code, q, "[")
                if declares and closing(code.code, q) > q + 1:
                    close = closing(code.code, q)
                    size = code.text(q + 1, close)
                    yield Edit(q + 1, close, f"({size}) - 1", (q - 1, close + 1))
                    break
    for parts in _launches(code, function):
        if len(parts) > 2 and code.text(*parts[2]) != "0":
            yield Edit(*parts[2], f"({code.text(*parts[2])}) / 2")


# Conditions ---------------------------------------------------------------------------------------


@_kind("comparison", "both", "One element too many or too few, or a condition that is too weak.")
def _comparison(code: Code, function: Function) -> Iterator[Edit]:
    others = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "&&": "||", "||": "&&"}
    for p in _body(code, function):
        if code.binary(p, *others):
            yield Edit(p, p + 1, others[code.code[p].text], _clause(code, p))


def _clause(code: Code, p: int) -> tuple[int, int]:
    """Return the range of the comparison, or of two joined conditions, whose operator is at p."""
    ends = ("&&", "||", ",", ";", "?", ":", "=")
    start, end = p, p + 1
    while not (
        code.code[start - 1].is_op(*ends, "(", "[", "{") or code.code[start - 1].is_word("return")
    ):
        closes = code.code[start - 1].is_op(")", "]", "}")
        start = opening(code.code, start - 1) if closes else start - 1
    while not code.code[end].is_op(*ends, ")", "]", "}"):
        opens = code.code[end].is_op("(", "[", "{")
        end = closing(code.code, end) + 1 if opens else end + 1
    return start, end


@_kind(
    "bounds check dropped",
    "device",
    "Threads beyond the end read or write memory outside the array.",
)
def _bounds(code: Code, function: Function) -> Iterator[Edit]:
    for start, end, then in _conditions(code, function):
        if not any(code.binary(p, *COMPARISONS) for p in range(start, end)):
            continue
        leaves = code.code[then].is_word("return", "continue", "break")
        follow = statement_end(code.code, then) + 1
        if not is_op_at(code.code, follow, "else") and not code.code[follow].is_word("else"):
            yield Edit(start, end, "false" if leaves else "true")
        joints = _top(code, start, end, "&&", "||")
        edges = [start - 1, *joints, end]
        for first, (left, right) in enumerate(itertools.pairwise(edges)):
            if joints:
                whole = (start, end)
                if first == 0:
                    yield Edit(left + 1, right + 1, "", whole)
                else:
                    yield Edit(left, right, "", whole)
    for p in _body(code, function):
        if code.code[p].is_op("?"):
            start = _condition_start(code, p)
            if any(code.binary(q, *COMPARISONS) for q in range(start, p)):
                yield Edit(start, p, "true", (start, code.operand_end(p + 1)))


def _condition_start(code: Code, p: int) -> int:
    """Return the start of the condition that the `?` at p ends."""
    while p > 0:
        before = code.code[p - 1]
        if before.is_op(")", "]", "}"):
            p = opening(code.code, p - 1)
        elif before.is_op("=", "(", "[", "{", ",", ";", "?", ":") or before.is_word("return"):
            break
        else:
            p -= 1
    return p


# Arithmetic ---------------------------------------------------------------------------------------


@_kind("arithmetic operator", "both", "The operation is not the one in the formula.")
def _arithmetic(code: Code, function: Function) -> Iterator[Edit]:
    others = {"+": "-", "-": "+", "*": "/", "/": "*"}
    for p in _body(code, function):
        if code.binary(p, *others):
            yield Edit(p, p + 1, others[code.code[p].text], _around(code, p))
        elif code.compound(p, "+", "*", "/"):
            operator = code.code[p].text
            yield Edit(p, p + 1, others[operator], _around_assignment(code, p))


def _around_assignment(code: Code, p: int) -> tuple[int, int]:
    return code.operand_start(p - 1), code.operand_end(p + 2)


@_kind(
    "constant off by one", "both", "A size, an offset or a count is one larger than it should be."
)
def _constant(code: Code, function: Function) -> Iterator[Edit]:
    for p in _body(code, function):
        value = _number(code.code[p].text) if code.code[p].kind == "number" else None
        if value is None or (code.code[p - 1].is_op("<", "-") and not code.spaced(p - 1)):
            continue
        before, after = code.code[p - 1], code.code[p + 1]
        # Initial values, subscripts of the first element and messages have separate kinds.
        if value == 0 and not code.binary(p - 1, "==", "!=", *COMPARISONS):
            continue
        if before.is_op("=", "{") and after.is_op(";", "}", ","):
            continue
        shown = _call_around(code, p)
        if code.code[shown[0]].text == "is_aligned":  # some addresses are multiples of 17 too
            continue
        if code.binary(p - 1, "+", "-", "*", "/", "%", "==", "!=", *COMPARISONS):
            shown = (code.operand_start(p - 2), p + 1)
        elif code.binary(p + 1, "+", "-", "*", "/", "%", *COMPARISONS):
            shown = (p, code.operand_end(p + 2))
        yield Edit(p, p + 1, str(value + 1), shown)


def _call_around(code: Code, p: int) -> tuple[int, int]:
    """Return the range of the call, subscript or list that contains the token at p."""
    start = p
    while start > 0 and not code.code[start - 1].is_op("(", "[", "{", ";"):
        start = (
            opening(code.code, start - 1)
            if code.code[start - 1].is_op(")", "]", "}")
            else start - 1
        )
    if start == 0 or code.code[start - 1].is_op(";"):
        return p, p + 1
    end = closing(code.code, start - 1) + 1
    start = code.operand_start(end - 1)
    return (start, end) if end - start < 16 else (p, p + 1)


@_kind("loop bound off by one", "both", "The last round of the loop is missing.")
def _bound(code: Code, function: Function) -> Iterator[Edit]:
    for _, _, (first, second) in _loops(code, function):
        for p in range(first, second):
            if code.binary(p, "<", "<="):
                end = code.operand_end(p + 1)
                yield Edit(p + 1, end, f"{code.text(p + 1, end)} - 1", (first + 1, end))


def _loops(code: Code, function: Function) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (open parenthesis, close parenthesis, semicolons) of each `for` with three parts."""
    for p in _body(code, function):
        if code.code[p].is_word("for") and is_op_at(code.code, p + 1, "("):
            close = closing(code.code, p + 1)
            found = []
            q = p + 2
            while q < close:
                if code.code[q].is_op("(", "[", "{"):
                    q = closing(code.code, q)
                elif code.code[q].is_op(";"):
                    found.append(q)
                q += 1
            if len(found) == 2:
                yield p + 1, close, found


@_kind("loop stride", "both", "The loop leaves elements out, or takes some twice.")
def _stride(code: Code, function: Function) -> Iterator[Edit]:
    for _, close, (_, second) in _loops(code, function):
        for p in range(second + 1, close):
            if code.compound(p, "+"):
                end = code.operand_end(p + 2)
                text = f"2 * {code.text(p + 2, end)}"
                yield Edit(p + 2, end, text, (code.operand_start(p - 1), end))
            elif code.code[p].is_op("++") and code.code[p + 1].is_word():
                yield Edit(p, p + 2, f"{code.code[p + 1].text} += 2")


@_kind("rounded down", "both", "A size is rounded down where it must be rounded up: no tail.")
def _floor(code: Code, function: Function) -> Iterator[Edit]:
    for name, start, close in _calls(code, function, "ceil_div"):
        parts = [code.text(a, b) for a, b in split(code.code, start + 1, close)]
        if len(parts) == 2:
            yield Edit(name, close + 1, f"(({parts[0]}) / ({parts[1]}))")
    for p in _body(code, function):
        # (n + SIZE - 1) / SIZE
        if code.binary(p, "/") and code.code[p - 1].is_op(")"):
            start = opening(code.code, p - 1)
            joints = _top(code, start + 1, p - 1, "+", "-")
            if len(joints) == 2 and code.text(joints[1], p - 1) == "- 1":
                yield Edit(joints[0], p - 1, "", (start, code.operand_end(p + 1)))


_OPPOSITE = {"max": "min", "min": "max", "Max": "Min", "Min": "Max"}


@_kind("min for max", "both", "The smallest instead of the largest, or the other way round.")
def _extreme(code: Code, function: Function) -> Iterator[Edit]:
    for name, _, close in _calls(code, function, r"(__h|atomic|f|std)?(max|min|Max|Min)(f|imum)?"):
        text = code.code[name].text
        other = re.sub("max|min|Max|Min", lambda match: _OPPOSITE[match[0]], text)
        yield Edit(name, name + 1, other, (name, close + 1))


_FACTOR = re.compile(
    r"\w*(scale|inv|rstd|rsqrt|weight|alpha|beta|gamma|factor|shrink|correct|decay|norm|log2e|prob)\w*",
    re.IGNORECASE,
)
_DIVISOR = re.compile(r"(\w*_)?(sum|total|count|mean|length|denominator|norm|cols|rows)(_\w*)?")


@_kind(
    "factor dropped",
    "device",
    "A factor or a divisor of a value or of an index is left out, or the maximum that keeps exp "
    "in range.",
)
def _factor(code: Code, function: Function) -> Iterator[Edit]:
    for p in _body(code, function):
        if code.binary(p, "*"):
            left, right = _around(code, p)
            if _FACTOR.fullmatch(_last_word(code, p + 1, right)):
                yield Edit(p, right, "", (left, right))
            elif _FACTOR.fullmatch(_last_word(code, left, p)):
                yield Edit(left, p + 1, "", (left, right))
        elif code.binary(p, "/"):
            left, right = _around(code, p)
            if _DIVISOR.fullmatch(_last_word(code, p + 1, right)):
                yield Edit(p, right, "", (left, right))
    for name, start, close in _calls(code, function, r"(std)?(__)?exp(2|m1)?f?|exp2_approx"):
        for p in _top(code, start + 1, close, "-"):
            yield Edit(p, code.operand_end(p + 1), "", (name, close + 1))


def _last_word(code: Code, start: int, end: int) -> str:
    """Return the name that an operand ends with, ignoring a subscript: "scale" of
    `row.scale[i]`."""
    p = end - 1
    if code.code[p].is_op("]"):
        p = opening(code.code, p) - 1
    return code.code[p].text if p >= start and code.code[p].is_word() else ""


@_kind("initial value", "both", "A sum, a maximum or a loop does not begin where it should.")
def _initial(code: Code, function: Function) -> Iterator[Edit]:
    others = {
        "0": "1",
        "1": "0",
        "0.0f": "1.0f",
        "0.f": "1.f",
        "0.0": "1.0",
        "1.0f": "0.0f",
        "-INFINITY": "0",
        "INFINITY": "0",
        "true": "false",
        "false": "true",
    }
    for p in _body(code, function):
        if not (is_op_at(code.code, p, "=") and code.spaced(p)):
            continue
        end = p + 1
        while end < function.end and not code.code[end].is_op(";", ",", ")", "(", "}", "{"):
            end += 1
        start = _declared(code, p)
        if start < 0 or _handed_out(code, function, end, code.code[p - 1].text):
            continue
        if code.text(p + 1, end) in others and code.code[end].is_op(";", ","):
            yield Edit(p + 1, end, others[code.text(p + 1, end)], (start, end))
        elif code.code[p + 2].is_op("{") and code.text(p + 3, p + 4) in ("0", "1"):
            value = "1" if code.code[p + 3].text == "0" else "0"
            yield Edit(p + 3, p + 4, value, (start, p + 5))


def _handed_out(code: Code, function: Function, start: int, name: str) -> bool:
    """Return True if the next use of a variable passes its address to a call, which writes it."""
    for p in range(start, function.end - 1):
        if code.code[p].is_word(name):
            return code.code[p - 1].is_op("&") and code.code[p - 2].is_op("(", ",")
    return False


def _declared(code: Code, p: int) -> int:
    """Return the start of the declaration, at its type's last word, whose name precedes the `=` at
    p; -1 if there is none."""
    name = code.operand_start(p - 1)
    if not code.code[name].is_word() or name == 0:
        return -1
    before = code.code[name - 1]
    typed = before.is_word() and before.text not in ("return", "else", "constexpr")
    return name - 1 if typed or before.is_op(">", "*") else (name if before.is_op(",") else -1)


# Types --------------------------------------------------------------------------------------------


@_kind("accumulator narrowed", "device", "Sums lose digits in a type that is too small for them.")
def _narrow(code: Code, function: Function) -> Iterator[Edit]:
    narrower = {"float": "__half", "double": "float"}
    for p in _body(code, function):
        token, name = code.code[p], code.code[p + 1]
        if not (token.is_word(*narrower) and name.is_word()):
            continue
        if code.code[p + 2].is_op("=", "[", "{", ";", ",") and _accumulates(
            code, function, name.text
        ):
            yield Edit(p, p + 1, narrower[token.text], (p, p + 2))


def _accumulates(code: Code, function: Function, name: str) -> bool:
    """Return True if the function adds to this variable."""
    for p in range(function.body, function.end):
        if code.compound(p, "+"):
            start = code.operand_start(p - 1)
            if code.code[start].text == name:
                return True
    return False


@_kind(
    "64-bit index in 32 bits",
    "both",
    "Right up to 2^31 elements, and beyond them wrong.",
    watched=False,
    narrows=True,
)
def _index(code: Code, function: Function) -> Iterator[Edit]:
    for p in range(function.start, function.end):
        if not code.code[p].is_word("int64_t"):
            continue
        following = code.code[p + 1]
        if following.is_word() and not code.code[p - 1].is_op("<"):
            if not (code.code[p - 1].is_word("const") and _fits_32_bits(code, function, p + 2)):
                yield Edit(p, p + 1, "int", (p, p + 2))
        elif following.is_op("{") and p > function.body:
            close = closing(code.code, p + 1)
            text = code.text(p + 2, close) if close > p + 2 else ""
            if text and not _short_grid(code, p, text):
                yield Edit(p, close + 1, f"({text})" if " " in text else text, _widened(code, p))


def _widened(code: Code, p: int) -> tuple[int, int]:
    """Return the range of the product whose first factor at p is widened, or of that value."""
    end = code.operand_end(p)
    return (p, code.operand_end(end + 1)) if code.binary(end, "*") else (p, end)


def _short_grid(code: Code, p: int, text: str) -> bool:
    """Return True if a block's index along y or z is widened at p and multiplied by a constant:
    there are at most 65535 blocks, so the product fits."""
    if not re.fullmatch(r"(blockIdx|gridDim)\.[yz]", text):
        return False
    _, end = _widened(code, p)
    factor = code.code[end - 1]
    return end > closing(code.code, p + 1) + 1 and (
        factor.text.isupper() or factor.kind == "number"
    )


def _fits_32_bits(code: Code, function: Function, p: int) -> bool:
    """Return True if the value after the `=` at p consists of 32-bit values, none of which grows
    with the grid, so that it fits in 32 bits."""
    if not is_op_at(code.code, p, "="):
        return False
    mine = _declared_short(code, function.start, function.end)
    everywhere = _declared_short(code, 0, len(code.code))
    end = statement_end(code.code, p)
    q = p + 1
    while q < end:
        token = code.code[q]
        if token.is_word("threadIdx", "blockDim") and is_op_at(code.code, q + 1, "."):
            q += 2
        elif token.is_word("static_cast") and code.text(q + 1, q + 4) in ("<int>", "<unsigned>"):
            q = closing(code.code, q + 4)
        elif token.is_word():
            called = is_op_at(code.code, q + 1, "(")
            short = token.text in (everywhere if called else mine)
            if not (short or (token.text.isupper() and not called)):
                return False
            if called:
                q = closing(code.code, q + 1)
        elif not (token.kind == "number" or token.is_op("+", "-", "*", "/", "%", "(", ")")):
            return False
        q += 1
    return True


@lru_cache(maxsize=8)
def _declared_short(code: Code, start: int, end: int) -> set[str]:
    """Return the names, also of functions, that are declared in [start, end) with at most 32
    bits."""
    pairs = list(itertools.pairwise(code.code[start:end]))
    short = {b.text for a, b in pairs if a.is_word("int", "unsigned", "bool") and b.is_word()}
    return short - {b.text for a, b in pairs if a.is_word("int64_t") and b.is_word()}


# Indices ------------------------------------------------------------------------------------------


@_kind(
    "other dimension",
    "both",
    "The index or the size is that of another dimension of the grid or the block.",
)
def _dimension(code: Code, function: Function) -> Iterator[Edit]:
    others = {"x": "y", "y": "x", "z": "x"}
    for p in _body(code, function):
        if (
            code.code[p].is_word("threadIdx", "blockIdx", "blockDim", "gridDim")
            and is_op_at(code.code, p + 1, ".")
            and code.code[p + 2].text in others
        ):
            yield Edit(p + 2, p + 3, others[code.code[p + 2].text], (p, p + 3))


@_kind("transposed", "device", "Row and column, or two other operands, have changed places.")
def _transposed(code: Code, function: Function) -> Iterator[Edit]:
    for p in _body(code, function):
        if is_op_at(code.code, p, "]") and is_op_at(code.code, p + 1, "["):
            first, second = opening(code.code, p), closing(code.code, p + 1)
            if code.code[first - 1].is_op("]") or is_op_at(code.code, second + 1, "["):
                continue
            row, column = code.text(first + 1, p), code.text(p + 2, second)
            start = code.operand_start(second)
            if row != column and not code.code[start - 1].is_word():  # not a declaration
                yield Edit(first, second + 1, f"[{column}][{row}]", (start, second + 1))
        elif code.binary(p, "*"):
            left, right = _around(code, p)
            if right < function.end and code.binary(right, "+"):
                end = code.operand_end(right + 1)
                row, column = code.text(left, p), code.text(right + 1, end)
                if re.fullmatch(r"\w+", row) and re.fullmatch(r"\w+", column) and row != column:
                    text = f"{column} * {code.text(p + 1, right)} + {row}"
                    yield Edit(left, end, text)


# Launchers ----------------------------------------------------------------------------------------


def _launches(code: Code, function: Function) -> Iterator[list[tuple[int, int]]]:
    """Yield the parts of each launch's configuration: grid, block, bytes, stream."""
    for p in _body(code, function):
        if code.code[p].is_op("<<<"):
            yield split(code.code, p + 1, configuration(code.code, p, 1)[0])


@_kind(
    "grid or block size", "host", "Blocks or threads are missing: some elements are never written."
)
def _launch_size(code: Code, function: Function) -> Iterator[Edit]:
    three = {
        code.code[p + 1].text
        for p in range(function.body, function.end)
        if code.code[p].is_word("dim3") and code.code[p + 1].is_word()
    }
    for parts in _launches(code, function):
        grid, block = (code.text(a, b) for a, b in parts[:2])
        if grid in three:
            yield Edit(*parts[0], f"dim3({grid}.x, 1, {grid}.z)")
        elif grid != "1" and not grid.startswith("dim3"):
            yield Edit(*parts[0], f"({grid}) - 1")
        if block in three:
            yield Edit(*parts[1], f"dim3({block}.x, 1, {block}.z)")
        elif block != "1" and not block.startswith("dim3"):
            yield Edit(*parts[1], f"({block}) / 2")


@_kind(
    "validation dropped", "host", "An argument that the kernel cannot take is taken.", watched=False
)
def _validation(code: Code, function: Function) -> Iterator[Edit]:
    for p in range(function.body, function.end):
        if code.code[p].is_word("STD_TORCH_CHECK", "TORCH_CHECK"):
            close = closing(code.code, p + 1)
            if _statement(code, p, close + 1):
                yield Edit(p, close + 1, "")
    for name, _, close in _calls(code, function, r"(check|require)_(?!cuda$|launch$)\w+"):
        if _statement(code, name, close + 1):
            yield Edit(name, close + 1, "")
    for start, end in _chained(code, function):
        if code.code[start + 1].text not in ("contiguous", *_DEVICES):
            yield Edit(start, end, "", (_chain_start(code, start), end))


_DEVICES = ("on_gpu", "on_host", "same_device")
DEVICE_CHECK = "device check dropped"


@_kind(DEVICE_CHECK, "host", "A tensor of another device reaches the kernel.", watched=False)
def _device(code: Code, function: Function) -> Iterator[Edit]:
    tied = _tied(code, function)
    for start, end in _chained(code, function):
        method = code.code[start + 1].text
        first = _chain_start(code, start)
        if method == "on_gpu" and code.text(first + 2, first + 3) in tied:
            continue  # the check of the other tensor's device refuses this one as well
        if method in _DEVICES:
            yield Edit(start, end, "", (first, end))


def _tied(code: Code, function: Function) -> set[str]:
    """Return the tensors whose own device check is redundant: a check of two tensors' devices ties
    them to another one that is checked to be on the GPU, here or, if nothing else of it is checked
    here, in the caller."""
    chains: dict[str, set[str]] = {}
    pairs = []
    for start, _ in _chained(code, function):
        name = code.code[_chain_start(code, start) + 2].text
        method = code.code[start + 1].text
        chains.setdefault(name, set()).add(method)
        if method in ("like", "same_device"):
            pairs.append((name, code.code[start + 3].text))
    tied = {one for one, other in pairs if "on_gpu" in chains.get(other, ("on_gpu",))}
    return tied | {other for one, other in pairs if "on_gpu" in chains[one]}


def _chain_start(code: Code, p: int) -> int:
    return code.operand_start(p - 1)


def _chained(code: Code, function: Function) -> Iterator[tuple[int, int]]:
    """Yield the calls `.method(…)` that follow a `check(x, "x")`."""
    for _, _, close in _calls(code, function, "check"):
        p = close + 1
        while is_op_at(code.code, p, ".") and is_op_at(code.code, p + 2, "("):
            end = closing(code.code, p + 2) + 1
            yield p, end
            p = end


@_kind(
    "contiguity check dropped",
    "host",
    "Strides are ignored: the kernel reads other elements.",
    watched=False,
)
def _contiguity(code: Code, function: Function) -> Iterator[Edit]:
    for start, end in _chained(code, function):
        if code.code[start + 1].text == "contiguous":
            yield Edit(start, end, "", (_chain_start(code, start), end))


@_kind("alignment check dropped", "host", "A 16-byte load from an address that it cannot load.")
def _alignment(code: Code, function: Function) -> Iterator[Edit]:
    for name, _, close in _calls(code, function, "is_aligned"):
        yield Edit(name, close + 1, "true")


@_kind("empty input not handled", "host", "A grid of zero blocks is a launch error.", watched=False)
def _empty(code: Code, function: Function) -> Iterator[Edit]:
    for p in _body(code, function):
        if not (code.code[p].is_word("if") and is_op_at(code.code, p + 1, "(")):
            continue
        close = closing(code.code, p + 1)
        zero = any(
            code.binary(q, "==") and code.code[q + 1].text == "0" for q in range(p + 2, close)
        )
        if zero and code.code[close + 1].is_word("return"):
            yield Edit(p, statement_end(code.code, close + 1), "")


@_kind(
    "device guard dropped",
    "host",
    "The kernel starts on another GPU than the one that holds the tensor.",
    left_out=True,
    watched=False,
)
def _guard(code: Code, function: Function) -> Iterator[Edit]:
    for p in _body(code, function):
        if code.code[p].is_word("DeviceGuard"):
            end = statement_end(code.code, p)
            start = p - 1 if code.code[p - 1].is_word("const") else p
            yield Edit(start, end, "")


@_kind(
    "default stream",
    "host",
    "The kernel does not wait for the work that produces its input.",
    left_out=True,
    watched=False,
)
def _stream(code: Code, function: Function) -> Iterator[Edit]:
    for name, _, close in _calls(code, function, "current_stream"):
        yield Edit(name, close + 1, "nullptr")


@_kind(
    "event wait removed",
    "host",
    "A stream no longer waits for the work of another: it reads too early, or overwrites what is "
    "still read.",
    watched=False,
)
def _event(code: Code, function: Function) -> Iterator[Edit]:
    for name, _, close in _calls(code, function, "cudaStreamWaitEvent"):
        start, end = name, close + 1
        if is_op_at(code.code, start - 1, "(") and code.code[start - 2].is_word("check_cuda"):
            start, end = start - 2, closing(code.code, start - 1) + 1
        if _statement(code, start, end):
            yield Edit(start, end, "")


def edits(code: Code, function: Function) -> Iterator[tuple[Kind, Edit]]:
    """Yield all single changes of a function, by kind."""
    for kind in KINDS:
        if kind.where != "both" and (kind.where == "device") != function.on_device:
            continue
        try:
            for edit in kind.find(code, function):
                yield kind, edit
        except TokenError:
            continue  # a bracket that this parser does not understand: no mutants of this kind
