"""64-bit sizes and indices that are kept in 32 bits, found by the host's compiler.

No input that a check can afford has 2^31 elements, so that `int i = blockIdx.x * int64_t{…} + …`
passes all of them. The compiler warns of the conversion (-Wconversion), and of the condition of a
loop whose counter is shorter than its bound.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from common.base.cache import Entry, cached, digest
from common.base.compiling import STABLE_ABI, BuildError, compiler_message, torch_includes
from common.base.days import Day
from common.base.paths import ROOT
from common.base.toolchain import Platform
from common.build.library import plan
from common.cpu import backend as cpu
from common.cpu import libraries

# Put in front of a source: a call with a counter and a bound of more bits warns where it stands;
# the compiler itself compares the two without a word.
_COMPARISON = """
template <class A, class B>
void cudacpu_compared(A, B) {}
template <class A, class B>
  requires(sizeof(A) < 8 && sizeof(B) == 8)
[[deprecated("a loop's counter is shorter than its bound")]] void cudacpu_compared(A, B) {}
"""

# for (int i = …; i < bound; …), in code that is formatted; a bound in capitals is a constant.
_LOOP = re.compile(
    r"\bfor \((?P<head>(?:int|unsigned|int32_t|uint32_t) (?P<counter>\w+) = [^;]*; )"
    r"(?P<condition>(?P=counter) <=? (?P<bound>[^;&|]*;))"
)
_CONVERSION = re.compile(
    r"^(?P<place>.+?:\d+):\d+: warning: (?:narrowing )?conversion .*?"
    r"from [‘'](?P<source>[^’']+)[’']"
    r"(?: \{aka [‘'](?P<meant>[^’']+)[’']\})? to [‘'](?P<target>[^’']+)[’']",
    re.MULTILINE,
)
_SHORT_COUNTER = re.compile(
    r"^(?P<place>.+?:\d+):\d+: warning: .*a loop's counter is shorter than its bound", re.MULTILINE
)
_LONG = re.compile(r"^(u?int64_t|size_t|ptrdiff_t|(long )+(unsigned )?int|(unsigned )?(long ?)+)$")
_SHORT = ("int", "unsigned int", "int32_t", "uint32_t")


def narrowed(day: Day, platform: Platform) -> list[str]:
    """Each place of the day's sources where a value of 64 bits is kept in 32, or is the bound of a
    counter of 32: a line each, "days/day05/x.cu:12: …". Kept in the cache.

    A conversion that is meant is written as one: static_cast<int>(…). Raises BuildError with the
    compiler's message.
    """
    sources = plan(day, platform).sources
    files = [text for source in sources for text in libraries.texts(source)]
    parts = [platform.compiler_version, platform.torch, *libraries.flags(platform)]
    key = digest(parts, [*files, *cpu.HEADERS, Path(__file__)])
    entry = Entry(f"{day.name}-narrowed", key, "places.txt")

    def make(directory: Path) -> None:
        found: dict[str, None] = {}
        for source in sources:
            for line in _of_source(source, directory, day, platform):
                found[line] = None
        entry.path.write_text("".join(f"{line}\n" for line in found))

    return cached(entry, make).read_text().splitlines()


def _of_source(source: Path, directory: Path, day: Day, platform: Platform) -> list[str]:
    text = _LOOP.sub(_compared, source.read_text(encoding="utf-8"))
    # Beside the headers that it includes by their names.
    copy = directory / source.name
    copy.write_text(f'{_COMPARISON}#line 1 "{source}"\n{text}', encoding="utf-8")
    command = [platform.compiler, "-fsyntax-only", str(copy), STABLE_ABI, "-Wconversion"]
    # The rewritten headers beside it come before those that they were made of.
    command += [*libraries.flags(platform), f"-I{source.parent}", f"-I{ROOT}"]
    command += [word for path in torch_includes() for word in ("-isystem", str(path))]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    copy.unlink()
    if done.returncode != 0:
        raise BuildError(compiler_message(done.stderr))
    lines = []
    for match in _CONVERSION.finditer(done.stderr):
        source_type = match["meant"] or match["source"]
        if _LONG.match(source_type) and match["target"] in _SHORT and _ours(match["place"], day):
            what = f"a value of {match['source']} is kept in {match['target']}"
            lines.append(f"{_short(match['place'])}: {what}; static_cast says where that is meant")
    for match in _SHORT_COUNTER.finditer(done.stderr):
        if _ours(match["place"], day):
            lines.append(f"{_short(match['place'])}: the loop's counter is shorter than its bound")
    return lines


def _compared(match: re.Match[str]) -> str:
    bound = match["bound"].removesuffix(";").strip()
    if re.fullmatch(r"[A-Z0-9_:]+", bound) or "sizeof" in bound:
        return match[0]
    compared = f"cudacpu_compared({match['counter']}, {bound})"
    return f"for ({match['head']}{compared}, {match['condition']}"


def _ours(place: str, day: Day) -> bool:
    path = Path(place.rsplit(":", 1)[0])
    return path.is_relative_to(ROOT) or path.is_relative_to(day.folder)


def _short(place: str) -> str:
    return place.removeprefix(f"{ROOT}/")
