"""Cooperative groups: `cpu_kernels/groups.cu`, in every order on the CPU backend, and on a GPU.

Sums of floats are expected in the order in which NVIDIA's header adds, bit for bit.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

from common.cpu import backend
from tests.kernel_files import Call

KERNELS = "groups"
LIKE = torch.zeros(1)


def _values() -> torch.Tensor:
    return torch.randint(0, 90, (64,), generator=torch.Generator().manual_seed(3)) / 10 + 0.04


# ---------------------------------------------------------------- sums of a group


def _butterfly(values: list[Any], op: Callable[[Any, Any], Any]) -> list[Any]:
    bit = len(values) // 2
    while bit:
        values = [op(values[i], values[i ^ bit]) for i in range(len(values))]
        bit //= 2
    return values


def _scan(values: list[Any], op: Callable[[Any, Any], Any]) -> list[Any]:
    distance = 1
    while distance < len(values):
        values = [op(v, values[i - distance]) if i >= distance else v for i, v in enumerate(values)]
        distance *= 2
    return values


def _sum_of_group(values: list[np.float32]) -> list[np.float32]:
    add = np.float32.__add__
    if len(values) == 32:
        return _butterfly(values, add)
    return [_scan(values, add)[-1]] * len(values)


def _bits(flags: Iterable[object]) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


# ---------------------------------------------------------------- places


def test_sizes_and_ranks(call: Call) -> None:
    got = call("places", LIKE).tolist()
    for thread, row in enumerate(got):
        block, t = divmod(thread, 64)
        assert row == [
            *(64, t, 128, thread),
            *(t % 16 * 100 + 16, t // 16 * 100 + 4),
            *(t % 4 * 100 + 4, t % 16 // 4 * 100 + 4),
            *(64 * 10000 + t, 4 * 10000 + t % 4, 8 * 10000 + t % 8),
            block * 1000 + t // 32 * 100 + 4 + t % 4 * 16,
        ]


@pytest.mark.parametrize("size", [1, 4, 16, 32])
def test_tiles(call: Call, size: int) -> None:
    x = _values()
    got = call("tiles", x, size)
    want = np.zeros((22, 64), np.float32)
    for start in range(0, 64, size):
        v = list(x[start : start + size].numpy())
        i = [int(np.float32(a) * np.float32(10)) for a in v]
        added = _scan(v, np.float32.__add__)
        ranks = range(size)
        best = _butterfly(
            [(a, start + r) for r, a in enumerate(v)], lambda a, b: b if a[0] < b[0] else a
        )
        rows: list[Any] = [
            [v[1 % size]] * size,
            [v[max(r - 1, 0)] if r else v[0] for r in ranks],
            [v[r + 2] if r + 2 < size else v[r] for r in ranks],
            [v[r ^ 1] if r ^ 1 < size else v[r] for r in ranks],
            [v[0] + 2 * v[r + 1 if r + 1 < size else r] for r in ranks],
            [3 in i] * size,
            [True] * size,
            [_bits([a % 2 for a in i]) & 0xFFFF] * size,
            [_bits([a == i[r] for a in i]) & 0xFFFF for r in ranks],
            [len(set(i)) == 1] * size,
            _butterfly(v, np.float32.__add__),
            [sum(i)] * size,
            [min(v)] * size,
            [max(v)] * size,
            [np.bitwise_xor.reduce(i)] * size,
            [b[1] for b in best],
            added,
            [0, *added[:-1]],
            np.cumsum(i),
            np.cumsum(i) - i,
            np.maximum.accumulate(v),
            [i[0] + 1] * size,
        ]
        want[:, start : start + size] = rows
    for row in range(22):
        np.testing.assert_array_equal(got[row].numpy(), want[row], f"row {row}")


def test_coalesced_groups_and_partitions(call: Call) -> None:
    x = _values()
    x[::5] = -1
    x[32:] = x[32:].abs()  # a whole warp, and one with holes
    got = call("coalesced", x).numpy()
    want = np.full((16, 64), -1, np.float32)
    for warp in range(2):
        lanes = [t for t in range(warp * 32, warp * 32 + 32) if x[t] >= 0]
        v = list(x[lanes].numpy())
        i = [int(a * np.float32(10)) for a in v]
        n = len(v)
        labels = list(dict.fromkeys(a % 3 for a in i))
        parts = [[r for r in range(n) if i[r] % 3 == label] for label in labels]
        halves = [[r for r in range(n) if (i[r] % 2 == 0) == flag] for flag in (False, True)]
        fours = [list(range(s, min(s + 4, n))) for s in range(0, n, 4)]

        def place(groups: list[list[int]], r: int) -> tuple[int, list[int]]:
            rank = next(k for k, group in enumerate(groups) if r in group)
            group = groups[rank]
            return len(group) * 10000 + group.index(r) * 100 + rank * 10 + len(groups), group

        scanned = _scan(v, np.float32.__add__)
        for r, t in enumerate(lanes):
            part, half, four = place(parts, r), place(halves, r), place(fours, r)
            in_half = _scan([v[k] for k in half[1]], np.float32.__add__)
            want[:, t] = [
                *(n, r, v[2], v[max(r - 1, 0)], v[r + 3] if r + 3 < n else v[r]),
                np.float32(_bits([a % 2 for a in i])),
                _sum_of_group(v)[r],
                scanned[r],
                sum(i[:r]),
                part[0],
                max(v[k] for k in part[1]),
                half[0],
                four[0],
                _sum_of_group([v[k] for k in four[1]])[0],
                (3 in i) * 10 + 1,
                in_half[half[1].index(r) - 1] if half[1].index(r) else 0,
            ]
    for row in range(16):
        np.testing.assert_array_equal(got[row], want[row], f"row {row}")


def test_one_atomic_for_threads_that_come_together(call: Call) -> None:
    x = torch.randint(0, 100, (1000,), dtype=torch.int32)
    got = call("aggregate", x, exact=False)  # in the order in which warps come
    chosen = (x % 3 == 0).nonzero().flatten()
    assert got[-1].item() == len(chosen)
    assert sorted(got[:-1][chosen].tolist()) == list(range(len(chosen)))


# ---------------------------------------------------------------- the grid


@pytest.mark.parametrize("how", [0, 1, 2])
def test_a_grid_that_synchronises(call: Call, how: int) -> None:
    values = torch.arange(13, dtype=torch.int32)
    want = values.clone()
    for _ in range(5):
        want = want.sum() % 1000 + torch.arange(13)
    call("grid", values, 5, how)
    assert torch.equal(values, want.int())


def test_blocks_that_may_wait_for_each_other_are_limited(
    call: Call, cpu_runtime: backend.Runtime
) -> None:
    for model in ("7.5", "8.6", "9.0"):
        cpu_runtime.set_model(model)
        call("limits", LIKE)


# ---------------------------------------------------------------- barriers in two halves


@pytest.mark.parametrize(("threads", "rounds"), [(64, 5), (100, 9), (1, 3)])
def test_a_barrier_in_two_halves(call: Call, threads: int, rounds: int) -> None:
    got = call("split", LIKE, threads, rounds)
    # A thread that leaves after round 5 does not write for its neighbour any more.
    if threads > 1 and rounds > 6:
        lost = [t for t in range(threads) if (t + 1) % threads % 7 == 3]
        keep = [t for t in range(threads) if t not in lost]
    else:
        keep = list(range(threads))
    for t in keep:
        last = min(rounds, 6) if t % 7 == 3 else rounds
        assert got[t] == sum(r + (t + 1) % threads * r for r in range(last)), t


# ---------------------------------------------------------------- copies


def test_copies_in_two_stages(call: Call) -> None:
    x = torch.randn(5 * 96, generator=torch.Generator().manual_seed(1))
    want = x.reshape(5, 96).flip(1) + torch.arange(5.0)[:, None]
    assert torch.equal(call("staged", x), want.reshape(-1))


@pytest.mark.parametrize(
    ("n", "offset"), [(0, 0), (1, 0), (40, 1), (63, 1), (48, 16), (33, 5), (33, 9)]
)
def test_copies_of_bytes(call: Call, n: int, offset: int) -> None:
    x = torch.randint(-128, 127, (8 * 64,), dtype=torch.int8)
    got = call("bytes", x, n, offset).reshape(8, 64)
    for tile in range(8):
        assert torch.equal(got[tile, :n], x[tile * 64 + offset :][:n])
        assert (got[tile, n:] == -1).all()


# ---------------------------------------------------------------- tiles of several warps


def _wide_scan(values: list[np.float32]) -> tuple[list[np.float32], list[np.float32]]:
    """Return inclusive and exclusive sums in NVIDIA's order: each warp, then the sums of the
    warps."""
    add = np.float32.__add__
    warps = [_scan(values[start : start + 32], add) for start in range(0, len(values), 32)]
    sums = _scan([warp[-1] for warp in warps], add)
    inclusive: list[np.float32] = []
    exclusive: list[np.float32] = []
    for number, warp in enumerate(warps):
        before = sums[number - 1] if number else np.float32(0)
        inclusive += [add(v, before) if number else v for v in warp]
        shifted = [add(v, before) if number else v for v in warp[:-1]]
        exclusive += [before, *shifted]
    return inclusive, exclusive


def _wide_sum(values: list[np.float32]) -> Any:
    add = np.float32.__add__
    if len(values) <= 32:
        return _butterfly(values, add)[0]
    starts = range(0, len(values), 32)
    return _butterfly([_butterfly(values[s : s + 32], add)[0] for s in starts], add)[0]


@pytest.mark.parametrize("size", [64, 128, 256, 512])
def test_tiles_of_several_warps(call: Call, size: int) -> None:
    x = torch.randint(0, 90, (1024,), generator=torch.Generator().manual_seed(3)) / 10 + 0.04
    x[size - 1] = 0.34  # for `any`, in the first tile only
    x[2 * size - 1] = 0.54
    got = call("wide_tiles", x, size)
    half = size // 2
    for start in range(0, 1024, size):
        v = list(x[start : start + size].numpy())
        i = [int(np.float32(a) * np.float32(10)) for a in v]
        inclusive, exclusive = _wide_scan(v)
        ranks = np.arange(size)
        want = [
            ranks + size,
            [start // size * 100 + 1024 // size] * size,
            ranks // half * 1000 + ranks % half,
            [size + start + 5] * size,
            [v[-3]] * size,
            [i[-1] == 3] * size,
            [max(i) < 80] * size,
            [_wide_sum(v)] * size,
            [sum(i)] * size,
            [max(v)] * size,
            [_wide_sum(v[:half])] * half + [_wide_sum(v[half:])] * half,
            inclusive,
            exclusive,
            np.cumsum(i),
            np.cumsum(i) - i,
            [i[0] + 1] * size,
        ]
        for row, values in enumerate(want):
            mine = got[row, start : start + size].numpy()
            np.testing.assert_array_equal(mine, np.array(values, np.float32), f"row {row}")


# ---------------------------------------------------------------- faults

FAULTS = {
    "grid_sync_in_a_branch": (0, r"128 thread\(s\) wait in grid.sync\(\)(.|\n)*in 1 block"),
    "grid_sync_not_by_all": (1, r"120 thread\(s\) wait in grid.sync\(\)"),
    "tile_without_threads": (2, "reduce of a group: 16 threads of a tile of 32 take part"),
    "tile_in_a_branch": (3, "shfl_down of a group while lanes .* wait in shfl of a group"),
    "block_sync_in_a_branch": (4, "divergent barrier: this thread is in thread_block::sync"),
    "arrives_twice": (5, "barrier_arrive: this thread has arrived before and not waited since"),
    "waits_alone": (
        6,
        r"40 thread\(s\) wait in thread_block::barrier_wait .* 40 of the block's 64 threads",
    ),
    "waits_without_arriving": (7, "barrier_wait: this thread has not arrived"),
    "wide_tile_without_threads": (8, "tiled_partition<64>: the block's 96 threads are no multiple"),
    "wide_tile_in_a_branch": (9, "(any|all) of a tile, while .* of 64 are in (any|all) of a tile"),
    "wide_tile_that_loses_a_thread": (10, "sync of a tile .* 63 of the tile's 64 threads"),
    "copies_a_part_of_a_word": (11, "memcpy_async: 7 bytes; the number must be a multiple of 4"),
    "copies_to_an_odd_address": (12, "memcpy_async: misaligned address.*multiples of 16"),
    "copies_odd_pairs": (14, "memcpy_async: .* 2 bytes apart.* the number of bytes, 6, must be"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(cpu_call: Call, name: str) -> None:
    which, message = FAULTS[name]
    if name == "tile_in_a_branch":
        message += "|shfl of a group while lanes .* wait in shfl_down of a group"
    with pytest.raises(RuntimeError, match=message) as caught:
        cpu_call("fault", torch.zeros(4, dtype=torch.int32), which)
    assert "groups.cu:" in str(caught.value)
    values = torch.zeros(3, dtype=torch.int32)
    cpu_call("grid", values, 1, 0)  # the next launch is well
    assert values.tolist() == [0, 1, 2]


def test_a_copy_read_before_its_wait_is_not_there(
    operators: Any, cpu_runtime: backend.Runtime
) -> None:
    for completion, there in (("late", 0), ("early", 1)):
        cpu_runtime.set_schedule("reverse", completion=completion)  # the copying thread last
        words = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
        operators.fault(words, 13)
        assert words.tolist() == [there] * 4


def test_grid_sync_needs_a_cooperative_launch(cpu_call: Call) -> None:
    with pytest.raises(RuntimeError, match="was not launched cooperatively"):
        cpu_call("grid", torch.zeros(3, dtype=torch.int32), 1, 3)
