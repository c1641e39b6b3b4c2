"""Wavefronts of shared memory per multiply-add, and the rates of many sizes."""

import io
import json
from functools import partial
from pathlib import Path

import torch

from common.day import (
    WAVEFRONTS,
    NotCounted,
    columns_file,
    counted_columns,
    print_table,
    seconds,
)

from .products import RUNGS, by_cublas, problems, timed

NAMES = [rung.name for rung in RUNGS]
LABELS = [*(name.removeprefix("sgemm_") for name in NAMES), "cuBLAS"]
SQUARES = (256, 512, 1024, 2048, 4096, 8192)
SKINNY = (  # M, N, K
    *((16, 4096, 4096), (128, 4096, 4096), (4096, 16, 4096), (4096, 128, 4096)),
    *((4096, 4096, 16), (4096, 4096, 128), (128, 128, 65536), (1 << 20, 64, 64)),
)
LAYOUTS = ((True, False), (False, True), (True, True))  # whether A, B are transposed
FILES = ("sizes.json", "sizes.svg")  # what --write stores of a GPU

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


def rates(operators, device, shape, a_transposed=False, b_transposed=False):
    """TFLOP/s of each rung and of cuBLAS, for α = 1 and without C."""
    M, N, K = shape
    a = torch.randn((K, M) if a_transposed else (M, K), device=device)
    b = torch.randn((N, K) if b_transposed else (K, N), device=device)
    calls = [*(getattr(operators, name) for name in NAMES), by_cublas]
    arguments = (a, b, None, a_transposed, b_transposed)
    return [2e-12 * M * N * K / seconds(partial(call, *arguments)) for call in calls]


def print_rates(operators, device):
    """Prints TFLOP/s of all sizes, and returns them as data and as a plot; nothing on the CPU."""
    if device.type != "cuda":
        return {}
    found = {
        f"{M} × {N} × {K}": rates(operators, device, (M, N, K))
        for M, N, K in (*((n, n, n) for n in SQUARES), *SKINNY)
    }
    for layout in LAYOUTS:
        a, b = ("ᵀ" if transposed else "" for transposed in layout)
        found[f"4096 × 4096 × 4096, A{a} · B{b}"] = rates(operators, device, (4096,) * 3, *layout)
    print("TFLOP/s, M × N × K")
    table = [
        [name, *(f"{rate:.1f}" for rate in row), f"{row[-2] / row[-1]:.2f}×"]
        for name, row in found.items()
    ]
    print_table(["", *LABELS, "v4 × cuBLAS"], table)
    lines = ",\n".join(
        f" {json.dumps(name, ensure_ascii=False)}: {json.dumps([float(f'{r:.4g}') for r in row])}"
        for name, row in found.items()
    )
    text = f'{{\n "columns": {json.dumps(LABELS)},\n{lines}\n}}\n'
    return dict(zip(FILES, (text, svg(list(found.values())[: len(SQUARES)])), strict=True))


def svg(found):
    """The rates of square products over their size, a line per rung."""
    import matplotlib
    from matplotlib.figure import Figure

    settings = {"svg.hashsalt": "hundred days", "svg.fonttype": "none", "font.size": 9}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained", facecolor="white")
        axis = figure.subplots()
        for label, values in zip(LABELS, zip(*found, strict=True), strict=True):
            axis.plot(SQUARES, values, "k--" if label == "cuBLAS" else ".-", label=label)
        axis.set_xscale("log", base=2)
        axis.set_xticks(SQUARES, [str(n) for n in SQUARES])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_xlabel("M = N = K")
        axis.set_ylabel("TFLOP/s")
        axis.legend()
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
