"""Day 11: convolution in one dimension."""

from functools import cache

import torch
import torch.nn.functional as F

from common.day import Case, Cost, Exercise, Library, Problem, Rung, grid

TITLE = "Convolution in one dimension"
TEACHES = (
    "Constant memory, tiles with a halo, padding modes, several outputs from a register window"
)
TOPICS = ("convolution", "conv1d", "constant memory", "halo", "shared memory", "registers")
SOURCE = "conv1d.cu"
INTRODUCES = ("constant memory", "halo", "CUDA event")

EXERCISE = Exercise(
    function="conv1d_v3_shared_halo_kernel",
    first="const int64_t start = first + j0",
    last="the tile is complete before any thread multiplies",
    task=(
        "Load the inputs that this block's outputs need for taps [j0, j0 + taps) into `tile`: "
        "its BLOCK elements and the halo. A thread that is still reading the previous chunk must "
        "not be overtaken."
    ),
    hints=(
        "Output i needs inputs i + j - padding for all taps j. Which inputs do the outputs "
        "[first, first + BLOCK) need for taps j0 to j0 + taps - 1?",
        "They begin at first + j0 - padding, and there are BLOCK + taps - 1 of them. 256 threads "
        "load them in turns: k = threadIdx.x, then k + BLOCK.",
        "element(x_row, index, job.n, job.padding, job.mode) reads an input or what stands "
        "outside of the row. One barrier before loading (the previous tile is no longer read), "
        "one after.",
    ),
)

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


def cudnn_searched(x, w, padding, mode):
    """F.conv1d with the fastest of cuDNN's algorithms, which cuDNN finds by trying them."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        return F.conv1d(x[:, None], w[None, None], padding=padding)[:, 0]


def by_fft(x, w, padding, mode):
    """Zeros only: the product of two spectra, by cuFFT; its work hardly depends on the taps."""
    n, out = x.shape[1], x.shape[1] + 2 * padding - len(w) + 1
    size = max(n + 2 * padding, n // 8 * 9)  # 9 · 2^17 for the timed rows: small prime factors
    taps = F.pad(w, (0, size - len(w))).roll(-padding)
    spectrum = torch.fft.rfft(x, size) * torch.fft.rfft(taps).conj()
    return torch.fft.irfft(spectrum, size)[:, :out]


@cache
def compiled(call):
    return torch.compile(call, dynamic=False)


def by_shifts(x, w, padding, mode):
    """Zeros only: a sum of shifted rows. The compiler makes one kernel of it."""
    row = F.pad(x, (padding, padding))
    out = row.shape[1] - len(w) + 1
    return sum(w[j] * row[:, j : j + out] for j in range(len(w)))


RUNGS = (
    Rung("conv1d_v1_naive", "all operands from global memory"),
    Rung("conv1d_v2_constant_filter", "filter in constant memory"),
    Rung("conv1d_v3_shared_halo", "tile with halo in shared memory"),
    Rung("conv1d_v4_register_window", "12 outputs per thread"),
)


def cost(case):
    rows, n, taps, padding = case.shape
    outputs = rows * (n + 2 * padding - taps + 1)
    return Cost(bytes=(rows * n + taps + outputs) * case.itemsize, flops=2 * taps * outputs)


def timed(taps, cases, *libraries):
    return Problem(
        name=f"{taps} taps, zeros",
        inputs=inputs("zeros"),
        reference=reference,
        pytorch=reference,
        libraries=(Library("cuDNN", cudnn_searched), *libraries),
        rungs=RUNGS,
        cases=cases,
        bench=Case((64, 1 << 20, taps, taps // 2)),
        bench_cpu=Case((2, 1 << 13, taps, taps // 2)),
        cost=cost,
    )


def checked(mode, *more):
    cases = grid([*SHAPES, *more], FLOATS)
    return Problem(mode, inputs(mode), reference, RUNGS, cases, timed=False)


PROBLEMS = (
    timed(
        255,
        (
            *grid([*SHAPES, (0, 5, 3, 1), (2, 3, 4, 9)], FLOATS),
            *grid([(1, 16390, 16384, 0)], ["float32"]),  # the longest filter, 64 KB
            *grid([(2, 601, 31, 15)], FLOATS, values="nonfinite"),
            *grid([(2, 601, 31, 15)], FLOATS, values="large"),
            *grid([(2, 601, 31, 15)], FLOATS, values="tiny"),
        ),
        Library("cuFFT", by_fft),
    ),
    timed(
        9,
        grid([(3, 1600, 9, 4)], FLOATS),
        Library("compile", lambda *arguments: compiled(by_shifts)(*arguments)),
    ),
    checked("reflect", (3, 5, 3, 4)),
    checked("replicate", (3, 2, 3, 9)),
    checked("circular", (3, 5, 3, 5)),
)
