"""Day 11: convolution in one dimension."""

if __name__ == "__main__":  # python days/day11/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day11

from common.day import FLOATS, Case, Library, Problem, Rung, grid

from .convolutions import by_fft, by_shifts, compiled, cost, cudnn_searched, inputs, reference

TITLE = "Convolution in one dimension"
TEACHES = (
    "Constant memory, tiles with a halo, padding modes, several outputs from a register window"
)
TOPICS = ("convolution", "conv1d", "constant memory", "halo", "shared memory", "registers")
SOURCE = "conv1d.cu"
INTRODUCES = ("constant memory", "halo", "CUDA event")

# (rows, n, taps, padding)
SHAPES = [(1, 1, 1, 0), (3, 257, 5, 2), (2, 300, 17, 8), (2, 1537, 16, 0), (5, 67, 33, 16)]
SHAPES += [(1, 1023, 255, 127), (1, 700, 400, 0), (2, 40, 79, 39)]


RUNGS = (
    Rung("conv1d_v1_naive", "all operands from global memory"),
    Rung("conv1d_v2_constant_filter", "filter in constant memory"),
    Rung("conv1d_v3_shared_halo", "tile with halo in shared memory"),
    Rung("conv1d_v4_register_window", "12 outputs per thread"),
)


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
