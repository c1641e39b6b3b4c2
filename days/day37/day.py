"""Day 37: sparse matrices with rows of very different lengths."""

if __name__ == "__main__":  # python days/day37/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day37

from common.day import Case, Cost, Problem, Rung, Target, Tolerance, grid, print_table, seconds
from common.references.sparse_matrices import cusparse_product, draw_on, row_lengths, sparse_matrix

from . import hybrid as h

TITLE = "Sparse matrices with skewed rows"
TEACHES = "Equal work where rows are not equal: a hybrid of ELL and COO, the merge path of CSR"
TOPICS = ("sparse", "SpMV", "CSR", "hybrid", "load balance", "merge path", "binary search")
SOURCE = "spmv_hybrid.cu"
INTRODUCES = ("hybrid format", "load balance", "merge path")

INDICES = ["int32", "int64"]
SHAPES = [(1, 1, 1), (37, 41, 3), (129, 700, 13), (300, 257, 30), (2100, 90, 1)]
EMPTY = [(0, 8, 0), (8, 0, 0), (40, 33, 0)]
LONG = [(3, 9000, 8000)]  # rows that span three blocks and more
KINDS = ("banded", "power law", "empty rows", "full row", "nonfinite")
OTHERS = [case for kind in KINDS for case in grid([(300, 257, 9)], INDICES, values=kind)]
CASES = (
    *grid([*SHAPES, *EMPTY, *LONG], INDICES),
    *OTHERS,
    *grid([(70, 5000, 20)], ["int32"], values="power law"),
    *grid([(5000, 70, 1)], ["int32"], values="empty rows"),
)
CANCELLING = Tolerance(factor=16, why="fp32 sums of both signs; a few of many cancel to almost 0")
ANY_ORDER = "atomics add the parts of a row in any order, and each addition rounds"


def cost(case):
    rows, cols, _ = case.shape
    nnz = int(row_lengths(case).sum())
    return Cost(bytes=nnz * 8 + rows * 8 + cols * 4, flops=2 * nnz)


def product(name, inputs, reference, rungs, pytorch):
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=rungs,
        cases=CASES,
        bench=Case((1 << 20, 1 << 20, 32), "int32", "power law"),
        bench_cpu=Case((1 << 11, 1 << 11, 16), "int32", "power law"),
        cost=cost,
        pytorch=pytorch,
        tolerance=CANCELLING,
    )


PROBLEMS = (
    product(
        "hybrid, power law",
        h.hybrid_matrix,
        h.hybrid_product,
        (
            Rung(
                "hybrid",
                "ELL for what most rows have, COO for the rest",
                not_repeatable=ANY_ORDER,
                target=Target(1.0, "pytorch"),
            ),
        ),
        h.cusparse_for_hybrid,
    ),
    product(
        "CSR, power law",
        sparse_matrix,
        h.valid_csr_product,
        (
            Rung("csr_v1_warp", "one warp per row"),
            Rung("merge_v2_threads", "equal shares per thread", not_repeatable=ANY_ORDER),
            Rung(
                "merge_v3_shared",
                "the block's share in shared memory",
                not_repeatable=ANY_ORDER,
                target=Target(1.0, "pytorch"),
            ),
        ),
        cusparse_product,
    ),
    Problem(
        name="csr to rest",
        inputs=h.rest_inputs,
        reference=h.csr_to_rest,
        rungs=(Rung("csr_to_rest", "a search in rest_ptr per entry"),),
        cases=CASES,
        refused=grid([(37, 41, 3, -1), (37, 41, 3, 37 * 41 + 1)], INDICES),
        timed=False,
        outputs_exact=True,
    ),
)


def show_times(ops, device):
    """Prints all kinds of matrices, then the power law with hybrid parts of several widths."""
    if device.type != "cuda":
        return
    rows = 1 << 20
    table = []
    for kind in ("banded", "normal", "empty rows", "full row", "power law"):
        case = Case((rows, rows, 32), "int32", kind)
        *csr, x = sparse_matrix(case, draw_on(device))
        width = h.best_width(row_lengths(case))
        parts = h.hybrid_parts(csr, width)
        calls = [
            lambda a=(*csr, x): cusparse_product(*a),
            lambda a=(*csr, x): ops.csr_v1_warp(*a),
            lambda a=(*csr, x): ops.merge_v2_threads(*a),
            lambda a=(*csr, x): ops.merge_v3_shared(*a),
            lambda a=(*parts, x): ops.hybrid(*a),
        ]
        times = [f"{seconds(call) * 1e3:.3f}" for call in calls]
        name = "uniform" if kind == "normal" else kind
        table.append([name, int(row_lengths(case).max()), *times, width])
    print(f"{rows} rows and columns, about 32 entries per row, ms")
    names = ["cuSPARSE", "CSR v1", "merge v2", "merge v3", "hybrid", "of width"]
    print_table(["matrix", "longest", *names], table)
    table = []
    for places in sorted({8, 12, 16, 20, 24, 32, 48, 64, width}):
        ell_col, *others = h.hybrid_parts(csr, places)
        time = seconds(lambda a=(ell_col, *others, x): ops.hybrid(*a))
        share = len(others[1]) / len(csr[1])
        padded = ell_col.numel() / (len(csr[1]) - len(others[1]))
        table.append([places, f"{share:.0%}", f"{padded:.2f}", f"{time * 1e3:.3f}"])
    print("power law, by the width of the ELL part")
    print_table(["width", "entries in COO", "places per entry in ELL", "ms"], table)
