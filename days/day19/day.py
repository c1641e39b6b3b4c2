"""Day 19: the gradients of softmax and of cross-entropy."""

import torch
import torch.nn.functional as F

from common.day import Exercise, Rung, Target, grid, one_tensor

from .cross_entropy import CROSS_ENTROPY
from .rows import CASES, FLOATS, problem

TITLE = "Softmax backward and cross-entropy"
TEACHES = "Two gradients that need a whole row, computed from registers; autograd by torch.library"
TOPICS = ("softmax", "cross-entropy", "backward", "autograd", "fusion")
SOURCE = "softmax_backward.cu"
EXTRA_SOURCES = ("cross_entropy_backward.cu",)
INTRODUCES = ("upstream gradient", "cross-entropy")

EXERCISE = Exercise(
    function="softmax_backward_v1_two_passes_kernel",
    task=(
        "gx = y · (gy - sum over the row of gy · y), one block per row: a first pass for the dot "
        "product, a second for the gradient."
    ),
    hints=(
        "Which sum does every element of the row need? It is one number per row, and all threads "
        "of the block contribute to it.",
        "Threads take columns t, t + BLOCK, …. Each keeps its part of the dot product, puts it "
        "into `partial[threadIdx.x]` in shared memory, and tree_reduce adds them up.",
        "__shared__ float partial[BLOCK]; dot = tree_reduce(partial, [](float a, float b) { "
        "return a + b; }) gives every thread the sum. The row begins at blockIdx.x * cols in gy, "
        "y and gx.",
    ),
)

WIDTHS = (*CASES, *grid([(4, 0)], FLOATS))
OFFSET = (*WIDTHS, *grid([(4, 513)], FLOATS, values="offset"))


def softmax(x):
    return F.softmax(x, -1)


def backward_inputs(case, draw):
    return draw(*case.shape), torch.softmax(draw(*case.shape, values="normal"), -1)


def softmax_backward(gy, y):
    """The operator that autograd calls for the gradient of softmax."""
    return torch.ops.aten._softmax_backward_data(gy, y, -1, y.dtype)


SOFTMAX = Rung(
    "softmax",
    "row in registers; backward is v2",
    backward=lambda saved, gy: torch.ops.day19.softmax_backward_v2_one_pass(gy, *saved),
    saves=lambda inputs, output: (output,),
)
SOFTMAX_BACKWARD = (
    Rung("softmax_backward_v1_two_passes", "sum, then gy and y again"),
    Rung("softmax_backward_v2_one_pass", "both rows in registers", target=Target(1.0, "compile")),
)

PROBLEMS = (
    problem(  # reads x and writes y; then reads gy and y, and writes gx
        "softmax with its gradient", one_tensor, softmax, (SOFTMAX,), (5, 9), WIDTHS, gradients=True
    ),
    problem(
        "softmax backward", backward_inputs, softmax_backward, SOFTMAX_BACKWARD, (3, 4), OFFSET
    ),
    *CROSS_ENTROPY,
)
