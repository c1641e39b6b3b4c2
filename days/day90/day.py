"""Day 90: a full transformer block, forward and backward."""

if __name__ == "__main__":  # python days/day90/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day90

from functools import partial

from common.day import COMPILE, HALVES, Case, Problem, Rung, Target, Tolerance, grid

from . import network
from .proof import show, show_times

__all__ = ["PROBLEMS", "show", "show_times"]

TITLE = "Full transformer block"
TEACHES = "Attention, MLP and layer norms as seven kernels, and what a backward pass must keep"
TOPICS = ("transformer", "attention", "MLP", "layer norm", "GELU", "epilogue", "wgmma", "training")
SOURCE = "full_transformer_block.cu"
EXTRA_SOURCES = (
    "block_backward.cu",
    "norms.cu",
    "attention_hopper.cu",
    "attention_backward.cu",
    "module.py",
    "network.py",
    "proof.py",
)
INTRODUCES = ("pre-norm",)

# (B, S, heads, D, F): around tiles of 128 rows, 192 columns, 64 values of k and 128 keys
SHAPES = [(1, 1, 1, 64, 8), (3, 17, 2, 64, 72), (1, 130, 1, 128, 200), (2, 67, 3, 64, 264)]
MANY = 1 << 30  # sequences, and rows of each, at most
EMPTY = [(0, 5, 1, 64, 16), (2, 0, 1, 64, 16)]
FULL = [(MANY, 0, 1, 64, 16)]
TOO_MANY = [(MANY + 1, 0, 1, 64, 16), (0, MANY + 1, 1, 64, 16)]
GPT2 = (8, 1024, 12, 64, 3072)  # the smallest GPT-2
GPT2_XL = (8, 1024, 25, 64, 6400)  # the largest
WHY = "four products, attention and two norms, each of which rounds its result"
ROUNDED = Tolerance(factor=8, why=WHY)
UNWATCHED = "the tools fail on cuBLAS kernels for 16-bit products (nvjet)"
PRODUCTS = ("linear", "matmul")
ATOMIC = "day 27's kernel adds to the gradient of q by atomicAdd"
RUNGS = (
    Rung("block_v1_separate", "one kernel per operation", calls=PRODUCTS),
    Rung("block_v2_fused", "addition and norm in one pass", calls=PRODUCTS),
    Rung("block_v3_epilogues", "the rest in the products", calls=PRODUCTS),
    Rung("block_v4_hopper", "attention by wgmma", calls=PRODUCTS, target=Target(1.0, "compile")),
)


def problem(name, rungs, cases, training, bench, inputs, reference, pytorch, **options):
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=rungs,
        cases=cases,
        bench=Case(bench, "bfloat16"),
        bench_cpu=Case((1, 64, 1, 64, 256), "bfloat16"),
        cost=partial(network.cost, training),
        pytorch=pytorch,
        libraries=(COMPILE,),
        tolerance=ROUNDED,
        unwatched=UNWATCHED,
        **options,
    )


def forward(name, cases, bench, **options):
    given, expected, pytorch = network.inputs, network.reference, network.by_pytorch
    return problem(name, RUNGS, cases, False, bench, given, expected, pytorch, **options)


def step(version, idea, **options):
    return Rung(
        f"step_{version}",
        idea,
        load=network.loader(version),
        calls=PRODUCTS,
        not_repeatable=ATOMIC,
        **options,
    )


def part(name, rung, idea, cases, inputs, reference, refused=(), tolerance=None, **options):
    """A part of the block alone, on more shapes than the block is checked with."""
    return Problem(
        name=name,
        inputs=inputs,
        reference=reference,
        rungs=(Rung(rung, idea, **options),),
        cases=cases,
        refused=refused,
        timed=False,
        tolerance=tolerance or Tolerance(),
    )


ROWS = [(1, 8), (5, 264), (70, 768), (3, 1032), (9, 2056), (2, 4096)]
TOO_WIDE = (Case((1, 4104), "bfloat16"),)
LENGTHS = [(1, 1, 1, 64), (2, 65, 2, 64), (1, 130, 2, 128), (3, 300, 2, 64), (1, 400, 1, 128)]
PARTS = (
    part(
        "norm",
        "norm_alone",
        "with the addition before it",
        (*grid([*ROWS, (0, 64)], HALVES), *grid([(9, 264)], HALVES, "nonfinite")),
        network.norm_inputs,
        network.norm,
        TOO_WIDE,
    ),
    part(
        "norm backward",
        "norm_backward_alone",
        "with four sums of columns",
        grid([*ROWS, (150, 72)], HALVES),
        network.norm_backward_inputs,
        network.norm_backward,
        TOO_WIDE,
    ),
    part(
        "packed attention",
        "attention_alone",
        "heads as columns of a plane",
        (
            *grid([*LENGTHS, (0, 3, 1, 64)], HALVES),
            *grid([(2, 70, 1, 64)], HALVES, "large"),
            *grid([sizes[:4] for sizes in FULL], HALVES[:1]),
        ),
        network.packed_inputs,
        network.packed_attention,
        grid([*(sizes[:4] for sizes in TOO_MANY), (1, 3, 0, 64)], HALVES[:1]),
    ),
    part(
        "packed attention backward",
        "attention_backward_alone",
        "day 27's kernel between two that move heads",
        grid(LENGTHS[1:], HALVES),
        network.packed_backward_inputs,
        network.packed_backward,
        not_repeatable=ATOMIC,
    ),
    part(
        "block backward",
        "block_backward_v2_fused",
        "with any gradient",
        # In the second one, pre has more columns than one block has, 8 per thread.
        grid([(2, 5, 1, 64, 72), (1, 3, 1, 64, 2056)], HALVES[:1]),
        network.backward_inputs,
        network.backward,
        grid([(2, 5, 1, 64, 12), TOO_MANY[0]], HALVES[:1]),
        ROUNDED,
        calls=PRODUCTS,
        not_repeatable=ATOMIC,
    ),
)
PROBLEMS = (
    *PARTS,
    forward("forward, width 1600", grid(SHAPES[1:2], ["bfloat16"]), GPT2_XL),
    problem(
        "training step",
        (
            step("v2_fused", "passes between cuBLAS's products"),
            step("v4_hopper", "GELU' and sums in a product", target=Target(1.0, "pytorch")),
        ),
        (
            *grid(SHAPES[1:], HALVES),
            *grid([(1, 2, 1, 64, 8), *EMPTY], ["bfloat16"]),
        ),
        True,
        GPT2,
        network.step_inputs,
        network.formula,
        network.eager,
        gradients=True,
    ),
    forward(
        "forward",
        (
            *grid([*SHAPES, *EMPTY], HALVES),
            *grid([(9, 1, 1, 64, 16)], HALVES, values="nonfinite"),  # a row sees itself alone
            *grid([(1, 33, 1, 64, 72)], HALVES, values="large"),
            *grid(FULL, HALVES[:1]),
        ),
        GPT2,
        refused=grid(TOO_MANY, HALVES[:1]),
    ),
)
