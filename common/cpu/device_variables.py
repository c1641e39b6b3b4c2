"""Put `__device__` variables of a program apart from those of the host.

__device__ int counter;            CUDACPU_DEVICE_VARIABLE int counter;

On a GPU, host code that uses such a variable gets another one of the same name, which no kernel
sees. Here both are one, so their pages are closed to host code (runtime/device_pages.cpp). Left as
they are: constants, templates, members of classes, and variables of a class, which may have a
constructor.
"""

from collections.abc import Sequence

from common.cpu.lexer import Token
from common.cpu.stream import Stream
from common.cpu.syntax import ATTRIBUTE_WORDS, closing, semicolons, statement_start

_TYPES = (
    *("int", "unsigned", "signed", "char", "short", "long", "bool", "float", "double"),
    *("size_t", "int8_t", "int16_t", "int32_t", "int64_t"),
    *("uint8_t", "uint16_t", "uint32_t", "uint64_t"),
)
_OTHERS = ("__constant__", "__managed__", "__shared__", "__global__", "__host__")
_LEFT = (*_OTHERS, "const", "constexpr", "inline", "template", "typedef", "extern")


def edit(stream: Stream) -> None:
    """Mark the declaration of each such variable at file scope."""
    tokens = stream.tokens
    for p, token in enumerate(tokens):
        scope = stream.scopes[p]
        if not token.is_word("__device__") or stream.is_macro:
            continue
        if scope and not _is_namespace(tokens, scope.start):
            continue
        start = statement_start(tokens, p)
        end = _end_of_declarator(tokens, p)
        words = {t.text for t in tokens[start:end] if t.is_word()}
        if end < len(tokens) and words & {*_TYPES} and not words & {*_LEFT}:
            rest = range(end, next(semicolons(tokens, end, len(tokens)), len(tokens)))
            has_value = any(tokens[q].is_op("=", "{") for q in rest)
            stream.insert_before(start, f"CUDACPU_DEVICE_{'VALUE' if has_value else 'VARIABLE'} ")


def _is_namespace(tokens: Sequence[Token], brace: int) -> bool:
    head = tokens[statement_start(tokens, brace) : brace]
    return any(token.is_word("namespace", "extern") for token in head)


def _end_of_declarator(tokens: Sequence[Token], p: int) -> int:
    """Return the position of the `=`, `{`, `,` or `;` that ends a variable's first declarator; the
    number of tokens if p is in the declaration of something else."""
    while p < len(tokens) and not tokens[p].is_op("=", "{", ",", ";"):
        if tokens[p].is_op("(") and not tokens[p - 1].is_word(*ATTRIBUTE_WORDS):
            return len(tokens)
        p = closing(tokens, p, or_last=True) + 1 if tokens[p].is_op("(", "[") else p + 1
    return p
