"""Find the ends of brackets, statements and expressions, as positions in a run of tokens.

The meaning of names is unknown here: a `<` opens template arguments if its place suggests it. A
construct without a beginning or end raises TokenError, unless a function documents otherwise.
"""

from collections.abc import Iterator, Sequence

from common.cpu.lexer import Token

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OPENING = {close: opening for opening, close in _CLOSING.items()}

STATEMENT_WORDS = frozenset(("return", "else", "do", "case", "goto", "throw", "new", "delete"))
_CONDITION_WORDS = frozenset(("if", "while", "for", "switch", "catch"))

# What has parentheses in a declaration that hold no parameters.
ATTRIBUTE_WORDS = (
    *("alignas", "__align__", "__attribute__", "__launch_bounds__", "__cluster_dims__"),
    *("__maxnreg__", "__block_size__", "decltype"),
)


class TokenError(Exception):
    """Code that the rewriter cannot parse, or the backend cannot run, at `token`."""

    def __init__(self, token: Token, what: str) -> None:
        super().__init__(f"line {token.line}: {what}")
        self.token = token
        self.what = what


def flat(tokens: Sequence[Token]) -> str:
    """Return these tokens on one line, without comments."""
    text = ""
    for token in tokens:
        glued = text[-1:].isalnum() or text[-1:] == "_"
        word = token.kind in ("word", "number")
        text += (" " if glued and word else "") + token.text + (" " if token.is_op(",") else "")
    return text


def is_op_at(tokens: Sequence[Token], p: int, *texts: str) -> bool:
    """Return True if one of these operators is at p; False beyond the last token."""
    return p < len(tokens) and tokens[p].is_op(*texts)


# Brackets -----------------------------------------------------------------------------------------


def closing(tokens: Sequence[Token], p: int, *, or_last: bool = False) -> int:
    """Return the position of the bracket that closes the one at p.

    or_last: if none does, the position of the last token. This is for code whose #if and #else each
    open a brace: it compiles, and has a brace too many here.
    """
    depth = 0
    for q in range(p, len(tokens)):
        if tokens[q].kind == "op":
            if tokens[q].text in _CLOSING:
                depth += 1
            elif tokens[q].text in _OPENING:
                depth -= 1
                if depth == 0:
                    return q
    if or_last:
        return len(tokens) - 1
    raise TokenError(tokens[p], f"'{tokens[p].text}' is never closed")


def opening(tokens: Sequence[Token], p: int) -> int:
    """Return the position of the bracket that opens the one closed at p."""
    depth = 0
    for q in range(p, -1, -1):
        if tokens[q].kind == "op":
            if tokens[q].text in _OPENING:
                depth += 1
            elif tokens[q].text in _CLOSING:
                depth -= 1
                if depth == 0:
                    return q
    raise TokenError(tokens[p], f"'{tokens[p].text}' was never opened")


def angle_closing(tokens: Sequence[Token], p: int) -> int:
    """Return the position of the token that closes the template bracket at p."""
    depth = 0
    q = p
    while q < len(tokens):
        token = tokens[q]
        if token.is_op("(", "[", "{"):
            q = closing(tokens, q)
        elif token.is_op("<"):
            depth += 1
        elif token.is_op(">", ">>", ">>>"):
            depth -= len(token.text)
            if depth <= 0:
                return q
        elif token.is_op(";"):
            break
        q += 1
    raise TokenError(tokens[p], "'<' is never closed")


def angle_opening(tokens: Sequence[Token], p: int) -> int:
    """Return the position of the `<` that opens the template brackets closed at p."""
    depth = 0
    q = p
    while q >= 0:
        token = tokens[q]
        if token.is_op(")", "]", "}"):
            q = opening(tokens, q)
        elif token.is_op(">", ">>", ">>>"):
            depth += len(token.text)
        elif token.is_op("<"):
            depth -= 1
            if depth == 0:
                return q
        elif token.is_op(";"):
            break
        q -= 1
    raise TokenError(tokens[p], "cannot find the '<' that belongs to this '>'")


