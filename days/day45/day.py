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
