"""Day 24: persistent kernels: blocks that loop over many tasks."""

import torch

from common.day import Case, Cost, Problem, Rung, Target, Tolerance, grid

TITLE = "Persistent kernels"
TEACHES = "A grid the size of the machine, a work queue, state that stays in registers"
TOPICS = ("persistent kernel", "work queue", "atomics", "launch overhead", "RNN", "streaming")
SOURCE = "persistent_threads.cu"
INTRODUCES = ("persistent kernel", "work queue", "double buffering")

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
    print("rnn, 1,000 tasks, launched by the host instead of replayed from a graph:")
    for rung in ("rnn_v1_launch_each", "rnn_v4_persistent_queue"):
        times = []
        for _ in range(7):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            getattr(operators, rung)(h, w, steps)
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop))
        print(f"  {rung:24} {sorted(times)[3]:7.3f} ms")


PROBLEMS = (
    Problem(
        name="rnn",
        inputs=tasks_and_weights,
        reference=rnn,
        pytorch_not_captured="it reads the longest task's steps back to the host",
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
        cost=lambda case: Cost(bytes=8 * case.shape[0], flops=0),
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
        tolerance=Tolerance(ulps=64, why="the state accumulates the errors of all earlier batches"),
    ),
)
