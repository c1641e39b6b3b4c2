"""Day 4: a naive softmax, and why it overflows."""

if __name__ == "__main__":  # python days/day04/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day04

import torch

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Tolerance, grid, one_tensor, streamed

TITLE = "A naive softmax"
TEACHES = "Softmax as it is written, strided against coalesced loads, and why exp overflows"
TOPICS = ("softmax", "numerics", "coalescing")
SOURCE = "simple_softmax.cu"
INTRODUCES = ("softmax", "numerically stable", "ulp")

FP32_MAX = torch.finfo(torch.float32).max


def reference(x):
    """The naive formula with the range of fp32: what exceeds it becomes infinite, as in the
    kernels, which compute in fp32 for every dtype."""
    if x.dtype != torch.float64:
        x = x.float()
    e = torch.exp(x)
    e = torch.where(e > FP32_MAX, torch.inf, e)
    total = e.sum(dim=-1, keepdim=True)
    return e / torch.where(total > FP32_MAX, torch.inf, total)


def reference_in_dtype(x):
    return reference(x).to(x.dtype)


PROBLEMS = (
    Problem(
        name="naive softmax",
        inputs=one_tensor,
        reference=reference_in_dtype,
        rungs=(
            Rung("softmax_v1_thread_per_row", "one thread per row"),
            Rung(
                "softmax_v2_two_kernels",
                "sums, then quotients",
                not_repeatable="atomicAdd adds the parts of a sum in any order",
            ),
        ),
        cases=(
            *grid([(1, 1), (9, 1023), (300, 33), (9, 1025), (257, 35), (0, 8), (4, 0)], FLOATS),
            *grid([(16, 200)], FLOATS, values="large"),  # some rows overflow and must give NaN
            *grid([(8, 300)], FLOATS, values="nonfinite"),
        ),
        bench=Case((65536, 1024)),
        bench_cpu=Case((512, 1024)),
        cost=streamed(2, 3),
        pytorch=lambda x: torch.softmax(x, dim=-1),  # the stable one: one kernel all the same
        libraries=(COMPILE,),
        tolerance=Tolerance(ulps=32, why="v1 sums a row one by one, and each addition rounds"),
    ),
)


def show(ops, device):
    """Prints where the naive formula overflows, beside PyTorch's softmax."""
    print("x = [v, v - 1, v - 2]   naive softmax                 torch.softmax")
    for v in (10.0, 80.0, 88.0, 89.0, 1000.0):
        x = torch.tensor([[v, v - 1, v - 2]], device=device)
        naive = ops.softmax_v1_thread_per_row(x)[0].tolist()
        stable = torch.softmax(x, dim=-1)[0].tolist()
        text = " ".join(f"{n:8.5f}" for n in naive), " ".join(f"{n:8.5f}" for n in stable)
        print(f"v = {v:<6g}              {text[0]}    {text[1]}")
