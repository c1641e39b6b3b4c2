"""Day 44: RMSNorm."""

if __name__ == "__main__":  # python days/day44/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day44

import torch

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Target, Tolerance, grid, streamed

TITLE = "RMSNorm"
TEACHES = "A row is read once and waits on the chip, in registers or shared memory, for its sum"
TOPICS = ("RMSNorm", "occupancy", "cp.async", "bf16")
SOURCE = "rms_norm.cu"
INTRODUCES = ("RMSNorm", "dynamic tanh")
SHAPES = [(1, 1), (5, 31), (2, 1025)]
CHUNKS = [(9, 136), (300, 8), (3, 1000), (0, 8), (4, 0)]  # rows of 16-byte chunks
LONG = [(2, 8200), (1, 16392), (5, 32768)]  # around the chunks of a thread and of a block
EPS, WHY = 1e-6, "a lane of v2, and v1 a whole row, adds elements one after the other"


def inputs(case, draw):
    return draw(*case.shape), draw(case.shape[1], low=0.5, high=1.5), EPS


def reference(x, weight, eps):
    wide = torch.promote_types(x.dtype, torch.float32)
    scale = (x.to(wide).square().mean(1) + eps).rsqrt()
    return (x.to(wide) * scale[:, None] * weight.to(wide)).to(x.dtype), scale


def fused(x, weight, eps):
    """Return what F.rms_norm calls; with the factors, which the backward pass needs."""
    y, scale = torch.ops.aten._fused_rms_norm(x, [x.shape[1]], weight, eps)
    return y, scale[:, 0]


NAIVE = Rung("rms_norm_v1_naive", "one thread per row")
WARP = Rung("rms_norm_v2_warp", "one warp per row")
VECTOR = Rung("rms_norm_v3_vectorised", "row in a block's registers")
SHARED = Rung("rms_norm_v4_shared", "row in shared memory", target=Target(0.96, "copy"))


def problem(name, rungs, cases, **others):
    sums = Tolerance(factor=64 if NAIVE in rungs else 16, why=WHY)
    return Problem(name, inputs, reference, rungs, cases, tolerance=sums, **others)


def timed(rows, cols, *rungs):
    return problem(
        f"RMSNorm, {cols} columns",
        rungs,
        (Case((3, 520), "bfloat16"),),  # this size is compared after it was timed
        bench=Case((rows, cols), "bfloat16"),  # 1 GiB, as the copy that it is compared with
        bench_cpu=Case((32768 // cols or 1, cols), "bfloat16"),
        cost=streamed(2, 4),
        pytorch=fused,
        libraries=(COMPILE,),
    )


def checked(name, rungs, *cases):
    return problem(name, rungs, cases, timed=False)


ODD = grid([(8, 301)], FLOATS, values="nonfinite")
EVEN = (*grid(CHUNKS, FLOATS), *grid([(8, 304)], FLOATS, values="nonfinite"))
WIDE = (*grid(LONG, ["bfloat16"]), *grid([(2, 4104), (3, 16384)], ["float32"]))
PROBLEMS = (
    checked("RMSNorm, any row", (NAIVE, WARP), *grid(SHAPES, FLOATS), *EVEN, *ODD),
    checked("RMSNorm, rows of chunks", (VECTOR, SHARED), *EVEN, *WIDE),
    timed(1 << 19, 1 << 10, NAIVE, WARP, VECTOR, SHARED),
    timed(1 << 17, 1 << 12, WARP, VECTOR, SHARED),
    timed(1 << 15, 1 << 14, VECTOR, SHARED),
    timed(1 << 14, 1 << 15, VECTOR, SHARED),
)
