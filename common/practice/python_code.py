"""Extract a step's code in Python: a function's lines, and a module without unneeded parts.

Invalid Python raises SyntaxError; a function that is not found raises LookupError, whose message
contains the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from common.base.days import Day

Function = ast.FunctionDef | ast.AsyncFunctionDef


def body_of(text: str, name: str) -> tuple[int, int]:
    """Return the offsets of the lines of a function's body: without its docstring, with comments
    above the first statement and below the last one.

    name: of a function that occurs once, as Class.method or outer.inner if its simple name occurs
    more often.
    """
    function = _function(text, name)
    statements = _statements(function)
    lines = text.splitlines(keepends=True)
    first, last = statements[0].lineno - 1, statements[-1].end_lineno
    assert last is not None
    if lines[first][: statements[0].col_offset].strip():
        raise LookupError(f"the body of {name} has no line of its own")
    documented = function.body[0].end_lineno if function.body[0] is not statements[0] else None
    top = documented or function.lineno
    while first > top and (not lines[first - 1].strip() or _is_comment(lines[first - 1])):
        first -= 1
    while last < len(lines) and _is_comment(lines[last], function.col_offset + 1):
        last += 1
    return sum(map(len, lines[:first])), sum(map(len, lines[:last]))


def code_of(text: str, name: str) -> list[str]:
    """Return the statements of a function's body, equal for equal code; docstring, comments and
    layout are ignored."""
    return [ast.dump(statement) for statement in _statements(_function(text, name))]


def excerpt_of(text: str, names: Collection[str]) -> str:
    """Return a module with the code that these names use, and its statements that define no
    names."""
    lines = text.splitlines(keepends=True)
    statements = ast.parse(text).body
    needed, reached = set(names), {s for s in statements if not _defined_by(s)}
    needed |= _used_by(reached)
    while more := [s for s in statements if s not in reached and needed & _defined_by(s)]:
        reached.update(more)
        needed |= _used_by(more)
    kept, begin = "", 0
    for statement in statements:
        assert statement.end_lineno is not None
        if statement in reached:
            kept += "".join(lines[begin : statement.end_lineno])
        begin = statement.end_lineno  # comments belong to the following statement
    return re.sub(r"\n{4,}", "\n\n\n", kept + "".join(lines[begin:]))


def imported_from(day: Day, module: Path) -> set[str]:
    """Return the names of one of the day's modules that its other modules import on loading."""
    return {
        alias.name
        for other in day.modules
        for statement in ast.parse(other.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.ImportFrom) and statement.module
        if statement.module.split(".")[-1] == module.stem
        for alias in statement.names
    }


def _function(text: str, name: str) -> Function:
    named = [f for full, f in _functions(ast.parse(text)) if f".{full}".endswith(f".{name}")]
    if len(named) != 1:
        often = f"is there {len(named)} times" if named else "is not there"
        raise LookupError(f"the function {name} {often}")
    return named[0]


def _functions(inside: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield all functions in some code, with names like Class.method and outer.inner."""
    for node in ast.iter_child_nodes(inside):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not isinstance(node, ast.ClassDef):
                yield prefix + node.name, node
            yield from _functions(node, f"{prefix}{node.name}.")
        else:
            yield from _functions(node, prefix)


def _statements(function: Function) -> list[ast.stmt]:
    """Return the function's body without its docstring, unless that is all of it."""
    documented = ast.get_docstring(function) is not None and len(function.body) > 1
    return function.body[1:] if documented else function.body


def _is_comment(line: str, column: int = 0) -> bool:
    """Return True if the line is a comment that begins in this column or to the right of it."""
    code = line.lstrip()
    return code.startswith("#") and len(line) - len(code) >= column


def _used_by(statements: Iterable[ast.stmt]) -> set[str]:
    return {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name)}


def _defined_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines; none for an import."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
