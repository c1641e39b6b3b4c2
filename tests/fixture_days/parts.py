"""The common part of the fixture days: one small problem, to which each day adds its rungs."""

import torch

from common.day import Case, Cost, Problem, Rung


def inputs(case, draw):
    return (draw(*case.shape),)


def reference(x):
    return x * 2


def cost(case):
    return Cost(bytes=8 * case.shape[0], flops=case.shape[0])


def problem(*rungs):
    """Return the problem of doubling 1 to 1025 numbers, by `rungs`."""
    return Problem(
        name="twice",
        inputs=inputs,
        reference=reference,
        pytorch=reference,
        rungs=rungs,
        cases=(Case((1,)), Case((1025,))),
        bench=Case((4096,)),
        bench_cpu=Case((4096,)),
        cost=cost,
    )


def rung(name, call, **more):
    """Return a rung that is a Python function."""
    return Rung(name, "a rung of a fixture", load=lambda build: call, **more)


def twice(x):
    if x.device.type == "meta":  # otherwise PyTorch would import its compiler, for a second
        raise ValueError("x has no data")
    return torch.add(x, x)
