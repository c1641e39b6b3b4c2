"""Day 65: layer normalisation and batch normalisation, in CUDA and in Triton."""

if __name__ == "__main__":  # python days/day65/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day65

import torch
import torch.nn.functional as F

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid

from .compiled import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Norm twins"
TEACHES = "The same statistics along rows and down columns, and what becomes of tl.sum in a loop"
TOPICS = ("layer norm", "batch norm", "Triton", "reduction", "Welford", "bandwidth")
SOURCE = "norm_twins.cu"
EXTRA_SOURCES = ("norm_twins_triton.py", "compiled.py")

EPS = 1e-5
TRITON = "norm_twins_triton"
AT_COMPILE = Target(1.0, "compile")


def inputs(case, draw):
    rows, cols = case.shape
    return draw(rows, cols), draw(cols, values="normal"), draw(cols, values="normal"), EPS


def layer_norm(x, weight, bias, eps=EPS):
    return F.layer_norm(x, (x.shape[1],), weight, bias, eps)


def batch_norm(x, weight, bias, eps=EPS):
    """As F.batch_norm in training, also for eps = 0 and for no columns."""
    if x.dim() != 2 or x.shape[0] == 1:
        raise ValueError("x: expected (rows, cols), and more than one row")
    if x.numel() == 0:
        return x.clone()
    return torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)[0]


def batch_norm_of_pytorch(x, weight, bias, eps=EPS):
    return F.batch_norm(x, None, None, weight, bias, True, 0.0, eps)


def cost(case):
    rows, cols = case.shape
    return Cost(bytes=2 * (rows + 1) * cols * case.itemsize, flops=10 * rows * cols)


def problem(name, call, pytorch, rungs, shapes, rows, constant, bench, bench_cpu):
    """rows: of the cases with unusual values."""
    return Problem(
        name=name,
        inputs=inputs,
        reference=call,
        rungs=rungs,
        cases=(
            *grid(shapes, FLOATS),
            *grid([(rows, 136)], FLOATS, values="offset"),
            *grid([(rows, 136)], FLOATS, values="large"),
            *grid([(rows, 136)], ["float16"], values="extreme"),
            *grid([(rows, 104)], FLOATS, values="nonfinite"),
            *grid([(6, 104), constant], FLOATS, values="constant"),
        ),
        bench=bench,
        bench_cpu=bench_cpu,
        cost=cost,
        pytorch=pytorch,
        libraries=(COMPILE,),
    )


PROBLEMS = (
    problem(
        "layer norm",
        layer_norm,
        layer_norm,
        (
            Rung("layer_norm_v1_two_reads", "CUDA, x read twice"),
            Rung("layer_norm_v2_row", "CUDA, row in a block's registers", target=AT_COMPILE),
            Rung(
                "layer_norm_v3_triton",
                "Triton, row in a program's registers",
                target=AT_COMPILE,
                triton=TRITON,
            ),
        ),
        # Around a chunk and a tile of 1024 chunks; rows that are too long for registers.
        [(1, 1), (5, 31), (3, 1025), (2, 4096), (2, 4100), (1, 8200), (0, 8), (3, 0), (2, 16392)],
        8,
        (2, 16400),
        Case((32768, 8192), "bfloat16"),
        Case((4, 4096)),
    ),
    problem(
        "batch norm",
        batch_norm,
        batch_norm_of_pytorch,
        (
            Rung("batch_norm_v1_strip", "CUDA, one block per strip of columns"),
            Rung("batch_norm_v2_slices", "CUDA, strips in slices of rows", target=AT_COMPILE),
            Rung("batch_norm_v3_triton", "Triton, each tile reduced to a row", triton=TRITON),
            Rung(
                "batch_norm_v4_triton_places",
                "Triton, moments per place of the tile",
                target=AT_COMPILE,
                triton=TRITON,
            ),
        ),
        # Part of a slice's 32 rows, several slices, more strips than one; rows of single elements.
        [(2, 1), (5, 31), (33, 40), (100, 264), (64, 256), (300, 8), (40, 265), (0, 8), (3, 0)],
        40,
        (70, 104),
        Case((262144, 1024), "bfloat16"),
        Case((128, 128)),
    ),
)
