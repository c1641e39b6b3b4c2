"""Compare SGEMM's rates with cuBLAS for many sizes, for the days of SGEMM: table, data and plot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from common.bench.showing import print_table, seconds
from common.references.sgemm import sgemm_by_cublas
from common.report.svg import figure_as_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SQUARES = (256, 512, 1024, 2048, 4096, 8192)
SKINNY = (  # M, N, K
    *((16, 4096, 4096), (128, 4096, 4096), (4096, 16, 4096), (4096, 128, 4096)),
    *((4096, 4096, 16), (4096, 4096, 128), (128, 128, 65536), (1 << 20, 64, 64)),
)
# The timed products: M, N, K, True for a transposed A, True for a transposed B.
SGEMM_SIZES = (
    *((M, N, K, False, False) for M, N, K in (*((n, n, n) for n in SQUARES), *SKINNY)),
    *((4096, 4096, 4096, a, b) for a, b in ((True, False), (False, True), (True, True))),
)
FILES = ("sizes.json", "sizes.svg")  # files that --write stores for a GPU


def size_name(M: int, N: int, K: int, a_transposed: bool, b_transposed: bool) -> str:
    """Return "256 × 512 × 64", with ", Aᵀ · B" for a transposed operand."""
    a, b = ("ᵀ" if transposed else "" for transposed in (a_transposed, b_transposed))
    return f"{M} × {N} × {K}" + (f", A{a} · B{b}" if a_transposed or b_transposed else "")


def sgemm_operands(
    size: tuple[int, int, int, bool, bool], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, None, bool, bool]:
    """Return random A and B of one of SGEMM_SIZES, and the other arguments of a rung."""
    M, N, K, a_transposed, b_transposed = size
    a = torch.randn((K, M) if a_transposed else (M, K), device=device)
    b = torch.randn((N, K) if b_transposed else (K, N), device=device)
    return a, b, None, a_transposed, b_transposed


def sgemm_rates(calls: Mapping[str, Callable[..., object]], device: torch.device) -> dict[str, str]:
    """Print TFLOP/s of each call and of cuBLAS for all sizes, and return them as files: data and a
    plot. α = 1, without C. calls: rungs by the names of their columns."""
    columns = {**calls, "cuBLAS": sgemm_by_cublas}
    found = {}
    for size in SGEMM_SIZES:
        M, N, K = size[:3]
        arguments = sgemm_operands(size, device)
        times = [seconds(partial(call, *arguments)) for call in columns.values()]
        found[size_name(*size)] = [2e-12 * M * N * K / time for time in times]
    print("TFLOP/s, M × N × K")
    table = [
        [name, *(f"{rate:.1f}" for rate in row), f"{row[-2] / row[-1]:.2f}×"]
        for name, row in found.items()
    ]
    last = list(calls)[-1].split("_")[0]
    print_table(["", *columns, f"{last} × cuBLAS"], table)
    lines = ",\n".join(
        f" {json.dumps(name, ensure_ascii=False)}: {json.dumps([float(f'{r:.4g}') for r in row])}"
        for name, row in found.items()
    )
    text = f'{{\n "columns": {json.dumps(list(columns))},\n{lines}\n}}\n'
    plot = svg(list(columns), list(found.values())[: len(SQUARES)])
    return dict(zip(FILES, (text, plot), strict=True))


def svg(labels: Sequence[str], found: Sequence[Sequence[float]]) -> str:
    """Return a plot of the rates of square products over their size, a line per label."""

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for label, values in zip(labels, zip(*found, strict=True), strict=True):
            axis.plot(SQUARES, values, "k--" if label == "cuBLAS" else ".-", label=label)
        axis.set_xscale("log", base=2)
        axis.set_xticks(SQUARES, [str(n) for n in SQUARES])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_xlabel("M = N = K")
        axis.set_ylabel("TFLOP/s")
        axis.legend()

    return figure_as_svg((6.4, 3.6), draw)
