"""A day whose rungs are right in most runs, and all but two have a fault."""

from common.day import Rung
from tests.fixture_days import parts

TITLE = "Has faults"
TEACHES = "What --sanitize finds on the CPU backend"
TOPICS = ("doubling",)
SOURCE = "twice.cu"


def _rung(name):
    return Rung(name, "a rung with a fault", timed=False)


PROBLEMS = (
    parts.problem(
        _rung("twice_right"),
        _rung("twice_beyond"),
        _rung("twice_unset"),
        _rung("twice_late_block"),
        _rung("twice_race"),
        _rung("twice_deadlock"),
        _rung("twice_left_early"),
        _rung("twice_left_rightly"),
        _rung("twice_mask"),
        _rung("twice_unwritten"),
        _rung("twice_fresh"),
    ),
)
