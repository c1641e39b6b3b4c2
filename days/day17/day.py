"""Day 17: scan, also called prefix sum."""

if __name__ == "__main__":  # python days/day17/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day17

import torch

from common.day import COMPILE, Case, Problem, Rung, Target, grid, streamed
from common.references import rivals

TITLE = "Scan (prefix sum)"
TEACHES = "Inclusive and exclusive scan, from log-step tiles to one pass with decoupled look-back"
TOPICS = ("scan", "prefix sum", "shared memory", "warps", "decoupled look-back")
SOURCE = "prefix_sum.cu"
EXTRA_SOURCES = ("scan_in_registers.cu",)
INTRODUCES = ("scan", "decoupled look-back", "memory order", "fence")

# Floats are uniform in [0, 1). With both signs the sums would cancel, and the rounding of each
# order of additions would show; PyTorch uses another order than these rungs.
SIZES = [(1,), (2,), (31,), (1023,), (1024,), (1025,), (12287,), (12289,), (0,)]
FOUR_BYTES = ("float32", "int32")


def inputs(exclusive):
    return lambda case, draw: (draw(*case.shape), exclusive)


def reference(x, exclusive):
    if exclusive:
        x = torch.cat([x.new_zeros(1), x])[: x.numel()]
    return torch.cumsum(x, dim=0, dtype=x.dtype)


def inclusive_scan(x, exclusive):
    """CUB's scan: torch.cumsum calls it for a vector on the GPU."""
    return torch.cumsum(x, 0, dtype=x.dtype)


def exclusive_scan(x, exclusive):
    """PyTorch has no exclusive one: the same scan, written one place further, without a copy."""
    y = torch.empty_like(x)
    y[:1].zero_()
    torch.cumsum(x[:-1], 0, out=y[1:])
    return y


def scan(name, exclusive, pytorch, target=None):
    return Problem(
        name=name,
        inputs=inputs(exclusive),
        reference=reference,
        rungs=(
            Rung("scan_v1_hillis_steele", "log2 steps over a tile", dtypes=FOUR_BYTES),
            Rung("scan_v2_blelloch", "up and down a tree", dtypes=FOUR_BYTES),
            Rung("scan_v3_three_kernel", "totals, offsets, scan"),
            Rung(
                "scan_v4_look_back",
                "one pass, offsets from the tiles before",
                not_repeatable="how tiles' totals are grouped depends on which are ready",
                target=target,
            ),
        ),
        cases=(
            *grid([*SIZES, (30_011,)], ["int32"]),
            *grid([(1,), (1025,), (12289,)], ["float32"], values="uniform"),
            *grid([(1025,), (12289,)], ["float16", "bfloat16"], values="uniform"),
            *grid([(3001,)], ["float32", "float16"], values="nonfinite"),
        ),
        bench=Case((1 << 28,), values="uniform"),
        bench_cpu=Case((1 << 16,), values="uniform"),
        cost=streamed(2),
        pytorch=pytorch,
        libraries=(COMPILE,),
        rivals=(rivals.cub_scan,),
    )


PROBLEMS = (
    scan("inclusive", False, inclusive_scan, Target(1.3, "pytorch")),
    scan("exclusive", True, exclusive_scan),
)
