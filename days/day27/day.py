"""Day 27: the backward pass of attention on tensor cores."""

from functools import partial

from torch.nn.attention import SDPBackend

from common.day import Case, Exercise, Library, Problem, Rung, Target, grid

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

EQUIVALENT = {  # mutants that compute the same, and why
    "flash_attention_backward.cu: attention_round_kernel: bounds check dropped: `e >= "
    "threads` -> `false`": ("the threads are whole blocks: 64 rows make 256 or 512"),
    "flash_attention_backward.cu: attention_round_kernel: comparison: `e >= threads` -> `e "
    "> threads`": ("the threads are whole blocks: 64 rows make 256 or 512"),
    "flash_attention_backward.cu: attention_backward_v3_one_pass: rounded down: "
    "`ceil_div<int64_t>(count / 16, 256)` -> `((count / 16) / (256))`": (
        "the threads are whole blocks: 64 rows make 256 or 512"
    ),
    "flash_attention_backward.cu: attention_backward_v3_one_pass: constant off by one: "
    "`256` -> `257`": (
        "the number of a thread follows from the size of its block, and the surplus returns"
    ),
    "flash_attention_backward.cu: attention_backward_v3_one_pass: arithmetic operator: "
    "`count / 16` -> `count * 16`, 2nd": (
        "the threads are whole blocks, so that none is beyond the end"
    ),
    "two_passes.cu: attention_rows_stay_kernel: min for max: `min(i0 + BM + in.below, "
    "in.Sk)` -> `max(i0 + BM + in.below, in.Sk)`": ("adds tiles of keys that are all hidden"),
    "two_passes.cu: launch_rows_stay: constant off by one: `1 + ahead` -> `2 + ahead`": (
        "the last stage is not used"
    ),
}

EXERCISE = Exercise(
    function="attention_rows_stay_kernel",
    source="two_passes.cu",
    first="const bool open = j0 + BM <= in.Sk",
    last="multiply_add<D>(gq_sum, of_gs, stage.k);",
    task=(
        "p holds q · kᵀ and gp holds go · vᵀ, for the warp's 16 rows and the tile's BM keys. Make "
        "gs = exp(s - lse) · (gp - δ) of them, and add gs · k to gq_sum."
    ),
    hints=(
        "One loop over the BM / 8 fragments and their 4 elements, then one call of multiply_add. "
        "Element e of fragment j has key 8j + 2t + e % 2 and row 16 * warp + g + e / 2 * 8.",
        "exp(s - lse) = 2^(s · scale · log2 e - mine[e / 2].lse), which has the factor log2 e "
        "already. gs is 0 where the key is beyond the end of k or later than the row may see.",
        "With keys = in.Sk - j0 and below = i0 + in.below - j0, a key is hidden if key >= keys or "
        "key > i + below. tiles::to_a<T>(of_gs[m], gp[2 * m], gp[2 * m + 1]) makes the operand.",
    ),
)

HALVES = ["float16", "bfloat16"]
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
        target=Target(0.8, "pytorch"),
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
