"""Day 97: a caching allocator, tried on traces; and where the memory of a training step goes."""

from functools import partial

from common.day import Case, Exercise, Problem, Rung, Target

from .proof import show
from .step import LEAN, by_pytorch, step_trace
from .traces import MB, NAMES, by_threads, drawn, placed, replayed

__all__ = ["PROBLEMS", "show"]

TITLE = "A caching allocator"
TEACHES = "Best fit, splitting, merging, events; fragmentation; where a training step has its peak"
TOPICS = ("memory", "allocator", "fragmentation", "streams", "events", "training", "peak memory")
SOURCE = "allocator.cu"
EXTRA_SOURCES = ("allocator.cuh", "replay.cuh", "traces.py", "step.py", "proof.py")
INTRODUCES = ("best fit", "fragmentation", "gradient checkpointing")
EQUIVALENT = {  # mutants that compute the same, and why
    "SizeClasses::rounded: comparison: `bytes <= ROUND` -> `bytes < ROUND`": (
        "the power of two for ROUND bytes is ROUND"
    ),
    "DriverPool::DriverPool: min for max: `max()` -> `min()`": (
        "the driver takes freed memory back at each wait: slower, with the same results"
    ),
    "allocator.cuh: Allocator::allocate: comparison: `bytes <= LARGEST` -> `bytes < LARGEST`": (
        "a trace is checked before it is replayed, and no machine has 2^40 bytes"
    ),
    "allocator.cuh: Allocator::live: validation dropped: `STD_TORCH_CHECK(b != blocks_.end() && "
    'b->second.state == LIVE_BLOCK, "address: expected that of a live block")` -> ``': (
        "a trace is checked before it is replayed"
    ),
    "allocator.cuh: Allocator::shortage: initial value: `int64_t largest = 0` -> "
    "`int64_t largest = 1`": "a number of an error's message",
    "replay.cuh: Paper::give: validation dropped: `STD_TORCH_CHECK(found != sizes_.end(), "
    '"an address was given back that was not taken")` -> ``': (
        "an assertion: no allocator gives back what it has not taken"
    ),
    'replay.cuh: operations_of: contiguity check dropped: `check(trace, "trace").on_host().dtype('
    '{ScalarType::Long}).rank(2).size(1, 4).contiguous()` -> `check(trace, "trace").on_host().'
    "dtype({ScalarType::Long}).rank(2).size(1, 4)`": (
        "numbers that are read in another order make a row that is refused"
    ),
    "allocator.cuh: Allocator::shortage: min for max: `max(largest, b.bytes)` -> `min(largest, "
    "b.bytes)`": ("a number of an error's message"),
    "allocator.cuh: Allocator::live: comparison: `b != blocks_.end() && b->second.state == "
    "LIVE_BLOCK` -> `b != blocks_.end() || b->second.state == LIVE_BLOCK`": (
        "a trace is checked before it is replayed"
    ),
    "allocator.cuh: Allocator::allocate: comparison: `bytes >= 0 && bytes <= LARGEST` -> "
    "`bytes >= 0 || bytes <= LARGEST`": ("a trace is checked before it is replayed"),
    "replay.cuh: Streams::Streams: loop stride: `++s` -> `s += 2`": (
        "stream 2 is the default stream then, which is another stream than 1 and 3, too"
    ),
    "replay.cuh: Streams::Streams: comparison: `s < STREAMS` -> `s <= STREAMS`": (
        "behind the streams is the event, which is made next"
    ),
    "replay.cuh: Streams::Streams: initial value: `int s = 1` -> `int s = 0`": (
        "the current stream takes the place of stream 0"
    ),
    'replay.cuh: replay: device check dropped: `check(trace, "trace").on_host()` -> '
    '`check(trace, "trace")`': "operations_of checks it once more",
    "replay.cuh: replay: empty input not handled: `if (count == 0) return {out, live}` -> ``": (
        "no row is replayed"
    ),
    "allocator.cuh: Allocator::allocate: validation dropped: `STD_TORCH_CHECK(bytes >= 0 && "
    'bytes <= LARGEST, "bytes: expected 0 to 2^40, got ", bytes)` -> ``': (
        "a trace is checked before it is replayed"
    ),
}

EXERCISE = Exercise(
    function="BestFit::keep",
    first="if (b != blocks_.begin())",
    last="if (after != blocks_.end() && mergeable(after, b))",
    task=(
        "Block b was just freed, and is on no list yet. Merge it with the neighbour before it and "
        "with the one behind it, if they are free and in the same segment; b is the merged block "
        "then. blocks_ holds all blocks in the order of their addresses."
    ),
    hints=(
        "b is an iterator of a std::map: std::prev(b) and std::next(b) are its neighbours. Which "
        "of the two need not exist?",
        "mergeable(neighbour, b) says whether the neighbour is free and in b's segment. "
        "merge(low, high) takes both from the lists and returns low, the larger one; high is gone.",
        "If b is not blocks_.begin(), and mergeable(before, b): b = merge(before, b). Then look at "
        "std::next(b): if it is not blocks_.end(), and mergeable(after, b): b = merge(b, after).",
    ),
)

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
