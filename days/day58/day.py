"""Day 58: streams: copies to and from the GPU and kernels at the same time."""

import torch

from common.day import COMPILE, Case, Cost, Exercise, Library, Problem, Rung, Target, grid

from . import timeline
from .kepler import compiled, compiled_in_streams, eager, solve_into

TITLE = "Streams"
TEACHES = "Copies and kernels that overlap, events that order streams, priorities, default streams"
TOPICS = ("streams", "events", "pinned memory", "overlap", "priority", "default stream")
SOURCE = "streams.cu"
INTRODUCES = ("legacy default stream", "stream priority", "stream-ordered allocation")

EQUIVALENT = {  # mutants that compute the same, and why
    "kepler_kernel: loop bound off by one: `step < STEPS` -> `step < STEPS - 1`": (
        "the 80th step changes a result by less than its rounding"
    ),
    "kepler: validation dropped: `check(M, "
    '"M").on_gpu().dtype({ScalarType::Float}).rank(1)` -> `check(M, '
    '"M").on_gpu().dtype({ScalarType::Float})`': (
        "the kernel takes element by element: any shape is computed right"
    ),
    'Arrays::Arrays: device check dropped: `check(m, "M").on_host()` -> `check(m, "M")`': (
        "an operator for the CPU is not called where a tensor is elsewhere"
    ),
    'Arrays::Arrays: device check dropped: `check(e, "E").on_host()` -> `check(e, "E")`': (
        "an operator for the CPU is not called where a tensor is elsewhere"
    ),
    "launch_empty: constant off by one: `1` -> `2`, 2nd": ("the kernel is empty"),
    "kepler_v2_chunks: empty input not handled: `if (a.n == 0) return` -> ``": (
        "no bytes are allocated, and there is no chunk"
    ),
    "overlap_stages: initial value: `int k = 0` -> `int k = 1`": "another buffer is the first",
    "overlap_streams: empty input not handled: `if (a.n == 0) return` -> ``": (
        "no bytes are allocated, and there is no chunk"
    ),
}

EXERCISE = Exercise(
    function="overlap",
    task=(
        "Solve the chunks in turns in the streams p.stream[0 … STREAMS - 1], chunk c with buffer "
        "c % STREAMS, and call beside() after each. No stream may begin before what the current "
        "stream a.current has to do, and the current stream goes on when all have finished."
    ),
    hints=(
        "What is in one stream runs in order. Which two orders between different streams are "
        "required, and which event says when each is reached?",
        "Fork: record p.fork in a.current, and let every stream wait for it. Join: record "
        "p.join[s] in stream s behind its last chunk, and let a.current wait for each.",
        "record(p.fork, a.current); cudaStreamWaitEvent(s, p.fork, 0) for each stream; a loop over "
        "i += a.chunk that calls solve(a.M + i, a.E + i, buffers + k * a.chunk, "
        "min(a.chunk, a.n - i), p.stream[k]) and moves k on; then record and wait for p.join[s].",
    ),
)

NOT_CAPTURED = "its arrays are on the host"
# (n, elements per chunk): no chunk, one, several, more than there are buffers, a last one of 1
SHAPES = [(0, 16), (1, 4), (1000, 5000), (1024, 256), (1025, 256), (1300, 100), (2999, 300)]
CASES = (*grid(SHAPES, ["float32"]), Case((700, 200), values="nonfinite"))


def host_problem(name, rungs, pinned, libraries=()):
    return Problem(
        name=name,
        inputs=lambda case, draw: (
            *(draw(case.shape[0], device="cpu", pinned=pinned) for _ in range(2)),
            case.shape[1],
        ),
        reference=solve_into,
        rungs=tuple(
            Rung(name, idea, target=target, host_timed=True, not_captured=NOT_CAPTURED)
            for name, idea, target in rungs
        ),
        cases=CASES,
        bench=Case((1 << 24, 1 << 20)),
        bench_cpu=Case((1 << 13, 1 << 11)),
        cost=lambda case: Cost(bytes=8 * case.shape[0], flops=240 * case.shape[0]),
        pytorch=eager,
        libraries=libraries,
        several_streams=True,
    )


SERIAL = ("kepler_v1_serial", "one stream, one chunk", None)
STREAMS = ("kepler_v3_streams", "chunks in four streams")
OVERLAPPED = Target(1.6, "kepler_v1_serial")

PROBLEMS = (
    host_problem(
        "from pinned host arrays",
        (
            SERIAL,
            ("kepler_v2_chunks", "chunks, one stream", None),
            (*STREAMS, OVERLAPPED),
            ("kepler_v4_stages", "one stream per stage, and events", OVERLAPPED),
        ),
        pinned=True,
        libraries=(
            Library("compile", compiled),
            Library("compile, 4 streams", compiled_in_streams),
        ),
    ),
    host_problem("from pageable host arrays", (SERIAL, (*STREAMS, None)), pinned=False),
    host_problem(
        "beside a default stream",
        (
            ("kepler_beside_legacy", "blocking streams, legacy default stream", None),
            ("kepler_beside_per_thread", "blocking streams, per-thread default stream", None),
            ("kepler_non_blocking_beside_legacy", "non-blocking streams, legacy", None),
        ),
        pinned=True,
    ),
    Problem(
        name="the kernel alone",
        inputs=lambda case, draw: (draw(*case.shape),),
        reference=lambda M: solve_into(M, torch.empty_like(M)),
        rungs=(Rung("kepler", "tensors on the GPU, no copy"),),
        cases=(*grid([(n,) for n in (0, 1, 255, 256, 257, 1000)], ["float32"]),),
        bench=Case((1 << 24,)),
        bench_cpu=Case((1 << 13,)),
        cost=lambda case: Cost(bytes=8 * case.shape[0], flops=240 * case.shape[0]),
        pytorch=lambda M: solve_into(M, torch.empty_like(M)),
        libraries=(COMPILE,),
    ),
)


def show(operators, device):
    """On a GPU: when each stage ran, as a picture, and what a priority changes."""
    return timeline.show(operators) if device.type == "cuda" else None
