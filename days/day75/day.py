"""Day 75: FlashAttention forward on Hopper."""

if __name__ == "__main__":  # python days/day75/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day75

from functools import partial
from itertools import product

import torch
from torch.nn.attention import SDPBackend

from common.day import (
    HALVES,
    Case,
    Cost,
    Library,
    Problem,
    Rung,
    Target,
    grid,
    print_table,
    seconds,
)
from common.references import rivals
from common.references.attention import attention, attention_by, by_head

TITLE = "FlashAttention on Hopper"
TEACHES = "Attention by TMA and wgmma: softmax under the products of two warpgroups, by tickets"
TOPICS = ("attention", "FlashAttention", "wgmma", "TMA", "warp specialisation", "ping-pong")
SOURCE = "flash_attention_hopper.cu"
INTRODUCES = ("intra-warpgroup pipelining",)

# (B, H, S, T, D): around the 64 rows of a consumer, the 128 of a block, tiles of 128 and 176 keys
SHAPES = [(1, 1, 1, 1, 64), (2, 1, 65, 65, 64), (1, 2, 130, 130, 128), (1, 1, 353, 353, 128)]
LENGTHS = [(1, 2, 5, 257, 64), (2, 1, 131, 20, 64), (1, 1, 1, 177, 128), (1, 1, 200, 352, 128)]
LONG = [(1, 1, 40, 700, 128), (1, 5, 300, 520, 64)]  # several rounds of stages; tickets
NO_KEYS = [(1, 2, 3, 0, 64), (0, 1, 3, 4, 64), (1, 1, 0, 4, 128), (1, 1, 300, 2, 128)]


def inputs(causal, case, draw):
    """q has the case's values, k and v normal ones: one NaN in a key makes every output NaN."""
    B, H, S, T, D = case.shape
    q = draw(B, H, S, D)
    k, v = (draw(B, H, T, D, values="normal") for _ in range(2))
    return q, k, v, causal


def reference(q, k, v, causal=False):
    """Head by head: the scores of all would not fit into the memory of some GPUs."""
    return by_head(attention, (q, k, v), causal)


def by(backend, q, k, v, causal=False):
    """PyTorch's call. It returns no log-sum-exp here."""
    return attention_by(backend, q, k, v, is_causal=causal)


flash = partial(by, SDPBackend.FLASH_ATTENTION)
cudnn = partial(by, SDPBackend.CUDNN_ATTENTION)


def cost(share, case):
    """share: the part of the S×T matrix that the mask leaves."""
    B, H, S, T, D = case.shape
    n = B * H
    return Cost(
        bytes=2 * n * (S + T) * D * case.itemsize + 4 * n * S,
        flops=int(4 * n * S * T * D * share),
        unit="tensor",
    )


RUNGS = (
    Rung("attention_v1_warp_roles", "a producer and two consumers, wgmma"),
    Rung("attention_v2_ping_pong", "consumers take turns"),
    Rung("attention_v3_pipelined", "softmax under own products"),
    Rung(
        "attention_v4_persistent",
        "tickets",
        target=(Target(1.12, "cuDNN"), Target(1.03, "FlashAttention-4")),
    ),
)


def timed(name, causal, bench, shapes):
    return Problem(
        name,
        partial(inputs, causal),
        reference,
        RUNGS,
        cases=grid(shapes, HALVES),
        bench=Case(bench, "bfloat16"),
        bench_cpu=Case((1, 1, 128, 128, 64), "bfloat16"),
        cost=partial(cost, 0.5 if causal else 1.0),
        pytorch=flash,
        libraries=(Library("cuDNN", cudnn),),
        rivals=(rivals.fa4, rivals.cudnn_attention),
    )


def checked(name, causal, cases):
    return Problem(name, partial(inputs, causal), reference, RUNGS, cases=cases, timed=False)


ANY = (*grid([*LENGTHS, *LONG, *NO_KEYS], HALVES), *grid([(1, 1, 70, 70, 64)], HALVES, "large"))
# Without a mask: where a row sees few keys, all of its scores can be -inf. To the kernels that is a
# row without keys, whose output is 0; PyTorch's is NaN.
UNUSUAL = grid([(1, 1, 66, 66, 128)], HALVES, "nonfinite")

PROBLEMS = (
    checked("other lengths", False, (*ANY, *UNUSUAL)),
    checked("other lengths, causal", True, ANY),
    timed("causal, 16384", True, (1, 16, 16384, 16384, 128), SHAPES[:1]),
    timed("attention, 16384", False, (1, 16, 16384, 16384, 128), SHAPES[:1]),
    timed("causal, 4096", True, (4, 16, 4096, 4096, 128), SHAPES),
    timed("attention, 4096", False, (4, 16, 4096, 4096, 128), SHAPES),
)


def show_times(operators, device):
    """Prints the rates for both head dimensions and dtypes, S = 4096, beside PyTorch's."""
    if device.type != "cuda":
        return
    calls = {"v4": operators.attention_v4_persistent, "FLASH": flash, "cuDNN": cudnn}
    print("TFLOP/s, 4 × 4096 rows, 2048 columns in all heads together")
    rows = []
    for D, dtype, causal in product((64, 128), HALVES, (False, True)):
        case = Case((4, 2048 // D, 4096, 4096, D), dtype)
        q, k, v = (
            torch.randn((*case.shape[:3], D), dtype=getattr(torch, dtype), device=device)
            for _ in "qkv"
        )
        flops = cost(0.5 if causal else 1.0, case).flops
        times = [seconds(partial(call, q, k, v, causal)) for call in calls.values()]
        rows.append(
            (D, dtype, "causal" if causal else "full", *(f"{flops / t / 1e12:.0f}" for t in times))
        )
    print_table(("D", "dtype", "mask", *calls), rows)
