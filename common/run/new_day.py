"""Implement `--new N TITLE`: create a day's folder that builds and passes, to hold a lesson."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from common.base.days import discover
from common.base.paths import ROOT
from common.base.refusal import UsageError

_SKELETON = Path(__file__).resolve().parent / "skeleton"
_FILES = {
    "kernel.cu": "{name}.cu",
    "day.txt": "day.py",
    "README.md": "README.md",
    "exercises.toml": "exercises.toml",
    "mutants.toml": "mutants.toml",
}


def new_day(number: str, title: str, root: Path) -> list[Path]:
    """Write `root`/dayNN and return its files.

    number: 1 to 999, as text. title: the day's title, from which the source's name is derived.
    Raise UsageError for an invalid number or title, and if the day exists already.
    """
    if not re.fullmatch(r"[0-9]{1,9}", number) or not 1 <= int(number) <= 999:
        raise UsageError(f"--new: {number!r} is no number of a day, from 1 to 999")
    name = "_".join(re.findall(r"[a-z0-9]+", title.lower()))
    if not re.match(r"[a-z]", name) or '"' in title or "\\" in title:
        raise UsageError(f"--new: {title!r} is no title: it begins with a letter and has no quotes")
    folder = root / f"day{int(number):02d}"
    if folder.exists():
        raise UsageError(f"--new: {folder} is there already")
    values = {"@N@": str(int(number)), "@TITLE@": title, "day00": folder.name, "skeleton": name}
    folder.mkdir(parents=True)
    made = []
    for template, file in _FILES.items():
        text = (_SKELETON / template).read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace(key, value)
        made.append(folder / file.format(name=name))
        made[-1].write_text(text, encoding="utf-8")
    if formatter := shutil.which("clang-format"):  # line breaks depend on the name's length
        style = f"--style=file:{ROOT / '.clang-format'}"
        subprocess.run([formatter, style, "-i", str(made[0])], check=True)
    days, errors = discover(root)
    assert any(day.folder == folder for day in days), errors
    return made
