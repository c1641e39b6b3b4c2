"""Day 70: animated colour patterns, in CUDA and in Numba, and a GIF of them."""

if __name__ == "__main__":  # python days/day70/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day70

from functools import partial

from common.day import COMPILE, Case, Library, Problem, Rung, Target, Tolerance, grid

from .formula import angle_sums, compiled_formula, cost, formula, inputs
from .movie import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Animated colour patterns"
TEACHES = "Sines by angle sums, and the special function unit; Numba beside CUDA; a GIF"
TOPICS = ("images", "animation", "GIF", "Numba", "sine", "special functions", "integers")
SOURCE = "color_patterns.cu"
EXTRA_SOURCES = ("patterns_numba.py", "formula.py", "movie.py")

ROUNDED = Tolerance(
    levels=1,
    share=0.01,
    why="an error of any size moves some fractions across an integer; v3 keeps 8 bits of them",
)

# (frames, height, width)
TALL = [(1, 1, 1), (2, 3, 5), (3, 17, 4), (17, 5, 12), (2, 33, 16), (1, 5, 1031)]
WIDE = [(1, 2, 132), (1, 16, 128), (33, 2, 144), (3, 18, 272), (16, 3, 20)]
EMPTY = [(0, 2, 4), (2, 0, 4), (2, 3, 0)]
MOVIE = Case((64, 2160, 3840), "int32")

NUMBA = "patterns_numba"
problem = partial(
    Problem,
    inputs=inputs,
    reference=formula,
    pytorch=angle_sums,
    libraries=(COMPILE, Library("fused formula", lambda *args: compiled_formula()(*args))),
    cost=cost,
    tolerance=ROUNDED,
    refused=(Case((-1, 2, 4), "int32"), Case((2, -1, 4), "int32"), Case((2, 2, -4), "int32")),
    bench=MOVIE,
)

PROBLEMS = (
    problem(
        name="patterns",
        rungs=(
            Rung("patterns_v1_sinf", "one thread per pixel, sinf"),
            Rung("patterns_v2_words", "four pixels in words, 7 special functions per pixel"),
            Rung("patterns_v3_angle_sums", "tables of sines, 2 special functions per pixel"),
            Rung("patterns_v4_staged", "16-byte stores", target=Target(0.85, "copy")),
        ),
        cases=grid([*TALL, *WIDE, *EMPTY], ["int32"]),
        bench_cpu=Case((2, 32, 128), "int32"),
    ),
    # On the CPU, Numba's simulator runs a thread of Python per thread of a kernel.
    problem(
        name="patterns, Numba",
        rungs=(
            Rung("numba_v1_thread_per_pixel", "one thread per pixel", numba=NUMBA),
            Rung("numba_v2_angle_sums", "tables of sines, four pixels in words", numba=NUMBA),
        ),
        cases=grid([(1, 1, 1), (2, 3, 5), (3, 2, 8), (1, 130, 4), *EMPTY], ["int32"]),
        bench_cpu=Case((1, 2, 8), "int32"),
    ),
)
