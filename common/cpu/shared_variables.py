"""Turn declarations of `__shared__` variables into references into the memory of a block.

__shared__ float row[32];          CUDACPU_SHARED(0, float row[32]) auto& row = ...;
extern __shared__ float row[];     typedef float t[]; extern t cudacpu_extern_shared_row;
                                   auto& row = dynamic_shared<t>();

The second declaration of a dynamic variable, which nothing uses, makes the host compiler refuse
what nvcc refuses: two types for one name in one namespace, also from two instances of a template.

A declaration at file scope leaves its type and its place there, and each function of device code
that uses the name begins with the reference. A lambda that captures by value captures them by
reference.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.cpu.lexer import Token
from common.cpu.stream import Scope, Stream
from common.cpu.syntax import (
    ATTRIBUTE_WORDS,
    TokenError,
    angle_closing,
    closing,
    is_op_at,
    semicolons,
    split,
    statement_start,
)


@dataclass(slots=True)
class _Variable:
    """A `__shared__` variable and the part of the stream in which it is visible."""

    name: str
    position: int
    end: int


def edit(stream: Stream, numbers: Iterator[int], of_files: dict[str, str]) -> None:
    """Rewrite every declaration, and the lambdas that would copy the declared variables.

    numbers: of the file; each declaration takes one, for the names of its types. of_files: the
    declarations of references to variables at file scope, by name; this file's are added.
    """
    tokens = stream.tokens
    variables: list[_Variable] = []
    end = 0  # of the declaration before
    for p, token in enumerate(tokens):
        if not token.is_word("__shared__") or p < end:  # or repeated in one declaration
            continue
        scope = stream.scopes[p]
        start = statement_start(tokens, p)
        if stream.is_macro:
            start = _macro_statement_start(tokens, start, p)
        end = next(semicolons(tokens, p, len(tokens)), len(tokens))
        if end == len(tokens):
            raise TokenError(token, "this __shared__ declaration has no ';'")
        if not stream.is_macro and not (scope and scope.in_function):
            if scope and not _is_namespace(tokens, scope):
                raise TokenError(token, "a member of a class cannot be __shared__")
            _edit_file_scope(stream, start, end, of_files)
            continue
        names = _edit_declaration(stream, start, end, next(numbers))
        scope_end = closing(tokens, scope.start) if scope else len(tokens)
        variables += [_Variable(name, p, scope_end) for name in names]
    if of_files and not stream.is_macro:
        variables += _declare_in_functions(stream, of_files)
    if variables:
        _edit_copying_lambdas(stream, variables)


def _is_namespace(tokens: Sequence[Token], scope: Scope) -> bool:
    head = tokens[statement_start(tokens, scope.start) : scope.start]
    return any(token.is_word("namespace", "extern") for token in head)


def _edit_file_scope(stream: Stream, start: int, end: int, of_files: dict[str, str]) -> None:
    """Leave the type and the place of a variable at file scope, like `_edit_declaration`."""
    tokens = stream.tokens
    words = {token.text for token in tokens[start:end] if token.kind == "word"}
    places = [_declared_name(tokens, *part) for part in split(tokens, start, end)]
    if len(places) > 1:
        raise TokenError(tokens[start], "a declaration at file scope may have one variable")
    name = tokens[places[0]].text
    for p in range(start, end):
        if tokens[p].is_word("__shared__", "extern", "static"):
            stream.replace(p, "")
    if "extern" in words:
        _drop_alignment(stream, start, end)
        stream.insert_before(start, "typedef ")
        stream.replace(places[0], f"cudacpu_type_of_{name}")
        stream.insert_after(end, f" {_same_type(f'cudacpu_type_of_{name}', name)}")
        value = f"dynamic_shared<cudacpu_type_of_{name}>()"
    else:
        stream.insert_before(start, f"CUDACPU_SHARED_PLACE(of_{name}, ")
        stream.replace(end, ")")
        value = f"shared<cudacpu_type_of_{name}>(cudacpu_variable_of_{name}).{name}"
    of_files[name] = f" auto& {name} = ::cudacpu::{value}; "


def _declare_in_functions(stream: Stream, of_files: dict[str, str]) -> list[_Variable]:
    """Declare a reference at the start of each function of device code that uses the name of a
    variable at file scope, unless a parameter has that name."""
    tokens = stream.tokens
    found = []
    for p, token in enumerate(tokens):
        outer = stream.scopes[p]
        if not token.is_op("{") or (outer and outer.in_function):
            continue
        head = {t.text for t in tokens[statement_start(tokens, p) : p]}
        if not head & {"__global__", "__device__"}:
            continue
        end = closing(tokens, p, or_last=True)
        used = {t.text for t in tokens[p:end] if t.is_word()} & set(of_files) - head
        for name in sorted(used):
            stream.insert_before(p + 1, of_files[name])
            found.append(_Variable(name, p, end))
    return found


def _macro_statement_start(tokens: Sequence[Token], start: int, shared: int) -> int:
    """Return the start of a declaration that may come first in a macro's body."""
    while start < shared and not tokens[start].is_word("extern", "static", "volatile", "const"):
        start += 1
    return start


