"""The device that rungs run on: a GPU, or the CPU backend with its thread orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from common.base.declaration import Problem, Rung
from common.base.toolchain import Platform, Variant
from common.cpu import findings, launch_record, libraries
from common.cpu.backend import Launch, Runtime
from common.cpu.findings import Trace
from common.cpu.launch_record import RecordedLaunch


@dataclass(frozen=True)
class Schedule:
    """The order in which threads and blocks run on the CPU backend; a GPU has one schedule.

    order, seed, blocks, completion: see `common.cpu.backend.Runtime.set_schedule`.
    """

    order: str
    seed: int = 0
    blocks: str = ""
    completion: str = ""

    def __str__(self) -> str:
        text = f"{self.order} {self.seed}" if self.order == "random" else self.order
        if self.blocks:
            seed = f" {self.seed}" if self.blocks == "random" != self.order else ""
            text += f" (blocks {self.blocks}{seed})"
        return f"{text} (copies {self.completion})" if self.completion else text


SCHEDULES = (Schedule("forward"), Schedule("reverse"), Schedule("random", 1))

# Schedules that the debugger adds: more seeds, block orders that differ from the threads', and
# asynchronous copies early, late and mixed.
MORE_SCHEDULES = (
    Schedule("random", 2),
    Schedule("random", 3, completion="late"),
    Schedule("random", 4, completion="early"),
    Schedule("forward", blocks="reverse"),
    Schedule("reverse", blocks="forward", completion="early"),
    Schedule("forward", 5, blocks="random", completion="mixed"),
    Schedule("reverse", 6, blocks="random", completion="mixed"),
    Schedule("random", 7, blocks="forward"),
)

# With late streams: the work submitted last first; for several streams, also in random order.
LATE_SCHEDULES = (Schedule("forward"), Schedule("random", 1), Schedule("random", 2))

TIME_LIMIT = 30.0  # seconds that a launch may take on the CPU backend: its default
TRACED_TIME_LIMIT = 300.0  # the same if every access is traced


@dataclass
class Watched:
    """Observations of one call on the CPU backend.

    work: number of kernels, copies and fills. allocations: increase in live allocations by
    cudaMalloc and similar calls. handles: increase in live streams, events, graphs and memory
    pools. device_left: the device that it left current instead of the one before, or -1. touched:
    the argument that host code read or wrote, and the place, or "". launches: of kernels, unless
    there were many. early_return: a barrier that threads missed because they had returned, or "".
    undefined_shuffle: a shuffle that read a lane which did not take part, or "".
    """

    work: int = 0
    allocations: int = 0
    handles: int = 0
    device_left: int = -1
    touched: str = ""
    launches: tuple[Launch, ...] = ()
    early_return: str = ""
    undefined_shuffle: str = ""


class Backend:
    """A device, with the operations that checking and timing need.

    name: "cuda" or "cpu". device: of the tensors. variant: build variant of the CPU backend.
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime | None = None,
        variant: Variant = "plain",
        schedules: tuple[Schedule, ...] = SCHEDULES,
    ):
        self.name = name
        self.device = torch.device("cuda", 0) if name == "cuda" else torch.device("cpu")
        self._runtime = runtime
        self._variant = variant
        self._schedules = (Schedule("hardware"),) if runtime is None else schedules
        self._late = False  # streams run their work late
        self._followed: list[Tensor] = []

    def schedules(self, quick: bool = False) -> tuple[Schedule, ...]:
        """Return the orders that a check uses: one on a GPU, several on the CPU; one if `quick`,
        unless more orders than usual were requested."""
        return self._schedules[:1] if quick and self._schedules == SCHEDULES else self._schedules

    def late_schedules(self, several: bool) -> tuple[Schedule, ...]:
        """Return the orders for late streams, on the CPU backend; () on a GPU. several: the problem
        declares several streams."""
        if self._runtime is None:
            return ()
        return LATE_SCHEDULES if several else LATE_SCHEDULES[:1]

    def use(self, schedule: Schedule) -> None:
        """Run the following launches in this order."""
        if self._runtime is not None:
            self._runtime.set_schedule(
                schedule.order, schedule.seed, schedule.blocks, schedule.completion
            )

    def namer(self) -> Callable[[Tensor, str], None] | None:
        """Return a function that names a tensor's memory in messages, after forgetting earlier
        names; None if messages do not name memory."""
        if self._runtime is None or self._variant in UNWATCHED:
            return None
        runtime = self._runtime
        runtime.forget_names()

        def name(tensor: Tensor, text: str) -> None:
            size = tensor.numel() * tensor.element_size()
            runtime.name_memory(tensor.data_ptr(), size, tensor.element_size(), text)

        return name

    @property
    def watches_calls(self) -> bool:
        """Return True on the CPU backend, where `watching` observes calls."""
        return self._runtime is not None

    @contextmanager
    def watching(
        self,
        tensors: Callable[[Runtime], None] | None = None,
        on_host: bool = False,
        late: Sequence[tuple[Tensor, Tensor]] | None = None,
        pinned: bool = False,
    ) -> Iterator[Watched]:
        """Simulate a launcher's environment on a GPU during a call, and observe the call.

        PyTorch's current stream is not the default one, the current device is not the tensors', and
        host code cannot access the tensors that `tensors` adds to the runtime. on_host: the
        arguments are host arrays, so none of that applies. late: streams run their work as late as
        legal, and the current stream first copies the second tensor of each of these pairs into the
        first. pinned: late streams count host arrays as pinned. Raise RuntimeError if the current
        stream does not wait for all of the launcher's work.
        """
        watched = Watched()
        if self._runtime is None:
            yield watched
            return
        runtime = self._runtime
        before, allocations = runtime.work_done(), runtime.allocations()
        handles = runtime.handles()
        if not on_host:
            runtime.check_launcher(True)
            if tensors is not None:
                tensors(runtime)
                runtime.close_tensors()
        if late is not None:
            self._late = True
            runtime.begin_late_check(pinned)
            for place, value in late:
                size = value.numel() * value.element_size()
                runtime.copy_late(place.data_ptr(), value.data_ptr(), size)
        wrong = ""
        try:
            yield watched
        finally:
            if late is not None:
                self._late = False
                wrong = runtime.end_late_check()
            watched.touched = runtime.forget_tensors()
            if not on_host:
                watched.device_left = runtime.device_left()
                watched.launches = tuple(runtime.launches())
                watched.early_return = runtime.early_return()
                watched.undefined_shuffle = runtime.undefined_shuffle()
            runtime.check_launcher(False)
            self.follow_no_longer()
            watched.work = runtime.work_done() - before
            watched.allocations = runtime.allocations() - allocations
            watched.handles = runtime.handles() - handles
        if wrong:
            raise RuntimeError(wrong)

    @contextmanager
    def on_other_device(self, tensor: Tensor) -> Iterator[None]:
        """Simulate a second GPU that holds only this tensor, on the CPU backend."""
        assert self._runtime is not None
        self._runtime.place_on_other_device(
            tensor.data_ptr(), tensor.numel() * tensor.element_size()
        )
        try:
            yield
        finally:
            self._runtime.place_on_other_device(0, 0)

    def open_tensors(self, opened: bool) -> None:
        """Allow (or forbid) host code to access the tensors of `watching`, as PyTorch itself
        may."""
        if self._runtime is not None:
            self._runtime.open_tensors(opened)

    def catch_up(self) -> None:
        """Run late work that PyTorch's next operator comes after in the current stream. Raise
        RuntimeError if it fails."""
        if (
            self._runtime is not None
            and self._late
            and (wrong := self._runtime.wait_for_current_stream())
        ):
            raise RuntimeError(wrong)

    @contextmanager
    def small_card(self, shared: bool = False) -> Iterator[None]:
        """Simulate a card so small that small inputs take the paths of large ones. shared: keep the
        usual size of shared memory."""
        assert self._runtime is not None
        self._runtime.set_small(True, shared)
        try:
            yield
        finally:
            self._runtime.set_small(False)

    @property
    def traces(self) -> bool:
        """Return True if every memory access is traced."""
        return self._runtime is not None and self._variant == "trace"

    def trace(self, mode: str) -> None:
        """Choose how accesses are traced from now on: "off", "races", "profile" or "record". Do
        nothing if accesses are not traced."""
        if self.traces:
            assert self._runtime
            self._runtime.set_trace(mode)

    def follow(self, tensor: Tensor) -> None:
        """Report reads of this fresh tensor's memory before anything has written it, if accesses
        are traced. The tensor is contiguous."""
        if self.traces and tensor.numel():
            assert self._runtime
            self._runtime.follow(tensor.data_ptr(), tensor.nbytes)
            self._followed.append(tensor)

    def written(self, tensor: Tensor) -> None:
        """Count all memory that the tensor spans as written by PyTorch."""
        if self.traces and tensor.numel():
            assert self._runtime
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            span = 1 + sum((size - 1) * stride for size, stride in steps)
            self._runtime.written(tensor.data_ptr(), span * tensor.element_size())

    def follow_no_longer(self) -> None:
        """End `follow` for all tensors."""
        for tensor in self._followed:
            assert self._runtime
            self._runtime.follow_no_longer(tensor.data_ptr())
        self._followed.clear()

    def take_trace(self) -> Trace:
        """Return the findings since the last call; an empty trace if accesses are not traced."""
        if not self.traces:
            return Trace([], [], [])
        assert self._runtime
        return findings.take(self._runtime)

    def take_launches(self) -> list[RecordedLaunch]:
        """Return the records of launches since the last call; [] if accesses are not traced."""
        if not self.traces:
            return []
        assert self._runtime
        return launch_record.take(self._runtime)

    def held(self) -> int:
        """Return the number of allocations, streams and the like that are alive on the CPU
        backend; 0 on a GPU."""
        return self._runtime.allocations() + self._runtime.handles() if self._runtime else 0

    def release_memory(self) -> None:
        """Free the device memory that PyTorch caches, for other processes."""
        if self.name == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[None]:
        """End a launch that takes longer than `seconds`, on the CPU backend."""
        assert self._runtime is not None
        self._runtime.set_time_limit(seconds)
        try:
            yield
        finally:
            self._runtime.set_time_limit(TRACED_TIME_LIMIT if self.traces else TIME_LIMIT)

    def synchronize(self) -> None:
        """Wait for the device; errors of earlier launches surface here."""
        if self.name == "cuda":
            torch.cuda.synchronize()


