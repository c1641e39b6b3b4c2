"""A day that modifies its input, which it does not declare."""

from tests.fixture_days import parts

TITLE = "Modifies its input"
TEACHES = "That inputs must come back as they were"
TOPICS = ("doubling",)
SOURCE = "twice.cu"


def in_place(x):
    return x.mul_(2).clone()


PROBLEMS = (parts.problem(parts.rung("twice_v1_in_place", in_place)),)
