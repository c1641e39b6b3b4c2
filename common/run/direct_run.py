"""Build a day, call each rung on a small case of each dtype, and compare with PyTorch.

torch.utils.cpp_extension.load, called in common/build/library.py, builds the .cu files into a
library of operators, torch.ops.day05.<rung>.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.base.compiling import BuildError
from common.base.days import load_lesson, read_day
from common.base.declaration import Problem, Rung
from common.base.figures import duration
from common.base.outcome import Skip
from common.base.toolchain import detect
from common.build import library
from common.check import device
from common.check.cases import quick_cases
from common.check.lacks import Lacking
from common.check.rungs import call_once
from common.process.worker import load_rung, without_advice

RIGHT, WRONG, SKIPPED = "right", "WRONG", "skipped"


def run(folder: Path, device_name: str) -> list[str]:
    """Build and call the day's rungs; return RIGHT, WRONG or SKIPPED for each."""
    day, platform = read_day(folder), detect(device_name)
    print(f"day {day.number}: {day.title}, on {platform.label()}")
    if platform.note:
        print(f"note: {platform.note}")
    todo = library.plan(day, platform)
    before = todo.entry.ready
    library.build_library(todo)  # by torch.utils.cpp_extension.load
    sources = ", ".join(source.name for source in day.library_sources)
    seconds = duration(todo.entry.seconds)
    where = " (it lay in the cache)" if before else ""
    print(f"{sources}: built by torch.utils.cpp_extension.load in {seconds}{where}")
    backend = device.make(platform)
    operators = library.load(todo)  # torch.ops.day05
    found = []
    for problem in load_lesson(day).problems:
        print(f"{problem.name}:")
        found += [_try(todo, problem, rung, operators, backend) for rung in problem.rungs]
    return found


def _try(
    todo: library.Build, problem: Problem, rung: Rung, operators: Any, backend: device.Backend
) -> str:
    """Call a rung and compare it with PyTorch; print and return the outcome."""
    called, status, said, details = rung.name, RIGHT, list[str](), list[str]()
    try:
        with without_advice():
            call, _ = load_rung(todo.day, todo, rung, operators)
            rung, backend = device.of_rung(problem, rung, backend)
            for case in quick_cases(problem.cases_of(rung)):
                once = call_once(problem, rung, call, case, backend)
                called = f"{_name(todo, rung)}({', '.join(once.arguments)})"
                if once.failure is not None:
                    status, said = WRONG, [once.failure.about(problem.case_words(case)).summary]
                    details = once.failure.details
                    break
                said.append(f"{case.dtype} {once.error:.1e}")
    except (Skip, Lacking) as reason:
        status, said = SKIPPED, [str(reason)]
    except BuildError as error:  # of a rung with a custom `load`
        status, said, details = WRONG, ["it does not build"], str(error).splitlines()
    what = "largest error: " if status == RIGHT else ""
    print(f"  {called}\n      {status}, {what}{', '.join(said)}")
    for line in details:
        print(f"      {line}")
    return status


def _name(todo: library.Build, rung: Rung) -> str:
    """Return the rung's name in Python."""
    if rung.of_library:
        return f"torch.ops.{todo.day.name}.{rung.name}"
    module = rung.triton or rung.numba
    return f"{module}.{rung.name}" if module else rung.name
