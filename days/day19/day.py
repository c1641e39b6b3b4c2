"""Day 19: the gradients of softmax and of cross-entropy."""

import torch
import torch.nn.functional as F

from common.day import COMPILE, Case, Cost, Exercise, Problem, Rung, Target, grid

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

FLOATS = ["float32", "float16", "bfloat16"]
SHAPES = [(1, 1), (3, 127), (2, 128), (3, 1023), (2, 1024), (3, 1025), (7, 40), (2, 4096), (0, 8)]
LONG = [(1, 8200), (2, 6000)]  # do not fit into registers, in some or all dtypes
CASES = (
    *grid(SHAPES + LONG, FLOATS),
    *grid([(4, 1000)], FLOATS, values="large"),
    *grid([(8, 300)], FLOATS, values="nonfinite"),
)
WIDTHS = (*CASES, *grid([(4, 0)], FLOATS))
OFFSET = (*WIDTHS, *grid([(4, 513)], FLOATS, values="offset"))


def matrix(case, draw):
    return (draw(*case.shape),)


def softmax(x):
    return F.softmax(x, -1)


def backward_inputs(case, draw):
    return draw(*case.shape), torch.softmax(draw(*case.shape, values="normal"), -1)


def softmax_backward(gy, y):
    """The operator that autograd calls for the gradient of softmax."""
    return torch.ops.aten._softmax_backward_data(gy, y, -1, y.dtype)


def logits(case, draw):
    rows, cols = case.shape
    return draw(rows, cols), draw(rows, dtype="int64", low=0, high=cols)


def classes(x, target):
    """Whether each column is the row's target, and whether the row's target is a class."""
    one_hot = torch.arange(x.shape[1], device=x.device) == target[:, None]
    return one_hot, ((target >= 0) & (target < x.shape[1]))[:, None]


def cross_entropy_reference(x, target):
    log_y = torch.log_softmax(x, -1, dtype=torch.promote_types(x.dtype, torch.float32))
    return torch.where(classes(x, target)[0], -log_y, 0).sum(-1)


def cross_entropy(x, target):
    return F.cross_entropy(x, target, reduction="none")


def gradient_inputs(case, draw):
    return draw(case.shape[0], dtype="float32", values="normal"), *logits(case, draw)


def gradient_reference(g, x, target):
    one_hot, counts = classes(x, target)
    y = torch.softmax(x, -1, dtype=torch.promote_types(x.dtype, torch.float32))
    one = one_hot.to(y.dtype)
    return torch.where(counts, (y - one) * g[:, None], 0).to(x.dtype)


def gradient(g, x, target):
    """Softmax, scaled in place, minus g at the targets. Autograd would also need the loss."""
    y = torch.softmax(x, -1).mul_(g[:, None])
    return y.scatter_add_(1, target[:, None], -g[:, None])


def problem(name, inputs, reference, rungs, work, cases=CASES, pytorch=None, **options):
    """work: tensors of the size of x that are read or written, and operations per element of x."""

    def cost(case):
        n = case.shape[0] * case.shape[1]
        return Cost(bytes=work[0] * n * case.itemsize, flops=work[1] * n)

    return Problem(
        name,
        inputs,
        reference,
        rungs,
        cases,
        bench=Case((32768, 4096)),
        bench_cpu=Case((256, 1024)),
        cost=cost,
        pytorch=pytorch or reference,
        libraries=(COMPILE,),
        **options,
    )


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
ENTROPY = Rung(
    "cross_entropy",
    "only the loss; backward is v3",
    backward=lambda saved, g: (torch.ops.day19.cross_entropy_backward_v3_fused(g, *saved), None),
    saves=lambda inputs, output: inputs,  # the logits and their targets; no softmax is stored
)
GRADIENT = (
    Rung("cross_entropy_backward_v2_buffer", "softmax stored in between"),
    Rung("cross_entropy_backward_v3_fused", "softmax never stored", target=Target(1.0, "compile")),
)

PROBLEMS = (
    problem(  # reads x and writes y; then reads gy and y, and writes gx
        "softmax with its gradient", matrix, softmax, (SOFTMAX,), (5, 9), WIDTHS, gradients=True
    ),
    problem(
        "softmax backward", backward_inputs, softmax_backward, SOFTMAX_BACKWARD, (3, 4), OFFSET
    ),
    problem(  # reads x; then reads x again and writes gx
        "cross-entropy with its gradient",
        logits,
        cross_entropy_reference,
        (ENTROPY,),
        (3, 12),
        pytorch=cross_entropy,
        gradients=True,
    ),
    problem(
        "gradient of cross-entropy",
        gradient_inputs,
        gradient_reference,
        GRADIENT,
        (2, 7),
        pytorch=gradient,
    ),
)
