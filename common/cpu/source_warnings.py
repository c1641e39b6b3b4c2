"""Find local variables that are read before they are set, and 64-bit sizes and indices that are
stored in 32 bits, by the host compiler's warnings about a rewritten source.

No input that a check can afford has 2^31 elements, so `int i = blockIdx.x * int64_t{…} + …` passes
all of them. The compiler warns of the conversion (-Wconversion), of a loop condition whose counter
is shorter than its bound, of a 32-bit thread index compared with a 64-bit bound, of a block index
multiplied in 32 bits, and of C-style casts.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from common.base.compiling import BuildError, compiler_message

# Return the place of a warning, "/a/x.cu:12", as it is shown; "" for code of others.
Shown = Callable[[str], str]

# Prepended to a source: these calls warn at their place, and the compiler itself compares and
# multiplies such values without a warning.
_WARNING = """
template <class A, class B>
void cudacpu_compared(A, B) {}
template <class A, class B>
  requires(sizeof(A) < 8 && sizeof(B) == 8)
[[deprecated("a loop's counter is shorter than its bound")]] void cudacpu_compared(A, B) {}
template <class A, class B>
auto cudacpu_product(A a, B b) { return a * b; }
template <class A, class B>
  requires(sizeof(A) < 8 && sizeof(B) < 8 && requires(A a, B b) { a % b; })
[[deprecated("a block's index is multiplied in 32 bits")]] auto cudacpu_product(A a, B b) {
  return a * b;
}
template <class A, class B>
A cudacpu_index(A a, B) { return a; }
template <class A, class B>
  requires(sizeof(A) < 8 && sizeof(B) == 8)
[[deprecated("a 32-bit index is compared with a 64-bit bound")]] A cudacpu_index(A a, B) {
  return a;
}
template <class T>
struct cudacpu_to {};
template <class T, class V>
T operator->*(cudacpu_to<T>, V v) { return (T)v; }
template <class T, class V>
  requires(sizeof(V) == 8 && requires(V v) { v % v; })
[[deprecated("a value of 64 bits is cast to 32")]] T operator->*(cudacpu_to<T>, V v) {
  return (T)v;
}
"""

# for (int i = …; i < bound; …), in formatted code; a bound in capitals is a constant.
_LOOP = re.compile(
    r"\bfor \((?P<head>(?:int|unsigned|int32_t|uint32_t) (?P<counter>\w+) = [^;]*; )"
    r"(?P<condition>(?P=counter) <=? (?P<bound>[^;&|]*;))"
)
_CONSTANT = re.compile(r"[A-Z0-9_:]+")
# blockIdx.x * cols, (blockIdx.x / strips) * cols, cols * blockIdx.x; factors that are calls,
# subscripts or constructions are ignored.
_GRID = r"\b(?:blockIdx|gridDim)\.[xyz]"
_PART = rf"(?<![\w>])\({_GRID} [/%] \w+\)"
_OTHER = r"(?:[A-Za-z_][\w.:]*(?![\w(\[{<.:])|\([^()]*\))"
_PRODUCT = re.compile(
    rf"(?P<left>{_GRID}|{_PART}) \* (?P<right>{_OTHER})"
    rf"|(?<![\w.>])(?P<first>[A-Za-z_][\w.]*) \* (?P<then>{_GRID})"
)
# A value declared with 32 bits, cast to them or printed with %u is meant to be small.
_SMALL = re.compile(
    r"\b(?:int|unsigned|u?int32_t) \w+ = [^=]*$"
    r"|static_cast<(?:int|unsigned)>\([^()]*$|\bprintf\(.*$",
    re.DOTALL,
)
# const int i = blockIdx.x * blockDim.x + threadIdx.x; a cast shows the intention.
_INDEX = re.compile(
    r"\b(?:int|unsigned|int32_t|uint32_t) (?P<name>\w+) = (?![^;]*(?:static_cast|int64_t))[^;]*"
    rf"{_GRID}[^;]*;"
)
# (int)n, int(n): C-style casts, less explicit than static_cast<int>(n).
_CAST = re.compile(
    r"(?<![\w>])\((?P<type>int|unsigned|unsigned int|int32_t|uint32_t)\) ?(?=[A-Za-z_(])"
    r"|(?<![\w:<>*&.\])])(?<!new )(?P<called>int|unsigned|int32_t|uint32_t)(?=\([A-Za-z_(])"
)
_CONVERSION = re.compile(
    r"^(?P<place>.+?:\d+):\d+: warning: (?:narrowing )?conversion .*?"
    r"from [‘'](?P<source>[^’']+)[’']"
    r"(?: \{aka [‘'](?P<meant>[^’']+)[’']\})? to [‘'](?P<target>[^’']+)[’']",
    re.MULTILINE,
)
_OWN = re.compile(
    r"^(?P<place>.+?:\d+):\d+: warning: .*(?P<what>a loop's counter is shorter than its bound"
    r"|a block's index is multiplied in 32 bits|a value of 64 bits is cast to 32"
    r"|a 32-bit index is compared with a 64-bit bound)",
    re.MULTILINE,
)
_LONG = re.compile(r"^(u?int64_t|size_t|ptrdiff_t|(long )+(unsigned )?int|(unsigned )?(long ?)+)$")
_SHORT = ("int", "unsigned int", "int32_t", "uint32_t")


_BYTES = "surrogateescape"  # that are not UTF-8, in a comment or a string
NARROWING = ("-fsyntax-only", "-Wconversion")  # for the compiler, on the text of `prepared`
_UNSET = re.compile(
    r"^(.+?:\d+):\d+: warning: [‘'](.+?)[’'] (?:is|may be) used uninitialized", re.MULTILINE
)


def environment() -> dict[str, str]:
    """Return variables that make a compiler's warnings English."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def unset_locals(commands: Iterable[Sequence[str]], shown: Shown) -> list[str]:
    """Return local variables that may be read before they are set, as far as the compiler detects
    it: one line each, "file:line: variable sum may be read before it is set".

    commands: each compiles one source, with the flags of the variant "address", which do not change
    such reads. Raise BuildError with the compiler's message.
    """
    found: dict[str, None] = {}
    for command in commands:
        options = ("-c", "-o", os.devnull, "-Wuninitialized", "-Wmaybe-uninitialized")
        for place, variable in _UNSET.findall(_warnings([*command, *options])):
            if place := shown(place):
                found[f"{place}: variable {variable} may be read before it is set"] = None
    return list(found)


