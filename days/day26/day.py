"""Day 26: attention forward on tensor cores."""

from functools import partial
from itertools import product

import torch
from torch.nn.attention import SDPBackend

from common.day import (
    Case,
    Cost,
    Exercise,
    Library,
    Problem,
    Rung,
    Target,
    attention,
    attention_by,
    grid,
    print_table,
    seconds,
)

TITLE = "Attention forward on tensor cores"
TEACHES = "mma.sync, ldmatrix and cp.async: FlashAttention at the speed of the tensor cores"
TOPICS = ("attention", "FlashAttention", "tensor cores", "mma", "ldmatrix", "cp.async", "bf16")
SOURCE = "flash_attention_forward.cu"
INTRODUCES = ("tensor core", "mma", "matrix fragment", "ldmatrix")
EQUIVALENT = {  # mutants that compute the same, and why
    "multiply_values: initial value: `int d = 0` -> `int d = 1`": (
        "fragments begin at whole pieces: d is divided by 8"
    ),
    "softmax_step: comparison: `x > rows.max[m][h] + n.slack` -> `x >= rows.max[m][h] + n.slack`": (
        "a maximum that is larger by exactly the slack may be taken or left"
    ),
    "attend: bounds check dropped: `j0 + BN > n.T || (n.causal && j0 + BN - 1 > i0 + "
    "n.ahead)` -> `true`": ("a tile without hidden keys stays as it is"),
    "Work::Work: comparison: `seen < n.T` -> `seen <= n.T`": ("both are the same number then"),
    "attention_pipelined_kernel: bounds check dropped: `j0 + BN < work.end` -> `true`": (
        "copies keys that no product reads, zeros beyond the last"
    ),
    "attention_blocking_kernel: 64-bit index in 32 bits: `int64_t{work.head} * n.S` -> "
    "`work.head * n.S`": ("2^31 rows of q and of o take 550 GB, more than a card has"),
}

EXERCISE = Exercise(
    function="multiply_values",
    first="const auto &left",
    last="a[m][3] =",
    task=(
        "Make the four registers of fragment a (16 rows × 16 keys) out of two neighbouring 16×8 "
        "results of the first product, keys [j, j + 8) and [j + 8, j + 16). pack rounds a pair."
    ),
    hints=(
        "Which elements does lane 4g + t hold of a result c, and which of an operand a? Compare "
        "the two pictures in the README.",
        "The left 8 keys of a are its registers 0 and 1, the right 8 keys are 2 and 3. Of each "
        "pair, the first belongs to row g and the second to row g + 8.",
        "p[m][j / 8] holds the left result. Its elements 0 and 1, packed in this order, are "
        "register 0; elements 2 and 3 are register 1. p[m][j / 8 + 1] fills the other two.",
    ),
)

HALVES = ["bfloat16", "float16"]
# (B, H, S, D): around the 128 rows of a block, its warps' 32, and the 64 keys of a tile
SHAPES = [(1, 1, 1, 64), (2, 1, 33, 64), (1, 2, 130, 64), (1, 1, 31, 128), (1, 1, 129, 128)]
EMPTY = [(0, 2, 4, 64), (2, 2, 0, 128)]
# (B, H, S, T, D): S rows of q and T keys
LENGTHS = [(1, 2, 5, 70, 64), (2, 1, 131, 20, 64), (1, 1, 1, 129, 128), (1, 1, 40, 33, 128)]
NO_KEYS = [(1, 2, 3, 0, 64), (0, 1, 3, 4, 64), (1, 1, 0, 4, 128)]


def inputs(causal, case, draw):
    """q has the case's values, k and v normal ones: one NaN in a key makes every output NaN."""
    B, H, S, *T, D = case.shape
    keys = (B, H, *(T or [S]), D)
    q = draw(B, H, S, D)
    k, v = (draw(*keys, values="normal") for _ in range(2))
    return q, k, v, causal


def by(backend, q, k, v, causal=False):
    """PyTorch's call. It returns no log-sum-exp here."""
    return attention_by(backend, q, k, v, is_causal=causal)


flash = partial(by, SDPBackend.FLASH_ATTENTION)
cudnn = partial(by, SDPBackend.CUDNN_ATTENTION)


def cost(share, case):
    """share: the part of the S×S matrix that the mask leaves."""
    B, H, S, D = case.shape
    n = B * H * S
    return Cost(
        bytes=4 * n * D * case.itemsize + 4 * n, flops=int(4 * n * S * D * share), unit="tensor"
    )


RUNGS = (
    Rung("attention_v1_scalar", "fused multiply-adds in fp32, day 15"),
    Rung("attention_v2_tensor_cores", "mma.sync, p stays in registers"),
    Rung("attention_v3_swizzled", "no bank conflicts"),
    Rung("attention_v4_pipelined", "cp.async, double buffering"),
    Rung("attention_v5_lazy_rescale", "o is rescaled rarely", target=Target(0.85, "pytorch")),
)


CASES = (*grid([*SHAPES, *EMPTY], HALVES), *grid([(1, 1, 70, 64)], HALVES, values="large"))
# Without a mask: where a row sees few keys, all of its scores can be -inf. To the kernels that is a
# row without keys, whose output is 0; PyTorch's is NaN.
UNUSUAL = grid([(1, 1, 66, 128)], HALVES, values="nonfinite")


def timed(name, causal, bench, rungs):
    return Problem(
        name,
        partial(inputs, causal),
        attention,
        rungs,
        cases=CASES if causal else (*CASES, *UNUSUAL),
        bench=Case(bench, "bfloat16"),
        bench_cpu=Case((1, 1, 128, 64), "bfloat16"),
        cost=partial(cost, 0.5 if causal else 1.0),
        pytorch=flash,
        libraries=(Library("cuDNN", cudnn),),
    )


def lengths(name, causal):
    return Problem(
        name,
        partial(inputs, causal),
        attention,
        RUNGS[1:],
        cases=grid([*LENGTHS, *NO_KEYS], HALVES),
        timed=False,
    )


PROBLEMS = (
    lengths("other lengths", False),
    lengths("other lengths, causal", True),
    timed("causal, 16384", True, (1, 16, 16384, 128), RUNGS[3:]),
    timed("attention, 16384", False, (1, 16, 16384, 128), RUNGS[3:]),
    timed("causal, 4096", True, (4, 16, 4096, 128), RUNGS),
    timed("attention, 4096", False, (4, 16, 4096, 128), RUNGS),
)


def show(operators, device):
    """Prints the rates for both head dimensions and dtypes, S = 4096, beside PyTorch's."""
    if device.type != "cuda":
        return
    calls = {"v5": operators.attention_v5_lazy_rescale, "FLASH": flash, "cuDNN": cudnn}
    print("TFLOP/s, 4 × 4096 rows, 2048 columns in all heads together")
    rows = []
    for D, dtype, causal in product((64, 128), HALVES, (False, True)):
        case = Case((4, 2048 // D, 4096, D), dtype)
        q, k, v = (
            torch.randn(case.shape, dtype=getattr(torch, dtype), device=device) for _ in "qkv"
        )
        flops = cost(0.5 if causal else 1.0, case).flops
        times = [seconds(partial(call, q, k, v, causal)) for call in calls.values()]
        rows.append(
            (D, dtype, "causal" if causal else "full", *(f"{flops / t / 1e12:.0f}" for t in times))
        )
    print_table(("D", "dtype", "mask", *calls), rows)
