"""Turn launches into calls of an object that holds the kernel and the launch's configuration.

k<T><<<grid, block>>>(x, n);       ::cudacpu::launcher({...}, [=](auto&... a) { k<T>(a...); },
                                                       grid, block)(x, n);

An argument whose type its parameter decides is wrapped: `NULL` and `{a, b}` become objects that
convert, and next to a `0` the kernel decides whether it takes an int.

names.py handles launches by a function such as cudaLaunchKernel: only the callee changes.
"""

from collections.abc import Sequence

from common.cpu.lexer import Token
from common.cpu.stream import Stream
from common.cpu.syntax import (
    TokenError,
    angle_closing,
    closing,
    expression_start,
    flat,
    is_op_at,
    split,
)


def edit(stream: Stream) -> None:
    """Turn each launch into a call of the object that `cudacpu::launcher` makes."""
    tokens = stream.tokens
    for p, token in enumerate(tokens):
        opening = _opening_tokens(tokens, p)
        if not opening or (p > 0 and tokens[p - 1].is_word("operator")):
            continue
        if stream.on_device(p):
            raise TokenError(token, "a launch from device code is not supported on the CPU backend")
        if p == 0:
            raise TokenError(token, "a launch without a kernel")
        start = expression_start(tokens, p - 1)
        close, closing_tokens = configuration(tokens, p, opening)
        if len(split(tokens, p + opening, close)) < 2:
            raise TokenError(token, "a launch needs a grid and a block: <<<grid, block>>>")
        kernel = flat(tokens[start:p])
        line = stream.line_of(start)
        # By value: a graph may run it when the caller's variables are gone. A kernel's name may
        # stand for a template, or for several kernels, until the arguments are known.
        if _is_name(tokens, start, p):
            head, call = "[=](auto&... cudacpu_args) { ", "(cudacpu_args...); }, "
            if _convert_arguments(stream, close + closing_tokens):
                fits = f"[](auto&... cudacpu_args) -> decltype({kernel}(cudacpu_args...)) {{}}"
                head = f"::cudacpu::int_or_zero({fits}, {head}"
                call = "(cudacpu_args...); }), "
        else:
            head = "[cudacpu_kernel = "
            call = "](auto&... cudacpu_args) { cudacpu_kernel(cudacpu_args...); }, "
        stream.insert_before(
            start,
            f"::cudacpu::launcher({{CUDACPU_TEXT({kernel}), __FILE__, {line}}}, {head}",
        )
        for q in (*range(p, p + opening), *range(close, close + closing_tokens)):
            stream.replace(q, "")
        stream.replace(p, call)
        stream.replace(close, ")")


def _convert_arguments(stream: Stream, p: int) -> bool:
    """Wrap the arguments between the parentheses that open at p; return True if one is a `0`."""
    tokens = stream.tokens
    zero = False
    for begin, end in split(tokens, p + 1, closing(tokens, p)):
        if tokens[begin].is_op("{") and closing(tokens, begin) == end - 1:
            make = "::cudacpu::braced([=](auto cudacpu_type) { return typename decltype"
            stream.insert_before(begin, f"{make}(cudacpu_type)::type")
            stream.insert_after(end - 1, "; })")
        elif end == begin + 1 and tokens[begin].is_word("NULL"):
            stream.replace(begin, "::cudacpu::Null{}")
        elif end == begin + 1 and tokens[begin].text == "0":
            stream.replace(begin, "::cudacpu::Zero{}")
            zero = True
    return zero


def _opening_tokens(tokens: Sequence[Token], p: int) -> int:
    """Return the number of tokens of a `<<<` that begins at p; 0 for none. Some formatters write
    `<< <`, which has no other meaning."""
    if tokens[p].is_op("<<<"):
        return 1
    return 2 if tokens[p].is_op("<<") and is_op_at(tokens, p + 1, "<") else 0


# How `>>>` may be written with blanks.
_SPACED = ((">>", ">"), (">", ">>"), (">", ">", ">"))


def _closing_tokens(tokens: Sequence[Token], q: int) -> int:
    """Return the number of tokens of a `>>>` with blanks, before a parenthesis, that begins at q; 0
    for none."""
    for parts in _SPACED:
        matches = all(is_op_at(tokens, q + k, text) for k, text in enumerate(parts))
        if matches and is_op_at(tokens, q + len(parts), "("):
            return len(parts)
    return 0


def _is_name(tokens: Sequence[Token], start: int, end: int) -> bool:
    """Return True if [start, end) is only a name, possibly in parentheses."""
    if tokens[start].is_op("(") and closing(tokens, start) == end - 1:
        return _is_name(tokens, start + 1, end - 1)
    q = start
    while q < end:
        if tokens[q].is_op("<"):
            q = angle_closing(tokens, q)
        elif not tokens[q].is_word() and not tokens[q].is_op("::"):
            return False
        q += 1
    return True


def configuration(tokens: Sequence[Token], p: int, opening: int) -> tuple[int, int]:
    """Return the position of the `>>>` that ends the launch configuration opened at p by `opening`
    tokens, and its number of tokens."""
    templates = 0  # open template brackets within the configuration
    q = p + opening
    while q < len(tokens) and not tokens[q].is_op(";", "<<<"):
        token = tokens[q]
        if token.is_op("(", "[", "{"):
            q = closing(tokens, q)
        elif token.is_op("<") and tokens[q - 1].is_word():
            templates += 1
        elif not templates and (spaced := _closing_tokens(tokens, q)):
            return q, spaced
        elif token.is_op(">", ">>"):
            templates = max(0, templates - len(token.text))
        elif token.is_op(">>>") and is_op_at(tokens, q + 1, "("):
            if templates < 3:
                return q, 1
            templates -= 3
        q += 1
    raise TokenError(tokens[p], "this launch has no matching '>>>(…)'")
