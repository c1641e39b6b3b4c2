"""Draw cases of random sizes around multiples of tiles, like the cases that a day declares."""

from __future__ import annotations

import math
import os
import random
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from common.base.declaration import Case

SEED_VARIABLE = "HUNDRED_DAYS_SEED"
MANY = 6  # cases that a check draws
LARGEST = 1 << 14  # elements of the case's shape
_TILES = (8, 16, 32, 64, 128, 256)
_WIDE = ("float32", "bfloat16", "float64")  # dtypes that hold the values "huge"


@cache
def session_seed() -> int:
    """Return the seed of this process and its forked children; a failure's message contains it."""
    return int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(10**6))


def random_cases(cases: Sequence[Case], seed: int | str) -> list[Case]:
    """Return several such cases, each once, one with a long dimension in 16 bits and one of huge
    values."""
    drawn = [random_case(cases, f"{seed} {number}") for number in range(MANY)]
    drawn += [long_case(cases, seed), huge_case(cases, seed)]
    return list(dict.fromkeys(case for case in drawn if case is not None))


def long_case(cases: Sequence[Case], seed: int | str) -> Case | None:
    """Return a case of a 16-bit dtype with one dimension as long as LARGEST allows, also beyond the
    declared sizes, and the others short: a sum kept in 16 bits leaves the tolerance there. None if
    no dimension takes any size."""
    chance = random.Random(f"long {seed}")
    known = [case for case in _known(cases) if case.itemsize == 2]
    if not known:
        return None
    base = chance.choice(known)
    sizes = _sizes_of(base, known)
    free = [dim for dim, declared in enumerate(sizes) if _takes_any(declared)]
    if not free:
        return None
    long = chance.choice(free)
    shape = [
        min(declared) if dim in free else size
        for dim, (size, declared) in enumerate(zip(base.shape, sizes, strict=True))
    ]
    shape[long] = 1
    shape[long] = max(LARGEST // math.prod(shape) - chance.randrange(16), 1)
    return Case(tuple(shape), base.dtype, base.values)


def huge_case(cases: Sequence[Case], seed: int | str) -> Case | None:
    """Return a random case of values beyond 1e30; None if no dtype of the cases holds them. Of use
    where `expected.in_range` is true."""
    drawn = random_case([case for case in cases if case.dtype in _WIDE], f"huge {seed}")
    return drawn and replace(drawn, values="huge")


def _known(cases: Sequence[Case]) -> list[Case]:
    """Return the cases that others are derived from."""
    return [
        case
        for case in cases
        if case.values == "normal" and case.shape and 0 < math.prod(case.shape) <= LARGEST
    ]


def _sizes_of(base: Case, known: Sequence[Case]) -> list[list[int]]:
    """Return the sizes of each dimension in all cases of the rank of `base`, in order."""
    shapes = [case.shape for case in known if len(case.shape) == len(base.shape)]
    return [sorted(set(sizes)) for sizes in zip(*shapes, strict=True)]


def _takes_any(sizes: Sequence[int]) -> bool:
    """Return True for a dimension that is odd in one of the cases, and so need be no multiple."""
    return any(size % 2 and size > 1 for size in sizes)


def random_case(cases: Sequence[Case], seed: int | str) -> Case | None:
    """Return one of the cases with other sizes, determined by the seed; None if none has sizes.

    A dimension that is odd in one of the cases takes any size up to its largest one; any other
    dimension takes only sizes from the cases, since they may have to be multiples.
    """
    chance = random.Random(seed)
    known = _known(cases)
    if not known:
        return None
    base = chance.choice(known)
    declared = _sizes_of(base, known)
    shape = list(base.shape)
    for dim in chance.sample(range(len(shape)), len(shape)):
        sizes = declared[dim]
        rest = math.prod(shape) // shape[dim]
        if _takes_any(sizes):
            most = min(sizes[-1], max(LARGEST // rest, 1))
            shape[dim] = _size(chance, most)
        else:
            fitting = [size for size in sizes if size * rest <= LARGEST]
            shape[dim] = chance.choice(fitting or [shape[dim]])
    return Case(tuple(shape), base.dtype, base.values)


def _size(chance: random.Random, most: int) -> int:
    """Return a size in [1, most]: often next to a multiple of a tile's size, often of any order of
    magnitude, else any."""
    tile = chance.choice(_TILES)
    near = tile * chance.randint(1, max(most // tile, 1)) + chance.choice((-1, 0, 1))
    kind = chance.random()
    if kind < 0.4 and 1 <= near <= most:
        return near
    return round(most ** chance.random()) if kind < 0.8 else chance.randint(1, most)
