"""Day 80: Mamba's selective scan, forward and backward."""

if __name__ == "__main__":  # python days/day80/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day80

import torch

from common.day import Case, Cost, Library, Problem, Rung, Target, Tolerance, grid

from . import scans

TITLE = "Mamba's selective scan"
TEACHES = (
    "A recurrence whose coefficients depend on the input: over time, over states, and backward"
)
TOPICS = ("Mamba", "SSM", "selective scan", "scan", "backward", "special functions")
SOURCE = "selective_scan.cu"
EXTRA_SOURCES = ("selective_scan_backward.cu", "ssm.cuh")
INTRODUCES = ("selective scan", "reduce-scatter", "adjoint")

FLOATS = ["float32", "bfloat16", "float16"]
# (batch, channels, states, length): around the channels of a block and the steps of a tile.
SHAPES = [(2, 3, 16, 1), (1, 33, 8, 40), (2, 5, 16, 31), (1, 32, 16, 32), (3, 40, 8, 33)]
LONG = [(2, 9, 16, 264), (1, 3, 8, 417)]  # several tiles of 256 steps, several segments
EMPTY = [(0, 4, 16, 8), (2, 0, 16, 8), (2, 4, 8, 0)]
MODEL, FEW = Case((8, 2048, 16, 4096), "bfloat16"), Case((1, 1024, 16, 8192), "bfloat16")
TRAINED = Case((8, 2048, 16, 2048), "bfloat16")
SMALL = Case((1, 32, 16, 256), "bfloat16")


def cost(case):
    """u, delta, z and y; B and C. Of each state: Δ · A, exp, a · h + Δu · B, C · h."""
    batch, channels, states, length = case.shape
    elements = batch * length * (4 * channels + 2 * states)
    return Cost(
        bytes=elements * case.itemsize, flops=7 * batch * channels * states * length, unit="fp32"
    )


def training_cost(case):
    """Forward, then u, delta, z and the upstream gradient read, three gradients written."""
    batch, channels, states, length = case.shape
    elements = batch * length * (11 * channels + 6 * states)
    return Cost(
        bytes=elements * case.itemsize, flops=24 * batch * channels * states * length, unit="fp32"
    )


V2 = Rung("selective_scan_v2_tiles", "coalesced tiles in shared memory")
V3 = Rung("selective_scan_v3_warp_scan", "a scan over time per warp")
V4 = Rung(
    "selective_scan_v4_lanes",
    "states over lanes, one pass in time",
    target=Target(1.0, "mamba-ssm"),
)
SEGMENTS = (Library("compiled segments", scans.by_segments),)
MAMBA = (Library("mamba-ssm", scans.mamba),)
CASES = (
    *grid([*SHAPES, *EMPTY], FLOATS),
    *grid(LONG, ["float32", "bfloat16"]),
    *grid([(2, 9, 16, 72)], FLOATS, values="large"),
)


def backward(saved, g):
    return torch.ops.day80.selective_scan_backward(g, *saved)


PROBLEMS = (
    Problem(
        name="forward",
        inputs=scans.inputs,
        reference=scans.selective_scan,
        rungs=(
            Rung("selective_scan_v1_thread_per_channel", "a thread has a channel"),
            V2,
            V3,
            V4,
        ),
        cases=(
            *CASES,
            Case((3, 97, 8, 2)),  # a second block of v1
            *grid([(2, 9, 16, 72), (3, 4, 8, 300)], FLOATS, values="nonfinite"),
        ),
        refused=(Case((2, 3, 7, 8)), Case((2, 3, 32, 8)), Case((2, 3, 16, 8, 8))),
        bench=MODEL,
        bench_cpu=SMALL,
        cost=cost,
        pytorch=scans.by_steps,
        libraries=SEGMENTS,
        rivals=MAMBA,
    ),
    Problem(
        name="forward, few channels",
        inputs=scans.inputs,
        reference=scans.selective_scan,
        rungs=(V2, V3, V4),
        cases=grid([(1, 8, 16, 648), (1, 5, 8, 401)], ["float32", "bfloat16"]),
        bench=FEW,
        bench_cpu=SMALL,
        cost=cost,
        pytorch=scans.by_steps,
        libraries=SEGMENTS,
        rivals=MAMBA,
    ),
    Problem(
        name="training step",
        inputs=scans.inputs,
        reference=scans.selective_scan,
        rungs=(
            Rung(
                V4.name,
                "forward v4, then the backward pass",
                backward=backward,
                saves=lambda inputs, output: inputs,
                target=Target(1.0, "mamba-ssm"),
            ),
        ),
        cases=(*CASES, *grid([(2, 270, 8, 36)], ["float32"])),
        bench=TRAINED,
        bench_cpu=SMALL,
        cost=training_cost,
        pytorch=scans.by_steps,
        libraries=SEGMENTS,
        rivals=MAMBA,
        gradients=True,
        tolerance=Tolerance(factor=16, why="terms of the sums have both signs and cancel"),
    ),
    Problem(
        name="the gradients, alone",
        inputs=scans.gradient_inputs,
        reference=scans.gradients,
        rungs=(Rung("selective_scan_backward", "segments forwards, then backwards"),),
        cases=grid([(2, 3, 16, 9), (1, 33, 8, 40), (2, 4, 8, 0)], ["float32", "bfloat16"]),
        timed=False,
        tolerance=Tolerance(factor=16, why="terms of the sums have both signs and cancel"),
    ),
)
