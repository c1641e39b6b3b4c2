"""No host code calls a function that is `__device__` only.

In a template nvcc accepts the call, and replaces it by `exit(1)`: the process ends without a
message. On the CPU backend it works.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from common.base.compiling import sources_of
from common.base.paths import ROOT
from common.cpu.syntax import angle_closing, closing
from common.mutants.outline import Code, Function, outline

FILES = sorted(path for part in ("common/cuda", "days") for path in (ROOT / part).rglob("*.cu*"))
QUALIFIERS = ("__host__", "__device__", "__global__", "constexpr")


@cache
def functions_of(path: Path) -> list[tuple[Code, Function, frozenset[str]]]:
    """Return the functions of a file, with their qualifiers."""
    read = outline(path.read_text())
    functions = [function for each in read.declarations for function in each.functions]
    return [
        (
            read.code,
            function,
            frozenset(
                token.text
                for token in read.code.code[function.start : function.body]
                if token.is_word(*QUALIFIERS)
            ),
        )
        for function in functions
    ]


def called(code: Code, function: Function) -> Iterator[str]:
    """Yield the names in front of the parentheses of calls, without those in lambdas for the
    device."""
    tokens = code.code
    p = function.body
    while p < function.end:
        token, behind = tokens[p], p + 1
        if token.is_op("[") and tokens[closing(tokens, p) + 1].is_word("__device__"):
            while not tokens[p].is_op("{"):
                p = closing(tokens, p) + 1 if tokens[p].is_op("(", "[") else p + 1
            p = closing(tokens, p)
        elif token.is_word():
            if tokens[behind].is_op("<") and not code.spaced(behind):
                behind = angle_closing(tokens, behind) + 1
            if tokens[behind].is_op("("):
                yield token.text
        p += 1


def wrong_calls(path: Path) -> list[str]:
    known: dict[str, list[frozenset[str]]] = {}
    for file in sources_of(path):
        for _, function, qualifiers in functions_of(file):
            known.setdefault(function.name.split("::")[-1], []).append(qualifiers)
    on_device = {
        name
        for name, all_of_it in known.items()
        if all("__device__" in q and not q & {"__host__", "constexpr"} for q in all_of_it)
    }
    return [
        f"{function.name} calls {name}"
        for code, function, qualifiers in functions_of(path)
        if not qualifiers & {"__device__", "__global__"}
        for name in called(code, function)
        if name in on_device
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_host_code_calls_a_function_of_the_device(path: Path) -> None:
    assert not wrong_calls(path)


def test_a_call_is_found(tmp_path: Path) -> None:
    file = tmp_path / "one.cu"
    file.write_text(
        "struct P { template <typename T> __device__ T* at() { return 0; } };\n"
        "__device__ int f(int x) { return x; }\n"
        "template <typename T> void host(P p) { T* t = p.at<T>(); }\n"
        "void other() { g([=] __device__(int x) { return f(x); }); }\n"
        "__global__ void kernel(P p) { f(*p.at<int>()); }\n"
    )
    assert wrong_calls(file) == ["host calls at"]
