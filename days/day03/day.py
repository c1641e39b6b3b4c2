"""Day 3: matrices on a 2D grid, and functions passed to a kernel."""

import torch

from common.day import COMPILE, Case, Exercise, Problem, Rung, Target, grid, streamed

TITLE = "Matrices on a 2D grid"
TEACHES = "Rows and columns from a 2D grid, bounds checks, device functions, functors"
TOPICS = ("matrix addition", "2D grid", "functor", "element-wise", "templates")
SOURCE = "matrix_add.cu"
INTRODUCES = ("row-major", "functor")
EQUIVALENT = {  # mutants that compute the same, and why
    "matrix_add_v1_grid_2d: grid or block size: `grid` -> `dim3(grid.x, 1, grid.z)`": (
        "the kernel strides over the rows that the grid does not cover"
    ),
    "grid_y: comparison: `blocks < max_grid_y()` -> `blocks <= max_grid_y()`": (
        "where both are equal, either is chosen"
    ),
    "Relu::operator: comparison: `v < 0` -> `v <= 0`": (
        "differs for -0.0 alone, which becomes the equal 0.0"
    ),
}

EXERCISE = Exercise(
    function="matrix_add_v1_grid_2d_kernel",
    task=(
        "Add two matrices on a 2D grid: x runs along the columns, y along the rows. The grid may "
        "have fewer rows of blocks than the matrix needs."
    ),
    hints=(
        "The column comes from blockIdx.x, BLOCK_X and threadIdx.x, the row from blockIdx.y, "
        "BLOCK_Y and threadIdx.y. Which threads have no column?",
        "Blocks at the right edge reach beyond the matrix: threads there return. Along y, a "
        "thread steps by the rows that the whole grid has, gridDim.y * BLOCK_Y.",
        "A grid-stride loop over rows: begin at blockIdx.y * BLOCK_Y + threadIdx.y, end below "
        "`rows`. row_major(row, col, cols) is the offset of an element. Use int64_t.",
    ),
)

FLOATS = ["float32", "float16", "bfloat16"]
SHAPES = [(1, 1), (7, 1), (1, 7), (31, 33), (32, 32), (33, 65), (127, 1025), (1000, 3)]
EMPTY = [(0, 5), (5, 0)]


def add_inputs(case, draw):
    return draw(*case.shape), draw(*case.shape)


def map_reference(x, f, a=1.0, b=0.0):
    if f == "scale_and_shift":
        return a * x + b
    return torch.relu(x) if f == "relu" else torch.square(x)


def map_pytorch(x, f, a=1.0, b=0.0):
    """One kernel for each f. `a * x + b` would be two; torch.add computes b + a · x in one."""
    if f == "scale_and_shift":
        return torch.add(torch.tensor(b), x, alpha=a)
    return torch.relu(x) if f == "relu" else torch.square(x)


def map_problem(f, a=1.0, b=0.0):
    return Problem(
        name=f,
        inputs=lambda case, draw: (draw(*case.shape), f, a, b),
        reference=map_reference,
        rungs=(
            Rung("element_wise_v1_functor", "the function is a template argument"),
            Rung("element_wise_v2_functor_wide", "16 bytes per load", target=Target(0.95, "copy")),
        ),
        cases=(
            *grid(SHAPES + EMPTY, FLOATS),
            *grid([(19, 101)], FLOATS, values="nonfinite"),
            *grid([(19, 101)], FLOATS, values="extreme"),
        ),
        bench=Case((16384, 16384)),
        bench_cpu=Case((1024, 1024)),
        cost=streamed(2),
        pytorch=map_pytorch,
        libraries=(COMPILE,),
    )


PROBLEMS = (
    Problem(
        name="matrix_add",
        inputs=add_inputs,
        reference=torch.add,
        rungs=(
            Rung("matrix_add_v1_grid_2d", "2D grid, one element per thread"),
            Rung("matrix_add_v2_four_rows", "four rows per thread", target=Target(0.95, "copy")),
        ),
        cases=(
            *grid(SHAPES + EMPTY, FLOATS),
            *grid([(600_000, 1)], ["float32"]),  # more rows than the largest grid covers along y
            *grid([(19, 101)], FLOATS, values="nonfinite"),
        ),
        bench=Case((16384, 16384)),
        bench_cpu=Case((1024, 1024)),
        cost=streamed(3),
        pytorch=torch.add,
        libraries=(COMPILE,),
    ),
    map_problem("scale_and_shift", 1.5, -0.25),
    map_problem("relu"),
    map_problem("square"),
)
