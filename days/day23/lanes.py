"""Scan, votes, broadcast: cases, formulas, rungs."""

import torch
from torch.nn.functional import pad

from common.day import (
    COMPILE,
    HALVES,
    Case,
    Cost,
    Problem,
    Rung,
    Tolerance,
    grid,
    one_tensor,
    streamed,
)

FLOATS = ["float32", *HALVES]
SHAPES = [(1, 1), (3, 31), (33, 32), (7, 33), (5, 257), (2, 1023), (3, 1024), (2, 1025)]
EMPTY = [(0, 5), (5, 0)]


def segments(case, draw):
    n, width = case.shape
    return draw(n), width


def segment_scan(x, width):
    padded = pad(x, (0, -x.numel() % width)).view(-1, width)
    return padded.cumsum(dim=1).flatten()[: x.numel()]


def segments_by_cumsum(x, width):
    """Without the copy that padding makes; for whole segments."""
    return x.view(-1, width).cumsum(dim=1).view(-1)


def segments_cost(case):
    n, _ = case.shape
    return Cost(bytes=2 * n * case.itemsize, flops=n)


def compact(x):
    keep = x > 0
    order = torch.argsort(keep.to(torch.int8), dim=1, descending=True, stable=True)
    return torch.where(keep, x, 0).gather(1, order), keep.sum(dim=1)


def compact_by_scatter(x):
    """A scan gives each element its place, without a sort; the others follow as zeros."""
    keep = x > 0
    kept = keep.cumsum(1)
    counts = kept[:, -1]
    column = torch.arange(x.shape[1], device=x.device)
    place = torch.where(keep, kept - 1, counts[:, None] + column - kept)
    return torch.empty_like(x).scatter_(1, place, torch.where(keep, x, 0)), counts


def matrix_and_factors(case, draw):
    rows, _ = case.shape
    return draw(*case.shape), draw(rows)


def scale_rows(x, s):
    return x * s[:, None]


LANES = (
    Problem(
        name="segment_scan",
        inputs=segments,
        reference=segment_scan,
        rungs=(Rung("segment_scan", "shuffle up, with a width and a mask"),),
        cases=(
            *grid(
                [(1, 32), (31, 32), (33, 16), (257, 8), (1025, 4), (1000, 2)],
                FLOATS,
                values="uniform",
            ),
            *grid([(7, 1), (0, 8), (1003, 32)], FLOATS, values="uniform"),
            *grid([(300, 8)], FLOATS, values="nonfinite"),
        ),
        bench=Case((1 << 28, 32), values="uniform"),
        bench_cpu=Case((1 << 15, 32), values="uniform"),
        cost=segments_cost,
        pytorch=segments_by_cumsum,
        libraries=(COMPILE,),
        tolerance=Tolerance(
            ulps=64, why="sums that cancel, added in a different order from PyTorch's"
        ),
    ),
    Problem(
        name="compact",
        inputs=one_tensor,
        reference=compact,
        rungs=(Rung("compact", "a ballot gives each lane its place"),),
        cases=(
            *grid(SHAPES + EMPTY, FLOATS),
            *grid([(9, 100)], FLOATS, values="extreme"),
            *grid([(9, 100)], FLOATS, values="nonfinite"),
        ),
        bench=Case((65536, 1024)),
        bench_cpu=Case((64, 1024)),
        cost=streamed(2),
        pytorch=compact_by_scatter,
        libraries=(COMPILE,),
        outputs_exact=True,
    ),
    Problem(
        name="scale_rows",
        inputs=matrix_and_factors,
        reference=scale_rows,
        rungs=(Rung("scale_rows", "a factor broadcast from one lane"),),
        cases=(
            *grid(SHAPES + EMPTY, FLOATS),
            *grid([(40, 40)], FLOATS, values="nonfinite"),
        ),
        bench=Case((262144, 1024)),
        bench_cpu=Case((128, 1024)),
        cost=streamed(2),
        pytorch=scale_rows,
        libraries=(COMPILE,),
    ),
)
