"""A day of two sources that include one header, without cases below zero."""

import torch

from common.day import Case, Problem, Rung

TITLE = "Shares a header"
TEACHES = "What a header's mutants look like"
TOPICS = ("mutants",)
SOURCE = "whole.cu"
EXTRA_SOURCES = ("halved.cu",)


def inputs(case, draw):
    return (draw(*case.shape).abs() + 1,)


def whole(x):
    return torch.where(x < 0, x - 1, x + 1)


def halved(x):
    return torch.where(x < 0, x - 1, x / 2)


PROBLEMS = tuple(
    Problem(
        name=reference.__name__,
        inputs=inputs,
        reference=reference,
        rungs=(Rung(reference.__name__, "one thread per element"),),
        cases=(Case((1,)), Case((100,))),
        timed=False,
    )
    for reference in (whole, halved)
)