def _warnings(command: Sequence[str], text: str = "", folder: Path | None = None) -> str:
    """Return the warnings of the compiler, which reads the text from its standard input in that
    folder. Raise BuildError with its message if it fails."""
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        encoding="utf-8",
        errors=_BYTES,
        cwd=folder,
        env=environment(),
    )
    if done.returncode != 0:
        raise BuildError(compiler_message(done.stderr))
    return done.stderr


def prepared(text: str, filename: str) -> str:
    """Return a source rewritten to contain calls of which the compiler warns."""
    text = _PRODUCT.sub(_multiplied, _LOOP.sub(_compared, text))
    for name in {match["name"] for match in _INDEX.finditer(text)}:
        bound = rf"(?<![\w.]){name} (?=(?:<|>|<=|>=) (?P<bound>[a-z_]\w*)(?![\w(\[.<:]))"
        text = re.sub(bound, rf"cudacpu_index({name}, \g<bound>) ", text)
    text = _CAST.sub(lambda m: f"cudacpu_to<{m['type'] or m['called']}>{{}} ->* ", text)
    return f'{_WARNING}#line 1 "{filename}"\n{text}'


def narrowed(source: Path, command: Sequence[str], shown: Shown) -> list[str]:
    """Return each place of a rewritten source where a 64-bit value is stored in 32 bits, or bounds
    a 32-bit counter, or where a block's index is multiplied in 32 bits: one line each,
    "days/day05/x.cu:12: …". An intended conversion is written as static_cast<int>(…).

    command: the compiler and the source's flags. Raise BuildError with the compiler's message.
    """
    text = prepared(source.read_text(encoding="utf-8", errors=_BYTES), str(source))
    # In the folder of the headers that it includes by name.
    command = [*command, *NARROWING, "-x", "c++", "-"]
    return narrowed_places(_warnings(command, text, source.parent), shown)


def narrowed_places(warnings: str, shown: Shown) -> list[str]:
    """Return the lines of `narrowed` from the compiler's warnings."""
    lines = []
    for match in _CONVERSION.finditer(warnings):
        source_type = match["meant"] or match["source"]
        shortened = _LONG.match(source_type) and match["target"] in _SHORT
        if shortened and (place := shown(match["place"])):
            what = f"a value of {match['source']} is kept in {match['target']}"
            lines.append(f"{place}: {what}; static_cast says where that is meant")
    for match in _OWN.finditer(warnings):
        if place := shown(match["place"]):
            lines.append(f"{place}: {match['what']}")
    return lines


def _compared(match: re.Match[str]) -> str:
    bound = match["bound"].removesuffix(";").strip()
    if _CONSTANT.fullmatch(bound) or "sizeof" in bound:
        return match[0]
    compared = f"cudacpu_compared({match['counter']}, {bound})"
    return f"for ({match['head']}{compared}, {match['condition']}"


def _multiplied(match: re.Match[str]) -> str:
    text = match.string
    statement = max(text.rfind(end, 0, match.start()) for end in ";{}") + 1
    if _SMALL.search(text, statement, match.start()):
        return match[0]
    left, right = match["left"] or match["first"], match["right"] or match["then"]
    grid, other = (left, right) if match["left"] else (right, left)
    if ".x" not in grid and _CONSTANT.fullmatch(other):
        return match[0]  # along y and z a grid has 65535 blocks at most
    return f"cudacpu_product({left}, {right})"
