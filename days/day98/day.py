"""Day 98: a model leaves Python: export, AOTInductor, a C++ program, a wheel."""

if __name__ == "__main__":  # python days/day98/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day98

import math

import torch
import torch.nn.functional as F

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, grid

from .model import MOST, WIDTH, export, layer
from .package import register
from .proof import show, show_times

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "Deployment"
TEACHES = "torch.export, AOTInductor with an operator of ours, a C++ program that loads it, a wheel"
TOPICS = ("deployment", "torch.export", "AOTInductor", "C++", "wheel", "RMSNorm", "stable ABI")
SOURCE = "deploy.cu"
EXTRA_SOURCES = (
    "model.py", "package.py", "made.py", "proof.py", "serve.cpp", "program.h", "setup.py",
    "build.py", "gpt.py", "write.cpp",
)  # fmt: skip
INTRODUCES = ("AOTInductor", "wheel")

EPS = 1e-6
BAD_EPS = (EPS, -1.0, 1e30, math.nan)  # the first is good
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


def batch_inputs(case, draw):
    return (draw(*case.shape),)


def eager_layer(u):
    """The layer of model.py with the formula in place of our operator."""
    return layer(reference, u.device).to(u.dtype)(u)


def load_exported(builder):
    """The layer of model.py with our operator, exported for any batch."""
    operator = builder.operators().gated_norm_v3_chunks
    register()
    device = torch.device(builder.device)
    exported = export(layer(operator, device), device).module()

    def call(u):
        fits = u.dim() == 2 and u.shape[1] == WIDTH and 1 <= u.shape[0] <= MOST
        if not fits or u.dtype != torch.float32 or u.device.type != device.type:
            got = f"{tuple(u.shape)}, {u.dtype}, on {u.device}"
            raise ValueError(f"u: expected 1 to {MOST} rows of {WIDTH} float32, got {got}")
        return exported(u)

    return call


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
    Problem(
        name="exported for any batch",
        inputs=batch_inputs,
        reference=eager_layer,
        rungs=(
            Rung(
                "exported_layer",
                "torch.export, with our operator and its fake implementation",
                load=load_exported,
                calls=("linear", "add"),
            ),
        ),
        cases=tuple(Case((rows, WIDTH)) for rows in (1, 2, 7, 300)),
        refused=(Case((0, WIDTH)), Case((MOST + 1, WIDTH)), Case((3, WIDTH - 1))),
        timed=False,
    ),
)
