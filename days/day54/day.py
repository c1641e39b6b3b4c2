"""Day 54: matrix products by mma.sync, with a pipeline of copies and equal shares of the work."""

from common.day import Exercise

from . import products, rates

TITLE = "GEMM with mma.sync"
TEACHES = "ldmatrix, swizzled tiles and a cp.async pipeline of several stages; persistent, stream-K"
TOPICS = ("GEMM", "mma", "ldmatrix", "cp.async", "pipeline", "swizzle", "stream-K", "persistent")
SOURCE = "gemm_mma_pipeline.cu"
EXTRA_SOURCES = ("gemm_mma_tma.cu",)
INTRODUCES = ("stream-K",)
EQUIVALENT = {  # mutants that compute the same, and why
    "gemm_mma_pipeline.cu: Loads::advance: bounds check dropped: `left == 0 || --left > 0` -> "
    "`--left > 0`": ("behind the last part there is no next one: the copies end once more"),
    "stream_k.cuh: add_published: other dimension: `threadIdx.x` -> `threadIdx.y`": (
        "all threads wait for the flag, each by itself"
    ),
    "stream_k.cuh: range_of_block: constant off by one: `threadIdx.x == 0` -> `threadIdx.x == 1`": (
        "any one thread may take the ticket"
    ),
    "stream_k.cuh: split_tiles: comparison: `stream_tiles > 0 && stream_tiles * s.steps < "
    "INT32_MAX` -> `stream_tiles > 0 || stream_tiles * s.steps < INT32_MAX`": (
        "where no tile is split, all ranges are empty; 2^31 steps are those of a matrix of 256 GB"
    ),
    "gemm_mma_pipeline.cu: pipelined: comparison: `shared_limit(a) >= Deep::BYTES` -> "
    "`shared_limit(a) > Deep::BYTES`": ("no card has exactly 192 KB"),
    "gemm_mma_pipeline.cu: gemm_v3_persistent: min for max: `min(all_tiles<P>(p).tiles(), "
    "multiprocessor_count(a))` -> `max(all_tiles<P>(p).tiles(), multiprocessor_count(a))`": (
        "more blocks have less work each, or none: the result is the same"
    ),
}
EXERCISE = Exercise(
    function="Pipeline::multiply_steps",
    first="if (k < LAST) {",
    last="k < LAST ? k + 1 : 0);",
    task=(
        "For 16 values of k: load the fragments of the next 16 into one half of `fragments` while "
        "the other half is multiplied. At k = LAST they are in the next stage, `stage`: close this "
        "step's group of copies, and make sure that the stage is complete. Before, start a part of "
        "the copies into `refill`."
    ),
    hints=(
        "Which half of `fragments` belongs to k? What has to be true before anything is loaded "
        "from the next stage?",
        "For k < LAST: loads.copy(refill, k, LAST). At k = LAST: loads.advance(p, s), then a "
        "commit and wait(). Then multiply_and_load (tiles.cuh).",
        "from is stages + stage * P::SIZE at k = LAST. multiply_and_load<P>(sums, "
        "fragments[k % 2], fragments[(k + 1) % 2], from, places, k < LAST ? k + 1 : 0).",
    ),
)

PROBLEMS = products.problems


def show(operators, device):
    """On a GPU, the rates of other tiles, numbers of stages and schedules."""
    return rates.print_rates(operators, device)
