"""Day 24: persistent kernels: blocks that loop over many tasks."""

from functools import partial

import torch

from common.day import (
    COMPILE,
    Case,
    Cost,
    Exercise,
    Library,
    Problem,
    Rung,
    Target,
    Tolerance,
    grid,
    print_table,
    seconds,
)

TITLE = "Persistent kernels"
TEACHES = "A grid the size of the machine, a work queue, state that stays in registers"
TOPICS = ("persistent kernel", "work queue", "atomics", "launch overhead", "RNN", "streaming")
SOURCE = "persistent_threads.cu"
INTRODUCES = ("persistent kernel", "work queue", "double buffering")

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

# ------------------------------------------------------------------ tasks of unequal length


def steps_of(tasks):
    """Steps of each task: 4 to 12, three times as many in every tenth, none in one of 13."""
    return [(4 + t % 9) * (3 if t % 10 == 7 else 1) if t % 13 else 0 for t in range(tasks)]


def tasks_and_weights(case, draw):
    tasks, hidden = case.shape
    h = draw(tasks, hidden)
    w = draw(hidden, hidden, values="normal").mul_(0.5 * max(hidden, 1) ** -0.5)
    steps = draw(tasks, dtype="int32", low=0, high=2)
    steps.copy_(torch.tensor(steps_of(tasks), dtype=torch.int32))
    return h, w, steps


def rnn(h, w, steps):
    y = h
    for s in range(int(steps.max()) if steps.numel() else 0):
        y = torch.where((s < steps)[:, None], torch.tanh(y @ w), y)
    return y


def rnn_by_pytorch(h, w, steps):
    """The longest first, so that each step multiplies only the tasks that still run."""
    active = (len(h) - torch.bincount(steps.cpu()).cumsum(0)).tolist()  # tasks of more than s steps
    order = torch.argsort(steps, descending=True)
    y = h[order]
    for n in active:
        y[:n] = torch.tanh(y[:n] @ w)
    return torch.empty_like(h).index_copy_(0, order, y)


def rnn_by_cudnn(h, w, steps):
    """cuDNN's recurrent network over sequences of zeros of these lengths, at least 1."""
    tasks, hidden = h.shape
    lengths = steps.cpu().clamp(min=1)
    zeros = h.new_zeros(int(lengths.max()), tasks, 1)
    packed = torch.nn.utils.rnn.pack_padded_sequence(zeros, lengths, enforce_sorted=False)
    flat = torch.cat([h.new_zeros(hidden), w.mT.flatten()])  # the layout that cuDNN expects
    parameters = [flat[:hidden].view(hidden, 1), flat[hidden:].view(hidden, hidden)]
    start = h[packed.sorted_indices][None]
    _, last = torch.rnn_tanh(
        packed.data, packed.batch_sizes, start, parameters, False, 1, 0.0, False, False
    )
    return torch.where((steps > 0)[:, None], last[0][packed.unsorted_indices], h)


def rnn_cost(case):
    tasks, hidden = case.shape
    return Cost(
        bytes=4 * (2 * tasks * hidden + hidden * hidden + tasks),
        flops=2 * hidden * hidden * sum(steps_of(tasks)),
    )


# ------------------------------------------------------------------ the queue alone


def identity(x):
    return x.clone()


# ------------------------------------------------------------------ a stream of batches


def stream(case, draw):
    batches, n = case.shape
    return draw(batches, n), draw(n), draw(n).abs_(), 0.1


def rolling(x, mean, var, momentum):
    normalised = []
    for row in x:
        off = row - mean
        normalised.append(off / torch.sqrt(var + 1e-5))
        mean = mean + momentum * off
        var = (1 - momentum) * (var + momentum * off * off)
    y = torch.stack(normalised) if normalised else torch.empty_like(x)
    return y, mean.clone(), var.clone()


