"""Day 52: SGEMM with warp tiles."""

from common.day import Exercise

from . import products, sizes

TITLE = "SGEMM with warp tiles"
TEACHES = "Warp tiles, double buffering of tiles and fragments, a swizzle, tilings chosen by timing"
TOPICS = ("GEMM", "SGEMM", "warp tile", "double buffering", "cp.async", "swizzle", "autotuner")
SOURCE = "sgemm_warp_tiling.cu"
INTRODUCES = ("warp tile", "autotuner")
EQUIVALENT = {  # mutants that compute the same, and why
    "multiply_tiles: bounds check dropped: `i + 1 < tiles.count` -> `true`": (
        "loads fragments that no step multiplies"
    ),
    "with_tiling: constant off by one: `3` -> `4`, 2nd": "another stage, the same result",
    "tile_of: 64-bit index in 32 bits: `int64_t tiling` -> `int tiling`": (
        "tuning.py calls it with 0 to 6"
    ),
}

EXERCISE = Exercise(
    function="multiply_tiles",
    first="if (k < T::BK - 1) {",
    last="fragments[k % 2].multiply(sum);",
    task=(
        "Step k of tile i: load the fragments of the next step, which may be the first one of the "
        "next tile; at k = 0, start the copies of tile i + STAGES - 1 and commit a group; multiply "
        "this step's fragments."
    ),
    hints=(
        "Which of the two fragments does step k multiply, and which one does it fill? Which row "
        "comes after the last one of a tile, and what has to be true before it can be loaded?",
        "In the last step of a tile, tiles.wait() and the next stage come before the load. At "
        "k = 0, all threads have left the tile before, so that the stage `free` can be filled; "
        "commit in any case, because wait() counts groups.",
        "k < BK - 1: fragments[(k + 1) % 2].load(tiles.stages[stage], k + 1, at). Else, if there "
        "is another tile: tiles.wait(), stage = the next one or 0, fragments[0].load(…, 0, at). "
        "At k == 0: tiles.copy(free) if i + STAGES - 1 < tiles.count, cp_async_commit(), the next "
        "free stage. Then fragments[k % 2].multiply(sum).",
    ),
)

PROBLEMS = products.problems


def show(operators, device):
    """Wavefronts of shared memory per multiply-add; on a GPU, tunes, and prints the rates of many
    sizes."""
    return sizes.print_wavefronts(device) | sizes.print_rates(operators, device)
