"""What a day declares, as plain data, and how days are found.

Nothing here imports torch: listing a hundred days reads their metadata from the syntax tree of
each `day.py` and takes milliseconds.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DAYS = ROOT / "days"


class DayError(Exception):
    """A day's folder or its day.py is not what the runner needs; the message names the file.

    folder: the day's folder, where `discover` met the error.
    """

    folder: Path | None = None


@dataclass(frozen=True)
class Case:
    """One input to check or to time.

    shape: sizes that the day's `inputs` understands, e.g. (rows, columns).
    dtype: name of a torch dtype, e.g. "float32", "bfloat16".
    values: which numbers are drawn, a key of `common.draw.VALUES`.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    values: str = "normal"

    def __str__(self) -> str:
        text = f"{'×'.join(map(str, self.shape))} {self.dtype}"
        return text if self.values == "normal" else f"{text} {self.values}"


@dataclass(frozen=True)
class Cost:
    """The least work that a case can take: bytes over the memory bus, operations on the units.

    bytes: each input read once and each output written once.
    flops: floating-point operations, a fused multiply-add counted as two.
    unit: the ceiling for flops, "fp32" or "tensor".
    """

    bytes: int = 0
    flops: int = 0
    unit: str = "fp32"


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from the float64 reference.

    ulps: units in the last place of the output's dtype that are always allowed.
    factor: how many times the error that PyTorch's own operator makes is allowed on top.
    why: the reason, required where a day departs from the default.
    """

    ulps: float = 4.0
    factor: float = 4.0
    why: str = ""


@dataclass(frozen=True)
class Target:
    """What a rung must reach on the GPU that the curriculum names; reported, never enforced.

    of: "copy" or "read" (share of that measured bandwidth), "pytorch" or "compile" (speed over
        theirs in the same run), or the name of another rung (speed over that rung).
    """

    at_least: float
    of: str

    def __str__(self) -> str:
        return f"≥ {self.at_least:g} × {self.of}"


@dataclass(frozen=True)
class Rung:
    """One variant of a day's ladder.

    name: the operator's name in torch.ops.dayNN.
    idea: what this rung does, in a few words, for the report.
    dtypes: the dtypes it takes, where they are fewer than the cases'.
    not_captured: why it cannot be captured in a CUDA graph ("" if it can, and then it is tried).
    not_repeatable: why two runs may differ in bits ("" if they may not, and then it is tried).
    host_timed: True where the call itself waits for the GPU (copies to and from the host), so
        that the clock of the host is the right one.
    timed: False where a time says nothing (a rung that prints).
    target: what this rung must reach.
    load: for a rung that is built some other way: takes a `common.build.Builder`, returns the
        callable. The default is torch.ops.dayNN.<name>.
    """

    name: str
    idea: str
    dtypes: tuple[str, ...] = ()
    not_captured: str = ""
    not_repeatable: str = ""
    host_timed: bool = False
    timed: bool = True
    target: Target | None = None
    load: Callable[[Any], Callable[..., Any]] | None = None


@dataclass(frozen=True)
class Problem:
    """One function that a day computes, and the ladder of rungs that compute it.

    name: what is computed, e.g. "softmax".
    inputs: (case, draw) -> tuple of arguments for a rung; `draw` is a `common.draw.Draw`.
    reference: the same mathematics in PyTorch, called with the same arguments. Called with
        float64 tensors it is the truth; called as they are it is PyTorch's own operator, whose
        error and time the rungs are compared with. Returns a tensor or a tuple of tensors.
    cases: what is checked. bench: what is timed on a GPU. bench_cpu: what is timed on the CPU.
    cost: case -> Cost.
    pytorch: timed as PyTorch's, where the reference is not how one would call it.
    pytorch_not_captured: why PyTorch's call cannot be captured in a CUDA graph, where it cannot.
    compiled: whether torch.compile is timed beside it too.
    outputs_exact: outputs must be equal to the last bit (integers, copies).
    gradients: whether the operator has a backward, checked against float64 autograd.
    unwatched: why compute-sanitizer cannot run it, where it cannot: under it, the problem is left
        out, and the report says why.
    """

    name: str
    inputs: Callable[[Case, Any], tuple[Any, ...]]
    reference: Callable[..., Any]
    rungs: tuple[Rung, ...]
    cases: tuple[Case, ...]
    bench: Case
    bench_cpu: Case
    cost: Callable[[Case], Cost]
    pytorch: Callable[..., Any] | None = None
    pytorch_not_captured: str = ""
    compiled: bool = False
    outputs_exact: bool = False
    gradients: bool = False
    unwatched: str = ""
    tolerance: Tolerance = field(default_factory=Tolerance)


def grid(
    shapes: list[tuple[int, ...]], dtypes: list[str], values: str = "normal"
) -> tuple[Case, ...]:
    """Every shape with every dtype, as cases."""
    return tuple(Case(shape, dtype, values) for shape in shapes for dtype in dtypes)


@dataclass(frozen=True)
class Day:
    """A day as `--list` needs it: read from day.py without running it.

    number: from the folder's name. title, teaches (one line for progress.md), topics, source
    (the .cu file): the constants TITLE, TEACHES, TOPICS, SOURCE of day.py. extra_sources: the
    optional constant EXTRA_SOURCES. Its .cu files are built together with `source`, into the same
    library; the others are what rungs with a `load` of their own build.
    """

    number: int
    folder: Path
    title: str
    teaches: str
    topics: tuple[str, ...]
    source: Path
    extra_sources: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """The folder's name, which is also the operators' namespace: "day05", "day100"."""
        return self.folder.name

    @property
    def library_sources(self) -> tuple[Path, ...]:
        """The .cu files that the day's library is made of, `source` first."""
        return (self.source, *(path for path in self.extra_sources if path.suffix == ".cu"))

    @property
    def other_sources(self) -> tuple[Path, ...]:
        """The files that rungs build in a way of their own."""
        return tuple(path for path in self.extra_sources if path.suffix != ".cu")


