"""Day 19: the gradients of softmax and of cross-entropy."""

if __name__ == "__main__":  # python days/day19/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day19

import torch
import torch.nn.functional as F

from common.day import Rung, Target, grid, one_tensor

from .cross_entropy import CROSS_ENTROPY
from .rows import CASES, FLOATS, problem

TITLE = "Softmax backward and cross-entropy"
TEACHES = "Two gradients that need a whole row, computed from registers; autograd by torch.library"
TOPICS = ("softmax", "cross-entropy", "backward", "autograd", "fusion")
SOURCE = "softmax_backward.cu"
EXTRA_SOURCES = ("cross_entropy_backward.cu",)
INTRODUCES = ("upstream gradient", "cross-entropy")

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