def rolling_by_pytorch(x, mean, var, momentum):
    """64 batches at a time: their running means are one product with a matrix of weights."""
    keep, pieces = 1 - momentum, []
    for rows in x.split(64):
        batch = torch.arange(len(rows) + 1, dtype=x.dtype, device=x.device)[:, None]
        age = batch - 1 - batch[:-1].T
        weights = torch.where(age >= 0, momentum * keep**age, 0.0)
        means = keep**batch * mean + weights @ rows
        off = rows - means[:-1]
        variances = keep**batch * var + keep * (weights @ off.square())
        pieces.append(off * torch.rsqrt(variances[:-1] + 1e-5))
        mean, var = means[-1], variances[-1]
    return torch.cat(pieces), mean.clone(), var.clone()


def rolling_cost(case):
    batches, n = case.shape
    return Cost(bytes=4 * (2 * batches * n + 4 * n), flops=9 * batches * n)


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


PROBLEMS = (
    Problem(
        name="rnn",
        inputs=tasks_and_weights,
        reference=rnn,
        rungs=(
            Rung("rnn_v1_launch_each", "one launch per task"),
            Rung("rnn_v2_block_each", "one launch, one block per task"),
            Rung("rnn_v3_persistent_static", "persistent blocks, static assignment"),
            Rung(
                "rnn_v4_persistent_queue",
                "persistent blocks, a work queue",
                target=Target(5.0, "rnn_v1_launch_each"),
            ),
        ),
        cases=(
            *grid([(1, 1), (7, 31), (9, 32), (8, 33), (5, 64), (11, 65), (3, 128)], ["float32"]),
            *grid([(97, 5), (0, 8), (4, 0)], ["float32"]),
            *grid([(20, 20)], ["float32"], values="nonfinite"),
            *grid([(9, 40)], ["float32"], values="extreme"),
        ),
        bench=Case((1000, 128)),
        bench_cpu=Case((40, 32)),
        cost=rnn_cost,
        pytorch=rnn_by_pytorch,
        pytorch_not_captured="it copies the steps to the host",
        libraries=(Library("cuDNN", rnn_by_cudnn, "it copies the lengths to the host"),),
        tolerance=Tolerance(
            ulps=64, why="a rounding error in one step propagates through all later steps"
        ),
    ),
    Problem(
        name="queue",
        inputs=lambda case, draw: (draw(*case.shape),),
        reference=identity,
        rungs=(
            Rung("queue_v1_warp_ticket", "32 tasks per atomic operation"),
            Rung("queue_v2_long_ticket", "1024 tasks per atomic operation"),
        ),
        cases=grid(
            [(1,), (31,), (32,), (33,), (1023,), (1024,), (1025,), (10007,), (0,)], ["int32"]
        ),
        bench=Case((1 << 26,), "int32"),
        bench_cpu=Case((1 << 14,), "int32"),
        cost=lambda case: Cost(bytes=8 * case.shape[0]),
        pytorch=torch.clone,  # the tasks together are a copy
        outputs_exact=True,
    ),
    Problem(
        name="rolling",
        inputs=stream,
        reference=rolling,
        rungs=(
            Rung("rolling_v1_launch_each", "one launch per batch, the state in memory"),
            Rung("rolling_v2_persistent", "one launch, the state in registers"),
        ),
        cases=(
            *grid([(1, 1), (7, 127), (8, 128), (9, 129), (17, 33), (40, 5)], ["float32"]),
            *grid([(0, 8), (8, 0)], ["float32"]),
            *grid([(12, 60)], ["float32"], values="nonfinite"),
            *grid([(12, 60)], ["float32"], values="offset"),
        ),
        bench=Case((1000, 65536)),
        bench_cpu=Case((64, 512)),
        cost=rolling_cost,
        pytorch=rolling_by_pytorch,
        libraries=(COMPILE,),
        tolerance=Tolerance(ulps=64, why="the state accumulates the errors of all earlier batches"),
    ),
)
