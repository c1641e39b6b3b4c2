"""From a `.cu` file to C++ that a host compiler takes, line by line.

Four things in CUDA C++ are no C++, and each is replaced where it stands, so that every line keeps
its number and every compiler message points into the `.cu`:

    k<T><<<grid, block>>>(x, n);       ::cudacpu::launcher({...}, [=](auto&... a) { k<T>(a...); },
                                                           grid, block)(x, n);
    __shared__ float row[32];          CUDACPU_SHARED(0, float row[32]) auto& row = ...;
    extern __shared__ float row[];     typedef float t[]; auto& row = dynamic_shared<t>();
    __global__ void k(...) {           __global__ void k(...) { CUDACPU_ENTRY((&k), 0)

Besides, operators registered for CUDA become operators for the CPU, `printf` becomes one that works
from a kernel, and a loop that waits for another thread lets that thread run (waiting_loops.py).
What the backend does not have is refused here, with its file and line (features.py).
"""

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.cpu import features, waiting_loops
from common.cpu.lexer import Token, directives, tokenize

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OPENING = {close: opening for opening, close in _CLOSING.items()}
_LAUNCH_FUNCTIONS = (
    *("cudaLaunchKernel", "cudaLaunchKernelEx", "cudaLaunchCooperativeKernel"),
    "cudaGraphAddKernelNode",
)
_VOID_POINTERS = (["void*"], ["const", "void*"], ["void", "const*"])
_STATEMENT_WORDS = frozenset(("return", "else", "do", "case", "goto", "throw", "new", "delete"))
_CONDITION_WORDS = frozenset(("if", "while", "for", "switch", "catch"))
_ATTRIBUTE_WORDS = (
    *("alignas", "__align__", "__attribute__", "__launch_bounds__", "__cluster_dims__"),
    *("__maxnreg__", "__block_size__", "decltype"),
)
_TYPE_WORDS = (
    *("typename", "class", "int", "bool", "char", "short", "long", "unsigned", "signed"),
    *("float", "double", "auto", "size_t"),
)


class RewriteError(Exception):
    """The file uses something that the CPU backend cannot run; `file` and `line` say where."""

    def __init__(self, file: str, line: int, what: str) -> None:
        super().__init__(f"{file}:{line}: {what}")
        self.file = file
        self.line = line


@dataclass(slots=True)
class _Scope:
    """An open brace."""

    start: int  # position of the brace in the stream
    in_function: bool = False
    on_device: bool = False  # device code only: neither __host__ nor unmarked


@dataclass(slots=True)
class _Shared:
    """A `__shared__` variable and the part of the stream that sees it."""

    name: str
    position: int
    end: int


@dataclass(slots=True)
class _Stream:
    """A run of code to edit: the file without its directives, or the body of one `#define`."""

    tokens: list[Token]
    indices: list[int]  # of these tokens in the file
    is_macro: bool
    scopes: list[_Scope | None] = field(default_factory=list)  # the scope at each position


def rewrite(text: str, filename: str) -> str:
    """The text of a `.cu` file or header as C++ for the host compiler.

    Line numbers stay, and compiler messages name `filename`. Raises RewriteError for a feature that
    the backend does not have.
    """
    return _File(text, filename, includes={}, project=_Names()).output()


def rewrite_tree(source: Path, out_dir: Path, roots: Sequence[Path]) -> Path:
    """Rewrites a source and every project header that it reaches, and returns the `.cpp`.

    An `#include "…"` is looked for beside the including file, then in each of `roots`; what is
    found is a project header, and the rewritten include names its rewritten copy in `out_dir`. A
    file there is only written when its text differs, so that nothing is built in vain.
    """
    tree = _Tree(out_dir.resolve(), [root.resolve() for root in roots])
    return tree.add(source.resolve(), is_source=True)


@dataclass(slots=True)
class _Names:
    """Functions of the files rewritten so far, for those that include them."""

    declared: set[str] = field(default_factory=set)  # with CUDA-like names
    volatile_readers: set[str] = field(default_factory=set)  # see waiting_loops


