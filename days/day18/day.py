"""Day 18: everything that a backward pass derives from one gradient, in one launch."""

if __name__ == "__main__":  # python days/day18/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day18

import torch

from common.day import COMPILE, FLOATS, Case, Cost, Problem, Rung, Target, grid

TITLE = "Fused preparation of a backward pass"
TEACHES = (
    "Split heads, transpose, cast and bias gradient from one read; sums across blocks, ordered"
)
TOPICS = ("backward", "autograd", "transpose", "cast", "fusion", "attention")
SOURCE = "fused_backward_prep.cu"
EXTRA_SOURCES = ("merge_heads.cu",)
INTRODUCES = ("backward pass", "split heads", "bias gradient", "transposed")

# (B, S, H, D)
SHAPES = [
    (1, 1, 1, 1),
    (2, 64, 2, 64),
    (1, 72, 3, 24),
    (2, 33, 3, 8),
    (1, 300, 1, 5),
    (2, 8, 5, 40),
    (1, 65, 2, 16),
]
EMPTY = [(0, 4, 2, 8), (2, 0, 2, 8), (2, 4, 2, 0)]
LARGE = (16, 4096, 16, 128)


def inputs(case, draw):
    B, S, H, D = case.shape
    return draw(B, S, H * D), H


def reference(g, heads):
    B, S, C = g.shape
    low = g.to(torch.float64 if g.dtype == torch.float64 else torch.bfloat16)
    split = low.view(B, S, heads, C // heads)
    bias_grad = g.sum((0, 1), dtype=torch.promote_types(g.dtype, torch.float32))
    return split.permute(0, 2, 1, 3).contiguous(), split.permute(0, 2, 3, 1).contiguous(), bias_grad


def split_heads(g, heads):
    """The gradients of o and of bias, from that of y."""
    of_o, _, bias_grad = reference(g, heads)
    return of_o, bias_grad


def merge_inputs(case, draw):
    B, S, H, D = case.shape
    return draw(B, H, S, D), draw(H * D, dtype="float32")


def prepare(g, heads):
    """As few passes as separate operators allow: the first copy also casts, the second reads it."""
    split = g.view(*g.shape[:2], heads, -1).transpose(1, 2)
    low = split.to(torch.bfloat16, memory_format=torch.contiguous_format)
    return low, low.mT.contiguous(), g.sum((0, 1))


def merge(o, bias):
    return (o.transpose(1, 2).flatten(2) + bias).contiguous()  # with a size of 1, it is a view


def cost(case):
    B, S, H, D = case.shape
    n = B * S * H * D
    return Cost(bytes=n * (case.itemsize + 2 + 2) + 4 * H * D, flops=n)


def merge_cost(case):
    """Forward: o and y. Backward: g and the gradient of o. Each reads or writes H · D of bias."""
    B, S, H, D = case.shape
    n = B * S * H * D
    return Cost(bytes=2 * (n * (2 + 4) + 4 * H * D), flops=2 * n)


PROBLEMS = (
    Problem(
        name="merge heads",
        inputs=merge_inputs,
        reference=merge,
        rungs=(
            Rung(
                "merge_heads",
                "forward; its backward runs v3",
                backward=lambda saved, g: torch.ops.day18.merge_heads_backward(g, *saved),
                saves=lambda inputs, output: (inputs[0].shape[1],),  # the number of heads
            ),
        ),
        cases=(
            *grid(SHAPES + EMPTY, ["bfloat16"]),
            *grid([(2, 16, 2, 16)], ["bfloat16"], values="nonfinite"),
        ),
        bench=Case(LARGE, "bfloat16"),
        bench_cpu=Case((2, 128, 4, 64), "bfloat16"),
        cost=merge_cost,
        pytorch=merge,
        libraries=(COMPILE,),
        gradients=True,
    ),
    Problem(
        name="gradients of merge heads, alone",
        inputs=inputs,
        reference=split_heads,
        rungs=(Rung("merge_heads_backward", "v3 without heads_t"),),
        cases=grid([(2, 33, 3, 8), (2, 4, 2, 0)], ["float32"]),
        timed=False,
    ),
    Problem(
        name="backward prep",
        inputs=inputs,
        reference=reference,
        rungs=(
            Rung("backward_prep_v1_separate", "one launch per step"),
            Rung("backward_prep_v2_fused", "one launch, one thread per column"),
            Rung(
                "backward_prep_v3_tiles",
                "16-byte accesses on both sides",
                target=Target(0.85, "copy"),
            ),
        ),
        cases=(
            *grid(SHAPES + EMPTY, FLOATS),
            *grid([(3, 264, 2, 40)], ["float32"]),  # several chunks, strips and batches
            *grid([(2, 40, 2, 16)], FLOATS, values="nonfinite"),
            *grid([(2, 136, 1, 72)], FLOATS, values="offset"),
        ),
        bench=Case(LARGE),
        bench_cpu=Case((2, 128, 4, 64)),
        cost=cost,
        pytorch=prepare,
        libraries=(COMPILE,),
    ),
)
