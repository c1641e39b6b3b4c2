"""Day 38, further: radix sort, of int32, int64 and fp32 keys, and the merge sort of fp32 keys."""

from functools import partial

import torch

from common.day import Case, Rung, Target, grid, print_table, seconds

from ..day import LARGE, SIZES, sort

SOURCE = "radix_sort.cu"
EXTRA_SOURCES = ("merge_floats.cu",)

RADIX = Rung("sort_v4_radix", "count, sum, move, per digit")
TARGETS = (Target(1.15, "pytorch"), Target(1.0, "CUB"))
SWEEP = Rung("sort_v5_one_sweep", "offsets by look-back", target=TARGETS)
FLOATS = Rung("sort_floats_merge_path", "main line's v3 on mapped keys")
NOT_FINITE = tuple(
    Case((n,), "float32", values) for n in (33, 2049) for values in ("nonfinite", "extreme", "tiny")
)
INT64 = grid([(1,), (2047,), (2049, 3), (4097,)], ["int64"])
FLOAT32 = (*grid([(2049, 40), (4097,)], ["float32"]), *NOT_FINITE)


def float_inputs(case, draw):
    """Among few different keys are zeros of both signs."""
    n, *distinct = case.shape
    x = draw(n)
    if distinct:
        few, which = draw(*distinct), draw(n, dtype="int64", low=0, high=distinct[0])
        few[0], few[-1] = -0.0, 0.0
        x.copy_(few[which])
    return (x,)


PROBLEMS = (
    sort("sort, int32", "int32", (RADIX, SWEEP), grid([*SIZES, LARGE], ["int32"])),
    sort("sort, int64", "int64", (RADIX, SWEEP), INT64),
    sort("sort, float32", "float32", (FLOATS, RADIX, SWEEP), FLOAT32, inputs=float_inputs),
    # more tiles than one round of v4 adds
    sort(
        "sort of more tiles",
        "int32",
        (RADIX,),
        grid([(4096 * 256 + 1, 1000)], ["int32"]),
        timed=False,
    ),
)


def show_times(operators, device):
    """Print the one sweep beside torch.sort for keys that are not random."""
    n = (1 << 26) if device.type == "cuda" else (1 << 12)
    random = torch.randint(-(2**31), 2**31, (n,), device=device, dtype=torch.int32)
    keys = {
        "random": random,
        "sorted": random.sort()[0],
        "16 distinct": random % 16,
        "all equal": torch.zeros_like(random),
    }
    rows = []
    for name, x in keys.items():
        times = [seconds(partial(f, x)) * 1e3 for f in (operators.sort_v5_one_sweep, torch.sort)]
        rows.append((name, *(f"{time:.2f}" for time in times)))
    print_table((f"{n} int32 keys", "one sweep, ms", "torch.sort, ms"), rows)
