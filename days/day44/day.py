"""Day 44: norms of rows, and dynamic tanh."""

from common.day import Exercise

from . import dyt, rows

TITLE = "RMSNorm, L1, L2 and dynamic tanh"
TEACHES = "One kernel for all norms of a row, rows of 1k to 64k columns, gradients in one pass"
TOPICS = ("RMSNorm", "L1 norm", "L2 norm", "DyT", "backward", "bf16", "cluster")
SOURCE = "norms.cu"
EXTRA_SOURCES = ("norms_backward.cu", "dyt.cu")
INTRODUCES = ("RMSNorm", "dynamic tanh")
EQUIVALENT = {  # mutants that compute the same, and why
    "norms_backward.cu: ring_bytes: 64-bit index in 32 bits: `int64_t ring_bytes` -> "
    "`int ring_bytes`": "at most 512 threads, and so 96 KB",
    'dyt.cu: check_dyt: device check dropped: `check(x, "x").on_gpu()` -> `check(x, "x")`': (
        "one tensor on the host fails same_device, and all are refused by PyTorch's dispatcher"
    ),
    "dyt.cu: row_blocks: rounded down: `ceil_div<int64_t>(x.size(0), BLOCK / LANES * rounds)` -> "
    "`((x.size(0)) / (BLOCK / LANES * rounds))`": "a block less, with more rounds for the others",
}

EXERCISE = Exercise(
    function="gradient",
    source="norms_backward.cu",
    task=(
        "Return the gradient gx of a chunk of x. s is the factor of the row, and pull is what the "
        "norm makes of D, the sum of g · x over the row."
    ),
    hints=(
        "Were s a constant, gx would be g · s. What else does an element of x change?",
        "It changes s, and s scales the whole row: that part is proportional to D and to the "
        "derivative of the element's term, which is Norm::direction(x, s).",
        "gx.at[i] = s * (weighted<Norm>(gy, weight, i) - Norm::direction(x.at[i] as float, s) * "
        "pull), rounded to T.",
    ),
)

PROBLEMS = (*rows.problems, *dyt.problems)
