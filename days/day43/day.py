"""Day 43: occupancy: how many warps a kernel needs, and what it may do instead."""

if __name__ == "__main__":  # python days/day43/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day43

import torch

from common.day import Case, Cost, Problem, Rung, Target, grid, streamed

from . import sweep

TITLE = "Occupancy"
TEACHES = "Latency hidden by warps or by independent instructions; what limits resident blocks"
TOPICS = ("occupancy", "launch configuration", "registers", "instruction-level parallelism")
SOURCE = "occupancy.cu"
INTRODUCES = ("instruction-level parallelism",)

SIZES = [(1,), (3,), (4,), (5,), (1023,), (1024,), (1025,), (8191,), (8192,), (8197,), (0,)]
FP32 = ["float32"]


def copied(x):
    return x.clone()


COPY = Problem(
    name="copy",
    inputs=lambda case, draw: (draw(*case.shape),),
    reference=copied,
    rungs=(
        Rung("copy_v1_full", "16 bytes per thread, full occupancy"),
        Rung("copy_v2_low", "8 warps per multiprocessor"),
        Rung("copy_v3_low_wide", "8 warps, 128 bytes per thread", target=Target(0.9, "copy")),
    ),
    cases=grid([*SIZES, (40000,)], FP32),
    bench=Case((1 << 28,)),
    bench_cpu=Case((1 << 14,)),
    cost=streamed(2, 0),
    pytorch=copied,
    outputs_exact=True,
)

C = 0.1  # from |x| < 0.5, v² + c stays there and converges: rounding errors shrink


def mapped(x, c, steps):
    for _ in range(steps):
        x = x * x + c
    return x.clone() if steps == 0 else x


def map_pytorch(x, c, steps):
    """One operator per step."""
    c = x.new_full((), c)
    for _ in range(steps):
        x = torch.addcmul(c, x, x)
    return x


def map_inputs(case, draw):
    n, steps = case.shape
    return draw(n, low=-0.5, high=0.5), C, steps


MAP = Problem(
    name="map",
    inputs=map_inputs,
    reference=mapped,
    rungs=(
        Rung("map_v1_full", "one chain per thread, full occupancy"),
        Rung("map_v2_low", "4 warps per multiprocessor"),
        Rung(
            "map_v3_low_chains", "4 warps, 4 chains per thread", target=Target(0.9, "map_v1_full")
        ),
        Rung("map_v4_bounded", "32 chains in 32 registers"),
    ),
    cases=(
        *grid([(n, 3) for (n,) in SIZES], FP32),
        *grid([(40000, 1), (300, 0), (33000, 2)], FP32),
    ),
    bench=Case((1 << 22, 4096)),
    bench_cpu=Case((1 << 12, 16)),
    cost=lambda case: Cost(bytes=8 * case.shape[0], flops=2 * case.shape[0] * case.shape[1]),
    pytorch=map_pytorch,
)

# (n, packs or chains, threads per block, resident blocks)
SHAPES = [
    *((5000, 1, 32, 0), (5000, 2, 1024, 2), (9999, 4, 64, 8), (9999, 8, 96, 1), (0, 1, 32, 0)),
    *((5003, 2, 32, 3), (4099, 4, 1024, 1)),
]
NOT_SHAPES = grid(
    [
        *(
            (9, 3, 32, 0),
            (9, 16, 32, 0),
            (9, 1, 33, 0),
            (9, 1, 0, 0),
            (9, 1, 1056, 0),
            (9, 1, 32, 9),
        ),
        *((9, 1, 32, (1 << 32) + 1), (9, 1, (1 << 32) + 32, 0)),
    ],
    FP32,
)


def copied_in_shape(x, packs, block, blocks):
    return copied(x)


def mapped_in_shape(x, c, steps, chains, block, blocks):
    return mapped(x, c, steps)


COPY_SWEEP = Problem(
    name="copy, any shape of launch",
    inputs=lambda case, draw: (draw(case.shape[0]), *case.shape[1:]),
    reference=copied_in_shape,
    rungs=(Rung("copy_sweep", "for the sweep"),),
    cases=grid(SHAPES, FP32),
    refused=NOT_SHAPES,
    timed=False,
    outputs_exact=True,
)

MAP_SWEEP = Problem(
    name="map, any shape of launch",
    inputs=lambda case, draw: (draw(case.shape[0], low=-0.5, high=0.5), C, 5, *case.shape[1:]),
    reference=mapped_in_shape,
    rungs=(Rung("map_sweep", "for the sweep"),),
    cases=grid(SHAPES, FP32),
    refused=NOT_SHAPES,
    timed=False,
)


PROBLEMS = (COPY, MAP, COPY_SWEEP, MAP_SWEEP)


def show_times(operators, device):
    """What limits the resident blocks; on a GPU, the sweep and its plot."""
    return sweep.show_sweep(operators, device)
