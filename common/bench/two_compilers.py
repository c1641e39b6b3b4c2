"""Print a table of a day's kernels by nvcc and by Triton: lines, registers, widths, barriers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from common.bench.showing import print_table
from common.build.machine_code import (
    TritonKernel,
    architecture,
    cuda_code,
    lines_of,
    read_code,
    triton_code,
)

HEADER = ["", "lines", "registers", "stack", "instructions", "loads", "stores"]
# Columns of kernels whose threads exchange values, and of those that use tensor cores.
IF_ANY = ("shuffles", "barriers", "copies", "ldmatrix", "products")


def print_machine_code(
    cuda: Path, triton: Path, kernels: Sequence[tuple[str, str | TritonKernel]], note: str
) -> None:
    """Compile the kernels for the first GPU, or for 9.0a, and print a row for each. Columns for
    warp shuffles, barriers and tensor core instructions appear if one of the kernels has any.

    cuda, triton: the two sources. kernels: a title each, and a kernel: one in CUDA by its name and
    template arguments as nvcc writes them, "add_v1_kernelIfE" for add_v1_kernel<float>. note: the
    purpose of the compilation, such as the dtype. Raise Skip without nvcc or Triton.
    """
    arch = architecture()
    in_triton = [kernel for _, kernel in kernels if isinstance(kernel, TritonKernel)]
    compiled = iter(triton_code(triton, in_triton, arch))
    rows: list[list[object]] = []
    codes = []
    for title, kernel in kernels:
        if isinstance(kernel, TritonKernel):
            source, name = triton, kernel.kernel
            code = read_code(next(compiled), name)
        else:
            source, name = cuda, kernel.partition("_kernel")[0] + "_kernel"
            code = read_code(cuda_code(source, arch), kernel)
        row = [title, lines_of(source, name), code.registers, code.stack, code.instructions]
        rows.append([*row, widths(code.loads), widths(code.stores)])
        codes.append(code)
    shown = [what for what in IF_ANY if any(getattr(code, what) for code in codes)]
    for row, code in zip(rows, codes, strict=True):
        row += [getattr(code, what) for what in shown]
    print(f"{note}, compiled for {arch}")
    print_table([*HEADER, *shown], rows)


def widths(moved: Mapping[int, int]) -> str:
    """Return {4: 2, 16: 1} as "2 × 4 B, 1 × 16 B"."""
    return ", ".join(f"{count} × {width} B" for width, count in sorted(moved.items()))
