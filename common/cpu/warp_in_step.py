"""Find statements that are right only if the threads of a warp execute each instruction together.

Code for GPUs before Volta ends a reduction without waiting,

    volatile int* v = x;
    v[t] += v[t + 16];
    v[t] += v[t + 8];  // reads what another thread wrote one line above

which no GPU since guarantees to work, whether the sum is in `v[t]` or in a local variable
(`s += v[t + 16]; v[t] = s;`). Here each thread runs on alone, so the result differs. The
second such statement records its line when it is executed, and the program names it at its end.
"""

from collections.abc import Sequence, Set

from common.cpu.lexer import Token
from common.cpu.stream import Stream
from common.cpu.syntax import closing, flat, is_op_at, semicolons

_BEGINS_CODE = ("__global__", "__device__")


def edit(stream: Stream, names: Set[str]) -> None:
    """Make such statements in device code call `cudacpu::warp_in_step`.

    names: volatile variables, by waiting_loops.volatile_names.
    """
    tokens = stream.tokens
    read: dict[str, set[str]] = {}  # indices of each array, read before the position without a wait
    exchanged: set[str] = set()  # arrays of which an element was written after another one was read
    for p, token in enumerate(tokens):
        if not token.is_word():
            continue
        if token.is_word(*_BEGINS_CODE) or "sync" in token.text or token.is_word("arrive_and_wait"):
            read.clear()
            exchanged.clear()
        elif token.text in names and stream.on_device(p) and is_op_at(tokens, p + 1, "["):
            value = _assigned_at(tokens, p)
            index = _index(tokens, p)
            if value is None:
                read.setdefault(token.text, set()).add(index)
                continue
            indices = {*read.get(token.text, ()), *_indices(tokens, token.text, *value)}
            if not indices - {index}:
                continue
            if token.text in exchanged:
                stream.insert_before(p, "::cudacpu::warp_in_step(), ")
            exchanged.add(token.text)


def _assigned_at(tokens: Sequence[Token], p: int) -> tuple[int, int] | None:
    """Return the range of the value that a statement which begins at p assigns to an element; None
    if the element at p is read."""
    if not (tokens[p - 1].is_op(";", "{", "}", ")") or tokens[p - 1].is_word("else")):
        return None
    close = closing(tokens, p + 1, or_last=True)
    begin = next((q for q in (close + 1, close + 2) if is_op_at(tokens, q, "=")), None)
    if begin is None:
        return None
    return begin, next(semicolons(tokens, begin, len(tokens), or_last=True), len(tokens))


def _index(tokens: Sequence[Token], p: int) -> str:
    """Return the index of the element at p."""
    return flat(tokens[p + 2 : closing(tokens, p + 1, or_last=True)])


def _indices(tokens: Sequence[Token], array: str, begin: int, end: int) -> set[str]:
    """Return the indices of the elements of an array in [begin, end)."""
    return {
        _index(tokens, q)
        for q in range(begin, end)
        if tokens[q].is_word(array) and is_op_at(tokens, q + 1, "[")
    }
