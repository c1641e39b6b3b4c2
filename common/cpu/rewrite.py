"""Rewrite a `.cu` file line by line as C++ that a host compiler accepts.

Four features of CUDA C++ are not C++. Each is replaced in place, so that every line keeps its
number and every compiler message points into the `.cu`: launches (launches.py), `__shared__`
variables (shared_variables.py), the kernels themselves (kernels.py) and some names (names.py). In
addition, a pair in braces gets its type (braced_pairs.py), `__device__` variables are put apart
(device_variables.py), calls whose errors are not checked record their place (unchecked_calls.py),
a loop that waits for another thread lets that thread run (waiting_loops.py), code that needs the
threads of a warp to run in step reports it (warp_in_step.py), and conditions on `__CUDA_ARCH__` and
`__CUDACC__` are decided (conditions.py). A feature that the backend lacks is refused with file and
line (features.py).
"""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.cpu import (
    braced_pairs,
    conditions,
    device_variables,
    includes,
    kernels,
    launches,
    models,
    names,
    shared_variables,
    unchecked_calls,
    waiting_loops,
    warp_in_step,
)
from common.cpu.lexer import Token
from common.cpu.stream import Edits, macro_streams, main_stream
from common.cpu.syntax import TokenError

# Bytes that are not UTF-8, in a comment or a string, stay unchanged.
_AS_IT_IS = "surrogateescape"


class RewriteError(Exception):
    """The file uses a feature that the CPU backend cannot run, at `file` and `line`."""

    def __init__(self, file: str, line: int, what: str) -> None:
        super().__init__(f"{file}:{line}: {what}")
        self.file = file
        self.line = line


def rewrite(text: str, filename: str, model: str = "") -> str:
    """Return the text of a `.cu` file or header as C++ for the host compiler.

    model: the card that decides `__CUDA_ARCH__`, by default the backend's default. Line numbers
    stay, and compiler messages name `filename`. Raise RewriteError for a feature that the backend
    lacks.
    """
    return _rewrite_file(text, filename, copies={}, project=_Project(models.architecture(model)))


def device_lines(source: Path, model: str = "") -> set[int]:
    """Return the lines of a file that have device code, without functions that are `__host__` as
    well."""
    tokens = conditions.read(_text_of(source), models.architecture(model))
    code = main_stream(tokens, Edits())
    return {token.line for p, token in enumerate(code.tokens) if code.on_device(p)}


def rewrite_tree(
    source: Path,
    out_dir: Path,
    roots: Sequence[Path],
    model: str = "",
    macros: conditions.Macros | None = None,
) -> Path:
    """Rewrite a source and every project header that it reaches, and return the `.cpp`.

    An `#include "…"` is looked up in the including file's folder, then in each of `roots`, an
    `#include <…>` in the roots; a file that is found is a project header, and the rewritten include
    names its rewritten copy in `out_dir`. macros: knowledge of macros, by default none. Raise
    RewriteError for a feature that the backend lacks.
    """
    project = _Project(models.architecture(model), macros or conditions.Macros())
    tree = _Tree(out_dir.resolve(), [root.resolve() for root in roots], project)
    return tree.add(source.resolve(), is_source=True)


class Variants:
    """Rewrite many texts of one source; its headers are rewritten once, into `out_dir`.

    roots, model, errors: see `rewrite_tree`. The texts have the source's includes.
    """

    def __init__(self, source: Path, out_dir: Path, roots: Sequence[Path], model: str = "") -> None:
        self._source = source.resolve()
        project = _Project(models.architecture(model))
        self._tree = _Tree(out_dir.resolve(), [root.resolve() for root in roots], project)
        self._tree.add(self._source, is_source=True)

    def rewrite(self, text: str) -> str:
        """Return the rewritten text, to be compiled with `out_dir` as the current directory."""
        copies = self._tree.copies(text, self._source, self._tree.out_dir)
        return _rewrite_file(text, str(self._source), copies, self._tree.project)


