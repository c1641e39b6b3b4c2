"""Day 5: softmax in shared memory."""

import torch

from common.day import COMPILE, Case, Exercise, Problem, Rung, Target, grid, one_tensor, streamed

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
EXERCISE = Exercise(
    function="tree_reduce",
    task="Combine partial[0, BLOCK) under `op` in a tree, and return the result to every thread.",
    hints=(
        "In each level, half of the threads that worked before combine two numbers each. Which "
        "element is thread t's partner, when `half` threads work?",
        "Begin with half = BLOCK / 2 and halve it until it is 0. Threads below `half` write "
        "op(partial[t], partial[t + half]). What they read was written by others: where must all "
        "threads wait?",
        "A __syncthreads() at the start of each level, one behind the loop, and one after the "
        "result is read, because the caller writes to `partial` next. No barrier inside the if.",
    ),
)

FLOATS = ["float32", "float16", "bfloat16"]


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
            *grid([(0, 8), (4, 0), (129, 3), (2, 512), (2, 2048), (2, 4096), (1, 8192)], FLOATS),
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
