"""Day 24: persistent kernels: blocks that loop over many tasks."""

if __name__ == "__main__":  # python days/day24/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day24

from functools import partial

import torch

from common.day import Case, Problem, Rung, grid, one_tensor, print_table, seconds, streamed

from .rnn import RNN, steps_of
from .rolling import ROLLING

TITLE = "Persistent kernels"
TEACHES = "A grid the size of the machine, a work queue, state that stays in registers"
TOPICS = ("persistent kernel", "work queue", "atomics", "launch overhead", "RNN", "streaming")
SOURCE = "persistent_threads.cu"
EXTRA_SOURCES = ("rolling_batches.cu",)
INTRODUCES = ("persistent kernel", "work queue", "double buffering")


def identity(x):
    return x.clone()


QUEUE = Problem(
    name="queue",
    inputs=one_tensor,
    reference=identity,
    rungs=(
        Rung("queue_v1_warp_ticket", "32 tasks per atomic operation"),
        Rung("queue_v2_long_ticket", "1024 tasks per atomic operation"),
    ),
    cases=grid([(1,), (31,), (32,), (33,), (1023,), (1024,), (1025,), (10007,), (0,)], ["int32"]),
    bench=Case((1 << 26,), "int32"),
    bench_cpu=Case((1 << 14,), "int32"),
    cost=streamed(2, 0),
    pytorch=torch.clone,  # the tasks together are a copy
    outputs_exact=True,
)

PROBLEMS = (RNN, QUEUE, ROLLING)


def show_times(operators, device):
    """Times the rungs with launches by the host instead of replays of a CUDA graph."""
    if device.type != "cuda":
        return
    steps = torch.tensor(steps_of(1000), dtype=torch.int32, device=device)
    h = torch.randn(1000, 128, device=device)
    w = torch.randn(128, 128, device=device) * 0.04
    print("rnn, 1,000 tasks, launched by the host instead of replayed from a graph")
    rows = []
    for rung in ("rnn_v1_launch_each", "rnn_v4_persistent_queue"):
        time = seconds(partial(getattr(operators, rung), h, w, steps))
        rows.append([rung, f"{time * 1e3:.3f} ms"])
    print_table(["", "time"], rows)
