"""Call all rungs of some days with cases that hypothesis draws, and report those that fail.

    python -m tests.random_cases 5 6 --cases 8 --seed 7

draws further shapes than those that the day declares (also around multiples of tile sizes), its
dtypes and values, and for some cases a tensor that is not contiguous or not aligned. Each call
must give the reference's result, or be refused by the name of an argument. A failure shrinks to a
simple case and is printed as JSON, a line per rung: problem, rung, call, failure; after each day's
rungs, the end of its process. It runs on the CPU backend, each day in a separate process, since a
kernel may crash the process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import Tensor

from common.base import toolchain
from common.base.days import Day, discover, load_lesson
from common.base.declaration import Case, Problem, Rung
from common.base.outcome import Skip
from common.build import day_build, library
from common.check import device
from common.check.bad_input import Attempt, BadInput, layouts, unaligned
from common.check.draw import Draw
from common.check.expected import RAISED, ProblemError, signature_of
from common.process.worker import load_rung

LARGEST = 1 << 13  # elements of a case's shape
SHRINKING = 20.0  # seconds, after a failure
TILES = (8, 16, 32, 64, 128, 256)


def sizes(most: int) -> st.SearchStrategy[int]:
    """Return a strategy for sizes in [0, most], including multiples of tiles and their neighbours;
    simpler is less."""
    near = sorted(
        {
            size
            for tile in TILES
            for multiple in range(tile, most + 2, tile)
            for size in (multiple - 1, multiple, multiple + 1)
            if size <= most
        }
    )
    return st.integers(0, most) | st.sampled_from(near or [most])


@st.composite
def cases(draw: st.DrawFn, known: list[Case]) -> Case:
    """Draw a case like the known ones. A dimension that has an odd size in one of them takes any
    size up to its largest one; any other takes only known sizes, since they may have to be
    multiples."""
    base = draw(st.sampled_from(known))
    alike = [case for case in known if len(case.shape) == len(base.shape)]
    shape = list(base.shape)
    for dim in range(len(shape)):
        there = sorted({other.shape[dim] for other in alike})
        most = min(there[-1], LARGEST // max(math.prod(shape) // max(shape[dim], 1), 1))
        if any(size % 2 and size > 1 for size in there):
            shape[dim] = draw(sizes(most))
        else:
            fitting = [size for size in there if size <= most]
            shape[dim] = draw(st.sampled_from(fitting or [shape[dim]]))
    kinds = list(dict.fromkeys((case.dtype, case.values) for case in alike))
    dtype, values = draw(st.sampled_from(kinds))
    if values == "constant":  # a norm divides by the spread of a row: only declared cases
        return draw(st.sampled_from([c for c in alike if (c.dtype, c.values) == (dtype, values)]))
    return Case(tuple(shape), dtype, values)


def arrangements(tensor: Tensor, written: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensor in other memory layouts."""
    yield from layouts(tensor, written)
    if tensor.numel() > 1 and tensor.dim():
        yield "not aligned, like x[1:]", unaligned(tensor)


class TimeIsUp(KeyboardInterrupt):
    """End the search: hypothesis lets it pass, as it does Ctrl-C."""


class Finding(Exception):
    """A failed call. text: the call. lines: the failure."""

    def __init__(self, text: str, lines: list[str]):
        super().__init__(text)
        self.text, self.lines = text, lines


def explore(
    problem: Problem,
    rung: Rung,
    call: Callable[..., Any],
    backend: device.Backend,
    count: int,
    seed: int,
) -> tuple[int, Finding | None]:
    """Return how many of `count` cases were tried, and the finding of the simplest one that
    failed."""
    known = [
        case for case in problem.cases_of(rung) if case.shape and math.prod(case.shape) <= LARGEST
    ]
    if not known:
        return 0, None
    signature = signature_of(call, problem.reference)
    backend.use(backend.schedules()[0])
    tried, failed_at = 0, math.inf
    found: Finding | None = None

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @hypothesis.given(cases(known), st.integers(0, 99), st.integers(0, 7), st.integers(0, 15))
    def one(case: Case, numbers: int, place: int, how: int) -> None:
        nonlocal tried, found, failed_at
        if time.monotonic() > failed_at + SHRINKING:
            raise TimeIsUp
        drawn = Draw(case, backend, numbers)
        try:
            args = problem.inputs(case, drawn)
        except (ProblemError, *RAISED):
            return  # a shape that the day's inputs do not support
        text = f"{case}, draw {numbers}"
        tensors = [i for i, value in enumerate(args) if isinstance(value, Tensor)]
        if place < len(tensors):
            at = tensors[place]
            other_places = list(arrangements(args[at], at in signature.writes))
            if how < len(other_places):
                name, other = other_places[how]
                args = (*args[:at], other, *args[at + 1 :])
                text += f", {signature.names[at]} {name}"
        bad = BadInput("the arguments", text, args, signature.names)
        attempt = Attempt(problem, call, signature, backend, args, drawn.on_host, text)
        try:
            failure, _ = attempt.attempt(bad, 0)
        except ProblemError:
            return  # a shape that the reference does not support
        tried += 1
        if failure is not None:
            failed_at = min(failed_at, time.monotonic())
            found = Finding(text, str(failure).splitlines())
            raise found

    with contextlib.suppress(Finding, TimeIsUp):
        one()  # ends with the simplest case that fails
    return tried, found


def explore_day(day: Day, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield, for each rung of the day, the outcome of `count` cases."""
    platform = toolchain.detect("cpu")
    day_build.build(day, platform)
    todo = library.plan(day, platform)
    backend = device.make(platform)
    operators = library.load(todo)
    lesson = load_lesson(day)
    pairs = [(problem, rung) for problem in lesson.problems for rung in problem.rungs]
    for problem, rung in pairs:
        try:
            call, _ = load_rung(day, todo, rung, operators)
        except Skip as skip:
            yield {"problem": problem.name, "rung": rung.name, "skipped": str(skip)}
            continue
        mine, its = device.of_rung(problem, rung, backend)
        tried, finding = explore(problem, mine, call, its, count, seed)
        yield {
            "problem": problem.name,
            "rung": rung.name,
            "tried": tried,
            "called": finding.text if finding else "",
            "wrong": finding.lines if finding else [],
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("days", type=int, nargs="+")
    parser.add_argument("--cases", type=int, default=8, help="for each rung")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for day in discover()[0]:
        if day.number not in args.days:
            continue
        child = os.fork()
        if not child:
            code = 1
            try:
                for found in explore_day(day, args.cases, args.seed):
                    print(json.dumps({"day": day.number, **found}), flush=True)
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"day": day.number, "exit": status}), flush=True)


if __name__ == "__main__":
    main()
