"""Define the options of a run: from the command line, through the runner, to a day's process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from common.base.paths import DAYS, ROOT

TIME_LIMIT = {"cuda": 120.0, "cpu": 300.0}  # seconds per day, of running time


def no_attention() -> None:
    """Do nothing: the default of `attend`."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run. Those down to `swap` are options of run_day.py, which parses them under
    these names.

    selected: words that select days. mode: "run", or the name of the option that replaces checking
    and timing, e.g. "compile-only". quick: fewer cases, a share of the bad inputs, shorter timing,
    and no bad input if the CPU backend simulates a card that the user chose. bench: time the rungs.
    rivals: also time the problems' rivals.
    jobs: builds at a time, 0 for the number that cores and memory allow. side_by_side: days checked
    at a time on one device, 0 likewise. time_limit: seconds per day, 0 for the device's default.
    archs: for mode "compile-only". model: the card that the CPU backend simulates, "" for its
    default. days: folder of the days. svg: path of the drawings, in mode "draw"; None for a file
    next to that of `swap`, or no file without `swap`. further: also run the parts beyond the main
    lines. verbose: show how rungs were checked. in_process: run in this process (for tools that
    watch one process). watched: such a tool traces every access: no bands around tensors, which
    would hide overruns from it, one thread order, and no bad input, which launches nothing and
    takes long under a tool, except unaligned tensors if addresses are watched. rungs: run only
    these rungs, () for all. swap: a day's source, and the file that replaces it.

    alone: time the rungs against PyTorch's call only, without targets, and skip the day's `show`.
    debug: on the CPU, check in more orders, and wait for hanging threads for a second at most.
    first_calls: check one call on each case, and no bad input. explain: make further calls of a
    failing rung to find the cause. threads: of PyTorch on the host until the day's turn, 0 for
    PyTorch's default. attend: called repeatedly while waiting; an exception it raises ends the run.
    """

    selected: tuple[str, ...] = ()
    shard: str = ""
    device: str = "auto"
    mode: str = "run"
    quick: bool = False
    bench: bool = True
    rivals: bool = False
    jobs: int = 0
    side_by_side: int = 0
    time_limit: float = 0.0
    archs: tuple[str, ...] = ("8.0", "9.0a")
    json: Path | None = None
    html: Path | None = None
    svg: Path | None = None
    write: bool = False
    colour: bool = True
    model: str = ""
    days: Path = DAYS
    further: bool = False
    verbose: bool = False
    in_process: bool = False
    watched: bool = False
    rungs: tuple[str, ...] = ()
    swap: tuple[Path, Path] | None = None

    alone: bool = False
    debug: bool = False
    first_calls: bool = False
    explain: bool = True
    threads: int = 0
    attend: Callable[[], None] = no_attention

    @classmethod
    def of(cls, parsed: Mapping[str, Any]) -> RunOptions:
        """Return the options among parsed arguments, whose other names are ignored."""
        given: dict[str, Any] = {}
        for name in {field.name for field in fields(cls)} & set(parsed):
            value = parsed[name]
            given[name] = tuple(value) if isinstance(value, list) else value
        return cls(**given)

    @property
    def whole_days(self) -> bool:
        """Return True if days run with what goes beyond their main lines: results of whole days are
        stored."""
        return self.further or self.write or "all" in self.selected

    def limit(self, device: str) -> float:
        """Return the seconds that a day may run on "cuda" or "cpu"."""
        return self.time_limit or TIME_LIMIT[device]

    def command(self) -> list[str]:
        """Return a command line for another process with the same days, device, card, files and
        rungs, and the same mode. Options that concern only this process's output are left out."""
        switches = {
            f"--{self.mode}": self.mode != "run",
            "--quick": self.quick,
            "--no-bench": not self.bench,
            "--further": self.whole_days,
            "--in-process": self.in_process,
            "--watched": self.watched,
        }
        values = {
            "--days": str(self.days) if self.days != DAYS else "",
            "--model": self.model,
            "--rungs": ",".join(self.rungs),
            "--time-limit": str(self.time_limit) if self.time_limit else "",
            "--json": str(self.json) if self.json else "",
        }
        words = [sys.executable, str(ROOT / "run_day.py"), *self.selected, "--device", self.device]
        words += ["--no-color", *(switch for switch, on in switches.items() if on)]
        words += [word for option, value in values.items() if value for word in (option, value)]
        return [*words, *(["--swap", *map(str, self.swap)] if self.swap else [])]

    def watched_command(self, day: int, device: str, **changes: Any) -> list[str]:
        """Return a command line that runs one of the days in a single process, for tools that watch
        one. changes: to the options."""
        child = replace(self, selected=(str(day),), device=device, in_process=True, json=None)
        child = replace(child, mode="run", further=self.whole_days, write=False)
        return replace(child, **changes).command()
