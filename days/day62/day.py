"""Day 62: dropout, in CUDA and in Triton."""

import torch
import torch.nn.functional as F

from common.day import COMPILE, Case, Exercise, Problem, Rung, Target, grid, streamed

from .compiled import print_compiled
from .masks import dropout, print_statistics

TITLE = "Dropout"
TEACHES = "A mask that is computed twice instead of stored; the same random bits in two languages"
TOPICS = ("dropout", "Triton", "random numbers", "Philox", "autograd", "bandwidth")
SOURCE = "dropout.cu"
EXTRA_SOURCES = ("dropout_triton.py", "compiled.py", "masks.py")
INTRODUCES = ("dropout", "layout conversion")

EXERCISE = Exercise(
    function="kept_of",
    task=(
        "Draw the four words of a group under the state's seed and step, split each into its lower "
        "and upper 16 bits, and set bit k where half k is at least `below`."
    ),
    hints=(
        "Which eight numbers of 16 bits do four words of 32 bits have, and in which order?",
        "philox::random4(state.seed, group, state.step) gives the words x, y, z, w. Element 2w is "
        "decided by the lower half of word w, element 2w + 1 by the upper half.",
        "for each word w: kept |= uint32_t{(words[w] & 0xffff) >= below} << (2 * w), then the same "
        "of words[w] >> 16, shifted by 2 * w + 1.",
    ),
)

FLOATS = ["float32", "float16", "bfloat16"]
SHAPES = [(1,), (7,), (8,), (9,), (1023,), (1024,), (1025,), (3, 5, 67), (0, 4)]
PROBABILITIES = (0.1, 0.5, 0.0, 0.9, 1.0, 0.3333)


def inputs(case, draw):
    """p follows from the shape, and is 0.1 where time is measured."""
    p = PROBABILITIES[sum(case.shape) % len(PROBABILITIES)] if sum(case.shape) < 1 << 13 else 0.1
    return draw(*case.shape), p, draw(2, dtype="int64", values="extreme")


def pytorch(x, p, state):
    """PyTorch draws from a generator of its own, not from `state`."""
    return F.dropout(x, p)


def backward(saved, gy):
    p, state = saved
    return torch.ops.day62.dropout_v3_packs(gy, p, state), None, None


def rung(name, idea, **options):
    return Rung(name, idea, backward=backward, saves=lambda given, y: given[1:], **options)


TRITON = {"triton": "dropout_triton", "target": Target(0.93, "copy")}


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
            Rung("dropout_v3_packs", "CUDA, 16 bytes per load", target=Target(0.93, "copy")),
            Rung("dropout_v4_triton", "Triton, 1024 elements per program", **TRITON),
        ),
        2,
        cases=CASES,
    ),
    problem(
        "training step",
        (
            rung("dropout_v3_packs", "CUDA, mask computed again", target=Target(0.93, "copy")),
            Rung("dropout_v4_triton", "Triton, mask computed again", **TRITON),
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
