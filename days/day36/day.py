"""Day 36: sparse matrices times vectors."""

if __name__ == "__main__":  # python days/day36/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day36

import torch

from common.day import Case, Cost, Problem, Rung, Target, Tolerance, grid, print_table, seconds
from common.references.sparse_matrices import (
    coo_product,
    csr_product,
    csr_to_ell,
    cusparse_product,
    draw_on,
    ell_product,
    row_lengths,
    sparse_matrix,
)

from . import formats

TITLE = "Sparse matrix formats"
TEACHES = "CSR, ELL and COO: one product, three layouts, and the matrix that each one is for"
TOPICS = ("sparse", "SpMV", "CSR", "ELL", "COO", "warps", "atomics", "binary search")
SOURCE = "spmv_ell.cu"
EXTRA_SOURCES = ("spmv_coo.cu",)
INTRODUCES = ("CSR", "ELL", "COO", "SpMV", "gather", "segmented scan")

INDICES = ["int32", "int64"]
SHAPES = [(1, 1, 1), (37, 41, 3), (70, 64, 8), (129, 700, 13), (300, 257, 30), (33, 900, 60)]
EMPTY = [(0, 8, 0), (8, 0, 0), (40, 33, 0)]
LONG = [(3, 9000, 3000)]  # several rounds of a warp per row
KINDS = ("banded", "power law", "empty rows", "full row", "nonfinite")
OTHERS = [case for kind in KINDS for case in grid([(300, 257, 9)], INDICES, values=kind)]
CASES = (*grid([*SHAPES, *EMPTY, *LONG], INDICES), *OTHERS)
FEW = grid([(129, 700, 13)], INDICES)
CANCELLING = Tolerance(factor=16, why="fp32 sums of both signs; a few of many cancel to almost 0")
ANY_ORDER = "atomics add the parts of a row in any order, and each addition rounds"

CSR_RUNGS = (
    Rung("csr_v1_scalar", "one thread per row"),
    Rung("csr_v2_warp", "one warp per row"),
    Rung("csr_v3_sub_warp", "2 to 32 lanes per row"),
    Rung(
        "csr_v4_shared_products",
        "the rows of a warp loaded as one run",
        target=Target(1.0, "pytorch"),
    ),
)
ELL_RUNGS = (
    Rung("ell_v1_padded", "one thread per row, entries of a column adjacent"),
    Rung("ell_v2_until_padding", "stops where the row ends"),
)
COO_RUNGS = (
    Rung("coo_v1_atomics", "one atomic per entry", not_repeatable=ANY_ORDER),
    Rung("coo_v2_segmented", "one atomic per row and warp", not_repeatable=ANY_ORDER),
)


def width(case):
    return int(row_lengths(case).max()) if case.shape[0] else 0


def ell(case, draw):
    row_ptr, col, value, x = sparse_matrix(case, draw)
    return (*csr_to_ell(row_ptr, col, value, width(case)), x)


def coo(case, draw):
    row_ptr, col, value, x = sparse_matrix(case, draw)
    return formats.csr_to_coo(row_ptr, col), col, value, x, case.shape[0]


CSR = (sparse_matrix, csr_product, CSR_RUNGS, cusparse_product, 8, 8)
ELL = (ell, ell_product, ELL_RUNGS, formats.cusparse_for_ell, 8, 4)
COO = (coo, coo_product, COO_RUNGS, formats.cusparse_for_coo, 12, 4)


def product(name, format, values, cases):
    """The product in one of the formats; the last two numbers are bytes per entry and per row."""
    inputs, reference, rungs, pytorch, per_entry, per_row = format

    def cost(case):
        nnz = int(row_lengths(case).sum())
        moved = nnz * per_entry + case.shape[0] * per_row + case.shape[1] * 4
        return Cost(bytes=moved, flops=2 * nnz)

    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=rungs,
        cases=cases,
        bench=Case((1 << 20, 1 << 20, 32), "int32", values),
        bench_cpu=Case((1 << 12, 1 << 12, 32), "int32", values),  # rows as long as timed
        cost=cost,
        pytorch=pytorch,
        tolerance=CANCELLING,
    )


