"""Wavefronts of shared memory per multiply-add, and the rates of many sizes."""

from pathlib import Path

from common.bench.counters import WAVEFRONTS, NotCounted, columns_file, counted_columns
from common.day import print_table
from common.references.sgemm_rates import sgemm_rates

from .products import RUNGS, problems, timed

NAMES = [rung.name for rung in RUNGS]
LABELS = [name.removeprefix("sgemm_") for name in NAMES]

BK = 16


def per_multiply_add(rows, cols, loads, stores):
    """Wavefronts per multiply-add of a warp, with rows × cols of them per value of k and thread.

    loads: wavefronts per value of k. stores: per tile of both operands."""
    return (BK * loads + stores) / (BK * rows * cols)


# A load of 4 bytes per lane is one wavefront. One of 16 bytes is four, one per 8 lanes, also where
# lanes load the same; so is a store. Stores of v3 and v4, K-major A: 8 of 4 bytes, 2 of 16.
PREDICTED = {
    NAMES[0]: per_multiply_add(8, 1, loads=9, stores=4),
    NAMES[1]: per_multiply_add(8, 8, loads=16, stores=16),
    NAMES[2]: per_multiply_add(8, 8, loads=4 * 4, stores=8 + 2 * 4),
    NAMES[3]: per_multiply_add(8, 8, loads=4 * 4, stores=8 + 2 * 4),
}


def by_rung(kernels):
    """The column of the timed problem, which comes first. Raises NotCounted where a kernel is
    missing."""
    if len(kernels) != len(problems) * len(RUNGS):
        raise NotCounted(f"{len(kernels)} kernels were seen, not one per problem and rung")
    M, N, K = timed.bench_cpu.shape
    warps = M * N * K / 32  # multiply-adds of a warp
    column = {}
    for name, kernel in zip(NAMES, kernels[: len(NAMES)], strict=True):
        if WAVEFRONTS[0] not in kernel.counters:
            raise NotCounted(f"{kernel.name} has no counter {WAVEFRONTS[0]}")
        column[name] = kernel.counters[WAVEFRONTS[0]] / warps
    return column


def print_wavefronts(device):
    """Prints what is predicted, what the CPU backend counts and what ncu measures; returns the two
    counted columns as a file. Raises RuntimeError where the CPU backend differs."""
    counted = counted_columns(Path(__file__).parent, device.type, by_rung, quick=True)
    columns = {"predicted": PREDICTED, **counted}
    rows = [[name, *(f"{column[name]:.3f}" for column in columns.values())] for name in NAMES]
    print("wavefronts of shared memory per multiply-add of a warp")
    print_table(["", *columns], rows)
    wrong = [row[0] for row in rows if row[1] != row[2]]
    if wrong:
        raise RuntimeError(f"the CPU backend counts other wavefronts than predicted: {wrong}")
    return columns_file(counted)


def print_rates(operators, device):
    """Prints TFLOP/s of all sizes, and returns them as data and as a plot; nothing on the CPU."""
    if device.type != "cuda":
        return {}
    return sgemm_rates({label: getattr(operators, f"sgemm_{label}") for label in LABELS}, device)