def interpreted(rung: Rung) -> str:
    """Return the report's note on a rung whose kernel in Python is interpreted."""
    if rung.numba:
        return f"kernels in Numba run in {rung.interpreter}"
    return (
        f"kernels in Triton run in {rung.interpreter}, in one order; bfloat16 is left out, since "
        "it cuts results off where a GPU rounds them"
    )


def of_rung(problem: Problem, rung: Rung, backend: Backend) -> tuple[Rung, Backend]:
    """Return the rung with the dtypes to check, and its backend; an interpreted kernel's backend
    has no runtime."""
    if not rung.in_python or backend.name != "cpu":
        return rung, backend
    if rung.numba:
        return rung, Backend("cpu")
    dtypes = rung.dtypes or tuple(dict.fromkeys(case.dtype for case in problem.cases))
    dtypes = tuple(dtype for dtype in dtypes if dtype != "bfloat16")
    return replace(rung, dtypes=dtypes), Backend("cpu")


# Seconds: how long all threads may wait in loops, and how long one may run without reaching a
# barrier or its end, if that is checked. Builds that watch memory take longer.
SPIN_LIMIT = 0.5
STUCK_LIMIT = {"plain": 1.0, "debug": 1.0, "address": 5.0, "zeroed": 5.0, "trace": 10.0}
UNWATCHED = ("plain", "debug")  # builds that watch no memory; under a debugger, threads may stop


def make(platform: Platform, debug: bool = False) -> Backend:
    """Return the backend of this platform; on the CPU, build its runtime library if necessary.

    debug: on the CPU, use more orders and end hanging launches early, as builds that watch memory
    always do. Raise BuildError.
    """
    if platform.device == "cuda":
        return Backend("cuda")
    runtime = Runtime(libraries.build_runtime(platform))
    runtime.set_model(platform.model)
    # CUDA's guide lets a mask name lanes that have exited. Nothing makes them exit before the call.
    runtime.refuse_masks(debug)
    if debug or platform.variant not in UNWATCHED:
        runtime.set_spin_limit(SPIN_LIMIT)
        runtime.set_stuck_limit(STUCK_LIMIT[platform.variant])
    schedules = (*SCHEDULES, *MORE_SCHEDULES) if debug else SCHEDULES
    backend = Backend("cpu", runtime, platform.variant, schedules)
    if platform.variant == "trace":
        runtime.set_time_limit(TRACED_TIME_LIMIT)
        backend.trace("races")
    return backend