def _edit_declaration(stream: Stream, start: int, end: int, number: int) -> list[str]:
    """Edit the declaration at [start, end), whose `;` is at end, and return the declared names."""
    tokens = stream.tokens
    words = {token.text for token in tokens[start:end] if token.kind == "word"}
    name_positions = [_declared_name(tokens, *part) for part in split(tokens, start, end)]
    names = [tokens[p].text for p in name_positions]
    for p in range(start, end):
        if tokens[p].is_word("__shared__", "extern", "static"):
            stream.replace(p, "")
    if "extern" in words:
        if len(names) > 1:
            raise TokenError(
                tokens[start], "a declaration may have one `extern __shared__` variable"
            )
        _drop_alignment(stream, start, end)
        stream.insert_before(start, "typedef ")
        dynamic = f"cudacpu_type_{number}"
        stream.replace(name_positions[0], dynamic)
        stream.insert_after(
            end,
            f" {_same_type(dynamic, names[0])}"
            f" auto& {names[0]} = ::cudacpu::dynamic_shared<{dynamic}>();",
        )
    else:
        stream.insert_before(start, f"CUDACPU_SHARED({number}, ")
        references = "".join(f" auto& {name} = cudacpu_shared_{number}.{name};" for name in names)
        stream.replace(end, ")" + references)
    return names


def _same_type(dynamic: str, name: str) -> str:
    """Return a declaration that conflicts with one of another type for the same variable."""
    return f"[[maybe_unused]] extern {dynamic} cudacpu_extern_shared_{name};"


def _drop_alignment(stream: Stream, start: int, end: int) -> None:
    """Remove requests for alignment from a declaration.

    Dynamic shared memory starts at a multiple of 1024 bytes, so none is needed.
    """
    for p in range(start, end):
        if stream.tokens[p].is_word("alignas", "__align__", "__attribute__"):
            for q in range(p, closing(stream.tokens, p + 1) + 1):
                stream.replace(q, "")


def _declared_name(tokens: Sequence[Token], start: int, end: int) -> int:
    """Return the position of the name that a declarator (and its type, for the first) declares."""
    name = -1
    q = start
    while q < end:
        token = tokens[q]
        if token.is_op("="):
            raise TokenError(token, "a __shared__ variable cannot have an initialiser")
        if token.is_op("["):
            q = closing(tokens, q)
        elif token.is_op("<"):
            q = angle_closing(tokens, q)
        elif token.is_op("{"):
            if not any(t.is_word("struct", "union", "class") for t in tokens[start:q]):
                raise TokenError(token, "a __shared__ variable cannot have an initialiser")
            q = closing(tokens, q)
        elif token.is_op("("):
            close = closing(tokens, q)
            if not tokens[q - 1].is_word(*ATTRIBUTE_WORDS):
                # A pointer or reference to an array: float (*tile)[32].
                return _declared_name(tokens, q + 1, close)
            q = close
        elif token.is_word() and not token.is_word(*ATTRIBUTE_WORDS):
            name = q
        q += 1
    if name < 0:
        raise TokenError(tokens[start], "cannot find the name of this __shared__ variable")
    return name


def _edit_copying_lambdas(stream: Stream, variables: Sequence[_Variable]) -> None:
    """Make `[=]` lambdas refer to shared variables instead of copying them.

    In CUDA a shared variable is static and is never captured; here it is a reference, which `[=]`
    would copy together with the whole array.
    """
    tokens = stream.tokens
    for p in range(len(tokens) - 2):
        if not (tokens[p].is_op("[") and is_op_at(tokens, p + 1, "=")):
            continue
        if not is_op_at(tokens, p + 2, "]", ","):
            continue
        body = closing(tokens, p) + 1
        while body < len(tokens) and not tokens[body].is_op("{", ";"):
            body = closing(tokens, body) if tokens[body].is_op("(") else body
            body += 1
        if body == len(tokens) or tokens[body].is_op(";"):
            continue
        used = {t.text for t in tokens[body : closing(tokens, body)] if t.is_word()}
        seen = sorted({v.name for v in variables if v.position < p < v.end and v.name in used})
        if seen:
            captures = "".join(f", &{name}" for name in seen)
            stream.insert_after(p + 1, captures)
