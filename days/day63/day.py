"""Day 63: log-sum-exp and softmax in several stages, in CUDA and in Triton."""

if __name__ == "__main__":  # python days/day63/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day63

import torch

from common.day import (
    COMPILE,
    FLOATS,
    Case,
    Cost,
    Problem,
    Rung,
    Target,
    grid,
    one_tensor,
    streamed,
)

from .compiled import show

__all__ = ["PROBLEMS", "show"]

TITLE = "Reductions in several stages"
TEACHES = "Merging what many blocks found: by atomics, by a second kernel; reductions in Triton"
TOPICS = ("reduction", "atomics", "softmax", "Triton", "determinism", "bandwidth")
SOURCE = "multi_stage_reduction.cu"
EXTRA_SOURCES = ("multi_stage_triton.py", "compiled.py")
INTRODUCES = ("lost update",)

# Around a chunk, a tile and the least of a part: 4 tiles of 1024 chunks, or of 4096 elements in
# Triton. Rows of an odd length have chunks of one element.
SHAPES = [(1, 1), (5, 31), (3, 1025), (1, 4096), (2, 4100), (1, 8191), (1, 16392), (3, 0), (0, 8)]
CASES = (
    *grid([*SHAPES, (2, 32776)], ["float32", "bfloat16"]),
    *grid([(3, 1025), (1, 4096)], ["float16"]),
    Case((3, 1024)),
    Case((1, 40001), "bfloat16"),
    Case((1, 300 * 4096 + 1), "bfloat16"),  # more parts than a block has threads
    *grid([(4, 520)], FLOATS, values="offset"),
    *grid([(8, 300)], FLOATS, values="nonfinite"),
    *grid([(8, 4104)], ["float32"], values="nonfinite"),
    *grid([(4, 264)], FLOATS, values="extreme"),
)
TRITON = "multi_stage_triton"
AT_COPY = Target(0.93, "copy")


def log_sum_exp(x):
    return torch.logsumexp(x, dim=1)


def softmax(x):
    return torch.softmax(x, dim=1)


PROBLEMS = (
    Problem(
        name="log-sum-exp",
        inputs=one_tensor,
        reference=log_sum_exp,
        rungs=(
            Rung(
                "log_sum_exp_v1_atomics",
                "CUDA, merged by compare-and-swap",
                not_repeatable="blocks merge in the order in which they come",
            ),
            Rung("log_sum_exp_v2_stages", "CUDA, merged by a second kernel", target=AT_COPY),
            Rung(
                "log_sum_exp_v3_triton",
                "Triton, each tile reduced to a pair",
                triton=TRITON,
                target=AT_COPY,
            ),
            Rung("log_sum_exp_v4_triton_lanes", "Triton, a pair per load", triton=TRITON),
        ),
        cases=(
            *CASES,
            *grid([(4, 1000)], FLOATS, values="large"),
            *grid([(2, 8200)], ["bfloat16"], values="large"),
        ),
        bench=Case((16, 1 << 24)),
        bench_cpu=Case((2, 1 << 13)),
        cost=lambda case: Cost(
            bytes=case.itemsize * case.shape[0] * (case.shape[1] + 1),
            flops=12 * case.shape[0] * case.shape[1],
        ),
        pytorch=log_sum_exp,
        libraries=(COMPILE,),
    ),
    Problem(
        name="softmax",
        inputs=one_tensor,
        reference=softmax,
        rungs=(
            Rung("softmax_v1_stages", "CUDA, x read twice"),
            Rung("softmax_v2_row", "CUDA, row in a block's registers", target=AT_COPY),
            Rung(
                "softmax_v3_triton",
                "Triton, row in a program's registers",
                triton=TRITON,
                target=AT_COPY,
            ),
        ),
        cases=(
            *CASES,
            *grid([(2, 4104)], FLOATS[1:], values="large"),
            *grid([(4, 32776)], ["float16"], values="nonfinite"),  # too long for registers
        ),
        bench=Case((32768, 8192), "bfloat16"),
        bench_cpu=Case((4, 1 << 12)),
        cost=streamed(2, 12),
        pytorch=softmax,
        libraries=(COMPILE,),
    ),
)
