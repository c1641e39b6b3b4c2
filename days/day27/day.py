"""Day 27: the backward pass of attention on tensor cores."""

if __name__ == "__main__":  # python days/day27/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day27

from functools import partial

from torch.nn.attention import SDPBackend

from common.day import HALVES, Case, Library, Problem, Rung, Target, grid
from common.references import rivals

from .attention import (
    BENCH_CPU,
    blind,
    by_cudnn,
    by_flash,
    cost,
    gradient,
    inputs,
    plain,
    qkv,
    reference,
    sdpa,
)
from .shown import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Attention backward on tensor cores"
TEACHES = "Five products per tile on tensor cores; equal bits in every run, and what they cost"
TOPICS = ("attention", "FlashAttention", "tensor cores", "backward", "autograd", "determinism")
SOURCE = "flash_attention_backward.cu"
EXTRA_SOURCES = ("two_passes.cu",)

# (B, H, Sq, Sk, D): one row, several tiles, tails of 1 and 63, fewer and more keys than rows.
SHAPES = [
    (1, 1, 1, 1, 64),
    (1, 2, 43, 130, 64),  # ends among the last 8 rows of a fragment
    (2, 1, 65, 127, 128),
    (1, 1, 193, 7, 128),
    (1, 2, 64, 64, 64),
]
EMPTY = [(0, 2, 4, 4, 64), (2, 2, 0, 3, 64), (2, 2, 3, 0, 128)]
CASES = (*grid(SHAPES, HALVES), *grid(EMPTY, ["bfloat16"]))
SMALL = grid([(1, 2, 33, 130, 64)], ["bfloat16"])
UNUSUAL = grid([(1, 1, 70, 66, 64)], HALVES, values="nonfinite")


RUNGS = (
    Rung("attention_backward_v1_two_passes", "two passes, seven products"),
    Rung("attention_backward_v2_pipelined", "loads in flight"),
    Rung(
        "attention_backward_v3_one_pass",
        "five products, gq by atomicAdd",
        not_repeatable="the order in which blocks add to gq varies",
        target=Target(0.95, "pytorch"),
    ),
)


def timed(name, causal, cases, bench, rungs):
    return Problem(
        name,
        partial(inputs, causal),
        reference,
        rungs,
        cases or SMALL,
        bench=Case(bench, "bfloat16"),
        bench_cpu=BENCH_CPU,
        cost=partial(cost, 0.5 if causal else 1.0),
        pytorch=by_flash,
        libraries=(Library("cuDNN", by_cudnn),),
        rivals=(rivals.fa4_backward, rivals.cudnn_attention_backward),
    )


with_gradient = Problem(
    "attention with its gradient",
    qkv,
    plain,
    rungs=(
        Rung(
            "attention",
            "day 26's forward, backward is v3",
            not_repeatable="the order in which blocks add to gq varies",
            backward=gradient,
            saves=lambda inputs, output: (*inputs[:3], *output, inputs[3]),
        ),
    ),
    cases=grid([(1, 2, 33, 70, 64), (1, 1, 70, 33, 128)], HALVES),
    bench=Case((4, 16, 4096, 4096, 128), "bfloat16"),
    bench_cpu=BENCH_CPU,
    cost=partial(cost, 1.4),  # seven products: two more for the forward pass
    pytorch=partial(sdpa, SDPBackend.FLASH_ATTENTION),
    libraries=(Library("cuDNN", partial(sdpa, SDPBackend.CUDNN_ATTENTION)),),
    rivals=(rivals.fa4_step,),
    gradients=True,
)

PROBLEMS = (
    with_gradient,
    Problem("rows that see no key", blind, reference, RUNGS, CASES[:4], timed=False),
    timed("causal, 16384", True, (), (1, 16, 16384, 16384, 128), RUNGS[1:]),
    timed("backward, 16384", False, (), (1, 16, 16384, 16384, 128), RUNGS[1:]),
    timed("causal, 64 columns", True, (), (4, 32, 4096, 4096, 64), RUNGS[1:]),
    timed("causal, 4096", True, CASES, (4, 16, 4096, 4096, 128), RUNGS),
    timed("backward, 4096", False, (*CASES, *UNUSUAL), (4, 16, 4096, 4096, 128), RUNGS),
)
