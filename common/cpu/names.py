"""Refuse names that the backend lacks, and replace some by the backend's own.

Calls of `printf`, of `clock` in device code and of functions that launch a kernel go to the
backend's; operators registered for CUDA become operators for the CPU.
"""

from collections.abc import Set

from common.cpu import features
from common.cpu.stream import Stream
from common.cpu.syntax import STATEMENT_WORDS, TokenError, closing, flat, is_op_at

_LAUNCH_FUNCTIONS = (
    *("cudaLaunchKernel", "cudaLaunchKernelEx", "cudaLaunchCooperativeKernel"),
    "cudaGraphAddKernelNode",
)
_VOID_POINTERS = (["void*"], ["const", "void*"], ["void", "const*"])


def collect_declared(stream: Stream, declared: set[str]) -> None:
    """Add the functions and macros that a stream defines under a CUDA-like name."""
    tokens = stream.tokens
    if stream.is_macro:
        declared.add(tokens[0].text)
        return
    for p in range(1, len(tokens) - 1):
        if tokens[p].is_word() and tokens[p].text.startswith("cu") and is_op_at(tokens, p + 1, "("):
            before = tokens[p - 1]
            if before.is_word() and before.text not in STATEMENT_WORDS:
                declared.add(tokens[p].text)


def refuse_missing(stream: Stream, declared: Set[str], lacking: dict[str, str]) -> None:
    """Raise TokenError at a name that the backend lacks, except names in `declared`.

    A macro that uses a missing function is added to `lacking`, with the reason, and refused where
    code uses it.
    """
    tokens = stream.tokens
    for p, token in enumerate(tokens):
        if not token.is_word():
            continue
        if token.text in ("asm", "__asm__", "__asm"):
            raise TokenError(
                token,
                "inline PTX cannot run on the CPU: use the wrapper in common/cuda, or put it "
                "under #ifndef CUDA_ON_CPU with the same in C++ for the CPU",
            )
        if token.text == "__cluster_dims__" and stream.is_macro and p > 0:
            raise TokenError(
                token, "__cluster_dims__ in a macro is not seen here: write it at the kernel"
            )
        if p > 0 and tokens[p - 1].is_op(".", "->"):
            continue
        following = tokens[p + 1] if p + 1 < len(tokens) else token
        reason = lacking.get(token.text)
        if reason is None and token.text not in declared:
            reason = features.missing_name(
                token.text, called=following.is_op("("), template=following.is_op("<")
            )
        if reason is None:
            continue
        if not stream.is_macro:
            raise TokenError(token, reason)
        lacking.setdefault(tokens[0].text, f"macro {tokens[0].text}: {reason}")


def edit(stream: Stream) -> None:
    """Replace the names that have another meaning on the CPU."""
    tokens = stream.tokens
    for p, token in enumerate(tokens):
        if not token.is_word():
            continue
        before = tokens[p - 1] if p > 0 else None
        called = is_op_at(tokens, p + 1, "(")
        if token.text == "__noinline__" and not (before and before.is_op("(")):
            # No macro can do this: libstdc++ itself writes __attribute__((__noinline__)).
            stream.replace(p, "__attribute__((noinline))")
        elif token.is_word("main") and called and before and before.is_word("int"):
            _complete_returns(stream, p)
        elif called and token.is_word("printf"):
            _call_backend(stream, p)
        elif called and token.is_word(*_LAUNCH_FUNCTIONS):
            if _call_backend(stream, p):
                _pass_line_and_types(stream, p)
        elif called and token.is_word("clock") and stream.on_device(p):
            # The C library has a function of this name, too, for host code.
            if not (before and before.is_op(".", "->", "::")):
                stream.replace(p, "::cudacpu::device_clock")
        elif token.is_word("STABLE_TORCH_LIBRARY_IMPL", "TORCH_LIBRARY_IMPL"):
            for q in range(p + 1, min(p + 5, len(tokens))):
                if tokens[q].is_word("CUDA"):
                    stream.replace(q, "CPU")


def _complete_returns(stream: Stream, p: int) -> None:
    """Make a `return;` in main(), whose name is at p, return 0, as with nvcc."""
    tokens = stream.tokens
    body = closing(tokens, p + 1) + 1
    if not is_op_at(tokens, body, "{"):
        return
    for q in range(body, closing(tokens, body, or_last=True)):
        if tokens[q].is_word("return") and is_op_at(tokens, q + 1, ";"):
            stream.insert_after(q, " 0")


def _call_backend(stream: Stream, p: int) -> bool:
    """Redirect the call at p to the backend's function of that name; False for another's."""
    tokens = stream.tokens
    before = tokens[p - 1] if p > 0 else None
    if before and before.is_op(".", "->"):
        return False
    qualified = before is not None and before.is_op("::")
    if qualified and p > 1 and tokens[p - 2].is_word():
        if tokens[p - 2].text != "std":
            return False
        stream.replace(p - 2, "")
    prefix = "" if qualified else "::"
    stream.replace(p, f"{prefix}cudacpu::{tokens[p].text}")
    return True


def _pass_line_and_types(stream: Stream, p: int) -> None:
    """Pass the file and line, and the kernel with its type, to the launch function called at p."""
    tokens = stream.tokens
    stream.insert_after(p + 1, f"{{__FILE__, {stream.line_of(p)}}}, ")
    # `(void*)kernel` would lose the types of the arguments.
    cast = p + 2
    if tokens[cast].is_op("("):
        close = closing(tokens, cast)
        if flat(tokens[cast + 1 : close]).split() in _VOID_POINTERS:
            for q in range(cast, close + 1):
                stream.replace(q, "")
