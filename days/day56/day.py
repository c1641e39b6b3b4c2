"""Day 56: matrix products at Hopper's full rate: wgmma, TMA, roles, clusters."""

from common.day import Exercise

from . import ladder, products

TITLE = "GEMM with wgmma"
TEACHES = "wgmma, a TMA pipeline, producer and consumers, persistent tiles, clusters and multicast"
TOPICS = ("GEMM", "wgmma", "TMA", "warp specialisation", "persistent kernel", "cluster", "epilogue")
SOURCE = "gemm_wgmma.cu"
EXTRA_SOURCES = ("gemm_persistent.cu", "gemm_chosen.cu")
INTRODUCES = ("warp specialisation", "ping-pong")
EQUIVALENT = {  # mutants that compute the same, and why
    "gemm_wgmma.cu: copy_tile: comparison: `i < rows * 8` -> `i <= rows * 8`": (
        "the 16 bytes behind a tile are spare, or the same thread overwrites them next"
    ),
    "gemm_wgmma.cu: gemm_v1_one_warpgroup_kernel: loop bound off by one: `k < p.K` -> `k < "
    "p.K - 1`": ("k and K are multiples of 8"),
    "gemm_wgmma.cu: gemm_v1_one_warpgroup_kernel: constant off by one: `i * 64` -> `i * 65`, 2nd": (
        "columns come in pieces of 8: one fewer changes nothing"
    ),
    "gemm_wgmma.cu: gemm_v3_warp_roles: constant off by one: `6` -> `7`": (
        "another number of stages"
    ),
    "gemm_persistent.cu: gemm_v5_persistent: constant off by one: `1` -> `2`": (
        "clusters of two blocks share B"
    ),
    "gemm_persistent.cu: gemm_v6_ping_pong: constant off by one: `4` -> `5`": (
        "another number of stages"
    ),
    "gemm_persistent.cu: gemm_v6_ping_pong: constant off by one: `1` -> `2`": (
        "clusters of two blocks share B"
    ),
    "gemm_persistent.cu: gemm_v7_clusters: constant off by one: `4` -> `5`": (
        "another number of stages"
    ),
    "gemm_chosen.cu: gemm_v8_chosen: constant off by one: `4` -> `5`": ("another number of stages"),
    "gemm_chosen.cu: gemm_v8_chosen: comparison: `turns.cycles < wide.cycles` -> "
    "`turns.cycles <= wide.cycles`": ("estimates that are equal to the last bit"),
    "gemm_chosen.cu: gemm_v8_chosen: comparison: `choice.splits > 1` -> `choice.splits >= 1`": (
        "a buffer that no kernel uses"
    ),
    "gemm_chosen.cu: best_splits: constant off by one: `500` -> `501`": (
        "an estimate: another choice computes the same product"
    ),
    "gemm_chosen.cu: best_splits: constant off by one: `3000` -> `3001`": (
        "an estimate: another choice computes the same product"
    ),
    "gemm_chosen.cu: best_splits: rounded down: `ceil_div<int64_t>(N, BN)` -> `((N) / (BN))`": (
        "an estimate: another choice computes the same product"
    ),
    "gemm_chosen.cu: best_splits: rounded down: `ceil_div<int64_t>(M, BM)` -> `((M) / (BM))`": (
        "an estimate: another choice computes the same product"
    ),
    "gemm_chosen.cu: best_splits: loop stride: `++splits` -> `splits += 2`": (
        "an estimate: another choice computes the same product"
    ),
    "gemm_chosen.cu: best_splits: loop bound off by one: `splits <= 128 && splits <= steps` "
    "-> `splits <= 128 && splits <= steps - 1`": (
        "an estimate: another choice computes the same product"
    ),
    "gemm_chosen.cu: best_splits: loop bound off by one: `splits <= 128` -> `splits <= 128 - 1`": (
        "an estimate: another choice computes the same product"
    ),
    "gemm_chosen.cu: best_splits: rounded down: `ceil_div<int64_t>(tiles * splits, places)` "
    "-> `((tiles * splits) / (places))`": ("an estimate: another choice computes the same product"),
    "gemm_chosen.cu: best_splits: arithmetic operator: `LATENCY + rounds` -> `LATENCY - rounds`": (
        "an estimate: another choice computes the same product"
    ),
}

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
