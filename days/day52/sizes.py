"""Wavefronts of shared memory per multiply-add, and the rates of many sizes."""

from pathlib import Path

from common.bench.counters import WAVEFRONTS, NotCounted, columns_file, counted_columns
from common.day import print_table, rows_as_json
from common.references.sgemm_rates import sgemm_rates

from . import tuning
from .products import RUNGS, timed

NAMES = [rung.name for rung in RUNGS]
LABELS = [name.removeprefix("sgemm_") for name in NAMES]


def by_rung(kernels):
    """The column of the timed problem, which comes first; v4 may launch what it likes. Raises
    NotCounted where a kernel has no counter."""
    M, N, K = timed.bench_cpu.shape
    warps = M * N * K / 32  # multiply-adds of a warp
    column = {}
    for name, kernel in zip(NAMES[:3], kernels, strict=False):
        if WAVEFRONTS[0] not in kernel.counters:
            raise NotCounted(f"{kernel.name} has no counter {WAVEFRONTS[0]}")
        column[name] = kernel.counters[WAVEFRONTS[0]] / warps
    return column


def print_wavefronts(device):
    """Prints what the CPU backend counts and what ncu measures; returns both columns as a file."""
    counted = counted_columns(Path(__file__).parent, device.type, by_rung, quick=True)
    rows = [[name, *(f"{column[name]:.3f}" for column in counted.values())] for name in NAMES[:3]]
    print("wavefronts of shared memory per multiply-add of a warp")
    print_table(["", *counted], rows)
    return columns_file(counted)


def print_rates(operators, device):
    """Tunes, prints TFLOP/s of all sizes, and returns both as files; nothing on the CPU."""
    if device.type != "cuda":
        return {}
    choices = tuning.tune(operators, device)
    calls = {label: getattr(operators, f"sgemm_{label}") for label in LABELS[:3]}
    calls[LABELS[3]] = tuning.tuned(operators, choices)
    return {tuning.STORED: rows_as_json(choices)} | sgemm_rates(calls, device)
