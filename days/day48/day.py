"""Day 48: batch normalisation."""

from common.day import Exercise

from .problems import problems

TITLE = "Batch normalisation"
TEACHES = "Statistics across a batch, in two layouts, kept on the chip from one pass to the next"
TOPICS = ("batch norm", "normalisation", "Welford", "channels_last", "cluster", "backward")
SOURCE = "batch_norm.cu"
EXTRA_SOURCES = ("batch_norm_fused.cu", "module.py")
INTRODUCES = ("batch normalisation", "running statistics", "channels last")
EQUIVALENT = {  # mutants that compute the same, and why
    "batch_norm_fused.cu: cluster_for: arithmetic operator: `int64_t{blocks} * BLOCK` -> "
    "`int64_t{blocks} / BLOCK`": "more blocks than chunks: those without any have empty parts",
    "batch_norm_fused.cu: cluster_for: comparison: `size > blocks * bytes` -> `size >= blocks * "
    "bytes`": "a channel that just fits is held by more blocks",
    "batch_norm_fused.cu: launch_rows: rounded down: `ceil_div<int64_t>(g.length * g.width, "
    "BLOCK)` -> `((g.length * g.width) / (BLOCK))`": "a chunk that is not kept is read again",
    "batch_norm_fused.cu: launch_planes: rounded down: `ceil_div<int64_t>(g.length, BLOCK)` -> "
    "`((g.length) / (BLOCK))`": "a chunk that is not kept is read again",
    "batch_norm_fused.cu: launch_fused: comparison: `g.strips <= blocks` -> `g.strips < blocks`": (
        "as many strips as blocks are computed by v2"
    ),
    "batch_norm_fused.cu: has_fused: comparison: `sizes_of(x).inner == 1 || has_capability(9, 0)` "
    "-> `sizes_of(x).inner == 1 && has_capability(9, 0)`": "v2 computes both layouts on any card",
    "channels.cuh: Forward::finish: comparison: `more < 0` -> `more <= 0`": ("0 becomes 0"),
    "channels.cuh: sizes_of: device check dropped: `check(x, name).on_gpu()` -> `check(x, name)`": (
        "weight, which is on a GPU, must be on the same as x"
    ),
    "slices.cuh: rows_coefficients: initial value: `float origin = 0` -> `float origin = 1`": (
        "only of columns beyond the last channel, which store nothing"
    ),
    "slices.cuh: parts_for: constant off by one: `{parts, 3}` -> `{parts, 4}`": (
        "memory behind the parts, which nothing uses"
    ),
    "slices.cuh: with_chunks: constant off by one: `16 == 0` -> `16 == 1`": (
        "element by element the result is the same"
    ),
    "walks.cuh: PlaneWalk::PlaneWalk: bounds check dropped: `first < end` -> `true`": (
        "beyond the end the count is 0 or less, and no loop runs"
    ),
    "walks.cuh: Rows::Rows: comparison: `width < columns` -> `width <= columns`": (
        "a wider strip has columns without channels"
    ),
    "walks.cuh: batch: constant off by one: `N == 1` -> `N == 2`": (
        "other numbers of loads in flight"
    ),
    "walks.cuh: batch: constant off by one: `4` -> `5`": ("other numbers of loads in flight"),
    "walks.cuh: batch: comparison: `N == 1 || rows` -> `N == 1 && rows`": (
        "other numbers of loads in flight"
    ),
}

EXERCISE = Exercise(
    function="planes_apply_kernel",
    task=(
        "Merge the parts of this block's channel in order, let Pass make coefficients of them, and "
        "apply them to the block's slice. The last slice comes first; one thread per channel is "
        "the writer."
    ),
    hints=(
        "Block 0 takes the slice that the first launch read last. Which channel and which slice "
        "are that, with g.slices slices per channel?",
        "Every thread merges all `parts` parts of the channel itself: it is a handful of numbers, "
        "and all threads read the same address. A part of nothing, Part{}, is where to start.",
        "all = Pass::merge(all, p.partial[channel * parts + s]) for each s; then Pass::origin, "
        "Pass::coefficients with writer = slice == 0 && threadIdx.x == 0, and apply with "
        "PlaneWalk(g, channel, slice).",
    ),
)

PROBLEMS = problems
