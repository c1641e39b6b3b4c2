"""The autotuner: times all tilings and splits for many sizes, and chooses by what is stored."""

import json
import math
from functools import lru_cache, partial
from pathlib import Path

import torch

from common.cpu.models import played
from common.day import print_table, seconds
from common.references.sgemm_rates import SGEMM_SIZES, sgemm_operands, size_name

STORED = "tuned.json"  # by GPU: M, N, K, A transposed, B transposed, tiling, splits
TILINGS = range(7)
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
DEPTH = 16  # of a tile
FEWEST = 4  # tiles per split
MOST_SUMS = 1 << 26  # numbers that all splits store
NEAR = 2.0  # log2 of the ratios of M, N and K, added up, up to which a stored size serves another


def stored():
    """All choices by GPU; {} before any was stored."""
    path = Path(__file__).parent / "results/show" / STORED
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def sensible_splits(M, N, K):
    """Those that leave FEWEST tiles for each part of K, and take little memory for the sums."""
    return [
        splits
        for splits in SPLITS
        if splits == 1 or (splits * FEWEST * DEPTH <= K and splits * M * N <= MOST_SUMS)
    ]


def estimate(M, N, K, multiprocessors, tile, splits):
    """Clocks that a product takes, roughly. tile: rows and columns per block.

    Per value of k, a multiprocessor needs a clock for 128 multiply-adds, and one for 8 numbers that
    it loads. A block needs 2000 to begin and to end, and the second kernel of split-K 5000.
    """
    rows, columns = tile
    blocks = math.ceil(M / rows) * math.ceil(N / columns) * splits
    per_block = K / splits * (rows * columns / 128 + (rows + columns) / 8) + 2000
    adding = 5000 + splits * M * N / multiprocessors / 8
    return math.ceil(blocks / multiprocessors) * per_block + (adding if splits > 1 else 0)


def default(M, N, K, multiprocessors, tiles):
    """The tiling and the splits with the best estimate: for what was never tuned."""
    choices = [(tiling, splits) for tiling in TILINGS for splits in sensible_splits(M, N, K)]
    return min(choices, key=lambda one: estimate(M, N, K, multiprocessors, tiles[one[0]], one[1]))


def nearest(rows, M, N, K, a_transposed, b_transposed):
    """The stored choice for a size within NEAR of this one, if there is one; the same layout first.

    rows: what is stored of this GPU.
    """
    best, choice = (NEAR, True), None
    for m, n, k, a, b, tiling, splits in rows:
        far = sum(abs(math.log2(x / y)) for x, y in ((m, M), (n, N), (k, K)))
        found = (far, (a, b) != (a_transposed, b_transposed))
        if found <= best:
            best, choice = found, (tiling, splits)
    return choice


def load_tuned(builder):
    """`tuned` by what is stored."""
    return tuned(builder.operators(), stored())


def tuned(operators, choices):
    """v4 as users call it: the rung's arguments without tiling and splits.

    choices: by GPU, see STORED.
    """

    @lru_cache
    def of_device(device):
        on = torch.empty(1, device=device)
        tiles = [operators.tile_of(on, tiling) for tiling in TILINGS]
        if device.type != "cuda":
            return [], played().multiprocessors, tiles
        found = torch.cuda.get_device_properties(device)
        return choices.get(found.name, []), found.multi_processor_count, tiles

    @lru_cache(maxsize=4096)
    def choose(device, M, N, K, a_transposed, b_transposed):
        rows, multiprocessors, tiles = of_device(device)
        if min(M, N, K) == 0:
            return 0, 1
        choice = nearest(rows, M, N, K, a_transposed, b_transposed)
        return choice or default(M, N, K, multiprocessors, tiles)

    def sgemm_v4_tuned(a, b, c=None, a_transposed=False, b_transposed=False, alpha=1.0, beta=0.0):
        choice = 0, 1  # for operands that the operator refuses
        if a.dim() == b.dim() == 2:
            M, K = a.shape[::-1] if a_transposed else a.shape
            N = b.shape[0 if b_transposed else 1]
            choice = choose(a.device, M, N, K, a_transposed, b_transposed)
        return operators.sgemm_v4_tuned(a, b, c, a_transposed, b_transposed, alpha, beta, *choice)

    return sgemm_v4_tuned


def tune(operators, device):
    """Times every tiling with every sensible number of splits, prints the best of each size, and
    returns what is stored with them."""
    rows, table = [], []
    for size in SGEMM_SIZES:
        M, N, K = size[:3]
        arguments = (*sgemm_operands(size, device), 1.0, 0.0)
        times = {
            (tiling, splits): seconds(partial(operators.sgemm_v4_tuned, *arguments, tiling, splits))
            for tiling in TILINGS
            for splits in sensible_splits(M, N, K)
        }
        best = min(times, key=times.__getitem__)
        rows.append([*size, *best])
        unsplit = [2e-12 * M * N * K / times[tiling, 1] for tiling in TILINGS]
        rate = 2e-12 * M * N * K / times[best]
        table.append([size_name(*size), *(f"{r:.1f}" for r in unsplit), *best, f"{rate:.1f}"])
    print("TFLOP/s of the tilings without splits, and the best choice")
    print_table(["M × N × K", *map(str, TILINGS), "tiling", "splits", "TFLOP/s"], table)
    return stored() | {torch.cuda.get_device_name(device): rows}
