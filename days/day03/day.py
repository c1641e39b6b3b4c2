"""Day 3: matrices on a 2D grid, and functions passed to a kernel."""

if __name__ == "__main__":  # python days/day03/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day03

import torch

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Target, grid, streamed

TITLE = "Matrices on a 2D grid"
TEACHES = "Rows and columns from a 2D grid, bounds checks, device functions, functors"
TOPICS = ("matrix addition", "2D grid", "functor", "element-wise", "templates")
SOURCE = "matrix_add.cu"
INTRODUCES = ("row-major", "functor")

SHAPES = [(1, 1), (1025, 1), (1, 1027), (31, 33), (32, 32), (33, 65), (127, 1025), (1000, 3)]
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
