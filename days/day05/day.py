"""Day 5: softmax in shared memory."""

if __name__ == "__main__":  # python days/day05/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day05

import torch

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Target, grid, one_tensor, streamed

TITLE = "Softmax in shared memory"
TEACHES = "Shared memory, barriers, tree reduction, and the online softmax"
TOPICS = ("softmax", "reduction", "shared memory", "numerics")
SOURCE = "shared_softmax.cu"
INTRODUCES = (
    "shared memory",
    "dynamic shared memory",
    "barrier",
    "tree reduction",
    "online softmax",
)


def reference(x):
    return torch.softmax(x, dim=-1)


V1 = Rung("softmax_v1_shared_tree", "row in shared memory, two tree reductions")
V2 = Rung("softmax_v2_online", "max and sum in one reduction")
V3 = Rung("softmax_v3_registers", "row in registers", target=Target(1.0, "pytorch"))


def softmax(name, rungs, *cases, bench, bench_cpu, **others):
    return Problem(
        name,
        one_tensor,
        reference,
        rungs,
        cases,
        bench=Case(bench),
        bench_cpu=Case(bench_cpu),
        cost=streamed(2, 5),  # operations: compare, subtract, exp, add, divide
        pytorch=reference,  # one kernel of PyTorch's own
        libraries=(COMPILE,),
        **others,
    )


# rows of whole packs of 16 bytes: v3 takes no others
PACKS = [(2, 8), (2, 512), (2, 1024), (3, 1032), (2, 2048), (2, 4096), (1, 8192), (0, 8), (4, 0)]
ODD = [(1, 1), (500, 3), (5, 257), (3, 1023), (3, 1025), (7, 4099)]
PROBLEMS = (
    softmax(
        "softmax",
        (V1, V2, V3),
        *grid(PACKS, FLOATS),
        *grid([(4, 1000)], FLOATS, values="large"),
        *grid([(4, 520)], FLOATS, values="offset"),
        *grid([(8, 304)], FLOATS, values="nonfinite"),
        *grid([(3, 100)], ["float32"], values="constant"),
        bench=(65536, 1024),
        bench_cpu=(512, 1024),
    ),
    softmax(
        "softmax, any row",
        (V1, V2),
        *grid(ODD, FLOATS),
        *grid([(3, 13_000)], ["float32"]),  # a row of more than 48 KB
        *grid([(4, 513)], FLOATS, values="offset"),
        *grid([(8, 301)], FLOATS, values="nonfinite"),
        bench=(65536, 1023),
        bench_cpu=(512, 1023),
        timed=False,
    ),
)
