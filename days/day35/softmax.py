"""Softmax: cases, rungs, sizes."""

import torch

from common.day import COMPILE, FLOATS, Case, Problem, Rung, Target, grid, one_tensor, streamed
from common.references import rivals

# Around the chunks of a lane, the warps of a block, the blocks of a cluster and the limits of each
# rung, with and without rows of whole packs.
SHORT = [(1, 1), (5, 31), (9, 129), (2, 1025), (3, 248), (6, 8), (5, 520), (0, 8), (4, 0)]
LONG = [(3, 1024), (2, 2056), (1, 4100), (2, 8192), (1, 16392), (1, 32776)]
HUGE = [(1, 65544), (1, 262144), (1, 524296)]


def reference(x):
    return torch.softmax(x, dim=-1)


WARP = Rung("softmax_v1_warp", "row in one warp's registers")
BLOCK = Rung("softmax_v2_block", "row in a block's registers")
ONLINE = Rung("softmax_v3_online", "row read twice")
SHARED = Rung("softmax_v4_shared", "row in shared memory")
CLUSTER = Rung("softmax_v5_cluster", "row in the shared memory of a cluster")
TARGETS = (Target(0.96, "copy"), Target(1.0, "quack"))
CHOSEN = Rung("softmax_v6_chosen", "the best for the shape", target=TARGETS)


def timed(rows, cols, *rungs, dtype="bfloat16"):
    return Problem(
        name=f"softmax, {cols} columns" + ("" if dtype == "bfloat16" else f", {dtype}"),
        inputs=one_tensor,
        reference=reference,
        rungs=(*rungs, CHOSEN),
        cases=(Case((3, 520), dtype),),  # this size is compared after it was timed
        bench=Case((rows, cols), dtype),
        bench_cpu=Case((1, cols), dtype),
        cost=streamed(2, 13),
        pytorch=reference,  # one kernel of PyTorch's own
        libraries=(COMPILE,),
        rivals=(rivals.quack_softmax,),
    )


any_shape = Problem(
    name="softmax, any shape",
    inputs=one_tensor,
    reference=reference,
    rungs=(WARP, BLOCK, ONLINE, SHARED, CLUSTER, CHOSEN),
    cases=(
        *grid(SHORT, FLOATS),
        *grid(LONG, ["bfloat16"]),
        *grid([(2, 4104), (1, 16392)], ["float32", "float16"]),
        Case((1, 16380)),  # all warps of v2
        *grid(HUGE, ["bfloat16"]),
        *grid([(4, 1000), (2, 4104)], FLOATS, values="large"),
        *grid([(4, 520)], FLOATS, values="offset"),
        *grid([(8, 300), (8, 2056)], FLOATS, values="nonfinite"),
        *grid([(8, 16400)], ["bfloat16"], values="nonfinite"),
        *grid([(4, 264), (2, 2056)], FLOATS, values="extreme"),
    ),
    timed=False,
)

problems = (
    any_shape,
    timed(1 << 19, 1 << 10, WARP, BLOCK, ONLINE),  # 1 GiB, as the copy that it is compared with
    timed(1 << 17, 1 << 12, BLOCK, ONLINE, SHARED),
    timed(1 << 15, 1 << 14, BLOCK, ONLINE, SHARED),
    timed(1 << 14, 1 << 15, BLOCK, ONLINE, SHARED, CLUSTER),
    timed(1 << 13, 1 << 16, ONLINE, CLUSTER),
    timed(1 << 11, 1 << 18, ONLINE, CLUSTER),
    timed(1 << 12, 1 << 16, ONLINE, CLUSTER, dtype="float32"),
)
