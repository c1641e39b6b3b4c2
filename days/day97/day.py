"""Day 97: a caching allocator, tried on traces; and where the memory of a training step goes."""

if __name__ == "__main__":  # python days/day97/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day97

from functools import partial

from common.day import Case, Problem, Rung, Target

from .proof import show, show_times
from .step import LEAN, by_pytorch, step_trace
from .traces import MB, NAMES, by_threads, drawn, placed, replayed

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "A caching allocator"
TEACHES = "Best fit, splitting, merging, events; fragmentation; where a training step has its peak"
TOPICS = ("memory", "allocator", "fragmentation", "streams", "events", "training", "peak memory")
SOURCE = "allocator.cu"
EXTRA_SOURCES = ("allocator.cuh", "replay.cuh", "traces.py", "step.py", "proof.py")
INTRODUCES = ("best fit", "fragmentation", "gradient checkpointing")

RANDOM, LIFO, FIFO, ADVERSARIAL, STREAMED = range(len(NAMES))
ALLOCATORS = (
    ("allocator_v1_driver", "cudaMalloc, cudaFree", None),
    ("allocator_v2_size_classes", "free blocks by power of two", None),
    ("allocator_v3_best_fit", "split and merged segments", Target(20, "allocator_v1_driver")),
    ("allocator_v4_events", "no wait of the host", Target(1, "pytorch")),
    ("allocator_driver_pool", "cudaMallocAsync", None),
)
RUNGS = tuple(
    Rung(name, idea, target=target, host_timed=True, not_captured="it calls cudaMalloc")
    for name, idea, target in ALLOCATORS
)
SHAPES = [(120, RANDOM), (90, STREAMED), (40, LIFO), (41, FIFO), (40, ADVERSARIAL), (0, 0), (1, 0)]
# rows, kind, MB of memory: with the least of them, requests are refused
PLACES = [(400, RANDOM, 4000), (300, RANDOM, 90), (200, LIFO, 4000), (201, FIFO, 4000)]
PLACES += [(120, ADVERSARIAL, 4000), (120, ADVERSARIAL, 140), (200, STREAMED, 4000)]
PLACES += [(200, STREAMED, 64), (0, RANDOM, 1), (1, RANDOM, 100), (9, RANDOM, 0)]


def any_trace(case, draw):
    """(trace, touch, keep). In turns, blocks are larger than a launch has threads; a block's bytes
    beyond `touch` are not touched."""
    largest = MB if case.shape[1] in (LIFO, FIFO) else 5000
    return drawn(case, draw, largest), 4 * largest // 5, False


def on_paper(name, rung, idea, reference, inputs, shapes):
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=(Rung(rung, idea, host_timed=True, not_captured="its arrays are on the host"),),
        cases=tuple(Case(shape, "int64") for shape in shapes),
        timed=False,
        outputs_exact=True,
    )


PROBLEMS = (
    Problem(
        name="any trace",
        inputs=any_trace,
        reference=replayed,
        rungs=RUNGS,
        cases=tuple(Case(shape, "int64") for shape in SHAPES),
        timed=False,
        several_streams=True,
        outputs_exact=True,
    ),
    *(
        on_paper(
            f"the placement of v{version}",
            f"place_v{version}",
            "compared with a model",
            partial(placed, version),
            lambda case, draw: (drawn(case, draw, 32 * MB), case.shape[2] * MB),
            PLACES,
        )
        for version in (1, 2, 3, 4)
    ),
    on_paper(
        "one allocator for several host threads",
        "place_by_threads",
        "one lock",
        by_threads,
        lambda case, draw: (drawn(case, draw, 32 * MB), case.shape[2]),
        [(3000, RANDOM, 8), (500, LIFO, 3), (40, FIFO, 1), (0, RANDOM, 2)],
    ),
    # (steps, what sizes are divided by). Five allocators keep what they have at the same time.
    Problem(
        name="a training step",
        inputs=lambda case, draw: (step_trace(draw, LEAN, *case.shape), 0, True),
        reference=replayed,
        pytorch=by_pytorch,
        rungs=RUNGS,
        cases=(Case((1, 1 << 16), "int64"),),
        bench=Case((3, 1), "int64"),
        bench_cpu=Case((2, 1 << 12), "int64"),
        outputs_exact=True,
    ),
)
