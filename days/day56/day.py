"""Day 56: matrix products at Hopper's full rate: wgmma, TMA, roles, clusters."""

from common.day import Exercise

from . import products

TITLE = "GEMM with wgmma"
TEACHES = "wgmma, a TMA pipeline, producer and consumers, persistent tiles, clusters and multicast"
TOPICS = ("GEMM", "wgmma", "TMA", "warp specialisation", "persistent kernel", "cluster", "epilogue")
SOURCE = "gemm_wgmma.cu"
EXTRA_SOURCES = ("gemm_persistent.cu",)
INTRODUCES = ("warp specialisation",)

EXERCISE = Exercise(
    function="multiply",
    task="Add 64 rows of A times B to the sums: four wgmmas, each for 16 values of k.",
    hints=(
        "A wgmma takes two descriptors. Where in the tile do 16 further values of k begin?",
        "For a tile whose rows run along k, 16 values are 32 bytes further. Where the rows run "
        "along n, they are 16 rows further.",
        "wgmma_descriptor(tile, Swizzle::k128, leading, 8 * ROW): leading is 0, or BOX_BYTES where "
        "the rows run along n. Then ptx::wgmma<T, T, Major::kK, P::B_MAJOR>(sums, of_a, of_b).",
    ),
)

PROBLEMS = products.problems
