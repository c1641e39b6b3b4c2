"""The heat equation: cases, formulas, rungs."""

import math
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F

from common.day import Case, Cost, Library, Problem, Rung, Target, grid

C = 0.125  # of a step, at most 1/6

# (nz, ny, nx, steps). Rows of whole quads and others; tiles are 120 points by 22 or 20 rows.
SHAPES = [(1, 1, 1, 1), (3, 5, 7, 2), (5, 9, 70, 3), (66, 3, 65, 1), (1, 1, 4, 3), (2, 8, 16, 8)]
SHAPES += [(4, 21, 120, 1), (7, 23, 124, 2), (3, 20, 132, 4), (9, 44, 8, 3), (70, 3, 4, 2)]
EMPTY = [(0, 3, 4, 2), (3, 0, 4, 1), (2, 3, 0, 2)]


def inputs(case, draw):
    return draw(*case.shape[:3]), C, case.shape[3]


def step(u, c):
    p = F.pad(u, [1] * 6)
    inner = slice(1, -1)
    sum_ = (1 - 6 * c) * u
    for dim in (2, 1, 0):
        for shifted in (slice(None, -2), slice(2, None)):
            place = [inner] * 3
            place[dim] = shifted
            sum_ = sum_ + c * p[tuple(place)]
    return sum_


def reference(u, c, steps):
    for _ in range(steps):
        u = step(u, c)
    return u


def in_place(u, c, steps):
    """Six additions of slices per step, each in place."""
    for _ in range(steps):
        new = (1 - 6 * c) * u
        for dim in range(3):
            n = u.shape[dim]
            new.narrow(dim, 1, n - 1).add_(u.narrow(dim, 0, n - 1), alpha=c)
            new.narrow(dim, 0, n - 1).add_(u.narrow(dim, 1, n - 1), alpha=c)
        u = new
    return u


@cache
def compiled_step():
    return torch.compile(step, dynamic=False)


def compiled(u, c, steps):
    for _ in range(steps):
        u = compiled_step()(u, c)
    return u


@cache
def weights(device, c):
    kernel = torch.zeros(3, 3, 3, dtype=torch.float64)
    for at in ((0, 1, 1), (2, 1, 1), (1, 0, 1), (1, 2, 1), (1, 1, 0), (1, 1, 2)):
        kernel[at] = c
    kernel[1, 1, 1] = 1 - 6 * c
    return kernel.float().to(device)[None, None]


def convolved(u, c, steps):
    u = u[None, None]
    for _ in range(steps):
        u = F.conv3d(u, weights(u.device, c), padding=1)
    return u[0, 0]


def cost(case):
    """A call has to read and write every point once, however many steps it takes."""
    *sizes, steps = case.shape
    points = math.prod(sizes)
    return Cost(bytes=8 * points if steps else 0, flops=13 * points * steps)


def problem(name, steps, rungs, cases):
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        pytorch=in_place,
        libraries=(Library("compile", compiled), Library("cuDNN", convolved)),
        rungs=rungs,
        cases=cases,
        refused=(Case((2, 2, 4, 0)), Case((2, 2, 4, -1))),
        bench=Case((600, 600, 600, steps)),
        bench_cpu=Case((16, 40, 120, steps)),
        cost=cost,
    )


CASES = (
    *grid([*SHAPES, *EMPTY], ["float32"]),
    *(Case((6, 24, 8, 2), "float32", each) for each in ("nonfinite", "extreme", "tiny")),
    Case((4, 6, 9, 2), "float32", "nonfinite"),
)
RING = Rung("heat_v3_ring", "quads, planes in flight", target=Target(0.9, "copy"))
ONE_STEP = problem(
    "heat equation, one step",
    1,
    (
        Rung("heat_v1_point", "one thread per point"),
        Rung("heat_v2_march", "along z, a plane in shared memory"),
        RING,
    ),
    CASES,
)
TWO_STEPS = problem(
    "heat equation, two steps",
    2,
    (
        replace(RING, target=None),
        Rung("heat_v4_two_steps", "both in one pass", target=Target(1.4, "heat_v3_ring")),
    ),
    CASES,
)
