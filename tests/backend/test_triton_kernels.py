"""The kernels of the days' rungs in Triton: all are compiled while the day is built, and bad input
needs no others. This needs no GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.base.cache import Entry
from common.base.days import Day, Lesson, discover, load_lesson
from common.base.declaration import Case, Problem, Rung
from common.base.toolchain import Platform
from common.build import day_build
from common.build.library import Build
from common.build.triton_kernels import (
    Variant,
    cases_of,
    compile_kernels,
    compiling_for,
    launched,
    on_gpu,
    recording,
    without_memory,
)
from common.check.bad_input import bad_inputs, fewer_bad_inputs, starting_cases
from common.check.compilations import triton_compilations
from common.check.device import Backend
from common.check.draw import Draw
from common.check.expected import signature_of

pytest.importorskip("triton", reason="python -m pip install triton")

ARCH = "9.0a"
IN_TRITON = [day for day in discover()[0] if any("_triton" in p.stem for p in day.extra_sources)]
Rungs = list[tuple[Problem, Rung, Callable[..., Any]]]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate the properties of the card that launchers query, and compile kernels instead of
    interpreting them."""
    card = SimpleNamespace(major=9, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: card)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200")
    for name in ("TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM"):
        monkeypatch.delenv(name, raising=False)


def rungs_of(day: Day, lesson: Lesson | None = None) -> Rungs:
    return [
        (
            problem,
            rung,
            getattr(importlib.import_module(f"days.{day.name}.{rung.triton}"), rung.name),
        )
        for problem in (lesson or load_lesson(day)).problems
        for rung in problem.rungs
        if rung.triton
    ]


def test_there_are_days_in_triton() -> None:
    assert len(IN_TRITON) >= 9


@pytest.mark.parametrize("day", IN_TRITON, ids=lambda day: day.name)
def test_bad_input_needs_no_kernel_of_its_own(day: Day) -> None:
    built: dict[Any, Any] = {}
    needed: dict[Any, Any] = {}
    with compiling_for(ARCH):
        for problem, rung, call in rungs_of(day):
            built |= launched(problem, call, cases_of(problem, rung))
        for problem, rung, call in rungs_of(day):
            needed |= launched_by_bad_input(problem, rung, call)
    assert needed, "no bad input was computed"
    more = needed.keys() - built.keys()
    assert not more, "kernels that no case needs:\n" + "\n".join(sorted(map(str, more)))


def launched_by_bad_input(problem: Problem, rung: Rung, call: Callable[..., Any]) -> dict[Any, Any]:
    backend, signature = Backend("cpu"), signature_of(call, problem.reference)
    cases = problem.cases_of(rung)
    first, *others = starting_cases(cases)
    tried = [*bad_inputs(drawn(problem, first, backend), signature, backend)]
    for case in others:
        tried += fewer_bad_inputs(drawn(problem, case, backend), signature)
    with recording() as found, without_memory():
        for args in [bad.args for bad in tried]:
            with suppress(TypeError, ValueError):  # it is refused
                call(*on_gpu(args))
    return found


def drawn(problem: Problem, case: Case, backend: Backend) -> tuple[Any, ...]:
    return problem.inputs(case, Draw(case, backend, seed=3))


def test_building_a_day_compiles_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is compiled once, and a kernel that is not in the cache is noticed."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    day = next(day for day in IN_TRITON if day.name == "day61")
    lesson = load_lesson(day)
    add, *_ = lesson.problems
    few = replace(add, cases=(Case((255,)), Case((256,), "float16")), bench=Case((1 << 40,)))
    lesson = replace(lesson, problems=(few,))
    platform = Platform("cuda", "c++", "", tmp_path, "", arch=ARCH)
    todo = Build(day, platform, (), Entry("day61", "", ""))
    with triton_compilations() as compiled:
        day_build._compile_triton(lesson, todo)
    assert len(compiled) == len(list(tmp_path.rglob("*.cubin"))) == 3
    assert any(each.startswith("leaky_add_kernel(x: *fp16, ") for each in compiled)
    with triton_compilations() as compiled:
        compile_kernels(rungs_of(day, lesson), ARCH)
    assert compiled == []


def test_what_cannot_be_called_is_left_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Variant] = []
    monkeypatch.setattr(Variant, "compile", lambda variant: compiled.append(variant))
    problem, rung, call = rungs_of(IN_TRITON[0])[0]

    def broken(*args: object) -> None:
        raise RuntimeError("it fails")

    compile_kernels([(problem, rung, broken), (problem, rung, call)], ARCH)
    assert compiled
