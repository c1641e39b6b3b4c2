"""A day whose second rung is wrong in its last element; the first is right."""

from tests.fixture_days import parts

TITLE = "Wrong answer"
TEACHES = "That one wrong element fails a rung"
TOPICS = ("doubling",)
SOURCE = "twice.cu"


def wrong(x):
    y = x * 2
    y[-1:] += 1
    return y


PROBLEMS = (
    parts.problem(parts.rung("twice_v1", parts.twice), parts.rung("twice_v2_wrong", wrong)),
)
