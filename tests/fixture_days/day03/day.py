"""A day that does not compile."""

from tests.fixture_days import parts

TITLE = "Does not compile"
TEACHES = "That a compile error names its line"
TOPICS = ("doubling",)
SOURCE = "twice.cu"

PROBLEMS = (parts.problem(parts.rung("twice_v1", parts.twice)),)
