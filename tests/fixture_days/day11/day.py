"""A day that passes, though one of its rungs is skipped, and prints something."""

from common.day import Rung, Skip
from tests.fixture_days import parts

TITLE = "Passes in part"
TEACHES = "That a skipped rung is reported"
TOPICS = ("doubling",)
SOURCE = "twice.cu"


def missing(build):
    raise Skip("needs the package moonbeam: python -m pip install moonbeam")


def talks(x):
    print("hello from a rung")
    return x * 2


PROBLEMS = (
    parts.problem(
        parts.rung("twice_v1_talks", talks, timed=False),
        Rung("twice_v2_moonbeam", "by moonbeam", load=missing),
    ),
)