METADATA = {"TITLE": str, "TEACHES": str, "TOPICS": tuple, "SOURCE": str}
OPTIONAL = {"EXTRA_SOURCES": tuple}


def read_day(folder: Path) -> Day:
    """The metadata of the day in `folder`. Raises DayError naming what is missing or wrong."""
    file = folder / "day.py"
    number = folder.name.removeprefix("day")
    if not number.isdigit() or folder.name != f"day{int(number):02d}":
        raise DayError(f"{folder}: a day's folder is named day01 to day100")
    if not file.is_file():
        raise DayError(f"{folder}: day.py is missing")
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    except SyntaxError as error:
        raise DayError(f"{file}:{error.lineno}: {error.msg}") from None
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in METADATA or name in OPTIONAL:
                try:
                    found[name] = ast.literal_eval(node.value)
                except ValueError:
                    raise DayError(f"{file}:{node.lineno}: {name} must be a literal") from None
    for name, kind in (METADATA | OPTIONAL).items():
        if name in OPTIONAL and name not in found:
            continue
        if name not in found:
            raise DayError(f"{file}: {name} is missing")
        if not isinstance(found[name], kind) or not found[name]:
            raise DayError(f"{file}: {name} must be a non-empty {kind.__name__}")
    sources = [folder / name for name in (found["SOURCE"], *found.get("EXTRA_SOURCES", ()))]
    for source in sources:
        if not source.is_file():
            raise DayError(f"{file}: names {source.name}, which is not in the folder")
    return Day(
        int(number),
        folder,
        found["TITLE"],
        found["TEACHES"],
        tuple(found["TOPICS"]),
        sources[0],
        tuple(sources[1:]),
    )


def discover(root: Path = DAYS) -> tuple[list[Day], list[DayError]]:
    """All days under `root` in order, and an error for each folder that is not a proper day."""
    days: list[Day] = []
    errors: list[DayError] = []
    folders = [p for p in root.glob("day*") if p.is_dir()] if root.is_dir() else []
    for folder in sorted(folders, key=lambda p: (len(p.name), p.name)):
        try:
            days.append(read_day(folder))
        except DayError as error:
            error.folder = folder
            errors.append(error)
    return days, errors


@dataclass(frozen=True)
class Lesson:
    """What running a day's day.py gives: its PROBLEMS, and its function `show`, if it has one.

    show: (operators, device) -> None, called after the checks; it prints what the day has to show.
    """

    problems: tuple[Problem, ...]
    show: Callable[[Any, Any], None] | None = None


def load_lesson(day: Day) -> Lesson:
    """Runs the day's day.py. Raises DayError where what it declares is not what is needed."""
    file = day.folder / "day.py"
    spec = importlib.util.spec_from_file_location(f"days.{day.name}", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    problems = getattr(module, "PROBLEMS", None)
    if not isinstance(problems, tuple) or not problems:
        raise DayError(f"{file}: PROBLEMS must be a non-empty tuple of Problem")
    for problem in problems:
        if not isinstance(problem, Problem):
            raise DayError(f"{file}: PROBLEMS holds a {type(problem).__name__}, not a Problem")
        if not problem.rungs or not problem.cases:
            raise DayError(f"{file}: problem {problem.name!r} has no rungs or no cases")
    show = getattr(module, "show", None)
    if show is not None and not callable(show):
        raise DayError(f"{file}: show must be a function, got a {type(show).__name__}")
    return Lesson(problems, show)
