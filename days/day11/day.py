"""Day 11: convolution in one dimension."""

from common.day import Case, Exercise, Library, Problem, Rung, grid

from .convolutions import by_fft, by_shifts, compiled, cost, cudnn_searched, inputs, reference

TITLE = "Convolution in one dimension"
TEACHES = (
    "Constant memory, tiles with a halo, padding modes, several outputs from a register window"
)
TOPICS = ("convolution", "conv1d", "constant memory", "halo", "shared memory", "registers")
SOURCE = "conv1d.cu"
INTRODUCES = ("constant memory", "halo", "CUDA event")
EQUIVALENT = {  # mutants that compute the same, and why
    "element: bounds check dropped: `mode == Mode::ZEROS || q < -padding || q >= n + "
    "padding` -> `mode == Mode::ZEROS || q >= n + padding`": ("no tile begins before -padding"),
    "element: comparison: `q < 0` -> `q <= 0`, 2nd": ("0 is inside the row and does not come here"),
    "element: constant off by one: `q < 0` -> `q < 1`, 4th": (
        "0 is inside the row and does not come here"
    ),
    "conv1d_v4_register_window_kernel: shared memory too small: `tile[TILE + CHUNK]` -> "
    "`tile[(TILE + CHUNK) - 1]`": (
        "the last element only completes a pack of 16 bytes, and no output uses it"
    ),
}

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
