"""Make the first statement of each kernel report the kernel to the runtime.

__global__ void k(...) {           __global__ void k(...) { CUDACPU_ENTRY((&k), 0)

A launch does not know its kernel: template arguments may have been deduced. The runtime needs the
kernel's address, to which cudaFuncSetAttribute refers, the limit of __launch_bounds__ and the
extents of __cluster_dims__.
"""

from collections.abc import Sequence

from common.cpu.lexer import Token
from common.cpu.stream import Stream
from common.cpu.syntax import (
    ATTRIBUTE_WORDS,
    TokenError,
    angle_closing,
    angle_opening,
    closing,
    flat,
    is_op_at,
    opening,
    split,
    statement_start,
    top_level,
)

_TYPE_WORDS = (
    *("typename", "class", "int", "bool", "char", "short", "long", "unsigned", "signed"),
    *("float", "double", "auto", "size_t"),
)


def edit(stream: Stream) -> None:
    """Insert a CUDACPU_ENTRY at the start of every kernel."""
    tokens = stream.tokens
    kernels: list[tuple[int, str, list[str]]] = []
    for p, token in enumerate(tokens):
        if not token.is_op("{"):
            continue
        head = statement_start(tokens, p)
        if any(t.is_word("__global__") for t in tokens[head:p]):
            _refuse_copied_maps(tokens[head:p])
            kernels.append((p, *_identity(tokens, head, p)))
    for p, name, limits in kernels:
        known = name and tokens[p - 1].is_op(")") and not _has_parameter(tokens, p, name)
        address = f"(static_cast<{_type(tokens, p)}>(&{name}))" if known else "(nullptr)"
        stream.insert_after(p, f" CUDACPU_ENTRY({', '.join([address, *limits])})")


def _type(tokens: Sequence[Token], body: int) -> str:
    """Return the type of a pointer to the kernel whose body starts at `body`: it chooses among
    functions of one name, which may be another kernel or one of the C library, such as `div`."""
    parameters = []
    for begin, end in split(tokens, opening(tokens, body - 1) + 1, body - 1):
        default = next((q for q in top_level(tokens, begin, end) if tokens[q].is_op("=")), end)
        parameters.append(flat(tokens[begin:default]))
    return f"void (*)({', '.join(parameters)})"


def _has_parameter(tokens: Sequence[Token], body: int, name: str) -> bool:
    """Return True if a parameter of the function whose body starts at `body` hides a name."""
    if not tokens[body - 1].is_op(")"):
        return False
    start = opening(tokens, body - 1)
    return any(
        token.is_word(name) and tokens[p + 1].is_op(",", ")", "[")
        for p, token in enumerate(tokens[start:body], start)
    )


def _refuse_copied_maps(head: Sequence[Token]) -> None:
    """Raise an error for a tensor map that is copied: it must be a parameter that keeps its
    address.

    On a GPU, TMA would not find a thread's copy of a plain parameter.
    """
    for p, token in enumerate(head):
        if not token.is_word("TensorMap", "CUtensorMap"):
            continue
        start = p
        while start > 0 and not head[start - 1].is_op("(", ","):
            start -= 1
        following = head[p + 1] if p + 1 < len(head) else token
        in_place = any(t.is_word("__grid_constant__") for t in head[start : p + 2])
        if not in_place and not following.is_op("*", "&"):
            raise TokenError(
                token, "a kernel takes a tensor map as `const __grid_constant__ ptx::TensorMap`"
            )


def _identity(tokens: Sequence[Token], head: int, body: int) -> tuple[str, list[str]]:
    """Return the name with template arguments (or ""), and the launch bounds.

    The bounds are the number of threads (0: any), then the extents of a cluster, if any.
    """
    parameters: list[str] | None = []
    specialised = False
    bound = "0"
    cluster: list[str] = []
    q = head
    while q < body:
        token = tokens[q]
        if token.is_word("template") and is_op_at(tokens, q + 1, "<"):
            close = angle_closing(tokens, q + 1)
            parameters = _parameter_names(tokens, q + 2, close)
            specialised = close == q + 2
            q = close
        elif token.is_word("__launch_bounds__") and is_op_at(tokens, q + 1, "("):
            close = closing(tokens, q + 1)
            parts = split(tokens, q + 2, close)
            bound = flat(tokens[slice(*parts[0])]) if parts else "0"
            q = close
        elif token.is_word("__cluster_dims__") and is_op_at(tokens, q + 1, "("):
            close = closing(tokens, q + 1)
            cluster = [flat(tokens[slice(*part)]) for part in split(tokens, q + 2, close)]
            q = close
        elif token.is_word(*ATTRIBUTE_WORDS, "requires") and is_op_at(tokens, q + 1, "("):
            q = closing(tokens, q + 1)
        elif token.is_op("(") and q > head:
            if any(t.is_word("__global__") for t in tokens[head:q]):
                break
            q = closing(tokens, q)  # a macro before the kernel, with no semicolon
        q += 1
    start = q - 1
    if tokens[start].is_op(">", ">>"):
        start = angle_opening(tokens, start) - 1
        specialised = True
    if not tokens[start].is_word() or parameters is None:
        return "", [bound, *cluster]
    name = flat(tokens[start:q])
    if parameters and not specialised:
        name += f"<{', '.join(parameters)}>"
    return name, [bound, *cluster]


def _parameter_names(tokens: Sequence[Token], start: int, end: int) -> list[str] | None:
    """Return template parameters as template arguments; None if one of them has no name."""
    names = []
    for begin, stop in split(tokens, start, end):
        q = begin
        while q < stop and not tokens[q].is_op("="):
            q = angle_closing(tokens, q) if tokens[q].is_op("<") else q
            q += 1
        last = tokens[q - 1]
        unnamed = q - 1 == begin or not last.is_word() or last.text in _TYPE_WORDS
        if unnamed or tokens[q - 2].is_op("::"):
            return None
        names.append(last.text + ("..." if tokens[q - 2].is_op(".") else ""))
    return names
