"""Day 62: dropout, in CUDA and in Triton."""

if __name__ == "__main__":  # python days/day62/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day62

import torch
import torch.nn.functional as F

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Target, grid, streamed

from .compiled import print_compiled
from .masks import dropout, print_statistics

TITLE = "Dropout"
TEACHES = "A mask that is computed twice instead of stored; the same random bits in two languages"
TOPICS = ("dropout", "Triton", "random numbers", "Philox", "autograd", "bandwidth")
SOURCE = "dropout.cu"
EXTRA_SOURCES = ("dropout_triton.py", "compiled.py", "masks.py")
INTRODUCES = ("dropout", "layout conversion")

SHAPES = [(1,), (7,), (8,), (9,), (1023,), (1024,), (1025,), (3, 5, 67), (0, 4)]
PROBABILITIES = (0.1, 0.5, 0.0, 0.9, 1.0, 0.3333)


def inputs(case, draw):
    """p follows from the shape, and is 0.1 where time is measured."""
    p = PROBABILITIES[sum(case.shape) % len(PROBABILITIES)] if sum(case.shape) < 1 << 13 else 0.1
    return draw(*case.shape), p, draw(2, dtype="int64")


def pytorch(x, p, state):
    """PyTorch draws from a generator of its own, not from `state`."""
    return F.dropout(x, p)


def backward(saved, gy):
    p, state = saved
    return torch.ops.day62.dropout_v3_packs(gy, p, state), None, None


def rung(name, idea, **options):
    return Rung(name, idea, backward=backward, saves=lambda given, y: given[1:], **options)


TRITON, AT_COPY = "dropout_triton", Target(0.93, "copy")


def problem(name, rungs, passes, **options):
    return Problem(
        name=name,
        inputs=inputs,
        reference=dropout,
        rungs=rungs,
        bench=Case((1 << 28,), "bfloat16"),
        bench_cpu=Case((1 << 13,)),
        cost=streamed(passes, passes),
        pytorch=pytorch,
        libraries=(COMPILE,),
        own_numbers=True,
        **options,
    )


CASES = (
    *grid(SHAPES, FLOATS),
    *grid([(1001,)], FLOATS, values="nonfinite"),
    *grid([(600,)], FLOATS, values="extreme"),
)
PROBLEMS = (
    problem(
        "dropout",
        (
            Rung("dropout_v1_stored", "CUDA, mask through memory"),
            Rung("dropout_v2_in_registers", "CUDA, mask computed where it is used"),
            Rung("dropout_v3_packs", "CUDA, 16 bytes per load", target=AT_COPY),
            Rung(
                "dropout_v4_triton",
                "Triton, 1024 elements per program",
                triton=TRITON,
                target=AT_COPY,
            ),
        ),
        2,
        cases=CASES,
    ),
    problem(
        "training step",
        (
            rung("dropout_v3_packs", "CUDA, mask computed again", target=AT_COPY),
            Rung("dropout_v4_triton", "Triton, mask computed again", triton=TRITON, target=AT_COPY),
        ),
        4,
        cases=grid([(9,), (600,), (7, 25, 7)], FLOATS),
        gradients=True,
    ),
)


def show(operators, device):
    """Tests the mask for what it should be, and what the compilers made of its kernels."""
    print_statistics(operators.dropout_v3_packs, device)
    print_compiled()
