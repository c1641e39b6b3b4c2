"""Day 57: matrix products of fp8, with scales per row and per block of 128."""

from common.day import Exercise

from . import accuracy, products

TITLE = "FP8 with block scales"
TEACHES = "e4m3 on wgmma, scales per row and per 128 of K, sums promoted to fp32"
TOPICS = ("GEMM", "fp8", "wgmma", "quantisation", "accuracy", "tensor cores")
SOURCE = "gemm_fp8.cu"
INTRODUCES = ("block scale", "promoted accumulation")

EXERCISE = Exercise(
    function="promote",
    task=(
        "Add a block's sums to those of all blocks before it: sums[i] += scale · part[i]. "
        "`upper` is the scale of the thread's upper row, `lower` that of its lower row."
    ),
    hints=(
        "wgmma leaves each thread elements of two rows, 8 apart. Which of part[0], part[1], "
        "part[2], part[3] are of the lower one?",
        "Of each four elements, the first two are of the upper row. i / 2 % 2 says which.",
        "In an unrolled loop over COUNT: sums[i] += (i / 2 % 2 ? lower : upper) * part[i]; the "
        "compiler makes one FFMA of it.",
    ),
)

PROBLEMS = products.problems


def show(operators, device):
    """The errors with and without promotion, as tables, and stored as data and a plot."""
    return accuracy.show_errors(operators, device)
