"""Which tile, order and pipeline a product in Triton gets: a fixed list, timed once per GPU."""

import json
import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from common.day import played

STORED = "tuned.json"  # by GPU: M, N, K, A by k, B by k, and the configuration
NEAR = 2.0  # log2 of the ratios of M, N and K, added up, up to which a stored size serves another


class Config(NamedTuple):
    """What a kernel is compiled for. group: rows of tiles per group. descriptors: tiles come by
    TMA, which needs rows of a multiple of 16 bytes, and compute capability 9.0."""

    BM: int
    BN: int
    BK: int
    group: int
    stages: int
    warps: int
    descriptors: bool


PLAIN = Config(128, 128, 64, 1, 3, 4, False)
GROUPED = PLAIN._replace(group=8)
CONFIGS = (  # large tiles first
    Config(128, 256, 64, 8, 3, 8, True),
    Config(128, 256, 64, 8, 4, 8, True),
    Config(256, 128, 64, 8, 4, 8, True),
    Config(128, 256, 64, 16, 4, 8, True),
    Config(128, 256, 64, 8, 3, 8, False),
    Config(128, 128, 64, 8, 4, 4, True),
    Config(128, 128, 64, 8, 6, 8, True),
    GROUPED,
    Config(128, 64, 64, 8, 4, 4, True),
    Config(64, 64, 64, 8, 4, 4, True),
    Config(64, 64, 64, 8, 4, 4, False),
)


@cache
def stored():
    """All choices by GPU; {} before any was stored."""
    path = Path(__file__).parent / STORED
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


@cache
def card(device):
    """A device's name, multiprocessors, and whether it has TMA; on the CPU, the card it plays, and
    Triton's interpreter has descriptors."""
    if device.type != "cuda":
        return "", played().multiprocessors, True
    found = torch.cuda.get_device_properties(device)
    return found.name, found.multi_processor_count, found.major >= 9


def nearest(rows, M, N, K, a_by_k, b_by_k):
    """The stored configuration of the nearest size with this layout, None where none is NEAR."""
    best, choice = NEAR, None
    for m, n, k, of_a, of_b, config in rows:
        far = sum(abs(math.log2(x / y)) for x, y in ((m, M), (n, N), (k, K)))
        if (of_a, of_b) == (a_by_k, b_by_k) and far <= best:
            best, choice = far, Config(*config)
    return choice


def default(M, N, multiprocessors, descriptors):
    """For what was never timed: the largest tile with one for each multiprocessor, or the
    smallest. Without TMA, no stages of 48 KB, which smaller cards have no room for."""
    usable = [c for c in CONFIGS if c.descriptors == descriptors and (descriptors or c.BN < 256)]
    for config in usable:
        if math.ceil(M / config.BM) * math.ceil(N / config.BN) >= multiprocessors:
            return config
    return usable[-1]


@cache
def chosen(device, M, N, K, a_by_k, b_by_k, whole):
    """The configuration of a product. whole: rows are multiples of 16 bytes, as TMA needs them."""
    name, multiprocessors, has_tma = card(device)
    config = nearest(stored().get(name, ()), M, N, K, a_by_k, b_by_k)
    if config is None or (config.descriptors and not whole):
        config = default(M, N, multiprocessors, has_tma and whole)
    return config
