"""Day 42: matrix-vector products."""

from common.day import Exercise

from . import products

TITLE = "Matrix-vector products"
TEACHES = "Bytes in flight for any shape: rows per warp, split-K, clusters, the transposed product"
TOPICS = ("GEMV", "matrix-vector product", "split-K", "cluster", "bf16", "bytes in flight")
SOURCE = "matvec.cu"
EXTRA_SOURCES = ("matvec_transposed.cu",)
INTRODUCES = ("split-K",)

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
