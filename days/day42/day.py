"""Day 42: matrix-vector products."""

from functools import partial

import torch

from common.day import Exercise, print_table, seconds

from . import products

TITLE = "Matrix-vector products"
TEACHES = "Bytes in flight for any shape: rows per warp, split-K, clusters, the transposed product"
TOPICS = ("GEMV", "matrix-vector product", "split-K", "cluster", "bf16", "bytes in flight")
SOURCE = "matvec.cu"
EXTRA_SOURCES = ("matvec_transposed.cu",)
INTRODUCES = ("split-K",)
EQUIVALENT = {  # mutants that compute the same, and why
    "matvec.cu: matvec_v4_split_k: rounded down: `ceil_div<int64_t>(p.chunks, BLOCK * STEPS)` "
    "-> `((p.chunks) / (BLOCK * STEPS))`": "fewer splits compute the same, with more rounds each",
    "matvec.cu: matvec_v5_rows: constant off by one: `p.chunks <= 16` -> `p.chunks <= 17`": (
        "a group of 16 lanes takes a row of 17 chunks in two rounds"
    ),
    "matvec.cu: matvec_v4_split_k: min for max: `min(enough, rounds)` -> `max(enough, rounds)`": (
        "more splits compute the same, some of them without a chunk"
    ),
    "matvec.cu: matvec_v5_rows: comparison: `p.chunks <= 32` -> `p.chunks < 32`": (
        "a row of 32 chunks is computed as a longer one is"
    ),
    "matvec_transposed.cu: dispatch_tile: comparison: `chunks <= 8` -> `chunks < 8`": (
        "of 16 lanes for a row of 8 chunks, half have none"
    ),
    "matvec_transposed.cu: dispatch_tile: constant off by one: `chunks <= 16` -> `chunks <= 17`": (
        "two tiles for a row of 17 chunks"
    ),
    "matvec_transposed.cu: add_splits_kernel: bounds check dropped: `warp != 0 || k >= K`"
    " -> `k >= K`": ("all warps have the same total, and store it"),
    "matvec_transposed.cu: multiply_tile: loop bound off by one: `m + (STEPS - 1) * GROUPS < "
    "M` -> `m + (STEPS - 1) * GROUPS < M - 1`": (
        "a round that ends with the last row is computed as what is left of one"
    ),
    "matvec_transposed.cu: matvec_t_v3_split_m: min for max: `min(resident / tiles, rounds)` "
    "-> `max(resident / tiles, rounds)`": ("splits without a round add 0"),
}

EXERCISE = Exercise(
    function="multiply_rows",
    task=(
        "Add the products of each of ROWS rows and x to sum[r], for the chunks k, k + stride … "
        "below end. Load STEPS chunks of x and of every row before the first is used."
    ),
    hints=(
        "While a thread waits for one load, it can issue the next, if that needs nothing from the "
        "first. Where do the loaded chunks wait until they are multiplied?",
        "Arrays of STEPS · ROWS chunks of A and STEPS chunks of x, in registers. A loop over whole "
        "groups of STEPS: load all, then multiply all. A second loop takes the chunks that are "
        "left, one at a time.",
        "for (; k + (STEPS - 1) * stride < end; k += STEPS * stride): from_x[s] = x[k + s * "
        "stride], from_a[s][r] = row[r][k + s * stride], then multiply_add(sum[r], from_a[s][r], "
        "from_x[s]). All inner loops are unrolled.",
    ),
)

PROBLEMS = products.problems


def show(operators, device):
    """Prints the rates for 2^28 elements of bf16, from 16 rows to a million."""
    if device.type != "cuda":
        return
    names = ("v2_warp", "v3_block", "v4_split_k", "v5_rows", "v6_cluster", "v7_chosen")
    table = []
    for bits in range(4, 21, 4):
        rows, columns = 1 << bits, 1 << (28 - bits)
        a = torch.randn(rows, columns, device=device).bfloat16()
        x = torch.randn(columns, device=device).bfloat16()
        calls = [partial(getattr(operators, f"matvec_{name}"), a, x) for name in names]
        rates = [a.nbytes / seconds(call) / 1e9 for call in [*calls, partial(torch.mv, a, x)]]
        table.append([f"{rows} × {columns}", *(f"{rate:.0f}" for rate in rates)])
    print("2^28 elements of bf16, GB/s")
    print_table(["A", *names, "torch.mv"], table)
