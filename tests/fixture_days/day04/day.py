"""A day whose second rung crashes the process; the first is right, the third never runs."""

import ctypes

from tests.fixture_days import parts

TITLE = "Crashes"
TEACHES = "That a crash costs one day"
TOPICS = ("doubling",)
SOURCE = "twice.cu"


def crash(x):
    print("about to crash")
    return ctypes.string_at(0)


PROBLEMS = (
    parts.problem(
        parts.rung("twice_v1", parts.twice),
        parts.rung("twice_v2_crashes", crash),
        parts.rung("twice_v3", parts.twice),
    ),
)
