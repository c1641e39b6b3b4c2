"""Day 29: batched matrix multiplication."""

if __name__ == "__main__":  # python days/day29/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day29

import torch

from common.day import (
    COMPILE,
    HALVES,
    Case,
    Cost,
    Problem,
    Rung,
    Target,
    Tolerance,
    grid,
    print_table,
    seconds,
)

TITLE = "Batched matrix multiplication"
TEACHES = "Many small products in one launch: strides, broadcasting, pointers, a warp per matrix"
TOPICS = ("matmul", "batched matmul", "tensor cores", "strides", "broadcasting", "cp.async")
SOURCE = "batched_matmul.cu"
INTRODUCES = ("strided batch", "pointer batch")

FLOATS = ["float32", *HALVES]
ODD = [(3, 1, 1, 1), (5, 7, 9, 11), (6, 8, 8, 8), (9, 16, 16, 16), (3, 24, 17, 40)]
ODD += [(5, 32, 32, 32), (3, 64, 64, 64), (2, 65, 130, 72), (2, 40, 136, 100)]
EMPTY = [(0, 4, 4, 4), (3, 0, 4, 4), (3, 4, 0, 4), (3, 4, 4, 0)]


def matrices(case, draw):
    B, M, N, K = case.shape
    return draw(B, M, K), draw(B, K, N)


def cost(case):
    B, M, N, K = case.shape
    moved = B * (M * K + K * N + M * N) * case.itemsize
    return Cost(bytes=moved, flops=2 * B * M * N * K, unit="tensor")


CANCELLING = Tolerance(factor=16, why="fp32 sums; a few of millions cancel to almost 0")

V1 = Rung("bmm_v1_grid_z", "one thread per result")
V2 = Rung("bmm_v2_warp_tiles", "one warp per tile in shared memory")


def v3(target=None):
    return Rung(
        "bmm_v3_tensor_cores", "mma on tiles filled by cp.async", tuple(HALVES), target=target
    )


def problem(name, bench, rungs, cases, cpu):
    return Problem(
        name=name,
        inputs=matrices,
        reference=torch.matmul,
        rungs=rungs,
        cases=cases,
        bench=Case(bench, "bfloat16"),
        bench_cpu=Case(cpu, "bfloat16"),
        cost=cost,
        pytorch=torch.bmm,
        tolerance=CANCELLING,
    )


def views(case, draw):
    """a (…, 1, M, K) and b (heads, K, N), both stored transposed; the result has all batches."""
    *groups, heads, M, N, K = case.shape
    return draw(*groups, 1, K, M).mT, draw(heads, N, K).mT


def views_cost(case):
    groups, heads, M, N, K = case.shape
    moved = (groups * M * K + heads * K * N + groups * heads * M * N) * case.itemsize
    return Cost(bytes=moved, flops=2 * groups * heads * M * N * K, unit="tensor")


def lists(case, draw):
    B, M, N, K = case.shape
    return [draw(M, K) for _ in range(B)], [draw(K, N) for _ in range(B)]


def stacked(a, b):
    """PyTorch's batched product takes one tensor: the matrices are copied into it."""
    return torch.bmm(torch.stack(a), torch.stack(b))


PROBLEMS = (
    problem(
        "64×64",
        (16384, 64, 64, 64),
        (V1, V2, v3(Target(1.0, "pytorch"))),
        (*grid([*ODD, *EMPTY], FLOATS), *grid([(3, 20, 24, 40)], FLOATS, values="nonfinite")),
        (8, 64, 64, 64),
    ),
    problem(
        "16×16",
        (262144, 16, 16, 16),
        (V1, V2, v3(Target(1.5, "pytorch"))),
        (
            *grid([(70, 16, 16, 16), (3, 15, 10, 33)], HALVES),
            *grid([(7000, 3, 5, 8)], ["bfloat16"]),  # more matrices than warps of v3
        ),
        (64, 16, 16, 16),
    ),
    Problem(
        name="transposed and broadcast",
        inputs=views,
        reference=torch.matmul,
        rungs=(V2, v3(Target(1.0, "pytorch"))),
        cases=(
            *grid([(3, 4, 33, 20, 48), (2, 3, 64, 64, 64), (2, 5, 7, 16, 9)], HALVES),
            *grid([(2, 3, 2, 2, 7, 16, 9)], HALVES),  # as many batch dimensions as there may be
        ),
        bench=Case((128, 128, 64, 64, 64), "bfloat16"),
        bench_cpu=Case((2, 3, 64, 64, 64), "bfloat16"),
        cost=views_cost,
        pytorch=torch.matmul,
        libraries=(COMPILE,),
        tolerance=CANCELLING,
    ),
    Problem(
        name="separate tensors",
        inputs=lists,
        reference=stacked,
        rungs=(Rung("bmm_v3_pointers", "addresses as kernel parameters"),),
        cases=(
            *grid([(5, 7, 9, 11), (3, 64, 48, 40), (2, 16, 24, 8)], HALVES),
            *grid([(1921, 2, 3, 8)], ["bfloat16"]),  # one more than the parameters hold
        ),
        bench=Case((1024, 64, 64, 64), "bfloat16"),
        bench_cpu=Case((8, 64, 64, 64), "bfloat16"),
        cost=cost,
        pytorch=stacked,
        tolerance=CANCELLING,
    ),
)


def show_times(operators, device):
    """Prints v3 beside torch.bmm from 8×8 to 1024×1024; a matrix of 64 and more has many tiles."""
    if device.type != "cuda":
        return
    rows = []
    for size in (8, 16, 32, 64, 128, 256, 1024):
        batch = (1 << 26) // size**2
        a, b = (torch.randn(batch, size, size, device=device).bfloat16() for _ in range(2))
        ours = seconds(lambda a=a, b=b: operators.bmm_v3_tensor_cores(a, b))
        theirs = seconds(lambda a=a, b=b: torch.bmm(a, b))
        rate = 2 * batch * size**3 / ours / 1e12
        gbs = 3 * a.nbytes / ours / 1e9
        rows.append(
            [f"{batch}×{size}×{size}", f"{ours * 1e3:.3f}", f"{theirs * 1e3:.3f}",
             f"{theirs / ours:.2f}", f"{gbs:.0f}", f"{rate:.1f}"]
        )  # fmt: skip
    print("bf16, ms")
    print_table(["batch", "v3", "torch.bmm", "speed-up", "GB/s", "TFLOP/s"], rows)
