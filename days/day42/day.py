"""Day 42: matrix-vector products."""

if __name__ == "__main__":  # python days/day42/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day42

from functools import partial

import torch

from common.day import print_table, seconds

from . import products

TITLE = "Matrix-vector products"
TEACHES = "Bytes in flight for any shape: rows per warp, split-K, clusters, the transposed product"
TOPICS = ("GEMV", "matrix-vector product", "split-K", "cluster", "bf16", "bytes in flight")
SOURCE = "matvec.cu"
EXTRA_SOURCES = ("matvec_transposed.cu",)
INTRODUCES = ("split-K",)

PROBLEMS = products.problems


def show_times(operators, device):
    """Prints the rates for 2^28 elements of bf16, from 16 rows to a million."""
    if device.type != "cuda":
        return
    names = ("v2_warp", "v3_block", "v4_split_k", "v5_rows", "v6_cluster", "v7_chosen")
    table = []
    for bits in range(4, 21, 4):
        rows, columns = 1 << bits, 1 << (28 - bits)
        a = torch.randn(rows, columns, device=device).bfloat16()
        x = torch.randn(columns, device=device).bfloat16()
        calls = [partial(getattr(operators, f"matvec_{name}"), a, x) for name in names]
        rates = [a.nbytes / seconds(call) / 1e9 for call in [*calls, partial(torch.mv, a, x)]]
        table.append([f"{rows} × {columns}", *(f"{rate:.0f}" for rate in rates)])
    print("2^28 elements of bf16, GB/s")
    print_table(["A", *names, "torch.mv"], table)
