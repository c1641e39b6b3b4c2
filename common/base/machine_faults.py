"""Recognise a fault of the machine from the message of a failed build."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from common.base.cache import cache_directory

OLDEST_GCC = 11  # the first with the C++20 features of the days and the CPU backend
INSTALL = "on Debian or Ubuntu: sudo apt-get install"
INSTALL_COMPILER = f"{INSTALL} g++ (version {OLDEST_GCC} or later)"

_FULL = re.compile(r"No space left on device|Disk quota exceeded")
# Messages of g++, and of collect2, which starts the linker for it.
_MISSING = re.compile(
    r"(?:cannot execute|error trying to exec|cannot find) [‘'](as|ld|cc1plus)[’']"
)
_PROGRAMS = {
    "as": ("the assembler", "binutils"),
    "ld": ("the linker", "binutils"),
    "cc1plus": ("the C++ compiler proper", "g++"),
}


class Obstacle(NamedTuple):
    """A fault of the machine. what: a short description. fix: the remedy, and its place."""

    what: str
    fix: str


def obstacle(message: str) -> Obstacle | None:
    """Return the fault of the machine that the message of a failed build shows, None if the source
    is at fault."""
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
    """Return the obstacle of a full disk: folders that builds write to, and how to move them."""
    cache, temporary = cache_directory(), temporary_folder()
    return Obstacle(
        "the disk is full",
        f"builds are kept in {cache} ({_free(cache)} free), and compilers write to {temporary} "
        f"({_free(temporary)} free): make room, or set HUNDRED_DAYS_CACHE or TMPDIR to a folder "
        "of another disk",
    )


def temporary_folder() -> Path:
    """Return the folder for compilers: unlike Python, they use TMPDIR even if it is full."""
    chosen = os.environ.get("TMPDIR", "")
    return Path(chosen if os.path.isdir(chosen) else tempfile.gettempdir())


def _free(folder: Path) -> str:
    """Return the free space on the disk of a folder, which need not exist yet."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return f"{shutil.disk_usage(there).free / 1e6:.0f} MB"
