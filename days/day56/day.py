"""Day 56: matrix products at Hopper's full rate: wgmma, TMA, roles, clusters."""

from common.day import Exercise

from . import ladder, products

TITLE = "GEMM with wgmma"
TEACHES = "wgmma, a TMA pipeline, producer and consumers, persistent tiles, clusters and multicast"
TOPICS = ("GEMM", "wgmma", "TMA", "warp specialisation", "persistent kernel", "cluster", "epilogue")
SOURCE = "gemm_wgmma.cu"
EXTRA_SOURCES = ("gemm_persistent.cu", "gemm_chosen.cu")
INTRODUCES = ("warp specialisation", "ping-pong")

EXERCISE = Exercise(
    function="consume",
    task=(
        "The loop of a consumer: for each step wait until the stage's tiles have come, multiply, "
        "and release the stage of the step before once its products have read it. At the end, "
        "all products are complete."
    ),
    hints=(
        "Step i uses stage i % STAGES, for the i / STAGES-th time. Which parity does the phase of "
        "its mbarrier have? When is it certain that a stage has been read?",
        "mbarrier_wait(full), wgmma_fence, multiply, wgmma_commit. wgmma_wait<1> leaves the group "
        "of this step in flight: that of the step before is complete, so lane 0 of each warp can "
        "arrive at its mbarrier in `empty`.",
        "ptx::mbarrier_wait(&full[step % STAGES], step / STAGES % 2); multiply<P>(sums, stage + "
        "first, stage + P::A_BYTES); after wgmma_wait<1>: if (step > 0 && threadIdx.x % 32 == 0) "
        "ptx::mbarrier_arrive(&empty[(step - 1) % STAGES]). After the loop wgmma_wait<0>(sums).",
    ),
)

PROBLEMS = products.problems


def show(operators, device):
    """On a GPU: the ladder beside cuBLAS, many shapes, and what the data changes."""
    return ladder.show_ladder(operators, device)
