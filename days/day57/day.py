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
    "multiply_step: constant off by one: `k * 32` -> `k * 33`, 2nd": (
        "a descriptor holds the address without its lowest four bits"
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
        "Multiply the tiles of stage s, one half of the consumer's rows after the other, into "
        "sums of their own, and promote these by the scales of the stage: multiply_step, promote "
        "and factors are there. Call release(s) when both halves have been read, and arrive at "
        "read[s], once per warp, when the scales have."
    ),
    hints=(
        "A wgmma runs while the threads go on. What has to come before the first one, what after "
        "the last, and what before a thread reads `part`?",
        "wgmma_fence, multiply_step without accumulating, wgmma_commit, wgmma_wait<0>. Half h of "
        "this consumer begins at row (consumer · HALVES + h) · ROWS of A's tile, at stages + s * "
        "P::BYTES. factors(s)[P::BM] is the scale of B.",
        "Per half, in an unrolled loop: float part[P::BN / 2]; multiply_step(part, stage + row * "
        "ROW, stage + P::A_BYTES, false) between the fence and the commit; wait; release(s) if it "
        "is the last half; promote(sums[h], part, upper, lower). At the end __syncwarp and an "
        "arrival by lane 0.",
    ),
)

PROBLEMS = products.problems


def show(operators, device):
    """The errors with and without promotion, as tables, and stored as data and a plot."""
    return accuracy.show_errors(operators, device)
