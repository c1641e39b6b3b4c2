"""Day 79: decoding over a latent cache, with absorbed weights."""

if __name__ == "__main__":  # python days/day79/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day79

from common.day import COMPILE, Case, Library, Problem, Rung, Target, Tolerance, grid

from . import latent
from .proof import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Multi-head latent attention"
TEACHES = "A cache row for all heads, absorbed weights, and two limits that meet at 128 heads"
TOPICS = ("attention", "MLA", "KV cache", "wgmma", "TMA", "roofline", "load balancing", "inference")
SOURCE = "mla_decode.cu"
EXTRA_SOURCES = ("latent.py", "proof.py")
INTRODUCES = ("multi-head latent attention", "absorbed weights")

TYPES = ["bfloat16", "float16"]
# (B, H, T): around the 64 heads of a block, tiles of 32 and 64 tokens
SHAPES = [(1, 1, 1), (3, 16, 70), (2, 65, 130), (1, 129, 70), (1, 3, 321), (5, 7, 64)]
EMPTY = [(0, 2, 8), (2, 0, 8), (2, 3, 0)]

RUNGS = (
    Rung("mla_v1_warp_per_head", "CUDA cores, one warp per head"),
    Rung("mla_v2_mma", "64 heads per tile, mma.sync"),
    Rung("mla_v3_wgmma", "TMA, wgmma, halves of the values"),
)


def problem(name, bench, cases, target):
    return Problem(
        name=name,
        inputs=latent.inputs,
        reference=latent.reference,
        rungs=(*RUNGS, Rung("mla_v4_even", "equal shares of all tokens", target=target)),
        cases=cases,
        refused=(),
        bench=Case(bench, "bfloat16"),
        bench_cpu=Case((1, min(bench[1], 64), 64), "bfloat16"),
        cost=latent.cost,
        pytorch=latent.products,
        libraries=(
            COMPILE,
            Library("SDPA", latent.sdpa),
            Library("FLASH", latent.flash),
            Library("cuDNN", latent.cudnn),
        ),
        rivals=(Library("FlashInfer", latent.flashinfer),),
        tolerance=Tolerance(
            factor=8, why="sums over tokens are merged in another order than PyTorch's, in fp32"
        ),
    )


PROBLEMS = (
    problem(
        "128 heads",
        (96, 128, 8192),
        (
            *grid([*SHAPES, *EMPTY], TYPES),
            *grid([(5, 4, 100)], TYPES, values="nonfinite"),
            *grid([(2, 65, 150), (2, 3, 1)], TYPES, values="large"),
            *grid([(40, 1, 2)], TYPES[:1]),  # v4 looks at 32 sequences at a time
        ),
        Target(0.685, "tensor"),
    ),
    problem("16 heads", (96, 16, 8192), grid(SHAPES[:1], TYPES), Target(0.88, "read")),
)
