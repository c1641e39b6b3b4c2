"""A day that passes."""

from tests.fixture_days import parts

TITLE = "Passes"
TEACHES = "What a day looks like that passes"
TOPICS = ("doubling", "softmax")
SOURCE = "twice.cu"

PROBLEMS = (
    parts.problem(parts.rung("twice_v1", parts.twice), parts.rung("twice_v2", parts.twice)),
)
