"""Day 61: element-wise and conditional operations, in CUDA and in Triton."""

if __name__ == "__main__":  # python days/day61/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day61

import torch
import torch.nn.functional as F

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Target, grid, streamed

from .compiled import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Triton beside CUDA"
TEACHES = "The same kernels in Triton: programs, blocks of values, masks, and what is compiled"
TOPICS = ("Triton", "element-wise", "mask", "broadcasting", "bandwidth")
SOURCE = "vector_ops.cu"
EXTRA_SOURCES = ("vector_ops_triton.py", "compiled.py")
INTRODUCES = ("Triton program",)


def add_inputs(case, draw):
    return draw(*case.shape), draw(*case.shape), 0.125


def leaky_add(x, y, slope):
    return F.leaky_relu(x + y, slope)


def leaky_add_in_place(x, y, slope):
    return F.leaky_relu_(x + y, slope)


def clamp_inputs(case, draw):
    """Bounds around the middle; low is above high for some columns, where high counts."""
    _, cols = case.shape
    return draw(*case.shape), draw(cols) - 0.5, draw(cols) + 0.5


PROBLEMS = (
    Problem(
        name="leaky ReLU of a sum",
        inputs=add_inputs,
        reference=leaky_add,
        rungs=(
            Rung("leaky_add_v1_thread", "CUDA, one thread per element"),
            Rung("leaky_add_v2_packs", "CUDA, 16 bytes per load", target=Target(0.95, "copy")),
            Rung(
                "leaky_add_v3_triton",
                "Triton, 1024 elements per program",
                target=Target(0.95, "copy"),
                triton="vector_ops_triton",
            ),
        ),
        cases=(
            *grid([(1,), (255,), (256,), (1023,), (1024,), (1025,), (5003,), (0,)], FLOATS),
            *grid([(1000,)], FLOATS, values="nonfinite"),
            *grid([(1000,)], FLOATS, values="extreme"),
        ),
        bench=Case((1 << 28,)),
        bench_cpu=Case((1 << 16,)),
        cost=streamed(3, 2),
        pytorch=leaky_add_in_place,
        libraries=(COMPILE,),
    ),
    Problem(
        name="columns clamped",
        inputs=clamp_inputs,
        reference=torch.clamp,
        rungs=(
            Rung("clamp_columns_v1_packs", "CUDA, 16 bytes per load", target=Target(0.95, "copy")),
            Rung(
                "clamp_columns_v2_triton",
                "Triton, 16 × 256 elements per program",
                target=Target(0.95, "copy"),
                triton="vector_ops_triton",
            ),
        ),
        cases=(
            *grid(
                [(1, 1), (7, 1), (1, 7), (16, 256), (17, 257), (35, 520), (0, 5), (5, 0)], FLOATS
            ),
            *grid([(150, 8)], FLOATS),  # more rows than one block takes
            *grid([(19, 104)], FLOATS, values="nonfinite"),
        ),
        bench=Case((16384, 16384)),
        bench_cpu=Case((256, 256)),
        cost=streamed(2, 2),
        pytorch=torch.clamp,
        libraries=(COMPILE,),
    ),
)
