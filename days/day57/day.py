"""Day 57: matrix products of fp8, with scales per row and per block of 128."""

from common.day import Exercise

from . import accuracy, products

TITLE = "FP8 with block scales"
TEACHES = "e4m3 on wgmma, scales per row and per 128 of K, sums promoted to fp32"
TOPICS = ("GEMM", "fp8", "wgmma", "quantisation", "accuracy", "tensor cores")
SOURCE = "gemm_fp8.cu"
INTRODUCES = ("block scale", "promoted accumulation")

EQUIVALENT = {  # mutants that compute the same, and why
    'gemm_fp8: contiguity check dropped: `check(a, "a").on_gpu().dtype({ScalarType::Float8_e4m3fn})'
    '.rank(2).contiguous()` -> `check(a, "a").on_gpu().dtype({ScalarType::Float8_e4m3fn}).rank(2)`'
    "": "matrix_map takes the distance of rows, and refuses what TMA cannot read",
    "row_scale: 64-bit index in 32 bits: `int64_t{block} * p.M` -> `block * p.M`": (
        "2^31 scales would belong to an A of 256 GB, more than a card with wgmma has"
    ),
    "Roles::bring_scales: 64-bit index in 32 bits: `int64_t{block} * scales_n` -> "
    "`block * scales_n`": "2^31 scales would belong to a B of 35 TB",
    "Roles::consume: shuffle: `__shfl_sync(0xffffffff, threadIdx.x / WARPGROUP - 1, 0)` -> "
    "`__shfl_sync(0xffffffff, threadIdx.x / WARPGROUP - 1, (0) + 1)`": (
        "all lanes of a warp have the same"
    ),
    "Roles::consume: other dimension: `threadIdx.x` -> `threadIdx.y`, 2nd": (
        "threads that stored nothing wait for nothing"
    ),
    "scaled_tiles.cuh: multiply_step: constant off by one: `32 / UNIT` -> `33 / UNIT`": (
        "33 bytes are two units as well"
    ),
    "scaled_tiles.cuh: multiply_step: constant off by one: `32 / UNIT` -> `33 / UNIT`, 2nd": (
        "33 bytes are two units as well"
    ),
    "scaled_tiles.cuh: Rows::multiply: constant off by one: `32 / UNIT` -> `33 / UNIT`": (
        "33 bytes are two units as well"
    ),
    "gemm_fp8_kernel: constant off by one: `threadIdx.x == 0` -> `threadIdx.x == 1`, 2nd": (
        "any thread of the first warp may produce"
    ),
    "gemm_fp8: min for max: `max(1, multiprocessor_count(a) / CLUSTER)` -> "
    "`min(1, multiprocessor_count(a) / CLUSTER)`": "one cluster computes all tiles, later",
    "gemm_fp8: min for max: `min(work, places)` -> `max(work, places)`": (
        "clusters too many find no tile"
    ),
}

EXERCISE = Exercise(
    function="Roles::add_block",
    task=(
        "Multiply the rows of A by the four quarters of stage s, one after the other, and promote "
        "each quarter while the next is in flight: rows.multiply, promote and factors are there. "
        "What quarter 3 of the step before gave is promoted beside quarter 0, by the scales that "
        "`now` still has; then read those of this stage, and quarter 3 stays in flight. Arrive at "
        "read[s], once per warp, when the scales have been read."
    ),
    hints=(
        "A wgmma runs while the threads go on. Which of the two sets of sums do they promote "
        "then, and what has to be true before they read it?",
        "rows.multiply commits a group. ptx::wgmma_wait<1>(ready) leaves one in flight, and it is "
        "not that of `ready`. Quarter q goes to now.part[q % 2], and the one before it is "
        "(q + 3) % 4. It is promoted into sums from its number times QUARTER / 2 on.",
        "In an unrolled loop over q: rows.multiply(now.part[q % 2], b, s * (P::BYTES / UNIT) + q "
        "* (QUARTER * ROW / UNIT)); the wait; promote by now.scale[before / 2]; for q = 0, scale "
        "[i][j] is factors(s)[i * P::BM + row + j * 8]. At the end __syncwarp and an arrival by "
        "lane 0.",
    ),
)

PROBLEMS = products.problems


def show(operators, device):
    """The errors with and without promotion, as tables, and stored as data and a plot."""
    return accuracy.show_errors(operators, device)
