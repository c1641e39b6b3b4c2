"""Day 54: matrix products by mma.sync, with a pipeline of copies and equal shares of the work."""

from common.day import Exercise

from . import products, rates

TITLE = "GEMM with mma.sync"
TEACHES = "ldmatrix, swizzled tiles and a cp.async pipeline of several stages; persistent, stream-K"
TOPICS = ("GEMM", "mma", "ldmatrix", "cp.async", "pipeline", "swizzle", "stream-K", "persistent")
SOURCE = "gemm_mma_pipeline.cu"
INTRODUCES = ("stream-K",)

EXERCISE = Exercise(
    function="multiply_steps",
    task=(
        "Set sums to the products of `count` steps, from stage `stage` on, which advances by one "
        "per step. Copies run STAGES - 1 steps ahead, one group per step, and ldmatrix runs 16 "
        "values of k ahead."
    ),
    hints=(
        "Which stage may be overwritten during a step: which one have all warps certainly read? "
        "And how many groups are younger than the one that the next step needs?",
        "Two Fragments, used in turn. For k < LAST load the next 16 values of this stage, and "
        "start a part of the copies into the stage before it. At k = LAST advance loads and "
        "commit, then wait, meet at a barrier, and load from the next stage, if there is a step.",
        "Before the loop: clear<P>(sums), cp_async_wait<STAGES - 2>, __syncthreads, "
        "fragments[0].load(stages + stage * P::SIZE, places, 0). Per k: fragments[(k + 1) % 2]"
        ".load(…), loads.copy(refill, k, LAST), and last fragments[k % 2].multiply(sums).",
    ),
)

PROBLEMS = products.problems


def show(operators, device):
    """On a GPU, the rates of other tiles, numbers of stages and schedules."""
    return rates.print_rates(operators, device)
