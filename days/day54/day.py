"""Day 54: matrix products by mma.sync, with a pipeline of copies and equal shares of the work."""

from common.day import Exercise

from . import products, rates

TITLE = "GEMM with mma.sync"
TEACHES = "ldmatrix, swizzled tiles and a cp.async pipeline of several stages; persistent, stream-K"
TOPICS = ("GEMM", "mma", "ldmatrix", "cp.async", "pipeline", "swizzle", "stream-K", "persistent")
SOURCE = "gemm_mma_pipeline.cu"
INTRODUCES = ("stream-K",)
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
