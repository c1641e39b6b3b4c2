"""Add the pair's type to assignments of a pair in braces, `v = {a, b};`."""

from collections.abc import Sequence

from common.cpu.lexer import Token
from common.cpu.stream import Stream
from common.cpu.syntax import closing, expression_start, flat, is_op_at, split


def edit(stream: Stream) -> None:
    """Insert the type in `v = {a, b};`, in device code.

    For __half2 and __nv_bfloat162 the assignment is ambiguous to g++ and clang: their elements
    convert to integers, and NVIDIA's headers also accept a pair of these. nvcc accepts it.
    """
    tokens = stream.tokens
    for p, token in enumerate(tokens):
        if not (token.is_op("=") and is_op_at(tokens, p + 1, "{") and stream.on_device(p)):
            continue
        close = closing(tokens, p + 1)
        start = _assigned_start(tokens, p)
        if start is not None and len(split(tokens, p + 2, close)) == 2:
            target = flat(tokens[start:p])
            stream.insert_before(p + 1, f"::std::remove_reference_t<decltype({target})>")


def _assigned_start(tokens: Sequence[Token], p: int) -> int | None:
    """Return the start of the statement that assigns by the `=` at p; None in a declaration."""
    if p == 0 or not (tokens[p - 1].is_word() or tokens[p - 1].is_op("]", ")")):
        return None
    start = expression_start(tokens, p - 1)
    while start > 0 and tokens[start - 1].is_op("*"):
        start -= 1
    before = tokens[start - 1] if start > 0 else None
    begins = before and (before.is_op(";", "{", "}", ")") or before.is_word("else", "do"))
    return start if begins else None
