"""Read the maximum rates of a GPU, and hold rates against them.

Day 50's kernels measure them, and `run_day.py 50 --write` stores them in that day's folder, one
file per GPU. On a GPU without such a file, any run of day 50 keeps them in the cache. A library's
kernel is never a ceiling.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common.base.cache import cache_directory
from common.base.decoding import PlainError, decode, parse
from common.base.outcome import HOST_CLOCK, Timing
from common.base.paths import DAYS
from common.base.where import slug

UNITS = {  # of each rate; a multiply-add is two operations
    **dict.fromkeys(("copy", "read", "l2", "shared"), "GB/s"),
    **dict.fromkeys(("fp32", "fp16", "int32", "tensor", "fp8", "int8"), "TFLOP/s"),
    "exp": "T/s",
}
_FOLDER = Path("day50/results/show")
_PREFIX = "ceilings-"


@dataclass(frozen=True)
class Ceilings:
    """Measured maxima of one GPU.

    gpu: its name. date: of the measurement, as 2026-01-31. rates: by name, in UNITS: of a copy
    (bytes read plus bytes written), of reading memory, L2 and shared memory, of arithmetic
    ("tensor": tensor cores in bf16) and of exponentials. A rate that was not measured is missing.
    mhz: the mean clock of the multiprocessors while that kernel ran, by the same names.
    """

    gpu: str
    date: str
    rates: dict[str, float]
    mhz: dict[str, float] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        return file_name(self.gpu)

    def to_text(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_text(text: str, path: object) -> Ceilings:
        """Return the ceilings from `to_text`. Raise PlainError, naming the file, if the text is
        invalid."""
        try:
            found: Ceilings = decode(Ceilings, parse(text))
            for name, rate in [*found.rates.items(), *found.mhz.items()]:
                if name not in UNITS or not rate > 0:
                    raise PlainError(f"expected one of {', '.join(UNITS)}, got {name} = {rate}")
        except PlainError as error:
            raise PlainError(f"{path} holds no ceilings: {error}") from None
        return found


def file_name(gpu: str) -> str:
    """Return the name of a GPU's file: "ceilings-nvidia-h200.json"."""
    return f"{_PREFIX}{slug({'device': 'cuda', 'gpu': gpu})}.json"


def ceilings_files(days: Path) -> dict[Path, str]:
    """Return the stored files of ceilings with their texts. days: the folder of the days."""
    found = sorted((days / _FOLDER).glob(f"{_PREFIX}*.json"))
    return {path: path.read_text(encoding="utf-8") for path in found}


def by_gpu(files: dict[Path, str]) -> dict[str, Ceilings]:
    """Return the ceilings in these files by the GPU's slug; other files are ignored. Raise
    PlainError, naming the file, if one is invalid."""
    return {
        path.stem.removeprefix(_PREFIX): Ceilings.from_text(text, path)
        for path, text in files.items()
        if path.match(f"{_FOLDER}/{_PREFIX}*.json")
    }


def ceilings_of(gpu: str, days: Path = DAYS) -> Ceilings | None:
    """Return the ceilings of a GPU by its name: the stored ones, else those kept in the cache; None
    if nothing has measured them. Raise PlainError for an invalid file."""
    for path in (days / _FOLDER / file_name(gpu), cache_directory() / file_name(gpu)):
        if path.is_file():
            return Ceilings.from_text(path.read_text(encoding="utf-8"), path)
    return None


def keep(measured: Ceilings) -> None:
    """Write the ceilings to the cache, for runs on a GPU without stored ones."""
    file = cache_directory() / measured.file_name
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(measured.to_text(), encoding="utf-8")
    os.replace(unfinished, file)


def share_of(timing: Timing, ceilings: Ceilings | None) -> float | None:
    """Return the rate over the ceiling that bounds it; None if that ceiling is unknown, or nothing
    bounds it: a call timed by the host's clock, or one whose bytes fit in L2."""
    if ceilings is None or timing.note.startswith(HOST_CLOCK):
        return None
    ceiling = ceilings.rates.get(timing.bound)
    rate = reached(timing, timing.bound)
    return rate / ceiling if rate and ceiling else None


def reached(timing: Timing, bound: str) -> float | None:
    """Return the rate that is compared with this ceiling, in its unit; None if it declares no such
    work."""
    return timing.gbs if UNITS.get(bound) == "GB/s" else timing.tflops