@dataclass(slots=True)
class _Project:
    """Facts about the files rewritten so far, for files that include them; and __CUDA_ARCH__."""

    arch: int
    macros: conditions.Macros = field(default_factory=conditions.Macros)
    declared: set[str] = field(default_factory=set)  # with CUDA-like names
    lacking: dict[str, str] = field(default_factory=dict)  # see names.refuse_missing
    volatile_readers: set[str] = field(default_factory=set)  # see waiting_loops
    device_macros: set[str] = field(default_factory=set)  # see conditions
    shared_variables: dict[str, str] = field(default_factory=dict)  # at file scope


def _rewrite_file(text: str, filename: str, copies: Mapping[str, str], project: _Project) -> str:
    """Return the rewritten text of one file; copies: the rewritten copy of each header that it
    names."""
    tokens, edits = conditions.resolve(text, project.arch, project.device_macros, project.macros)
    project.device_macros |= conditions.device_macros(tokens)
    try:
        _edit(tokens, edits, copies, project)
    except TokenError as error:
        raise RewriteError(filename, error.token.line, error.what) from None
    return f'#line 1 "{filename}"\n{edits.applied_to(tokens)}'


def _edit(tokens: list[Token], edits: Edits, copies: Mapping[str, str], project: _Project) -> None:
    """Add the edits of one file to `edits`."""
    includes.edit(tokens, edits, copies, project.macros.given)
    code = main_stream(tokens, edits)
    streams = [code, *macro_streams(tokens, edits)]
    # Collect all of them first: code may use names declared further down, or in a macro.
    for stream in streams:
        names.collect_declared(stream, project.declared)
    numbers = itertools.count()
    for stream in [*streams[1:], code]:  # code is refused at the use of a macro
        names.refuse_missing(stream, project.declared, project.lacking)
    for stream in streams:
        names.edit(stream)
        shared_variables.edit(stream, numbers, project.shared_variables)
        braced_pairs.edit(stream)
        launches.edit(stream)
        device_variables.edit(stream)
        unchecked_calls.edit(stream, project.declared)
    kernels.edit(code)
    volatile = waiting_loops.volatile_names(code.tokens)
    waiting_loops.edit(code, volatile, project.volatile_readers)
    warp_in_step.edit(code, volatile)


def _text_of(path: Path) -> str:
    """Return a file's text without a byte order mark, which is only allowed at the start of a
    file."""
    return path.read_text(encoding="utf-8", errors=_AS_IT_IS).removeprefix("\ufeff")


class _Tree:
    """A source and the headers that it reaches, each rewritten once."""

    def __init__(self, out_dir: Path, roots: Sequence[Path], project: _Project) -> None:
        self.out_dir = out_dir
        self.roots = roots
        self.outputs: dict[Path, Path] = {}
        self.project = project

    def add(self, path: Path, *, is_source: bool = False) -> Path:
        """Rewrite a file after the headers that it includes, and return the path of the result."""
        if path in self.outputs:
            return self.outputs[path]
        output = self._output_path(path, is_source)
        self.outputs[path] = output
        text = _text_of(path)
        copies = self.copies(text, path, output.parent)
        rewritten = _rewrite_file(text, str(path), copies, self.project)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(rewritten, encoding="utf-8", errors=_AS_IT_IS)
        return output

    def copies(self, text: str, path: Path, directory: Path) -> dict[str, str]:
        """Return the rewritten copy of each project header that this text of `path` includes, as a
        path from `directory`: relative, so that the text does not depend on its place."""
        found = {}
        for name in includes.named(conditions.read(text, self.project.arch, self.project.macros)):
            header = self._find(name, path.parent)
            if header is not None:
                found[name] = os.path.relpath(self.add(header), directory)
        return found

    def _find(self, name: str, beside: Path) -> Path | None:
        """Return the project header of an include as written, None for other headers."""
        for folder in (beside, *self.roots) if name.startswith('"') else self.roots:
            candidate = (folder / name[1:-1]).resolve()
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
