"""Implement `--draw`: which thread of a rung reads and writes which element, on a small case."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from common.base.days import Day, load_lesson
from common.base.declaration import Case, Problem, Rung
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, SKIP, RungOutcome, Skip
from common.base.toolchain import Platform
from common.build import library
from common.check import device
from common.check.call import Call, call_guarded, judge
from common.check.cases import TRACED_ELEMENTS
from common.check.device import Backend
from common.check.expected import Signature, rolled_samples, signature_of
from common.check.guard import ALLOCATED, GuardedTensor
from common.check.lacks import Lacking
from common.check.tiny_case import MOST_ELEMENTS, SmallCase, small_case, small_cases
from common.cpu.launch_record import RecordedLaunch
from common.process.events import Channel, Finished, Over, Planned, Stage
from common.process.worker import chosen_problems, explain, load_rung
from common.report.drawn_call import DrawnCall
from common.tools.launch_trace import constants_of, drawn_launch

TRYING = 10.0  # seconds for the search for a case, and for one launch
MOST_LAUNCHES = 3  # drawn launches of a call
MOST_BLOCKS = 3  # of a launch, if there is a choice
# The preferred shapes, for a problem that takes any size.
_SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((10,),),
    2: ((3, 7), (12, 3)),
    3: ((3, 4, 5),),
}
# Lengths of vectors that need several blocks, so that threads loop on a small card.
_LONG = (101, 301, 601, 1101, 2201, 4401)
INTERPRETED = "a kernel in Python is interpreted here: its accesses are not recorded"


@dataclass(frozen=True)
class _Tried:
    """A call on a small case. launches: as recorded. fallback: the rung whose kernel did the work
    instead, or "". on_small_card: the simulated card had two multiprocessors."""

    small: SmallCase
    done: Call
    launches: list[RecordedLaunch]
    fallback: str
    on_small_card: bool = False

    @property
    def blocks(self) -> int:
        """Return the number of blocks of the largest launch."""
        return max((math.prod(launch.grid) for launch in self.launches), default=0)

    @property
    def most_of_a_thread(self) -> int:
        """Return the largest number of a thread's accesses to global memory."""
        times = [
            Counter((a.block, a.thread) for a in launch.accesses if not a.shared)
            for launch in self.launches
        ]
        return max((count for each in times for count in each.values()), default=0)

    @property
    def accesses(self) -> int:
        """Return the number of addresses in global memory that it accesses."""
        return sum(
            len({a.address for a in launch.accesses if not a.shared}) for launch in self.launches
        )


class _Artist:
    """Try a rung on small cases, and choose the call that shows most."""

    def __init__(
        self,
        problem: Problem,
        rung: Rung,
        call: Callable[..., Any],
        backend: Backend,
        fallback: Callable[[], str],
    ):
        self.problem, self.rung, self.call = problem, rung, call
        self.backend, self.fallback = backend, fallback
        self.signature: Signature = signature_of(call, problem.reference)
        self.cases = problem.cases_of(rung)

    def choose(self) -> _Tried | None:
        """Return the call to draw; None if every case is refused or too large. Raise the call's
        exception if all of them raise."""
        raised: Exception | None = None
        found: list[_Tried] = []
        until = time.monotonic() + TRYING
        for case, most in self._candidates():
            if time.monotonic() > until:
                break
            nice = most == MOST_ELEMENTS and case.shape in _SHAPES.get(len(case.shape), ())
            if not nice and any(not tried.fallback for tried in found):
                break
            try:
                tried = self._try(case, most)
            except Lacking:
                raise
            except Exception as error:
                raised = raised or error
                continue
            if tried is not None:
                found.append(tried)
        if not found and raised is not None:
            raise raised
        own = [tried for tried in found if not tried.fallback] or found[:1]
        few = [tried for tried in own if tried.blocks <= MOST_BLOCKS] or own
        if not few:
            return None
        best = max(few, key=lambda tried: tried.accesses)
        good = self.right(best) and not best.done.memory.violations()
        return (self._longer(best) if good else None) or best

    def _candidates(self) -> Iterator[tuple[Case, int]]:
        """Yield small cases of a dtype, those with nice shapes first, then the declared ones that
        can be traced in seconds; each with the limit on a tensor's elements."""
        ordinary = [case for case in self.cases if case.values == "normal"] or self.cases
        small = small_cases(self.cases, ordinary[0])
        known = {case.shape: case for case in small}
        ranks = dict.fromkeys(len(case.shape) for case in small)
        nice = [shape for rank in ranks for shape in _SHAPES.get(rank, ())]
        for shape in nice:
            if shape in known:
                yield known.pop(shape), MOST_ELEMENTS
        for case in known.values():
            yield case, MOST_ELEMENTS
        for case in sorted(ordinary, key=lambda case: math.prod(case.shape)):
            if 0 not in case.shape and case.dtype == ordinary[0].dtype:
                yield case, TRACED_ELEMENTS

    def _longer(self, tiny: _Tried) -> _Tried | None:
        """Return a call on a vector of several blocks, on a small card: the first in which a thread
        accesses several elements because it loops, else the first with several blocks."""
        case = tiny.small.case
        if len(case.shape) != 1 or tiny.blocks != 1 or case.shape not in _SHAPES[1]:
            return None
        found: _Tried | None = None
        for length in _LONG:
            try:
                tried = self._try(replace(case, shape=(length,)), length, on_small_card=True)
            except Exception:
                return found  # it is refused on the small card
            if tried is None or tried.fallback or len(tried.launches) > len(tiny.launches):
                return found  # a drawing of one idea must not have more launches
            if found is None and 1 < tried.blocks <= MOST_BLOCKS:
                found = tried
            elif found is not None and tried.most_of_a_thread > found.most_of_a_thread:
                return tried
        return found

    def _try(self, case: Case, most: int, on_small_card: bool = False) -> _Tried | None:
        small = small_case(self.problem, case, self.backend, self.signature.writes, most)
        if small is None:
            return None
        self.fallback()
        self.backend.take_launches()
        with self.backend.small_card() if on_small_card else nullcontext():
            self.backend.trace("record")
            try:
                with self.backend.time_limit(TRYING):
                    done = call_guarded(
                        self.call, self.signature, small.args, self.backend, on_host=small.on_host
                    )
            finally:
                self.backend.trace("off")
                launches = self.backend.take_launches()
        return _Tried(small, done, launches, self.fallback(), on_small_card)

    def right(self, tried: _Tried) -> bool:
        """Return True if its result is accepted."""
        expected, done = tried.small.expected, tried.done
        samples = partial(rolled_samples, self.problem, expected, self.signature.writes)
        return not judge(self.problem, expected, done.outputs, done.names, self.signature, samples)


