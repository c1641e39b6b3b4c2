"""Day 56: matrix products with wgmma, roles of warps, ping-pong."""

if __name__ == "__main__":  # python days/day56/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day56

import torch

from common.day import Case, Cost, Problem, Rung, grid
from common.references import rivals

TITLE = "GEMM with wgmma"
TEACHES = "wgmma fed by TMA: a pipeline, producer and consumers, persistent blocks, ping-pong"
TOPICS = ("GEMM", "wgmma", "TMA", "warp specialisation", "persistent kernel", "ping-pong")
SOURCE = "gemm_wgmma.cu"
INTRODUCES = ("warp specialisation", "ping-pong", "named barrier", "async proxy")

RUNGS = (
    Rung("gemm_v1_wgmma", "TMA loads, then two warpgroups multiply"),
    Rung("gemm_v2_pipeline", "four stages, loads three steps ahead"),
    Rung("gemm_v3_warp_roles", "a producer, two consumers"),
    Rung("gemm_v4_persistent", "one block per multiprocessor"),
    Rung("gemm_v5_ping_pong", "consumers take turns"),
)
# (M, N, K): whole tiles of 128 × 192; less than one; odd sizes; long sums; 266 tiles, which are
# three for some of an H200's 132 blocks, so that consumers take turns; no element
SHAPES = [
    *((128, 192, 64), (256, 384, 128), (8, 8, 8), (1, 8, 16), (200, 264, 72), (333, 520, 200)),
    *((70, 200, 1600), (300, 8, 2056), (8, 50944, 72), (0, 16, 8), (16, 0, 8)),
]


def inputs(case, draw):
    M, N, K = case.shape
    return draw(M, K), draw(N, K)


def cost(case):
    M, N, K = case.shape
    return Cost(bytes=2 * (M * K + N * K + M * N), flops=2 * M * N * K, unit="tensor")


PROBLEMS = (
    Problem(
        "A · Bᵀ",
        inputs,
        lambda a, b: a @ b.t(),
        RUNGS,
        grid(SHAPES, ["bfloat16"]),
        bench=Case((8192, 8192, 8192), "bfloat16"),
        bench_cpu=Case((256, 384, 128), "bfloat16"),
        cost=cost,
        pytorch=lambda a, b: torch.mm(a, b.t()),
        rivals=(rivals.quack_matmul_nt,),
    ),
)
