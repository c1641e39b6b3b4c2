"""Find the 64-bit sizes and indices of a day that are stored in 32 bits, by
common/cpu/source_warnings.py."""

from __future__ import annotations

from pathlib import Path

from common.base.cache import Entry, cached, digest
from common.base.compiling import STABLE_ABI, torch_includes
from common.base.days import Day
from common.base.paths import ROOT
from common.base.toolchain import Platform
from common.build.library import plan
from common.cpu import backend as cpu
from common.cpu import libraries, source_warnings


def narrowed(day: Day, platform: Platform) -> list[str]:
    """Return the places of `source_warnings.narrowed` in the day's sources. Cached.

    Raise BuildError with the compiler's message.
    """
    sources = plan(day, platform).sources
    files = [text for source in sources for text in libraries.texts(source)]
    parts = [platform.compiler_version, platform.torch, *libraries.flags(platform)]
    key = digest(parts, [*files, *cpu.HEADERS, Path(source_warnings.__file__)])
    entry = Entry(f"{day.name}-narrowed", key, "places.txt")

    def make(_: Path) -> None:
        found: dict[str, None] = {}
        for source in sources:
            command = _command(source, platform)
            for line in source_warnings.narrowed(source, command, lambda p: _shown(p, day)):
                found[line] = None
        entry.path.write_text("".join(f"{line}\n" for line in found))

    return cached(entry, make).read_text().splitlines()


def _command(source: Path, platform: Platform) -> list[str]:
    command = [platform.compiler, *libraries.prelude(platform), "-fPIC", STABLE_ABI]
    command += [*libraries.flags(platform), f"-I{source.parent}", f"-I{ROOT}"]
    return command + [word for path in torch_includes() for word in ("-isystem", str(path))]


def places(warnings: str, day: Day) -> list[str]:
    """Return the lines of `narrowed` from the compiler's warnings."""
    return source_warnings.narrowed_places(warnings, lambda place: _shown(place, day))


def _shown(place: str, day: Day) -> str:
    path = Path(place.rsplit(":", 1)[0])
    own = path.is_relative_to(ROOT) or path.is_relative_to(day.folder)
    learners = path in day.library_sources
    return place.removeprefix(f"{ROOT}/") if own or learners else ""
