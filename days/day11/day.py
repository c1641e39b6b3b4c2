"""Day 11: convolution in one dimension."""

import torch
import torch.nn.functional as F

from common.day import Case, Cost, Problem, Rung, grid

TITLE = "Convolution in one dimension"
TEACHES = (
    "Constant memory, tiles with a halo, padding modes, several outputs from a register window"
)
TOPICS = ("convolution", "conv1d", "constant memory", "halo", "shared memory", "registers")
SOURCE = "conv1d.cu"
INTRODUCES = ("constant memory", "halo", "CUDA event")

FLOATS = ["float32", "float16", "bfloat16"]
# (rows, n, taps, padding)
SHAPES = [(1, 1, 1, 0), (3, 257, 5, 2), (2, 300, 17, 8), (2, 1537, 16, 0), (5, 67, 33, 16)]
SHAPES += [(1, 1023, 255, 127), (1, 700, 400, 0), (2, 40, 79, 39)]


def inputs(mode):
    def of_case(case, draw):
        rows, n, taps, padding = case.shape
        return draw(rows, n), draw(taps, values="normal"), padding, mode

    return of_case


def reference(x, w, padding=0, mode="zeros"):
    """torch.nn.Conv1d with its padding modes; the rows are a batch of single-channel inputs."""
    x = x.unsqueeze(1)
    if mode != "zeros":
        x, padding = F.pad(x, (padding, padding), mode=mode), 0
    return F.conv1d(x, w.reshape(1, 1, *w.shape), padding=padding).squeeze(1)


def cost(case):
    rows, n, taps, padding = case.shape
    element = getattr(torch, case.dtype).itemsize
    outputs = rows * (n + 2 * padding - taps + 1)
    return Cost(bytes=(rows * n + taps + outputs) * element, flops=2 * taps * outputs)


def problem(name, mode, cases, taps, timed=True):
    return Problem(
        name=name,
        inputs=inputs(mode),
        reference=reference,
        rungs=(
            Rung("conv1d_v1_naive", "all operands from global memory", timed=timed),
            Rung("conv1d_v2_constant_filter", "filter in constant memory", timed=timed),
            Rung("conv1d_v3_shared_halo", "tile with halo in shared memory", timed=timed),
            Rung("conv1d_v4_register_window", "12 outputs per thread", timed=timed),
        ),
        cases=cases,
        bench=Case((64, 1 << 20, taps, taps // 2)),
        bench_cpu=Case((2, 1 << 13, taps, taps // 2)),
        cost=cost,
    )


PROBLEMS = (
    problem(
        "255 taps, zeros",
        "zeros",
        (
            *grid([*SHAPES, (0, 5, 3, 1), (2, 3, 4, 9)], FLOATS),
            *grid([(1, 16390, 16384, 0)], ["float32"]),  # the longest filter, 64 KB
            *grid([(2, 601, 31, 15)], FLOATS, values="nonfinite"),
            *grid([(2, 601, 31, 15)], FLOATS, values="large"),
            *grid([(2, 601, 31, 15)], FLOATS, values="tiny"),
        ),
        taps=255,
    ),
    problem("9 taps, zeros", "zeros", grid([(3, 1600, 9, 4)], FLOATS), taps=9),
    problem("reflect", "reflect", grid([*SHAPES, (3, 5, 3, 4)], FLOATS), 255, timed=False),
    problem("replicate", "replicate", grid([*SHAPES, (3, 2, 3, 9)], FLOATS), 255, timed=False),
    problem("circular", "circular", grid([*SHAPES, (3, 5, 3, 5)], FLOATS), 255, timed=False),
)
