"""What is wrong with the machine where a build fails, known from the build's message."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from common.base.cache import cache_directory

OLDEST_GCC = 11  # the first with what days and the CPU backend use of C++20
INSTALL = "on Debian or Ubuntu: sudo apt-get install"
INSTALL_COMPILER = f"{INSTALL} g++ (version {OLDEST_GCC} or later)"

_FULL = re.compile(r"No space left on device|Disk quota exceeded")
# As g++, and collect2, which starts the linker for it, say it.
_MISSING = re.compile(
    r"(?:cannot execute|error trying to exec|cannot find) [‘'](as|ld|cc1plus)[’']"
)
_PROGRAMS = {
    "as": ("the assembler", "binutils"),
    "ld": ("the linker", "binutils"),
    "cc1plus": ("the C++ compiler proper", "g++"),
}


class Obstacle(NamedTuple):
    """what: is wrong, in a few words. fix: where, and what to do about it."""

    what: str
    fix: str


def obstacle(message: str) -> Obstacle | None:
    """Return what is wrong with the machine, where the message of a failed build shows it; None
    where the fault is the source's."""
    if _FULL.search(message):
        return full_disk()
    if found := _MISSING.search(message):
        program = found.group(1)
        name, package = _PROGRAMS[program]
        return Obstacle(
            f"{name} ({program}) is missing",
            f"put the folder of {program}, usually /usr/bin, on PATH, or install it; "
            f"{INSTALL} {package}",
        )
    return None


def full_disk() -> Obstacle:
    """Return what to say of a full disk: which folders builds write to, and how to move them."""
    cache, temporary = cache_directory(), temporary_folder()
    return Obstacle(
        "the disk is full",
        f"builds are kept in {cache} ({_free(cache)} free), and compilers write to {temporary} "
        f"({_free(temporary)} free): make room, or set HUNDRED_DAYS_CACHE or TMPDIR to a folder "
        "of another disk",
    )


def temporary_folder() -> Path:
    """Return where compilers write, which, unlike Python, take TMPDIR even where it is full."""
    chosen = os.environ.get("TMPDIR", "")
    return Path(chosen if os.path.isdir(chosen) else tempfile.gettempdir())


def _free(folder: Path) -> str:
    """Return how much room there is on the disk of a folder, which need not exist yet."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return f"{shutil.disk_usage(there).free / 1e6:.0f} MB"
