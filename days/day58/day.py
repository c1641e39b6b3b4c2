"""Day 58: streams: copies to and from the GPU and kernels at the same time."""

if __name__ == "__main__":  # python days/day58/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day58

import torch

from common.day import COMPILE, Case, Cost, Library, Problem, Rung, Target, grid

from . import timeline
from .kepler import compiled, compiled_in_streams, eager, solve_into

TITLE = "Streams"
TEACHES = "Copies and kernels that overlap, events that order streams, priorities, default streams"
TOPICS = ("streams", "events", "pinned memory", "overlap", "priority", "default stream")
SOURCE = "streams.cu"
INTRODUCES = ("legacy default stream", "stream priority", "stream-ordered allocation")

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


def show_times(operators, device):
    """On a GPU: when each stage ran, as a picture, and what a priority changes."""
    return timeline.show(operators) if device.type == "cuda" else None
