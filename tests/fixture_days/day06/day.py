"""A day that writes one element past the end of its output."""

import ctypes

import torch

from tests.fixture_days import parts

TITLE = "Writes past the end"
TEACHES = "That guard bands see a write past the end"
TOPICS = ("doubling",)
SOURCE = "twice.cu"


def past_the_end(x):
    y = torch.empty_like(x)
    torch.mul(x, 2, out=y)
    ctypes.memset(y.data_ptr() + y.nbytes, 0, y.element_size())
    return y


PROBLEMS = (parts.problem(parts.rung("twice_v1_past_the_end", past_the_end)),)