class _Tree:
    """A source and the headers that it reaches, each rewritten once."""

    def __init__(self, out_dir: Path, roots: Sequence[Path]) -> None:
        self.out_dir = out_dir
        self.roots = roots
        self.outputs: dict[Path, Path] = {}
        self.project = _Names()

    def add(self, path: Path, *, is_source: bool = False) -> Path:
        if path in self.outputs:
            return self.outputs[path]
        output = self._output_path(path, is_source)
        self.outputs[path] = output
        text = path.read_text(encoding="utf-8")
        includes = {}
        for name in _quoted_includes(text):
            found = self._find(name, path.parent)
            if found is not None:
                includes[name] = self.add(found).as_posix()
        rewritten = _File(text, str(path), includes, self.project).output()
        output.parent.mkdir(parents=True, exist_ok=True)
        if not output.exists() or output.read_text(encoding="utf-8") != rewritten:
            output.write_text(rewritten, encoding="utf-8")
        return output

    def _find(self, name: str, beside: Path) -> Path | None:
        for folder in (beside, *self.roots):
            candidate = (folder / name).resolve()
            if candidate.is_file():
                return candidate
        return None

    def _output_path(self, path: Path, is_source: bool) -> Path:
        for root in self.roots:
            if path.is_relative_to(root):
                relative = path.relative_to(root)
                break
        else:
            relative = Path(*path.parts[1:])
        if is_source:
            return self.out_dir / f"{path.stem}.cpp"
        return self.out_dir / relative


def _quoted_includes(text: str) -> list[str]:
    tokens = tokenize(text)
    names = []
    for line in directives(tokens):
        if line.name == "include" and line.rest:
            name = tokens[line.rest[0]]
            if name.active and name.kind == "string":
                names.append(name.text[1:-1])
    return names


