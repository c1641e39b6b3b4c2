"""What a session of tests draws: its seed, and the days whose turn it is.

Costly tests take a few days of each date in turn. HUNDRED_DAYS_SEED=20260131 repeats what that date
drew, and takes every day.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from common.base.days import Day
from common.check.random_case import SEED_VARIABLE
from common.run.mutate import today_as_seed

GIVEN = SEED_VARIABLE in os.environ
SEED = int(os.environ.get(SEED_VARIABLE) or today_as_seed())


def in_turn(days: Sequence[Day], how_many: int, purpose: str) -> list[Day]:
    """Every day where the seed was given, else so many of them, for each purpose others."""
    if GIVEN or len(days) <= how_many:
        return list(days)
    return sorted(random.Random(f"{purpose} {SEED}").sample(days, how_many), key=lambda d: d.number)


def hand_down() -> None:
    """Gives the seed to all that tests start, so that a date's run can be repeated."""
    os.environ.setdefault(SEED_VARIABLE, str(SEED))
