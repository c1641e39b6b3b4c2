"""Day 89: a gather of rows that survives a bad index, and a program of planted faults."""

if __name__ == "__main__":  # python days/day89/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day89

import torch

from common.day import Case, Cost, Library, Problem, Rung, Target, grid

from .proof import show, show_times

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "When kernels go wrong"
TEACHES = "Sticky errors, asserts, sanitizers and bad input: each kind of fault, and what names it"
TOPICS = ("errors", "robustness", "sticky error", "assert", "sanitizer", "bad input", "gather")
SOURCE = "robustness.cu"
EXTRA_SOURCES = ("proof.py", "planted_faults.py", "in_pytorch.py")
INTRODUCES = ("sticky error",)

WAITS = "the host waits for the GPU's answer"
HOLDS = {0: (), 1: (-1,), 2: ("rows",), 3: (2**32,), 4: (-(2**63), 2**63 - 1), 5: "all"}


def inputs(case, draw):
    """case.shape: picks, columns, rows and which bad indices there are. No rows: as many as picks,
    each picked once."""
    picks, columns, rows, bad = (*case.shape, 0)[:4]
    x = draw(rows or (0 if bad else picks), columns)
    index = draw(picks, dtype="int64", low=0, high=max(len(x), 1))
    if not rows and not bad:
        index.copy_(draw(picks, dtype="float32", values="uniform").argsort())
    kinds = HOLDS[bad]
    if kinds == "all":
        index.fill_(-1)
    for place, value in enumerate(kinds if kinds != "all" else ()):
        index[(2 * picks) // 3 - place :: 7] = len(x) if value == "rows" else value
    return x, index


def reference(x, index):
    """NaN where there is no such row, and the first such place."""
    bad = (index < 0) | (index >= len(x))
    y = x.new_full((len(index), x.shape[1]), torch.nan)
    y[~bad] = x[index[~bad]]
    first = bad.nonzero()[:1, 0]
    return y, first if len(first) else index.new_full((1,), -1)


def picked(x, index):
    return x.index_select(0, index)


def trusting(x, index):
    return torch.ops.day89.gather_v1_trusting(x, index)


def cost(case):
    picks, columns = case.shape[:2]
    return Cost(bytes=picks * (2 * columns * case.itemsize + 8))


V2 = Rung("gather_v2_host", "a look first, and a wait", not_captured=WAITS)
V3 = Rung("gather_v3_device", "NaN and a report", target=Target(0.97, "trusting"))
DTYPES = ["float32", "float16", "bfloat16"]
# Rows of 16-byte words and others, shorter and longer than a warp's words; one row, picked often.
SHAPES = [(9, 4, 5), (100, 37, 11), (33, 8, 1), (3, 1040, 7), (7, 264, 4), (64, 1, 3), (1, 1, 1)]
SHAPES += [(40, 24, 0), (2, 8199, 2), (0, 5, 3), (5, 0, 2)]

PROBLEMS = (
    Problem(
        name="gather",
        inputs=inputs,
        reference=reference,
        rungs=(V2, V3),
        cases=(*grid(SHAPES, DTYPES), *grid([(29, 24, 9)], DTYPES, "nonfinite")),
        bench=Case((1 << 20, 512, 0)),
        bench_cpu=Case((1 << 12, 64, 0)),
        cost=cost,
        pytorch=picked,
        libraries=(Library("trusting", trusting), Library("compile")),
        outputs_exact=True,
    ),
    Problem(
        name="gather, bad indices",
        inputs=inputs,
        reference=reference,
        rungs=(V3,),
        cases=(
            *grid([(50, 24, 9, bad) for bad in range(1, 6)], DTYPES),
            *grid([(300, 37, 40, 2), (70, 1032, 3, 4), (6, 8, 0, 1), (6, 0, 4, 1)], DTYPES),
        ),
        timed=False,
        outputs_exact=True,
    ),
    Problem(
        name="gather, refused",
        inputs=inputs,
        reference=reference,
        rungs=(V2,),
        cases=(Case((9, 4, 5)),),
        refused=(
            *grid([(50, 24, 9, bad) for bad in range(1, 6)], ["float32"]),
            Case((400, 2, 9, 1)),  # the first bad index is the second block's
        ),
        timed=False,
        outputs_exact=True,
    ),
)
