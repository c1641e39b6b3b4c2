"""Day 26: attention forward on tensor cores."""

if __name__ == "__main__":  # python days/day26/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day26

from functools import partial

import torch

from common.day import Case, Cost, Library, Problem, Rung, Target, grid
from common.references.attention import attention, attention_by

TITLE = "Attention forward on tensor cores"
TEACHES = "mma.sync, ldmatrix and a swizzle: FlashAttention on tensor cores"
TOPICS = ("attention", "FlashAttention", "tensor cores", "mma", "ldmatrix", "cp.async", "bf16")
SOURCE = "flash_attention_forward.cu"
INTRODUCES = ("tensor core", "mma", "matrix fragment", "ldmatrix")
# (B, H, S, T, D), without T as many keys as rows: around 128 rows per block, 32 per warp, 64 keys
SHAPES = [
    *((1, 1, 1, 128), (2, 1, 33, 128), (1, 2, 130, 128), (1, 1, 31, 128), (1, 1, 129, 128)),
    *((1, 2, 5, 70, 128), (2, 1, 131, 20, 128), (1, 1, 1, 129, 128), (1, 1, 40, 33, 128)),
    *((1, 2, 3, 0, 128), (0, 2, 4, 128), (0, 1, 3, 4, 128), (2, 2, 0, 128), (1, 1, 0, 4, 128)),
]
CASES = (*grid(SHAPES, ["bfloat16"]), Case((1, 1, 70, 128), "bfloat16", "large"))
UNUSUAL = grid([(1, 1, 66, 128)], ["bfloat16"], "nonfinite")  # no mask: PyTorch's -inf rows are NaN


def inputs(causal, case, draw):
    B, H, S, *T, D = case.shape
    k, v = (draw(B, H, *(T or [S]), D, values="normal") for _ in "kv")
    return draw(B, H, S, D), k, v, causal


def by(backend, q, k, v, causal=False):
    return attention_by(backend, q, k, v, is_causal=causal)


def cost(causal, case):
    B, H, S, D = case.shape
    n = B * H * S  # rows; the mask leaves half of the S×S matrix
    return Cost(4 * n * D * case.itemsize + 4 * n, 4 * n * S * D // (1 + causal), "tensor")


def timed(name, causal, shape, rungs, cases, dtype="bfloat16"):
    return Problem(
        name,
        partial(inputs, causal),
        attention,
        rungs,
        cases,
        bench=Case(shape, dtype),
        bench_cpu=Case((1, 2, 128, shape[-1]), dtype),
        cost=partial(cost, causal),
        pytorch=partial(by, torch.nn.attention.SDPBackend.FLASH_ATTENTION),
        libraries=(Library("cuDNN", partial(by, torch.nn.attention.SDPBackend.CUDNN_ATTENTION)),),
    )


RUNGS = (
    Rung("attention_v2_tensor_cores", "mma and ldmatrix, p stays in registers"),
    Rung("attention_v3_swizzled", "no bank conflicts"),
    Rung("attention_v4_pipelined", "double buffering", target=Target(0.85, "pytorch")),
)
PROBLEMS = (
    Problem(
        "one product",
        lambda case, draw: (draw(16, 16), draw(16, 8)),
        lambda a, b: a.to(wider := torch.promote_types(a.dtype, torch.float32)) @ b.to(wider),
        (Rung("product_v1_one_mma", "16×16 times 16×8 by one mma"),),
        grid([()], ["bfloat16"]) + grid([()], ["bfloat16"], "large"),
        timed=False,
    ),
    timed("causal, 4096", True, (4, 16, 4096, 128), RUNGS, CASES),
    timed("attention, 4096", False, (4, 16, 4096, 128), RUNGS, (*CASES, *UNUSUAL)),
)
