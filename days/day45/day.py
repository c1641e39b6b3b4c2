"""Day 45: layer norm for training."""

from common.day import Exercise

from . import norms
from .training import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Layer norm for training"
TEACHES = "Layer norm as an operator that trains: any row by clusters, all gradients in one pass"
TOPICS = ("layer norm", "backward", "cluster", "autograd", "nn.Module", "Triton", "residual")
SOURCE = "layer_norm_train.cu"
EXTRA_SOURCES = ("layer_norm_backward.cu", "module.py", "twin.py")
EQUIVALENT = {  # mutants that compute the same, and why
    "layer_norm_train.cu: Chunks::fit_block: comparison: `count <= int64_t{MAX_BLOCK} * "
    "(packs ? EACH<16> : EACH<1>)` -> `count < int64_t{MAX_BLOCK} * (packs ? EACH<16> : "
    "EACH<1>)`": "the longest row that fits is computed by v1",
    "layer_norm_train.cu: layer_norm_v3_cluster_kernel: comparison: `k < PACKS` -> "
    "`k <= PACKS`, 3rd": "a thread has at most PACKS packs: the loop ends before",
    "forward.cuh: ring_bytes: constant off by one: `(residual ? 2 : 1)` -> "
    "`(residual ? 2 : 2)`": "more shared memory than is used",
    "backward.cuh: ring_bytes: constant off by one: `PACKS * 16` -> `PACKS * 17`": (
        "more shared memory than is used"
    ),
    "even_rows_backward.cuh: layer_norm_backward_v2_even_kernel: transposed: `stage * 3 + t` -> "
    "`t * 3 + stage`": "three stages of three tensors: the same places in another order",
    "even_rows_backward.cuh: layer_norm_backward_v2_even_kernel: initial value: `round = 0` -> "
    "`round = 1`": "the halves are used in turns, whichever is the first",
    "layer_norm_backward.cu: partial_sums: constant off by one: `{count, 2, a.cols()}` -> "
    "`{count, 3, a.cols()}`": "more memory than is used",
    "layer_norm_backward.cu: backward_v2: comparison: `N > 1` -> `N >= 1`": (
        "fits_fused refuses rows that are not made of packs"
    ),
    'layer_norm_train.cu: Chunks::Chunks: validation dropped: `check(a.x, "x").on_gpu().floating()'
    '` -> `check(a.x, "x").on_gpu()`': "check_all refuses the same dtypes, by the same name",
    "even_rows.cuh: launch_v2_even: comparison: `with(std::integral_constant<int, 64>{}) || "
    "with(std::integral_constant<int, 128>{})` -> `with(std::integral_constant<int, 64>{}) && "
    "with(std::integral_constant<int, 128>{})`": "the kernel for any row computes the same as well",
    "even_rows.cuh: launch_v2_even: comparison: `with(std::integral_constant<int, 256>{}) || "
    "with(std::integral_constant<int, 512>{})` -> `with(std::integral_constant<int, 256>{}) && "
    "with(std::integral_constant<int, 512>{})`": "the kernel for any row computes the same as well",
    "even_rows.cuh: wide_bytes: constant off by one: `WIDE_PACKS * 16` -> `WIDE_PACKS * 17`": (
        "more shared memory than is used"
    ),
    "even_rows.cuh: wide_bytes: constant off by one: `(residual ? 2 : 1)` -> "
    "`(residual ? 3 : 1)`": "more shared memory than is used",
    "even_rows.cuh: wide_bytes: constant off by one: `(residual ? 2 : 1)` -> "
    "`(residual ? 2 : 2)`": "more shared memory than is used",
    "forward.cuh: ring_bytes: constant off by one: `RING_BLOCK * 16` -> `RING_BLOCK * 17`": (
        "more shared memory than is used"
    ),
    "forward.cuh: ring_bytes: constant off by one: `(residual ? 2 : 1)` -> "
    "`(residual ? 3 : 1)`": "more shared memory than is used",
    "even_rows.cuh: layer_norm_v2_even_kernel: other dimension: `threadIdx.x` -> `threadIdx.y`, "
    "7th": "all threads store the same mean and rstd",
    "even_rows.cuh: layer_norm_v3_even_kernel: bounds check dropped: `from > 0` -> `true`": (
        "the first packs of weight and bias are loaded twice"
    ),
    "even_rows_backward.cuh: sum_over_block: constant off by one: `16 == 0` -> `16 == 1`": (
        "all 16 lanes of a half have the same sum"
    ),
    "even_rows_backward.cuh: layer_norm_backward_v2_even_kernel: 64-bit index in 32 bits: "
    "`int64_t step` -> `int step`": "the blocks of a grid that is resident, times 2 at most",
    "even_rows_backward.cuh: layer_norm_backward_v2_even_kernel: comparison: `s < STAGES - 1` -> "
    "`s <= STAGES - 1`": "the third row is copied twice to the same place, and a copy more awaited",
    "rows.cuh: announce_merging: constant off by one: `threadIdx.x == 0` -> `threadIdx.x == 1`": (
        "any one thread may do it"
    ),
    "rows.cuh: RowLaunch::resident: min for max: `min<int64_t>(work, std::max(1, clusters))` -> "
    "`max<int64_t>(work, std::max(1, clusters))`": (
        "any number of clusters computes the same: those without a row add nothing"
    ),
    "rows.cuh: RowLaunch::resident: min for max: `max(1, clusters)` -> `min(1, clusters)`": (
        "one cluster takes all rows, one after the other"
    ),
    "forward.cuh: statistics_of: comparison: `variance < 0` -> `variance <= 0`": "0 either way",
    "rows.cuh: Place::Place: bounds check dropped: `first < end ? (end - first + width - 1u)` -> "
    "`true ? (end - first + width - 1u)`": (
        "first is at most end + width - 2, where the quotient is 0 as well"
    ),
    "rows.cuh: Place::goes_on: comparison: `row - team < rows` -> `row - team <= rows`": (
        "a round more, in which no thread has a row"
    ),
    "rows.cuh: merge_warps: bounds check dropped: `warps > 1` -> `true`": (
        "merges the only warp's value with those of no elements"
    ),
    "rows.cuh: merge_blocks: other dimension: `threadIdx.x` -> `threadIdx.y`": (
        "of the warps that call send_to_blocks then, only the first has lanes that send"
    ),
    "rows.cuh: merge_blocks: bounds check dropped: `threadIdx.x < 32` -> `true`": (
        "of the warps that call send_to_blocks then, only the first has lanes that send"
    ),
}

EXERCISE = Exercise(
    function="merge_lanes",
    task=(
        "Each lane of a warp holds count, base, mean - base and m2 of some elements; a lane may "
        "have none. Return those of the union, in every lane, without losing digits where all "
        "bases are far from 0."
    ),
    hints=(
        "The mean of the union is a weighted mean of the lanes' means. Relative to which number "
        "are they all small?",
        "Relative to the base of lane 0, which __shfl_sync brings to all lanes. warp_sum (day 23) "
        "adds over lanes. What does each lane add to m2?",
        "from_base = mine.base - base + mine.mean; mean = warp_sum(count · from_base) / "
        "warp_sum(count), or 0 if there are no elements. A lane adds m2 + count · (from_base - "
        "mean)² to the new m2.",
    ),
)

PROBLEMS = norms.problems
