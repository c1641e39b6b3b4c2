"""Day 15: FlashAttention-2 forward, first version."""

if __name__ == "__main__":  # python days/day15/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day15

from functools import partial

import torch

from common.day import HALVES, Case, Library, Problem, Rung, Target, grid, peak_memory, print_table

from .formulas import attention, backward, cost, formula, inputs, reference, saves

TITLE = "FlashAttention-2 forward, first version"
TEACHES = "Attention by tiles and an online softmax, without the S×S matrix; register tiles"
TOPICS = ("attention", "FlashAttention", "softmax", "matmul", "tiling", "autograd")
SOURCE = "fa2_forward.cu"
EXTRA_SOURCES = ("naive_attention.cu", "register_tiles.cu")
INTRODUCES = ("attention", "FlashAttention", "log-sum-exp", "causal mask", "__launch_bounds__")

# (B, H, S, D)
SHAPES = [
    (1, 1, 1, 1),
    (1, 2, 33, 32),
    (2, 1, 33, 64),
    (1, 1, 70, 80),
    (1, 1, 31, 128),
    (1, 1, 7, 5),
    (1, 1, 130, 36),  # two tiles of rows, three of keys
    (0, 2, 4, 8),
    (2, 2, 0, 8),
]
CASES = (*grid(SHAPES, ["float32"]), *grid([(1, 2, 33, 32), (1, 1, 34, 72)], HALVES))
UNUSUAL = (
    *grid([(1, 1, 24, 16)], ["float32", *HALVES], values="large"),
    *grid([(1, 1, 20, 8)], ["float32", *HALVES], values="nonfinite"),
    *grid([(1, 1, 300, 8)], ["float32"], values="large"),  # more keys than threads per row of v1
    *grid([(2, 3, 1, 16)], ["float32"], values="large"),  # one key: all scores of a row far below 0
)
STEPS = (
    *grid([(1, 2, 33, 32), (1, 1, 7, 5), (2, 2, 0, 8)], ["float32"]),
    *grid([(1, 1, 259, 4)], ["float32"]),  # two tiles of the backward pass
    *grid([(1, 1, 34, 72)], HALVES),
)


rung = partial(Rung, backward=backward, saves=saves)
RUNGS = (
    rung("attention_v1_three_kernels", "product, softmax, product"),
    rung("attention_v2_tiled_online", "outer loop over keys, o in memory"),
    rung("attention_v3_fa2_order", "outer loop over rows, o in registers"),
    rung("attention_v4_register_tiles", "128 × 64 register tiles", target=Target(1.0, "formula")),
)


def timed(name, causal, rungs):
    """The forward pass alone: the backward pass is not the kernels' own."""
    return Problem(
        name,
        partial(inputs, causal),
        reference,
        rungs,
        CASES,
        refused=(Case((1, 1, 4, 129)),),
        bench=Case((1, 16, 4096, 64)),
        bench_cpu=Case((1, 1, 128, 64)),
        cost=partial(cost, 0.5 if causal else 1.0),
        pytorch=attention,
        libraries=(Library("formula", formula),),
    )


checked = partial(Problem, reference=reference, timed=False)

PROBLEMS = (
    # Without gradients: p = exp(s - lse) is only as exact as lse, which is in the hundreds here.
    checked("unusual numbers", partial(inputs, False), rungs=RUNGS, cases=UNUSUAL),
    checked("gradients", partial(inputs, False), rungs=RUNGS, cases=STEPS, gradients=True),
    checked(
        "causal, gradients", partial(inputs, True), rungs=RUNGS[2:], cases=STEPS, gradients=True
    ),
    timed("causal", True, RUNGS[2:]),
    timed("attention", False, RUNGS),
)


def show(operators, device):
    """Prints the memory that attention allocates, arguments excluded, for growing S."""
    if device.type != "cuda":
        return
    contenders = {
        "formula": formula,
        "PyTorch": attention,
        "v1": operators.attention_v1_three_kernels,
        "v4": operators.attention_v4_register_tiles,
    }
    rows = []
    for S in (1024, 2048, 4096, 8192, 16384):
        qkv = [torch.randn(1, 1, S, 64, device=device) for _ in range(3)]
        peaks = [peak_memory(partial(call, *qkv, False)) for call in contenders.values()]
        rows.append((S, *(f"{peak / 1e6:.1f}" for peak in peaks)))
    print("peak memory for one head with D = 64, MB, output included")
    print_table(("S", *contenders), rows)
