"""Day 24: persistent kernels: blocks that loop over many tasks."""

from functools import partial

import torch

from common.day import (
    Case,
    Exercise,
    Problem,
    Rung,
    grid,
    one_tensor,
    print_table,
    seconds,
    streamed,
)

from .rnn import RNN, steps_of
from .rolling import ROLLING

TITLE = "Persistent kernels"
TEACHES = "A grid the size of the machine, a work queue, state that stays in registers"
TOPICS = ("persistent kernel", "work queue", "atomics", "launch overhead", "RNN", "streaming")
SOURCE = "persistent_threads.cu"
EXTRA_SOURCES = ("rolling_batches.cu",)
INTRODUCES = ("persistent kernel", "work queue", "double buffering")
EQUIVALENT = {  # mutants that compute the same, and why
    "persistent_threads.cu: queue_kernel: initial value: `int64_t first = 0` "
    "-> `int64_t first = 1`": ("lane 0 sets it, and the others get it from lane 0"),
    "persistent_threads.cu: drain_queue: validation dropped: `check(x, "
    '"x").on_gpu().dtype({ScalarType::Int}).rank(1)` -> '
    '`check(x, "x").on_gpu().dtype({ScalarType::Int})`': ("the elements of a matrix are tasks too"),
    "rolling_batches.cu: make_rolled: constant off by one: `bytes == 0` -> `bytes == 1`": (
        "`bytes` is a multiple of 4"
    ),
    "rolling_batches.cu: make_rolled: empty input not handled: `if (bytes == 0) return "
    "made` -> ``": ("a copy of 0 bytes does nothing"),
    "rolling_batches.cu: load_ahead: loop bound off by one: `k < AHEAD` -> `k < AHEAD - 1`, 2nd": (
        "where fewer than AHEAD are left, the last one is never used"
    ),
    "rolling_batches.cu: rolling_v2_persistent_kernel: loop bound off by one: `k < AHEAD` "
    "-> `k < AHEAD - 1`, 2nd": ("where fewer than AHEAD are left, the last one is never used"),
    "persistent_threads.cu: with_block_size: comparison: `hidden <= 32` -> `hidden < 32`": (
        "the next block size computes the same, with idle threads"
    ),
    "persistent_threads.cu: with_block_size: comparison: `hidden <= 64` -> `hidden < 64`": (
        "the next block size computes the same, with idle threads"
    ),
}

EXERCISE = Exercise(
    function="rnn_v4_persistent_queue_kernel",
    first="int64_t next = 0;",
    last="thread 0 has written the ticket",
    task=(
        "Run this block's task, and get the number of the next one from the queue: thread 0 "
        "draws it with atomicAdd, all threads learn it through `ticket`. Draw before the task, "
        "so that its latency is hidden."
    ),
    hints=(
        "The queue counts from 0, but the first gridDim.x tasks are given out already. Which "
        "number does the first ticket stand for?",
        "Thread 0 draws next = gridDim.x + atomicAdd(queue, 1) before run_task and writes it to "
        "`ticket` after it. Why not at once?",
        "While run_task runs, slow threads may still read the old ticket. After thread 0 has "
        "written the new one, a __syncthreads() lets all threads read it. run_task(column, "
        "state, h, steps, y, hidden, task).",
    ),
)


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


def show(operators, device):
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
