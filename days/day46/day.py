"""Day 46: rotary position embeddings."""

if __name__ == "__main__":  # python days/day46/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day46

from functools import partial

import torch

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid

from .module import RotaryEmbedding
from .rotating import BASE, angle_table, in_place, print_precision, rotary, rotary_at

TITLE = "Rotary position embeddings"
TEACHES = "Pairs in two layouts, rotated in place; angles that are still right at position 131,072"
TOPICS = ("RoPE", "rotary embedding", "attention", "in place", "precision", "autograd")
SOURCE = "rope.cu"
EXTRA_SOURCES = ("module.py",)
INTRODUCES = ("rotary embedding", "partial rotary")

# (offset, B, S, heads of q, heads of k, D, R): tails of packs, an odd rest, no rotation, decoding
SHAPES = [
    (1, 2, 3, 4, 2, 32, 32), (7, 1, 5, 3, 1, 64, 32), (1, 2, 2, 2, 3, 20, 12),
    (0, 1, 1, 1, 1, 2, 2), (3, 1, 4, 5, 1, 9, 4), (100, 3, 1, 40, 9, 48, 16),
    (0, 0, 3, 2, 2, 32, 32), (2, 2, 0, 2, 2, 8, 8), (0, 1, 2, 3, 2, 16, 0),
    (5, 1, 3, 70, 2, 128, 128),
]  # fmt: skip
PARTIAL = [
    (5, 2, 3, 4, 2, 64, 32), (0, 1, 2, 3, 1, 7, 4), (1, 1, 3, 2, 2, 32, 32),
    (0, 1, 2, 0, 1, 7, 4), (0, 1, 2, 0, 2, 64, 32),  # q has no heads
]  # fmt: skip


def inputs(interleaved, case, draw):
    """The tables have two rows more than positions."""
    offset, B, S, HQ, HK, D, R = case.shape
    R = min(R, D) // 2 * 2
    q, k = draw(B, S, HQ, D), draw(B, S, HK, D)
    positions = torch.arange(offset + S + 2, dtype=torch.float64, device=q.device)
    pairs = torch.arange(R // 2, dtype=torch.float64, device=q.device)
    angles = positions[:, None] * BASE ** (-pairs / max(R // 2, 1))
    return q, k, angles.cos().float(), angles.sin().float(), offset, interleaved


def cost(passes, case):
    """The rotated part of q and k, and a row of both tables per position; 6 operations per pair."""
    _, B, S, HQ, HK, _, R = case.shape
    elements = B * S * (HQ + HK) * R
    return Cost(
        bytes=passes * elements * case.itemsize + 4 * S * R,
        flops=3 * elements * (passes // 2),
    )


POSITIONS = 8192
BENCH = Case((0, 4, POSITIONS, 32, 8, 128, 128), "bfloat16")
BENCH_CPU = Case((0, 1, 64, 8, 2, 128, 128), "bfloat16")
RUNGS = (
    Rung("rope_v1_naive", "a launch per tensor"),
    Rung("rope_v2_fused", "q and k in one launch"),
    Rung("rope_v3_vectorised", "16 bytes per load", target=Target(0.93, "copy")),
)
ROTARY_DIMS = (4, 32, 128)


def trained_inputs(case, draw):
    offset, *_, D, R = case.shape
    q, k, *_ = inputs(False, case, draw)
    return q, k, min(R, D) // 2 * 2, offset


def load_module(interleaved, builder):
    """A call that looks like the reference: the module of that rotary_dim, converted to bf16."""
    builder.operators()
    longest = POSITIONS if builder.device == "cuda" else 128
    modules = {
        rotary_dim: RotaryEmbedding(
            rotary_dim, longest, BASE, interleaved, builder.device
        ).bfloat16()
        for rotary_dim in ROTARY_DIMS
    }

    def call(q, k, rotary_dim, offset):
        if rotary_dim not in modules:
            raise ValueError(f"rotary_dim: expected one of {ROTARY_DIMS}, got {rotary_dim}")
        return modules[rotary_dim](q, k, offset)

    return call


def both(layout, interleaved):
    """In place, timed; and into new tensors, a training step."""
    made = partial(inputs, interleaved)
    odd = (*grid(PARTIAL[:1], FLOATS, "extreme"), *grid(PARTIAL[:1], FLOATS, "nonfinite"))
    return (
        Problem(
            f"{layout}, in place",
            made,
            in_place,
            rungs=RUNGS,
            cases=(*grid([*SHAPES, *PARTIAL], FLOATS), *odd),
            cost=partial(cost, 2),
            pytorch=rotary,
            libraries=(COMPILE,),
            bench=BENCH,
            bench_cpu=BENCH_CPU,
        ),
        Problem(
            f"{layout}, training step",
            trained_inputs,
            partial(rotary_at, interleaved),
            rungs=(
                Rung(
                    "RotaryEmbedding",
                    "into new tensors",
                    load=partial(load_module, interleaved),
                    target=Target(0.93, "copy"),
                ),
            ),
            cases=(*grid(PARTIAL, FLOATS), *grid(SHAPES[:2], ["bfloat16"])),
            cost=partial(cost, 4),
            pytorch=partial(rotary_at, interleaved),
            libraries=(COMPILE,),
            gradients=True,
            bench=BENCH,
            bench_cpu=BENCH_CPU,
        ),
    )


def back(case, draw):
    """Rotation back, halves or interleaved by the first number."""
    interleaved, *shape = case.shape
    return *inputs(bool(interleaved), Case(tuple(shape)), draw), True


def positions_of(case, draw):
    """shape: number of positions, R."""
    count, R = case.shape
    return draw(count, dtype="int64", low=0, high=2000), max(2, R // 2 * 2), BASE


PROBLEMS = (
    *both("halves", False),
    *both("interleaved", True),
    Problem(
        "rotated back",
        back,
        rotary,
        rungs=(Rung("rotary", "negative angles"),),
        cases=grid([(layout, *shape) for shape in PARTIAL for layout in (0, 1)], FLOATS),
        timed=False,
    ),
    Problem(
        "tables",
        positions_of,
        angle_table,
        rungs=(
            Rung("rope_table_v1_float", "angles in fp32"),
            Rung("rope_table_v2_double", "angles in float64"),
        ),
        cases=grid([(1, 2), (7, 10), (33, 64), (300, 128), (0, 8)], ["float32"]),
        timed=False,
    ),
)


def show(operators, device):
    """Prints how far tables are off, by how they are made and by position."""
    print_precision(operators, device)
