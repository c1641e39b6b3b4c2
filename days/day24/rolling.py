"""A stream of batches: its inputs, formulas, rungs."""

import torch

from common.day import COMPILE, Case, Cost, Problem, Rung, Target, Tolerance, grid


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


ROLLING = Problem(
    name="rolling",
    inputs=stream,
    reference=rolling,
    rungs=(
        Rung("rolling_v1_launch_each", "one launch per batch, the state in memory"),
        Rung(
            "rolling_v2_persistent",
            "one launch, the state in registers",
            target=Target(0.85, "copy"),
        ),
    ),
    cases=(
        *grid([(1, 1), (15, 127), (16, 128), (17, 129), (33, 33), (40, 5)], ["float32"]),
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
)
