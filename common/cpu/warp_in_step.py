"""Find statements that are right only if the threads of a warp execute each instruction together.

Code for GPUs before Volta ends a reduction without waiting,

    volatile int* v = x;
    v[t] += v[t + 16];
    v[t] += v[t + 8];  // reads what another thread wrote one line above

which no GPU since guarantees to work. Here each thread runs on alone, so the result differs. The
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
    earlier: set[str] = set()  # arrays exchanged by a statement without a later wait
    for p, token in enumerate(tokens):
        if not token.is_word():
            continue
        if token.is_word(*_BEGINS_CODE) or "sync" in token.text or token.is_word("arrive_and_wait"):
            earlier.clear()
        elif token.text in names and stream.on_device(p) and _exchanges(tokens, p):
            if token.text in earlier:
                stream.insert_before(p, "::cudacpu::warp_in_step(), ")
            earlier.add(token.text)


def _exchanges(tokens: Sequence[Token], p: int) -> bool:
    """Return True if a statement that assigns to an element and reads another one of it begins at
    p."""
    if not (tokens[p - 1].is_op(";", "{", "}", ")") or tokens[p - 1].is_word("else")):
        return False
    if not is_op_at(tokens, p + 1, "["):
        return False
    close = closing(tokens, p + 1, or_last=True)
    begin = next((q for q in (close + 1, close + 2) if is_op_at(tokens, q, "=")), None)
    if begin is None:
        return False
    written = flat(tokens[p + 1 : close])
    end = next(semicolons(tokens, begin, len(tokens), or_last=True), len(tokens))
    elements = (
        flat(tokens[q + 1 : closing(tokens, q + 1, or_last=True)])
        for q in range(begin, end)
        if tokens[q].is_word(tokens[p].text) and is_op_at(tokens, q + 1, "[")
    )
    return any(element != written for element in elements)