class _File:
    """One file's tokens and the edits to them."""

    def __init__(
        self, text: str, filename: str, includes: Mapping[str, str], project: _Names
    ) -> None:
        self.filename = filename
        self.tokens = tokenize(text)
        self.project = project
        self.before: dict[int, str] = {}
        self.after: dict[int, str] = {}
        self.instead: dict[int, str] = {}
        self.shared_count = 0
        self._edit_includes(includes)
        streams = [self._main_stream(), *self._macro_streams()]
        for stream in streams:
            self._collect_declared(stream)
        for stream in streams:
            self._refuse_missing(stream)
            self._replace_names(stream)
            self._edit_shared(stream)
            self._edit_braced_pairs(stream)
            self._edit_launches(stream)
        self._edit_kernels(streams[0])
        self._edit_waiting_loops(streams[0])

    def output(self) -> str:
        parts = [f'#line 1 "{self.filename}"\n']
        for i, token in enumerate(self.tokens):
            parts.append(self.before.get(i, ""))
            parts.append(self.instead.get(i, token.text))
            parts.append(self.after.get(i, ""))
        return "".join(parts)

    def error(self, token: Token, what: str) -> RewriteError:
        return RewriteError(self.filename, token.line, what)

    # Streams -------------------------------------------------------------------------------------

    def _main_stream(self) -> _Stream:
        indices = [
            i for i, t in enumerate(self.tokens) if t.is_code and t.active and not t.directive
        ]
        stream = _Stream([self.tokens[i] for i in indices], indices, is_macro=False)
        stream.scopes = self._find_scopes(stream)
        return stream

    def _macro_streams(self) -> list[_Stream]:
        streams = []
        for line in directives(self.tokens):
            if line.name == "define" and line.rest and self.tokens[line.start].active:
                tokens = [self.tokens[i] for i in line.rest]
                streams.append(_Stream(tokens, line.rest, is_macro=True))
                streams[-1].scopes = [None] * len(tokens)
        return streams

    def _find_scopes(self, stream: _Stream) -> list[_Scope | None]:
        """The innermost open brace at each position."""
        # A branch that may or may not be compiled can open a brace that its #else opens again:
        # each branch starts from the braces that were open at its #if.
        branches = self._conditionals_by_position(stream)
        saved: list[list[_Scope]] = []
        open_scopes: list[_Scope] = []
        result: list[_Scope | None] = []
        head = 0  # where the present declaration or statement starts
        for p, token in enumerate(stream.tokens):
            for name in branches.get(p, ()):
                if name in ("if", "ifdef", "ifndef"):
                    saved.append(list(open_scopes))
                elif name == "endif" and saved:
                    saved.pop()
                elif saved:
                    open_scopes = list(saved[-1])
            result.append(open_scopes[-1] if open_scopes else None)
            if token.is_op("{"):
                outer = open_scopes[-1] if open_scopes else None
                open_scopes.append(self._classify(stream.tokens[head:p], outer, p))
            elif token.is_op("}") and open_scopes:
                open_scopes.pop()
            if token.is_op("{", "}", ";"):
                head = p + 1
        return result

    def _conditionals_by_position(self, stream: _Stream) -> dict[int, list[str]]:
        """Names of the #if, #else, … lines that stand right before each position."""
        found: dict[int, list[str]] = {}
        for line in directives(self.tokens):
            if line.name.startswith(("if", "el", "endif")):
                found.setdefault(bisect_left(stream.indices, line.start), []).append(line.name)
        return found

    @staticmethod
    def _classify(head: list[Token], outer: _Scope | None, position: int) -> _Scope:
        words = {token.text for token in head if token.kind == "word"}
        device = bool({"__global__", "__device__"} & words) and "__host__" not in words
        if outer is not None and outer.in_function:
            return _Scope(position, True, outer.on_device or device)
        has_parameters = any(token.is_op("(") for token in head)
        if "namespace" in words or not has_parameters:
            return _Scope(position)
        return _Scope(position, True, device)

    # Matching brackets ---------------------------------------------------------------------------

    def _forward(self, tokens: Sequence[Token], p: int) -> int:
        """The position of the bracket that closes the one at p."""
        depth = 0
        for q in range(p, len(tokens)):
            if tokens[q].kind == "op":
                if tokens[q].text in _CLOSING:
                    depth += 1
                elif tokens[q].text in _OPENING:
                    depth -= 1
                    if depth == 0:
                        return q
        raise self.error(tokens[p], f"'{tokens[p].text}' is never closed")

    def _backward(self, tokens: Sequence[Token], p: int) -> int:
        """The position of the bracket that opens what the one at p closes."""
        depth = 0
        for q in range(p, -1, -1):
            if tokens[q].kind == "op":
                if tokens[q].text in _OPENING:
                    depth += 1
                elif tokens[q].text in _CLOSING:
                    depth -= 1
                    if depth == 0:
                        return q
        raise self.error(tokens[p], f"'{tokens[p].text}' was never opened")

    def _angle_forward(self, tokens: Sequence[Token], p: int) -> int:
        """The position of the token that closes the template bracket at p."""
        depth = 0
        q = p
        while q < len(tokens):
            token = tokens[q]
            if token.is_op("(", "[", "{"):
                q = self._forward(tokens, q)
            elif token.is_op("<"):
                depth += 1
            elif token.is_op(">", ">>", ">>>"):
                depth -= len(token.text)
                if depth <= 0:
                    return q
            elif token.is_op(";"):
                break
            q += 1
        raise self.error(tokens[p], "'<' is never closed")

    def _angle_backward(self, tokens: Sequence[Token], p: int) -> int:
        """The position of the `<` that opens the template brackets closed at p."""
        depth = 0
        q = p
        while q >= 0:
            token = tokens[q]
            if token.is_op(")", "]", "}"):
                q = self._backward(tokens, q)
            elif token.is_op(">", ">>", ">>>"):
                depth += len(token.text)
            elif token.is_op("<"):
                depth -= 1
                if depth == 0:
                    return q
            elif token.is_op(";"):
                break
            q -= 1
        raise self.error(tokens[p], "cannot find the '<' that belongs to this '>'")

    def _split(self, tokens: Sequence[Token], start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) between commas that no bracket encloses."""
        parts = []
        begin = q = start
        while q < end:
            if tokens[q].is_op("(", "[", "{"):
                q = self._forward(tokens, q)
            elif tokens[q].is_op("<") and self._opens_template(tokens, q):
                q = self._angle_forward(tokens, q)
            elif tokens[q].is_op(","):
                parts.append((begin, q))
                begin = q + 1
            q += 1
        return [*parts, (begin, end)] if end > start else []

    def _opens_template(self, tokens: Sequence[Token], p: int) -> bool:
        """Whether the `<` at p can open template arguments rather than compare."""
        if p == 0 or not tokens[p - 1].is_word():
            return False
        try:
            self._angle_forward(tokens, p)
        except RewriteError:
            return False
        return True

    # Includes and names --------------------------------------------------------------------------

    def _edit_includes(self, includes: Mapping[str, str]) -> None:
        for line in directives(self.tokens):
            if line.name != "include" or not line.rest or not self.tokens[line.start].active:
                continue
            first = self.tokens[line.rest[0]]
            if first.kind == "string":
                path = first.text[1:-1]
                if path in includes:
                    self.instead[line.rest[0]] = f'"{includes[path]}"'
                    continue
            else:
                path = "".join(self.tokens[i].text for i in line.rest[1:-1])
            reason = features.missing_header(path)
            if reason is not None:
                raise self.error(first, f"#include <{path}>: {reason}")

    def _collect_declared(self, stream: _Stream) -> None:
        """Notes functions and macros that the project defines under a CUDA-like name."""
        tokens = stream.tokens
        if stream.is_macro:
            self.project.declared.add(tokens[0].text)
            return
        for p in range(1, len(tokens) - 1):
            if tokens[p].is_word() and tokens[p].text.startswith("cu") and tokens[p + 1].is_op("("):
                before = tokens[p - 1]
                if before.is_word() and before.text not in _STATEMENT_WORDS:
                    self.project.declared.add(tokens[p].text)

    def _refuse_missing(self, stream: _Stream) -> None:
        tokens = stream.tokens
        for p, token in enumerate(tokens):
            if not token.is_word():
                continue
            if token.text in ("asm", "__asm__", "__asm"):
                raise self.error(
                    token,
                    "inline PTX cannot run on the CPU: use the wrapper in common/cuda, or put it "
                    "under #ifndef CUDA_ON_CPU with the same in C++ for the CPU",
                )
            if token.text == "__cluster_dims__" and stream.is_macro and p > 0:
                raise self.error(
                    token, "__cluster_dims__ in a macro is not seen here: write it at the kernel"
                )
            if p > 0 and tokens[p - 1].is_op(".", "->"):
                continue
            following = tokens[p + 1] if p + 1 < len(tokens) else token
            reason = features.missing_name(
                token.text, called=following.is_op("("), template=following.is_op("<")
            )
            if reason is not None and token.text not in self.project.declared:
                raise self.error(token, reason)

    def _replace_names(self, stream: _Stream) -> None:
        tokens = stream.tokens
        for p, token in enumerate(tokens):
            if not token.is_word():
                continue
            before = tokens[p - 1] if p > 0 else None
            called = p + 1 < len(tokens) and tokens[p + 1].is_op("(")
            if token.text == "__noinline__" and not (before and before.is_op("(")):
                # No macro can do this: libstdc++ itself writes __attribute__((__noinline__)).
                self.instead[stream.indices[p]] = "__attribute__((noinline))"
            elif called and token.is_word("printf", *_LAUNCH_FUNCTIONS):
                if before and before.is_op(".", "->"):
                    continue
                if before and before.is_op("::") and p > 1 and tokens[p - 2].is_word():
                    if tokens[p - 2].text != "std":
                        continue
                    self.instead[stream.indices[p - 2]] = ""
                prefix = "" if before and before.is_op("::") else "::"
                self.instead[stream.indices[p]] = f"{prefix}cudacpu::{token.text}"
                if token.text != "printf":
                    line = "__LINE__" if stream.is_macro else str(token.line)
                    self.after[stream.indices[p + 1]] = f"{{__FILE__, {line}}}, "
                    # `(void*)kernel` would lose the types of the arguments.
                    cast = p + 2
                    if tokens[cast].is_op("("):
                        close = self._forward(tokens, cast)
                        if _flat(tokens[cast + 1 : close]).split() in _VOID_POINTERS:
                            for q in range(cast, close + 1):
                                self.instead[stream.indices[q]] = ""
            elif called and token.is_word("clock") and self._on_device(stream, p):
                # The C library has a function of this name, too, for host code.
                if not (before and before.is_op(".", "->", "::")):
                    self.instead[stream.indices[p]] = "::cudacpu::device_clock"
            elif token.is_word("STABLE_TORCH_LIBRARY_IMPL", "TORCH_LIBRARY_IMPL"):
                for q in range(p + 1, min(p + 5, len(tokens))):
                    if tokens[q].is_word("CUDA"):
                        self.instead[stream.indices[q]] = "CPU"

    @staticmethod
    def _on_device(stream: _Stream, p: int) -> bool:
        scope = stream.scopes[p]
        return scope is not None and scope.on_device

    def _edit_braced_pairs(self, stream: _Stream) -> None:
        """Names the type in `v = {a, b};`, in device code.

        For __half2 and __nv_bfloat162 the assignment is ambiguous to g++ and clang: their elements
        convert to integers, of which NVIDIA's headers take a pair, too. nvcc does not mind.
        """
        tokens = stream.tokens
        for p, token in enumerate(tokens):
            if not (token.is_op("=") and tokens[p + 1].is_op("{") and self._on_device(stream, p)):
                continue
            close = self._forward(tokens, p + 1)
            start = self._assigned_start(tokens, p)
            if start is not None and len(self._split(tokens, p + 2, close)) == 2:
                target = _flat(tokens[start:p])
                self._insert_before(
                    stream.indices[p + 1], f"::std::remove_reference_t<decltype({target})>"
                )

    def _assigned_start(self, tokens: Sequence[Token], p: int) -> int | None:
        """Where the statement starts that assigns by the `=` at p; None in a declaration."""
        if p == 0 or not (tokens[p - 1].is_word() or tokens[p - 1].is_op("]", ")")):
            return None
        start = self._expression_start(tokens, p - 1)
        while start > 0 and tokens[start - 1].is_op("*"):
            start -= 1
        before = tokens[start - 1] if start > 0 else None
        begins = before and (before.is_op(";", "{", "}", ")") or before.is_word("else", "do"))
        return start if begins else None

    # Shared memory -------------------------------------------------------------------------------

    def _edit_shared(self, stream: _Stream) -> None:
        tokens = stream.tokens
        variables: list[_Shared] = []
        for p, token in enumerate(tokens):
            if not token.is_word("__shared__"):
                continue
            scope = stream.scopes[p]
            if not stream.is_macro and not (scope and scope.in_function):
                raise self.error(
                    token,
                    "a __shared__ variable outside of a function is not supported on the CPU "
                    "backend: declare it in the kernel",
                )
            start = p
            while start > 0 and not tokens[start - 1].is_op(";", "{", "}"):
                start -= 1
            if stream.is_macro:
                start = self._macro_statement_start(tokens, start, p)
            end = p
            while end < len(tokens) and not tokens[end].is_op(";"):
                end = self._forward(tokens, end) if tokens[end].is_op("(", "[", "{") else end
                end += 1
            if end == len(tokens):
                raise self.error(token, "this __shared__ declaration has no ';'")
            names = self._edit_shared_declaration(stream, start, end)
            scope_end = self._forward(tokens, scope.start) if scope else len(tokens)
            variables += [_Shared(name, p, scope_end) for name in names]
        if variables:
            self._edit_copying_lambdas(stream, variables)

    @staticmethod
    def _macro_statement_start(tokens: Sequence[Token], start: int, shared: int) -> int:
        """Where a declaration starts that may be the first thing in a macro's body."""
        while start < shared and not tokens[start].is_word("extern", "static", "volatile", "const"):
            start += 1
        return start

    def _edit_shared_declaration(self, stream: _Stream, start: int, end: int) -> list[str]:
        tokens, indices = stream.tokens, stream.indices
        words = {token.text for token in tokens[start:end] if token.kind == "word"}
        name_positions = [
            self._declared_name(tokens, *part) for part in self._split(tokens, start, end)
        ]
        names = [tokens[p].text for p in name_positions]
        for p in range(start, end):
            if tokens[p].is_word("__shared__", "extern", "static"):
                self.instead[indices[p]] = ""
        n = self.shared_count
        self.shared_count += 1
        if "extern" in words:
            if len(names) > 1:
                raise self.error(
                    tokens[start], "one `extern __shared__` variable a declaration, please"
                )
            self._drop_alignment(stream, start, end)
            self.before[indices[start]] = "typedef "
            self.instead[indices[name_positions[0]]] = f"cudacpu_type_{n}"
            self.after[indices[end]] = (
                f" auto& {names[0]} = ::cudacpu::dynamic_shared<cudacpu_type_{n}>();"
            )
        else:
            self.before[indices[start]] = f"CUDACPU_SHARED({n}, "
            references = "".join(f" auto& {name} = cudacpu_shared_{n}.{name};" for name in names)
            self.instead[indices[end]] = ")" + references
        return names

    def _drop_alignment(self, stream: _Stream, start: int, end: int) -> None:
        # Dynamic shared memory starts at a multiple of 1024 bytes, so that no request is needed.
        for p in range(start, end):
            if stream.tokens[p].is_word("alignas", "__align__", "__attribute__"):
                for q in range(p, self._forward(stream.tokens, p + 1) + 1):
                    self.instead[stream.indices[q]] = ""

    def _declared_name(self, tokens: Sequence[Token], start: int, end: int) -> int:
        """The position of the name that a declarator (and its type, for the first) declares."""
        name = -1
        q = start
        while q < end:
            token = tokens[q]
            if token.is_op("="):
                raise self.error(token, "a __shared__ variable cannot have an initialiser")
            if token.is_op("["):
                q = self._forward(tokens, q)
            elif token.is_op("<"):
                q = self._angle_forward(tokens, q)
            elif token.is_op("{"):
                if not any(t.is_word("struct", "union", "class") for t in tokens[start:q]):
                    raise self.error(token, "a __shared__ variable cannot have an initialiser")
                q = self._forward(tokens, q)
            elif token.is_op("("):
                close = self._forward(tokens, q)
                if not tokens[q - 1].is_word(*_ATTRIBUTE_WORDS):
                    # A pointer or reference to an array: float (*tile)[32].
                    return self._declared_name(tokens, q + 1, close)
                q = close
            elif token.is_word() and not token.is_word(*_ATTRIBUTE_WORDS):
                name = q
            q += 1
        if name < 0:
            raise self.error(tokens[start], "cannot find the name of this __shared__ variable")
        return name

    def _edit_copying_lambdas(self, stream: _Stream, variables: Sequence[_Shared]) -> None:
        """Lets `[=]` lambdas see shared variables rather than a copy of them.

        In CUDA a shared variable is static and is never captured; here it is a reference, which
        `[=]` would copy together with the whole array.
        """
        tokens = stream.tokens
        for p in range(len(tokens) - 2):
            if not (tokens[p].is_op("[") and tokens[p + 1].is_op("=")):
                continue
            if not tokens[p + 2].is_op("]", ","):
                continue
            body = self._forward(tokens, p) + 1
            while body < len(tokens) and not tokens[body].is_op("{", ";"):
                body = self._forward(tokens, body) if tokens[body].is_op("(") else body
                body += 1
            if body == len(tokens) or tokens[body].is_op(";"):
                continue
            used = {t.text for t in tokens[body : self._forward(tokens, body)] if t.is_word()}
            seen = sorted({v.name for v in variables if v.position < p < v.end and v.name in used})
            if seen:
                captures = "".join(f", &{name}" for name in seen)
                self.after[stream.indices[p + 1]] = captures

    # Launches ------------------------------------------------------------------------------------

    def _edit_launches(self, stream: _Stream) -> None:
        tokens, indices = stream.tokens, stream.indices
        for p, token in enumerate(tokens):
            if not token.is_op("<<<") or (p > 0 and tokens[p - 1].is_word("operator")):
                continue
            scope = stream.scopes[p]
            if scope is not None and scope.on_device:
                raise self.error(
                    token, "a launch from device code is not supported on the CPU backend"
                )
            if p == 0:
                raise self.error(token, "a launch without a kernel")
            start = self._expression_start(tokens, p - 1)
            close = self._configuration_end(tokens, p)
            if len(self._split(tokens, p + 1, close)) < 2:
                raise self.error(token, "a launch needs a grid and a block: <<<grid, block>>>")
            kernel = _flat(tokens[start:p])
            line = "__LINE__" if stream.is_macro else str(tokens[start].line)
            # By value: a graph may run it when the caller's variables are gone. A kernel's name may
            # stand for a template, or for several kernels, until the arguments are known.
            if self._is_name(tokens, start, p):
                head, call = "[=](auto&... cudacpu_args) { ", "(cudacpu_args...); }, "
            else:
                head = "[cudacpu_kernel = "
                call = "](auto&... cudacpu_args) { cudacpu_kernel(cudacpu_args...); }, "
            self._insert_before(
                indices[start],
                f"::cudacpu::launcher({{CUDACPU_TEXT({kernel}), __FILE__, {line}}}, {head}",
            )
            self.instead[indices[p]] = call
            self.instead[indices[close]] = ")"

    def _is_name(self, tokens: Sequence[Token], start: int, end: int) -> bool:
        """Whether [start, end) is a name, perhaps in parentheses, and no other expression."""
        if tokens[start].is_op("(") and self._forward(tokens, start) == end - 1:
            return self._is_name(tokens, start + 1, end - 1)
        q = start
        while q < end:
            if tokens[q].is_op("<"):
                q = self._angle_forward(tokens, q)
            elif not tokens[q].is_word() and not tokens[q].is_op("::"):
                return False
            q += 1
        return True

    def _configuration_end(self, tokens: Sequence[Token], p: int) -> int:
        """The position of the `>>>` that ends the configuration opened at p."""
        templates = 0  # open template brackets within the configuration
        q = p + 1
        while q < len(tokens) and not tokens[q].is_op(";", "<<<"):
            token = tokens[q]
            if token.is_op("(", "[", "{"):
                q = self._forward(tokens, q)
            elif token.is_op("<") and tokens[q - 1].is_word():
                templates += 1
            elif token.is_op(">", ">>"):
                templates = max(0, templates - len(token.text))
            elif token.is_op(">>>") and q + 1 < len(tokens) and tokens[q + 1].is_op("("):
                if templates < 3:
                    return q
                templates -= 3
            q += 1
        raise self.error(tokens[p], "this launch has no matching '>>>(…)'")

    def _expression_start(self, tokens: Sequence[Token], p: int) -> int:
        """Where the postfix expression starts that ends at p: the kernel of a launch."""
        q = p
        while q >= 0:
            if tokens[q].is_op(">", ">>", ">>>"):
                q = self._angle_backward(tokens, q) - 1
                continue
            if tokens[q].is_op(")", "]"):
                q = self._backward(tokens, q)
                if q > 0 and self._is_operand(tokens, q - 1):
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
                if q > 1 and self._is_operand(tokens, q - 2):
                    q -= 2
                    continue
                return q - 1
            return q
        raise self.error(tokens[p], "cannot tell which kernel this launch starts")

    def _is_operand(self, tokens: Sequence[Token], p: int) -> bool:
        """Whether a name, call or subscript can end at p, so that what follows belongs to it."""
        token = tokens[p]
        if token.is_word():
            return token.text not in _STATEMENT_WORDS | _CONDITION_WORDS
        if token.is_op(")"):
            opening = self._backward(tokens, p)
            return not (opening > 0 and tokens[opening - 1].is_word(*_CONDITION_WORDS))
        if token.is_op(">", ">>"):
            try:
                return self._angle_backward(tokens, p) > 0
            except RewriteError:
                return False
        return token.is_op("]")

    # Kernels -------------------------------------------------------------------------------------

    def _edit_kernels(self, stream: _Stream) -> None:
        """Opens every kernel with a line that tells the runtime which kernel it is.

        A launch alone cannot tell: template arguments may have been deduced. The runtime wants the
        address for what cudaFuncSetAttribute set for it, the limit of __launch_bounds__ and the
        extents of __cluster_dims__.
        """
        tokens = stream.tokens
        kernels: list[tuple[int, str, bool, list[str]]] = []
        head = 0
        for p, token in enumerate(tokens):
            if token.is_op("{") and any(t.is_word("__global__") for t in tokens[head:p]):
                self._refuse_copied_maps(tokens[head:p])
                kernels.append((p, *self._kernel_identity(tokens, head, p)))
            if token.is_op("{", "}", ";"):
                head = p + 1
        for p, name, specialised, limits in kernels:
            overloads = sum(other[1] == name for other in kernels)
            known = name and (overloads == 1 or specialised)
            address = f"(&{name})" if known else "(nullptr)"
            self.after[stream.indices[p]] = f" CUDACPU_ENTRY({', '.join([address, *limits])})"

    def _refuse_copied_maps(self, head: Sequence[Token]) -> None:
        """A tensor map has to be a parameter that stays where it is.

        On a GPU, the copy engine would not find the copy that a thread has of a plain parameter.
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
                raise self.error(
                    token, "a kernel takes a tensor map as `const __grid_constant__ ptx::TensorMap`"
                )

    def _kernel_identity(
        self, tokens: Sequence[Token], head: int, body: int
    ) -> tuple[str, bool, list[str]]:
        """Name with template arguments (or ""), whether specialised, and what bounds a launch.

        That is the number of threads (0: any), and then the extents of a cluster, if there are any.
        """
        parameters: list[str] | None = []
        specialised = False
        bound = "0"
        cluster: list[str] = []
        q = head
        while q < body:
            token = tokens[q]
            if token.is_word("template") and tokens[q + 1].is_op("<"):
                close = self._angle_forward(tokens, q + 1)
                parameters = self._parameter_names(tokens, q + 2, close)
                specialised = close == q + 2
                q = close
            elif token.is_word("__launch_bounds__") and tokens[q + 1].is_op("("):
                close = self._forward(tokens, q + 1)
                parts = self._split(tokens, q + 2, close)
                bound = _flat(tokens[slice(*parts[0])]) if parts else "0"
                q = close
            elif token.is_word("__cluster_dims__") and tokens[q + 1].is_op("("):
                close = self._forward(tokens, q + 1)
                cluster = [
                    _flat(tokens[slice(*part)]) for part in self._split(tokens, q + 2, close)
                ]
                q = close
            elif token.is_word(*_ATTRIBUTE_WORDS, "requires") and tokens[q + 1].is_op("("):
                q = self._forward(tokens, q + 1)
            elif token.is_op("(") and q > head:
                if any(t.is_word("__global__") for t in tokens[head:q]):
                    break
                q = self._forward(tokens, q)  # a macro before the kernel, with no semicolon
            q += 1
        start = q - 1
        if tokens[start].is_op(">", ">>"):
            start = self._angle_backward(tokens, start) - 1
            specialised = True
        if not tokens[start].is_word() or parameters is None:
            return "", False, [bound, *cluster]
        name = _flat(tokens[start:q])
        if parameters and not specialised:
            name += f"<{', '.join(parameters)}>"
        return name, specialised, [bound, *cluster]

    def _parameter_names(self, tokens: Sequence[Token], start: int, end: int) -> list[str] | None:
        """Template parameters as template arguments; None if one of them has no name."""
        names = []
        for begin, stop in self._split(tokens, start, end):
            q = begin
            while q < stop and not tokens[q].is_op("="):
                q = self._angle_forward(tokens, q) if tokens[q].is_op("<") else q
                q += 1
            last = tokens[q - 1]
            unnamed = q - 1 == begin or not last.is_word() or last.text in _TYPE_WORDS
            if unnamed or tokens[q - 2].is_op("::"):
                return None
            names.append(last.text + ("..." if tokens[q - 2].is_op(".") else ""))
        return names

    # Loops that wait -----------------------------------------------------------------------------

    def _edit_waiting_loops(self, stream: _Stream) -> None:
        """Lets loops in device code that wait for another thread give way to it."""
        tokens = stream.tokens
        names = waiting_loops.volatile_names(tokens)
        bodies = (
            scope.start
            for outer, scope in itertools.pairwise(stream.scopes)
            if scope is not None and scope.in_function and not (outer and outer.in_function)
        )
        readers = self.project.volatile_readers
        readers |= waiting_loops.volatile_readers(tokens, bodies, names, readers)
        ends_of_do_loops = set()
        for p, token in enumerate(tokens):
            scope = stream.scopes[p]
            if not token.is_word("while", "do", "for") or scope is None or not scope.on_device:
                continue
            loop = waiting_loops.loop_at(tokens, p)
            if loop is None or p in ends_of_do_loops:
                continue
            if loop.kind == "do":
                ends_of_do_loops.add(loop.condition[0] - 2)
            if waiting_loops.waits(tokens, loop, names, readers):
                self._give_way(stream, loop)

    def _give_way(self, stream: _Stream, loop: waiting_loops.Loop) -> None:
        """Adds a call between one trip of the loop and the next."""
        tokens, indices = stream.tokens, stream.indices
        begin, end = loop.condition
        body = loop.body[0]
        if loop.kind == "for":
            separator = "" if tokens[loop.step - 1].is_op(";") else ", "
            self._insert_before(indices[loop.step], f"{separator}::cudacpu::spin_wait()")
        elif [t.text for t in tokens[begin:end]] in (["true"], ["1"]) and tokens[body].is_op("{"):
            # A condition that is not constant would give the loop an end, and warnings.
            self.after[indices[body]] = " ::cudacpu::spin_wait();"
        elif not any(t.is_op("=") for t in self._outer(tokens, begin, end)):
            # (A variable that is declared in the condition cannot be put into parentheses.)
            self._insert_before(indices[begin], "(")
            self._insert_before(indices[end], ") && ::cudacpu::spin_wait()")

    def _insert_before(self, index: int, text: str) -> None:
        self.before[index] = text + self.before.get(index, "")

    def _outer(self, tokens: Sequence[Token], begin: int, end: int) -> list[Token]:
        """The tokens that no bracket encloses."""
        found = []
        p = begin
        while p < end:
            found.append(tokens[p])
            p = self._forward(tokens, p) + 1 if tokens[p].is_op("(", "[", "{") else p + 1
        return found


def _flat(tokens: Sequence[Token]) -> str:
    """These tokens on one line, without comments."""
    text = ""
    for token in tokens:
        glued = text[-1:].isalnum() or text[-1:] == "_"
        word = token.kind in ("word", "number")
        text += (" " if glued and word else "") + token.text + (" " if token.is_op(",") else "")
    return text
