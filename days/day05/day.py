"""Day 5: softmax in shared memory."""

if __name__ == "__main__":  # python days/day05/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day05

import torch

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Target, grid, one_tensor, streamed

TITLE = "Softmax in shared memory"
TEACHES = "Shared memory, barriers, tree reduction, and the online softmax, which saves a pass"
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


PROBLEMS = (
    Problem(
        name="softmax",
        inputs=one_tensor,
        reference=reference,
        rungs=(
            Rung("softmax_v1_shared_tree", "row in shared memory, two tree reductions"),
            Rung("softmax_v2_online", "max and sum in one reduction"),
            Rung("softmax_v3_registers", "row in registers", target=Target(1.0, "pytorch")),
        ),
        cases=(
            *grid([(1, 1), (3, 1023), (2, 1024), (3, 1025), (5, 257), (7, 4099)], FLOATS),
            *grid([(0, 8), (4, 0), (500, 3), (2, 512), (2, 2048), (2, 4096), (1, 8192)], FLOATS),
            *grid([(3, 13_000)], ["float32"]),  # a row of more than 48 KB
            *grid([(4, 1000)], FLOATS, values="large"),
            *grid([(4, 513)], FLOATS, values="offset"),
            *grid([(8, 300)], FLOATS, values="nonfinite"),
            *grid([(3, 100)], ["float32"], values="constant"),
        ),
        bench=Case((65536, 1024)),
        bench_cpu=Case((512, 1024)),
        cost=streamed(2, 5),  # operations: compare, subtract, exp, add, divide
        pytorch=reference,  # one kernel of PyTorch's own
        libraries=(COMPILE,),
    ),
)
