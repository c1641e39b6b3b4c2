"""Record the place of a call of the runtime whose error the program does not look at.

cudaFree(p);                       ::cudacpu::unchecked(cudaFree(p), {__FILE__, 7}, "cudaFree");

If it fails, and no later call asks for the last error, the program says so at its end.
"""

from collections.abc import Set

from common.cpu import features
from common.cpu.stream import Stream
from common.cpu.syntax import closing, is_op_at

_ASK = frozenset(("cudaGetLastError", "cudaPeekAtLastError"))
_NO_ERRORS = frozenset(("cudaGetErrorName", "cudaGetErrorString", "cudaCreateChannelDesc"))
_CALLS = features.RUNTIME_API - _ASK - _NO_ERRORS


def edit(stream: Stream, declared: Set[str]) -> None:
    """Wrap each such call that is a statement; declared: names that are the project's own."""
    tokens = stream.tokens
    for p in range(1, len(tokens)):
        name = tokens[p].text
        if not tokens[p].is_word() or name not in _CALLS or name in declared:
            continue
        start = p - 1 if tokens[p - 1].is_op("::") else p
        before = tokens[start - 1]
        begins = before.is_op(";", "{", "}", ")") or before.is_word("else", "do")
        if not begins or tokens[start - 2].is_word("void") or not is_op_at(tokens, p + 1, "("):
            continue
        close = closing(tokens, p + 1, or_last=True)
        if not is_op_at(tokens, close + 1, ";"):
            continue
        stream.insert_before(start, "::cudacpu::unchecked(")
        stream.insert_after(close, f', {{__FILE__, {stream.line_of(p)}}}, "{name}")')
