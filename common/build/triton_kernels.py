"""Compile a day's Triton kernels while the day is built, so that its run finds them in the cache.

Triton compiles a kernel at its first launch with other types, other constants, or other arguments
that are multiples of 16 or equal to 1. Here the launchers are called for every case with tensors
that have a shape but no memory, and their launches are recorded. Neither this nor the compilation
needs a GPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_map

from common.base.declaration import Case, Problem, Rung
from common.base.toolchain import sm
from common.base.where import cores

GPU = torch.device("cuda", 0)
THREADS = 4  # kernels of a day compiled at a time, since other days are built in parallel

Found = dict[tuple[str, str], "Variant"]  # by the kernel's name and Triton's key


@dataclass(frozen=True)
class Variant:
    """A kernel for one set of types, constants and multiples. function: triton's JITFunction.
    arguments: Triton's text of the arguments that it is compiled for."""

    function: Any = field(repr=False)
    arguments: str = field(repr=False)

    def compile(self) -> None:
        """Compile it into Triton's cache. Raise what Triton raises if it does not compile."""
        self.function.preload(self.arguments)


class Shapes:
    """Stand in for `common.check.draw.Draw`: return tensors of the requested shape and dtype with
    undrawn values. In a mode of tensors without memory, they take none."""

    def __init__(self, case: Case):
        self.case, self.device = case, torch.device("cpu")
        self.fast = False

    def __call__(self, *shape: int, dtype: Any = None, **_: object) -> torch.Tensor:
        """Return the tensor, on the CPU: see `on_gpu`."""
        kind = self.case.dtype if dtype is None else dtype
        return torch.empty(shape, dtype=getattr(torch, kind) if isinstance(kind, str) else kind)


class _Target:
    """Stand in for Triton's driver: compile for an architecture that this machine may lack."""

    def __init__(self, arch: str):
        target = importlib.import_module("triton.backends.compiler").GPUTarget
        self._target = target("cuda", int(sm(arch).rstrip("af")), 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling_for(arch: str) -> Iterator[None]:
    """Make Triton compile for this architecture ("9.0a") without looking for a GPU."""
    config = importlib.import_module("triton.runtime.driver").driver
    before = config._active
    config.set_active(_Target(arch))
    try:
        yield
    finally:
        config._active = before


@contextmanager
def recording() -> Iterator[Found]:
    """Record the kernels that launches need, instead of compiling and launching them."""
    knobs = importlib.import_module("triton").knobs.runtime
    found: Found = {}

    def record(*, key: str, fn: Any, compile: dict[str, Any], **_: object) -> bool:
        variant = Variant(fn.jit_function, compile["specialization_data"])
        found.setdefault((fn.name, key), variant)
        return True  # Triton goes no further

    before = knobs.jit_cache_hook
    knobs.jit_cache_hook = record
    try:
        yield found
    finally:
        knobs.jit_cache_hook = before


@contextmanager
def without_memory() -> Iterator[None]:
    """Create tensors without memory, whose addresses count from 0, and do not use the GPU, on which
    a day may be timed."""
    fake = importlib.import_module("torch._subclasses.fake_tensor")

    def address(tensor: torch.Tensor) -> int:
        return int(tensor.storage_offset()) * tensor.element_size()

    with (
        mock.patch.object(fake.FakeTensor, "data_ptr", address, create=True),
        mock.patch.object(fake, "init_gpu_context", lambda device: None, create=True),
        mock.patch.object(torch.cuda, "device_of", lambda tensor: nullcontext()),
        fake.FakeTensorMode(),
        torch.no_grad(),
    ):
        yield


def on_gpu(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with the CPU's tensors moved to a GPU; strides and alignment unchanged.
    Use it inside `without_memory`."""

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            return value
        start = value.data_ptr() % 16 // value.element_size()
        steps = [(n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)]
        room = start + (1 + sum(steps) if value.numel() else 0)
        memory = torch.empty(room, dtype=value.dtype, device=GPU)
        return memory.as_strided(value.shape, value.stride(), start)

    moved_args: tuple[Any, ...] = tree_map(moved, args)
    return moved_args


def cases_of(problem: Problem, rung: Rung) -> list[Case]:
    """Return the cases of a rung's run, except a random case and one of 2^31 elements."""
    timed = [problem.bench] if problem.timed and rung.timed else []
    return list(dict.fromkeys([*problem.cases_of(rung), *timed]))


def launched(problem: Problem, call: Callable[..., Any], cases: Iterable[Case]) -> Found:
    """Return the kernels that `call` launches on these cases. Raise what the call raises. Use it
    inside `compiling_for`."""
    with recording() as found, without_memory():
        for case in cases:
            call(*on_gpu(problem.inputs(case, Shapes(case))))
    return found


def compile_kernels(rungs: Iterable[tuple[Problem, Rung, Callable[..., Any]]], arch: str) -> None:
    """Compile the kernels that the rungs launch on their cases, several at a time.

    Errors of a call or compilation are ignored: the run meets them again and reports them with the
    rung.
    """
    found: Found = {}
    with compiling_for(arch):
        for problem, rung, call in rungs:
            for case in cases_of(problem, rung):
                with suppress(Exception):
                    found |= launched(problem, call, [case])
        with ThreadPoolExecutor(min(THREADS, cores())) as pool:
            for each in [pool.submit(variant.compile) for variant in found.values()]:
                with suppress(Exception):
                    each.result()
