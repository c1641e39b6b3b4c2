"""Gravity between all pairs: cases, formulas, rungs."""

from functools import cache

import torch

from common.day import Case, Cost, Library, Problem, Rung, Target, Tolerance, grid

EPS = 0.05
CHUNK = 2048  # rows of pairs that PyTorch holds at one time
FLOPS = 18  # per pair: 3 subtractions, 6 multiply-adds of two, 3 products


def inputs(case, draw):
    count = case.shape[0]
    bodies = draw(count, 4)
    bodies[:, 3] = draw(count, values="uniform")  # a mass is not negative
    return bodies, EPS


def pulls(own, bodies, eps):
    """The accelerations of some bodies, (m, 4), by all, (n, 4)."""
    x, y, z = (bodies[:, i] - own[:, i, None] for i in range(3))
    scale = bodies[:, 3] * (x * x + y * y + z * z + eps * eps).rsqrt() ** 3
    return torch.stack([(scale * d).sum(1) for d in (x, y, z)], 1)


def reference(bodies, eps):
    if len(bodies) == 0:
        return bodies.new_empty(0, 3)
    return torch.cat([pulls(own, bodies, eps) for own in bodies.split(CHUNK)])


def by_products(bodies, eps):
    """The sums as products of the matrix of scales and the positions."""
    places = bodies[:, :3].contiguous()
    found = bodies.new_empty(len(bodies), 3)
    for part, own in zip(found.split(CHUNK), places.split(CHUNK), strict=True):
        squares = sum((places[:, i] - own[:, i, None]).square_() for i in range(3))
        scale = squares.add_(eps * eps).rsqrt_().pow_(3).mul_(bodies[:, 3])
        torch.addmm(own * scale.sum(1, keepdim=True), scale, places, beta=-1, out=part)
    return found


@cache
def compiled_pulls():
    return torch.compile(pulls, dynamic=False)


def compiled(bodies, eps):
    return torch.cat([compiled_pulls()(own, bodies, eps) for own in bodies.split(CHUNK)])


def cost(case):
    count = case.shape[0]
    return Cost(bytes=28 * count, flops=FLOPS * count * count)


GRAVITY = Problem(
    name="gravity",
    inputs=inputs,
    reference=reference,
    pytorch=by_products,
    libraries=(Library("compile", compiled),),
    rungs=(
        Rung("nbody_v1_global", "one thread per body"),
        Rung("nbody_v2_tiles", "tiles in shared memory"),
        Rung("nbody_v3_registers", "four bodies per thread"),
        Rung("nbody_v4_fast_root", "root in one instruction", target=Target(0.6, "fp32")),
    ),
    cases=(
        *grid([(1,), (2,), (129,), (300,), (513,), (1030,), (0,)], ["float32"]),
        *(Case((40,), "float32", each) for each in ("nonfinite", "large", "tiny", "constant")),
    ),
    bench=Case((135168,)),
    bench_cpu=Case((512,)),
    cost=cost,
    tolerance=Tolerance(factor=12, why="v1 and v2 add up terms in parts of 256, PyTorch in a tree"),
)
