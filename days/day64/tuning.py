"""Which tile, order and pipeline a product in Triton gets: a fixed list, timed once per GPU."""

import json
import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from common.cpu.models import played

STORED = "tuned.json"  # by GPU: M, N, K, A by k, B by k, and the configuration
NEAR = 2.0  # log2 of the ratios of M, N and K, added up, up to which a stored size serves another


# How tiles come to shared memory. TMA needs rows of a multiple of 16 bytes, and compute capability
# 9.0.
POINTERS, TMA = "pointers", "TMA"  # a program for each tile; an address for each 16 bytes, or TMA
PERSISTENT = "persistent"  # TMA, and a program for each multiprocessor


class Config(NamedTuple):
    """What a kernel is compiled for. group: rows of tiles per group."""

    BM: int
    BN: int
    BK: int
    group: int
    stages: int
    warps: int
    loads: str


PLAIN = Config(128, 128, 64, 1, 3, 4, POINTERS)
GROUPED = PLAIN._replace(group=8)
CONFIGS = (  # large tiles first
    Config(128, 256, 64, 8, 3, 8, TMA),
    Config(128, 256, 64, 8, 4, 8, TMA),
    Config(128, 256, 64, 16, 4, 8, TMA),
    Config(256, 128, 64, 8, 4, 8, TMA),
    Config(128, 256, 64, 8, 3, 8, PERSISTENT),
    Config(128, 256, 64, 8, 3, 8, POINTERS),
    Config(128, 128, 64, 8, 4, 4, TMA),
    Config(128, 128, 64, 8, 6, 8, TMA),
    GROUPED,
    Config(128, 64, 64, 8, 4, 4, TMA),
    Config(64, 64, 64, 8, 4, 4, TMA),
    Config(64, 64, 64, 8, 4, 4, POINTERS),
)


@cache
def stored():
    """All choices by GPU; {} before any was stored."""
    path = Path(__file__).parent / "results/show" / STORED
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


@cache
def multiprocessors(device):
    if device.type != "cuda":
        return played().multiprocessors
    return torch.cuda.get_device_properties(device).multi_processor_count


def has_tma(device):
    """Whether tiles can come by TMA. On the CPU, Triton's interpreter plays it."""
    return device.type != "cuda" or torch.cuda.get_device_properties(device).major >= 9


def nearest(rows, M, N, K, a_by_k, b_by_k):
    """The stored configuration of the nearest size with this layout, None where none is NEAR."""
    best, choice = NEAR, None
    for m, n, k, of_a, of_b, config in rows:
        far = sum(abs(math.log2(x / y)) for x, y in ((m, M), (n, N), (k, K)))
        if (of_a, of_b) == (a_by_k, b_by_k) and far <= best:
            best, choice = far, Config(*config)
    return choice


def default(M, N, programs, loads):
    """For what was never timed: the largest tile of which there are so many programs, or the
    smallest. Loads through pointers may run on any card, so their stages have to be small."""
    usable = [c for c in CONFIGS if c.loads == loads and (loads == TMA or c.BN < 256)]
    for config in usable:
        if math.ceil(M / config.BM) * math.ceil(N / config.BN) >= programs:
            return config
    return usable[-1]


@cache
def chosen(device, M, N, K, a_by_k, b_by_k, whole):
    """The configuration of a product. whole: rows are multiples of 16 bytes, as TMA needs them."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    config = nearest(stored().get(name, ()), M, N, K, a_by_k, b_by_k)
    if config is None or (config.loads != POINTERS and not whole):
        loads = TMA if whole and has_tma(device) else POINTERS
        config = default(M, N, multiprocessors(device), loads)
    return config