def top_level(
    tokens: Sequence[Token], start: int, end: int, *, or_last: bool = False
) -> Iterator[int]:
    """Yield the positions in [start, end) outside of brackets. or_last: see `closing`."""
    p = start
    while p < end:
        yield p
        p = closing(tokens, p, or_last=or_last) + 1 if tokens[p].is_op(*_CLOSING) else p + 1


def semicolons(
    tokens: Sequence[Token], start: int, end: int, *, or_last: bool = False
) -> Iterator[int]:
    """Yield the positions of each `;` in [start, end) outside of brackets. or_last: see
    `closing`."""
    return (q for q in top_level(tokens, start, end, or_last=or_last) if tokens[q].is_op(";"))


def split(tokens: Sequence[Token], start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of [start, end) between commas outside of brackets."""
    parts = []
    begin = q = start
    while q < end:
        if tokens[q].is_op("(", "[", "{"):
            q = closing(tokens, q)
        elif tokens[q].is_op("<") and _opens_template(tokens, q):
            q = angle_closing(tokens, q)
        elif tokens[q].is_op(","):
            parts.append((begin, q))
            begin = q + 1
        q += 1
    return [*parts, (begin, end)] if end > start else []


def _opens_template(tokens: Sequence[Token], p: int) -> bool:
    """Return True if the `<` at p can open template arguments rather than compare."""
    if p == 0 or not tokens[p - 1].is_word():
        return False
    try:
        angle_closing(tokens, p)
    except TokenError:
        return False
    return True


# Statements ---------------------------------------------------------------------------------------


def statement_start(tokens: Sequence[Token], p: int) -> int:
    """Return the start of the statement or declaration that contains the token at p."""
    while p > 0 and not tokens[p - 1].is_op(";", "{", "}"):
        p -= 1
    return p


def statement_end(tokens: Sequence[Token], p: int) -> int:
    """Return the position of the last token of the statement that begins at p, or of all tokens."""
    if p >= len(tokens):
        return len(tokens) - 1
    if tokens[p].is_op("{"):
        return closing(tokens, p, or_last=True)
    if tokens[p].is_word("do"):
        end = statement_end(tokens, p + 1)
        return closing(tokens, end + 2, or_last=True) + 1 if end + 3 < len(tokens) else end
    if tokens[p].is_word("if", "for", "while", "switch"):
        q = p + 1
        while q + 1 < len(tokens) and not tokens[q].is_op("("):
            q += 1
        end = statement_end(tokens, min(closing(tokens, q, or_last=True) + 1, len(tokens) - 1))
        if end + 2 < len(tokens) and tokens[end + 1].is_word("else"):
            return statement_end(tokens, end + 2)
        return end
    return next(semicolons(tokens, p, len(tokens), or_last=True), len(tokens) - 1)


# Expressions --------------------------------------------------------------------------------------


def expression_start(tokens: Sequence[Token], p: int) -> int:
    """Return the start of the postfix expression that ends at p, such as the kernel of a launch."""
    q = p
    while q >= 0:
        if tokens[q].is_op(">", ">>", ">>>"):
            q = angle_opening(tokens, q) - 1
            continue
        if tokens[q].is_op(")", "]"):
            q = opening(tokens, q)
            if q > 0 and _is_operand(tokens, q - 1):
                q -= 1
                continue
            return q
        if not tokens[q].is_word():
            break
        if q > 0 and tokens[q - 1].is_word("template"):
            q -= 1
        if q > 0 and tokens[q - 1].is_op(".", "->"):
            q -= 2
            continue
        if q > 0 and tokens[q - 1].is_op("::"):
            if q > 1 and _is_operand(tokens, q - 2):
                q -= 2
                continue
            return q - 1
        return q
    raise TokenError(tokens[p], "cannot determine which kernel this launch starts")


def _is_operand(tokens: Sequence[Token], p: int) -> bool:
    """Return True if a name, call or subscript can end at p, and the next token belong to it."""
    token = tokens[p]
    if token.is_word():
        return token.text not in STATEMENT_WORDS | _CONDITION_WORDS
    if token.is_op(")"):
        start = opening(tokens, p)
        return not (start > 0 and tokens[start - 1].is_word(*_CONDITION_WORDS))
    if token.is_op(">", ">>"):
        try:
            return angle_opening(tokens, p) > 0
        except TokenError:
            return False
    return token.is_op("]")