def _names(done: Call) -> list[GuardedTensor]:
    """Return all tensors of a call, under names known to a reader."""
    named, others = [], 0
    for tensor in done.memory.tensors():
        name = tensor.name.removeprefix("argument ").removeprefix("the ")
        if not name or name.endswith(ALLOCATED):
            others += 1
            name = f"allocated {others}"
        named.append(replace(tensor, name=name))
    return named


def _never(done: Call) -> dict[str, list[int]]:
    """Return, by name, the elements of each output that still hold the fill of fresh memory."""
    found = {}
    for name, output in zip(done.names, done.outputs, strict=True):
        if isinstance(output, Tensor) and not name.startswith("argument"):
            missing = done.memory.untouched(output).reshape(-1).nonzero().flatten().tolist()
            if missing:
                found[name.removeprefix("the ")] = missing
    return found


def drawn_call(rung: str, tried: _Tried, constants: Mapping[str, int]) -> DrawnCall:
    """Return the drawing of a call."""
    tensors, never = _names(tried.done), _never(tried.done)
    kept = tried.launches[:MOST_LAUNCHES]
    launches = [
        drawn_launch(launch, tensors, constants, never if launch is kept[-1] else {})
        for launch in kept
    ]
    notes = []
    if tried.on_small_card:
        notes.append("on a small card: 2 multiprocessors with one block each")
    if tried.fallback:
        notes.append(f"on so small a case it falls back to {tried.fallback}")
    if not kept:
        notes.append("it launches no kernel of the day's library")
    case = tried.small.case
    return DrawnCall(
        rung, str(case) if case.shape else "", launches, notes, len(tried.launches) - len(kept)
    )


def run_day(day: Day, platform: Platform, options: RunOptions, channel: Channel) -> None:
    """Draw a call of each rung, as the `drawing` of its outcome.

    platform: with the variant "trace".
    """
    backend = device.make(platform)
    backend.trace("off")
    todo = library.plan(day, platform)
    operators = library.load(todo)
    problems = chosen_problems(load_lesson(day), options)
    channel.emit(Planned([[p.name, r.name, r.idea] for p in problems for r in p.rungs]))
    fallback = library.fallbacks(todo)
    sources = (*day.library_sources, *day.headers)
    constants = constants_of(path.read_text(encoding="utf-8") for path in sources)
    for problem in problems:
        for rung in problem.rungs:
            outcome = RungOutcome(problem.name, rung.name, rung.idea, PASS)
            outcome.further = problem.further
            channel.emit(Stage(rung.name, "drawing", problem.name))
            try:
                if rung.in_python:
                    raise Skip(INTERPRETED)
                call, _ = load_rung(day, todo, rung, operators)
                _draw(_Artist(problem, rung, call, backend, fallback), outcome, constants)
            except (Skip, Lacking) as why:
                outcome.status, outcome.reason = SKIP, str(why)
            except Exception as error:
                outcome.status = FAIL
                outcome.reason, outcome.details = explain(error)
            channel.emit(Finished(outcome))
    channel.emit(Over())


def _draw(artist: _Artist, outcome: RungOutcome, constants: Mapping[str, int]) -> None:
    """Draw a rung's call. A wrong result fails, and so does an access outside of a tensor."""
    tried = artist.choose()
    if tried is None:
        outcome.status, outcome.reason = SKIP, "no case is small enough to be drawn"
        return
    drawn = drawn_call(artist.rung.name, tried, constants)
    case = tried.small.case
    if drawn.out_of_bounds:
        outcome.status, outcome.reason = FAIL, f"out of bounds on {case}, which is drawn"
    if not artist.right(tried):
        outcome.status, outcome.reason = FAIL, f"wrong on {case}, which is drawn"
        drawn.notes.append("the result is wrong on this case")
    outcome.drawing = asdict(drawn)
