"""Tasks of unequal length: their inputs, formulas, rungs."""

import torch

from common.day import Case, Cost, Library, Problem, Rung, Target, Tolerance, grid


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


RNN = Problem(
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
            target=Target(1.0, "rnn_v2_block_each"),
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
)
