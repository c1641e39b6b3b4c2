"""Draw a case of random sizes around multiples of tiles, like the cases that a day declares."""

from __future__ import annotations

import math
import os
import random
import secrets
from collections.abc import Sequence
from functools import cache

from common.base.declaration import Case

SEED_VARIABLE = "HUNDRED_DAYS_SEED"
LARGEST = 1 << 14  # elements of the case's shape
_TILES = (8, 16, 32, 64, 128, 256)


@cache
def session_seed() -> int:
    """Return the seed of this process and its forked children; a failure's message contains it."""
    return int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(10**6))


def random_case(cases: Sequence[Case], seed: int | str) -> Case | None:
    """Return one of the cases with other sizes, determined by the seed; None if none has sizes.

    A dimension that is odd in one of the cases takes any size up to its largest one; any other
    dimension takes only sizes from the cases, since they may have to be multiples.
    """
    chance = random.Random(seed)
    known = [
        case
        for case in cases
        if case.values == "normal" and case.shape and 0 < math.prod(case.shape) <= LARGEST
    ]
    if not known:
        return None
    base = chance.choice(known)
    alike = [case.shape for case in known if len(case.shape) == len(base.shape)]
    shape = list(base.shape)
    for dim in chance.sample(range(len(shape)), len(shape)):
        sizes = sorted({other[dim] for other in alike})
        rest = math.prod(shape) // shape[dim]
        if any(size % 2 and size > 1 for size in sizes):
            most = min(sizes[-1], max(LARGEST // rest, 1))
            shape[dim] = _size(chance, most)
        else:
            fitting = [size for size in sizes if size * rest <= LARGEST]
            shape[dim] = chance.choice(fitting or [shape[dim]])
    return Case(tuple(shape), base.dtype, base.values)


def _size(chance: random.Random, most: int) -> int:
    """Return a size in [1, most], often next to a multiple of a tile's size."""
    tile = chance.choice(_TILES)
    near = tile * chance.randint(1, max(most // tile, 1)) + chance.choice((-1, 0, 1))
    return near if 1 <= near <= most and chance.random() < 0.75 else chance.randint(1, most)