def conversion(rung, idea, inputs, reference):
    return Problem(
        name=rung.replace("_", " "),
        inputs=inputs,
        reference=reference,
        rungs=(Rung(rung, idea),),
        cases=CASES,
        timed=False,
        outputs_exact=True,
    )


PROBLEMS = (
    product("CSR, banded", CSR, "banded", CASES),
    product("CSR, uniform", CSR, "normal", FEW),
    product("ELL, banded", ELL, "banded", CASES),
    product("ELL, uniform", ELL, "normal", FEW),
    product("COO, uniform", COO, "normal", CASES),
    conversion(
        "csr_to_coo",
        "a search in row_ptr per entry",
        lambda case, draw: sparse_matrix(case, draw)[:2],
        formats.csr_to_coo,
    ),
    conversion(
        "coo_to_csr",
        "a search in row per row",
        lambda case, draw: (coo(case, draw)[0], case.shape[0]),
        formats.coo_to_csr,
    ),
    conversion(
        "csr_to_ell",
        "one thread per row",
        lambda case, draw: (*sparse_matrix(case, draw)[:3], width(case)),
        csr_to_ell,
    ),
)


def show_times(ops, device):
    """Prints every format on every kind of matrix with its conversion, then dense against CSR."""
    if device.type != "cuda":
        return
    rows = 1 << 20
    table = []
    for kind in ("banded", "normal", "empty rows", "power law", "full row"):
        case = Case((rows, rows, 32), "int32", kind)
        row_ptr, col, value, x = sparse_matrix(case, draw_on(device))
        row = ops.csr_to_coo(row_ptr, col)
        calls = [
            lambda a=(row_ptr, col, value, x): cusparse_product(*a),
            lambda a=(row_ptr, col, value, x): ops.csr_v3_sub_warp(*a),
            lambda a=(row_ptr, col, value, x): ops.csr_v4_shared_products(*a),
            lambda a=(row_ptr, col): ops.csr_to_coo(*a),
            lambda a=(row, rows): ops.coo_to_csr(*a),
            lambda a=(row, col, value, x, rows): ops.coo_v2_segmented(*a),
        ]
        places = width(case)
        padded = rows * places / len(col)
        if padded < 4:
            ell = ops.csr_to_ell(row_ptr, col, value, places)
            calls.append(lambda a=(row_ptr, col, value, places): ops.csr_to_ell(*a))
            calls.append(lambda a=(*ell, x): ops.ell_v2_until_padding(*a))
        times = [f"{seconds(call) * 1e3:.3f}" for call in calls]
        times += ["–"] * (8 - len(times))
        name = "uniform" if kind == "normal" else kind
        table.append([name, f"{len(col) / rows:.1f}", places, f"{padded:.1f}", *times])
    print(f"{rows} rows and columns, ms; ELL where its places are fewer than 4 × the entries")
    header = ["matrix", "mean", "longest", "places", "cuSPARSE", "CSR v3", "CSR v4"]
    print_table([*header, "to COO", "to CSR", "COO v2", "to ELL", "ELL v2"], table)
    n = 1 << 13
    table = []
    for percent in (1, 5, 10, 25, 50, 100):
        dense = torch.randn(n, n, device=device)
        dense *= torch.rand(n, n, device=device) < percent / 100
        a, x = dense.to_sparse_csr(), torch.randn(n, device=device)
        parts = (a.crow_indices().int(), a.col_indices().int(), a.values(), x)
        ours = seconds(lambda parts=parts: ops.csr_v3_sub_warp(*parts))
        theirs = seconds(lambda dense=dense, x=x: dense @ x)
        table.append([f"{percent} %", f"{ours * 1e3:.3f}", f"{theirs * 1e3:.3f}"])
    print(f"{n}×{n}, ms")
    print_table(["entries that are not 0", "CSR v3", "dense (cuBLAS)"], table)
