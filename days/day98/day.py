"""Day 98: a model leaves Python: export, AOTInductor, a C++ program, a wheel."""

import math

import torch
import torch.nn.functional as F

from common.day import COMPILE, Case, Cost, Exercise, Problem, Rung, grid

from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Deployment"
TEACHES = "torch.export, AOTInductor with an operator of ours, a C++ program that loads it, a wheel"
TOPICS = ("deployment", "torch.export", "AOTInductor", "C++", "wheel", "RMSNorm", "stable ABI")
SOURCE = "deploy.cu"
EXTRA_SOURCES = ("model.py", "proof.py", "package.py", "setup.py", "serve.cpp")
INTRODUCES = ("AOTInductor", "wheel")

EQUIVALENT = {  # mutants that compute the same, and why
    "team_sum: constant off by one: `WARP == 0` -> `WARP == 1`": (
        "every lane has the sum of its warp, and any of them may store it"
    ),
}

EXERCISE = Exercise(
    function="gated_norm_v2_kernel",
    task=(
        "Compute one row per block: the sum of the squares of x, then y from x, z, weight and the "
        "inverse root of the mean square. Sums are in fp32."
    ),
    hints=(
        "The row of the block begins at blockIdx.x * cols. Thread t takes columns t, t + BLOCK, "
        "t + 2 BLOCK, …, for the sum and again for the result.",
        "Each thread puts its part of the sum into an array in shared memory, one place per "
        "thread. sum(partial) adds them, with the barriers that it needs, and every thread gets "
        "the result. inverse_rms does the rest.",
        "After r = inverse_rms(sum(partial), cols, eps), y[begin + c] is x[begin + c] times r, "
        "weight[c] and silu(z[begin + c]), computed in fp32 and converted once.",
    ),
)

EPS = 1e-6
BAD_EPS = (EPS, -1.0, 1e30, math.nan)  # the first is good
FLOATS = ["float32", "float16", "bfloat16"]
# Around the chunks of a warp and of a block, and what their registers hold; one element; no rows.
SHAPES = [(1, 1), (5, 3), (37, 33), (3, 256), (9, 264), (2, 513), (4, 1000), (2, 2056), (3, 4104)]


def inputs(case, draw):
    return draw(*case.shape), draw(*case.shape), draw(case.shape[-1]), EPS


def inputs_and_eps(case, draw):
    rows, cols, bad = case.shape
    return draw(rows, cols), draw(rows, cols), draw(cols), BAD_EPS[bad]


def reference(x, z, weight, eps):
    """In fp32 at least, as the kernels compute."""
    wide = torch.promote_types(x.dtype, torch.float32)
    v, gate, w = x.to(wide), z.to(wide), weight.to(wide)
    y = v * torch.rsqrt((v * v).mean(-1, keepdim=True) + eps) * w * F.silu(gate)
    return y.to(x.dtype)


def by_pytorch(x, z, weight, eps):
    return F.rms_norm(x, weight.shape, weight, eps) * F.silu(z)


def cost(case):
    elements = math.prod(case.shape)
    return Cost(bytes=(3 * elements + case.shape[-1]) * case.itemsize, flops=10 * elements)


RUNGS = (
    Rung("gated_norm_v1_separate", "two kernels"),
    Rung("gated_norm_v2_fused", "one kernel"),
    Rung("gated_norm_v3_chunks", "16 bytes per load, rows in registers"),
)

PROBLEMS = (
    Problem(
        name="gated RMSNorm",
        inputs=inputs,
        reference=reference,
        rungs=RUNGS,
        cases=(
            *grid([*SHAPES, (0, 8), (4, 0), (2, 3, 24)], FLOATS),
            *grid([(8, 40)], FLOATS, values="nonfinite"),
            *grid([(8, 40)], FLOATS, values="large"),
            *grid([(8, 40)], ["float32", "bfloat16"], values="tiny"),
        ),
        bench=Case((65536, 4096), "bfloat16"),
        bench_cpu=Case((256, 512)),
        cost=cost,
        pytorch=by_pytorch,
        libraries=(COMPILE,),
    ),
    Problem(
        name="a bad eps is refused",
        inputs=inputs_and_eps,
        reference=reference,
        rungs=RUNGS,
        cases=(Case((5, 24, 0)),),
        refused=grid([(5, 24, 1), (5, 24, 2), (5, 24, 3)], ["float32"]),
        timed=False,
    ),
)
