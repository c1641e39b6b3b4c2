"""Day 44: norms of rows, and dynamic tanh."""

from common.day import Exercise

from . import dyt, rows

TITLE = "RMSNorm, L1, L2 and dynamic tanh"
TEACHES = "One kernel for all norms of a row, rows of 1k to 64k columns, gradients in one pass"
TOPICS = ("RMSNorm", "L1 norm", "L2 norm", "DyT", "backward", "bf16", "cp.async")
SOURCE = "norms.cu"
EXTRA_SOURCES = ("norms_backward.cu", "dyt.cu")
INTRODUCES = ("RMSNorm", "dynamic tanh")

EXERCISE = Exercise(
    function="norm_v3_vectorised_kernel",
    first="Chunk<T, N> x[PACKS];",
    last="const float s = Norm::scale",
    task=(
        "Load this thread's chunks of the row into x[k], all before the first is used, and compute "
        "the factor s of the row from the sum of their terms."
    ),
    hints=(
        "Two loops over k, one for the loads and one for the sums. What does a thread do whose "
        "chunk lies beyond the end of the row?",
        "Chunk k of this thread is first + k * stride; add_terms<Norm> adds the terms of one "
        "chunk. block_sum gives every thread the sum of the row.",
        "if (first + k * stride < m.chunks) x[k] = m.x[row * m.chunks + first + k * stride]; then "
        "sum = add_terms<Norm>(sum, x[k]) under the same condition; s = Norm::scale(block_sum(sum, "
        "sums), m.cols(), m.eps).",
    ),
)

PROBLEMS = (*rows.problems, *dyt.problems)
