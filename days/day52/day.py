"""Day 52: SGEMM with warp tiles."""

from common.day import Exercise

from . import products, sizes

TITLE = "SGEMM with warp tiles"
TEACHES = "Warp tiles, double buffering of tiles and fragments, a swizzle, tilings chosen by timing"
TOPICS = ("GEMM", "SGEMM", "warp tile", "double buffering", "cp.async", "swizzle", "autotuner")
SOURCE = "sgemm_warp_tiling.cu"
INTRODUCES = ("warp tile", "autotuner")

EXERCISE = Exercise(
    function="multiply_tiles",
    task=(
        "Add the products of all tiles.count tiles to sum. While row k of a tile is multiplied, "
        "row k + 1 comes into the other fragments; while tile i is multiplied, the copies of tile "
        "i + STAGES - 1 run."
    ),
    hints=(
        "Which fragments does step k multiply, and which ones does it fill? Which row comes after "
        "the last one of a tile, and what has to be true before it can be loaded?",
        "Each step first loads the fragments (k + 1) % 2, then multiplies the fragments k % 2. In "
        "the last step of a tile, tiles.wait() comes before the load. At k = 0, all threads have "
        "left the tile before: its stage can be filled.",
        "k < BK - 1: load(tiles.stages[stage], k + 1, at). Else, if there is another tile: "
        "tiles.wait(), the next stage, load row 0. At k == 0: if (i + STAGES - 1 < tiles.count) "
        "tiles.copy(free); cp_async_commit() in any case, so that wait() counts right; the next "
        "free stage. Then fragments[k % 2].multiply(sum).",
    ),
)

PROBLEMS = products.problems


def show(operators, device):
    """Wavefronts of shared memory per multiply-add; on a GPU, tunes, and prints the rates of many
    sizes."""
    return sizes.print_wavefronts(device) | sizes.print_rates(operators, device)
