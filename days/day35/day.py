"""Day 35: softmax at the speed of light, and the backward pass of layer norm."""

from common.day import Exercise

from . import norm, softmax

TITLE = "Softmax at the speed of light"
TEACHES = "Bytes in flight, clusters of blocks; layer norm's gradients in one kernel"
TOPICS = ("softmax", "cluster", "distributed shared memory", "layer norm", "backward", "bf16")
SOURCE = "softmax_optimized.cu"
EXTRA_SOURCES = ("fused_layer_norm_backward.cu",)
INTRODUCES = (
    "Little's law",
    "distributed shared memory",
    "cooperative launch",
    "mbarrier",
)

EQUIVALENT = {  # mutants that compute the same, and why
    "softmax_optimized.cu: fits_warp: comparison: `x.size(1) <= 32 * 32` -> `x.size(1) < 32"
    " * 32`": ("a row of 1024 single elements goes to v3, which computes the same"),
}

EXERCISE = Exercise(
    function="merge_all",
    task=(
        "Combine `count` pairs of maximum and sum in shared memory into one, and return it in "
        "every lane of the warp. Every warp must get equal bits."
    ),
    hints=(
        "The maximum of the row comes first: what does each sum have to be multiplied by then?",
        "Lane l takes the pairs l, l + 32 … twice: for the maximum, then for the sum. warp_max and "
        "warp_sum (day 23) combine the lanes.",
        "sum += pairs[i].sum * rescale(pairs[i].max, max), where max is that of all lanes. A lane "
        "without a pair has -inf and 0.",
    ),
)

PROBLEMS = (*softmax.problems, norm.problem)
