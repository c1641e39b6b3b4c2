"""Day 22: tricks of shared memory."""

if __name__ == "__main__":  # python days/day22/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day22

import torch

from common.day import FLOATS, Case, Problem, Rung, grid, print_table, streamed

TITLE = "Tricks of shared memory"
TEACHES = "Bank conflicts counted, padding against XOR swizzle, sub-tiles, more than 48 KB"
TOPICS = ("shared memory", "bank conflicts", "swizzle", "recurrence", "numerics")
SOURCE = "shared_mem_tricks.cu"
INTRODUCES = ("sub-tile",)

SHAPES = [(1, 1), (1, 33), (3, 31), (5, 32), (127, 5), (129, 67), (4, 128), (131, 132), (2, 257)]
DECAY = 0.9


def inputs(case, draw):
    return draw(*case.shape), DECAY


def reference(x, decay):
    y = torch.empty_like(x)
    average = torch.zeros_like(x[:, 0]) if x.shape[1] else None
    for c in range(x.shape[1]):
        average = decay * average + (1 - decay) * x[:, c]
        y[:, c] = average
    return y


def by_product(x, decay):
    """All averages of a row are one product with a triangular matrix of weights (cuBLAS)."""
    column = torch.arange(x.shape[1], device=x.device)
    age = column - column[:, None]
    weights = torch.where(age >= 0, (1 - decay) * decay**age, 0.0)
    return x @ weights.to(x.dtype)


PROBLEMS = (
    Problem(
        name="running average",
        inputs=inputs,
        reference=reference,
        rungs=(
            Rung("ema_v0_no_tile", "one thread per row, in global memory"),
            Rung("ema_v1_conflict", "a tile, its columns in one bank"),
            Rung("ema_v2_padded", "rows of the tile 33 words apart"),
            Rung("ema_v3_swizzled", "columns permuted by XOR"),
            Rung("ema_v4_large_tile", "64 KB, 16 bytes per access"),
            Rung("ema_v5_prefetch", "the next sub-tile's loads in flight"),
        ),
        cases=(
            *grid([*SHAPES, (0, 8), (4, 0)], FLOATS),
            *grid([(3, 40)], FLOATS, values="offset"),
            *grid([(37, 44)], FLOATS, values="nonfinite"),
            *grid([(5, 60)], FLOATS, values="extreme"),
        ),
        bench=Case((1 << 20, 256)),
        bench_cpu=Case((1024, 256)),
        cost=streamed(2, 3),
        pytorch=by_product,
    ),
)


def ways(addresses):
    """Cycles of an access to the words at these addresses: the most different words in one bank."""
    banks = [address % 32 for address in set(addresses)]
    return max(banks.count(bank) for bank in banks)


def show(operators, device):
    """Counts the cycles per access for each layout, and for reads with a stride."""
    layouts = {
        "conflict": lambda r, c: 32 * r + c,
        "padded": lambda r, c: 33 * r + c,
        "swizzled": lambda r, c: 32 * r + (c ^ r),
    }
    print("cycles per access of a warp")
    rows = []
    for name, place in layouts.items():
        row = max(ways([place(r, lane) for lane in range(32)]) for r in range(32))
        column = max(ways([place(lane, c) for lane in range(32)]) for c in range(32))
        rows.append([name, row, column])
    print_table(["tile", "along a row", "along a column"], rows)
    print("with a stride, lane l at word stride · l")
    strides = (0, 1, 2, 3, 4, 8, 12, 16, 31, 32, 33)
    cycles = [ways([stride * lane for lane in range(32)]) for stride in strides]
    print_table(["stride", *map(str, strides)], [["cycles", *cycles]])
