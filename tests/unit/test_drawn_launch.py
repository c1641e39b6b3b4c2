"""A recorded launch is drawn: which thread read and wrote which element, as lines and as an SVG."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from dataclasses import asdict

from common.check.guard import GuardedTensor
from common.cpu.launch_record import RecordedAccess, RecordedLaunch, SharedVariable
from common.report.drawn_call import MOST_LINES, WIDTH, DrawnCall, DrawnRungs
from common.report.drawn_launch import DrawnLaunch
from common.tools.launch_trace import constants_of, drawn_launch

X, Y, BAND = 0x10000, 0x20000, 0x1000
Accesses = Iterable[RecordedAccess]


def tensor(name: str, address: int, *shape: int) -> GuardedTensor:
    size = 4
    for each in shape:
        size *= each
    return GuardedTensor(
        name, "float32", shape, 4, address, (address - BAND, address + size + BAND)
    )


def access(
    kind: str, address: int, block: int, thread: int, phase: int = 0, size: int = 4
) -> RecordedAccess:
    shared = address < X - BAND
    return RecordedAccess(kind, shared, block, thread, phase, block, address, size)  # type: ignore[arg-type]


def launch(
    accesses: Accesses,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: list[SharedVariable] | None = None,
    barriers: int = 0,
) -> RecordedLaunch:
    passed = {0: barriers} if barriers else {}
    return RecordedLaunch("kernel", grid, block, passed, {}, shared or [], [], list(accesses), 0)


def drawn(
    recorded: RecordedLaunch, *tensors: GuardedTensor, never: dict[str, list[int]] | None = None
) -> tuple[DrawnLaunch, list[str]]:
    """Return the launch, and its lines, which keep to their limits and survive JSON."""
    found = drawn_launch(recorded, tensors, {"SIDE": 4}, never or {})
    call = DrawnCall("rung", "10 float32", [found])
    again = DrawnCall.from_json(json.loads(json.dumps(asdict(call))))
    assert again == call
    lines = again.lines()
    assert len(lines) <= MOST_LINES and max(map(len, lines)) <= WIDTH
    ET.fromstring(DrawnRungs([call]).svg())
    return found, lines


def copy(index: Callable[[int, int], int], blocks: int, threads: int, n: int) -> Accesses:
    """Return the accesses of threads that each copy x[index] to y[index]."""
    for block in range(blocks):
        for thread in range(threads):
            if (i := index(block, thread)) < n:
                yield access("read", X + 4 * i, block, thread)
                yield access("write", Y + 4 * i, block, thread)


def test_a_thread_per_element() -> None:
    copied = copy(lambda block, thread: 8 * block + thread, 2, 8, 10)
    _, lines = drawn(launch(copied, (2, 1, 1), (8, 1, 1)), tensor("x", X, 10), tensor("y", Y, 10))
    assert lines == [
        "rung on 10 float32: 2 blocks of 8 threads",
        "  y (10)  each written once: [i] by thread i of the grid",
        "    [0..7] block 0: t0 t1 t2 t3 t4 t5 t6 t7",
        "    [8..9] block 1: t0 t1",
        "  x (10)  each read once, by the thread that writes the same index",
        "  threads 2 to 7 of block 1 touched nothing",
    ]


def test_a_grid_stride_loop_comes_back_to_the_first_block() -> None:
    looped = [
        access("write", Y + 4 * (first + 32 * block + thread), block, thread)
        for first in (0, 64)
        for block in range(2)
        for thread in range(32)
    ]
    found, lines = drawn(launch(looped, (2, 1, 1), (32, 1, 1)), tensor("y", Y, 128))
    assert found.threads == 8 and not found.tensors[0].whole
    assert lines[2:6] == [
        "    [0..7]    block 0: t0 t1 t2 t3 t4 t5 t6 t7",
        "    [32..39]  block 1: t0 t1 t2 t3 t4 t5 t6 t7",
        "    [64..71]  block 0: t0 t1 t2 t3 t4 t5 t6 t7",
        "    [96..103] block 1: t0 t1 t2 t3 t4 t5 t6 t7",
    ]


def test_a_vectorised_store_is_one_access() -> None:
    stores = [access("write", Y + 16 * thread, 0, thread, size=16) for thread in range(2)]
    _, lines = drawn(launch(stores, (1, 1, 1), (8, 1, 1)), tensor("y", Y, 8))
    assert lines[1:3] == [
        "  y (8)  each written once, 4 elements per access: [i] by thread i / 4 of the",
        "    grid",
    ]
    assert lines[3] == "    [0..7]  t0 ·· ·· ·· t1 ·· ·· ··"


def test_a_transpose_swaps_the_parts_of_an_index() -> None:
    threads = [(r, c, 8 * r + c) for r in range(2) for c in range(3)]
    moved = [access("read", X + 4 * (3 * r + c), 0, thread) for r, c, thread in threads]
    moved += [access("write", Y + 4 * (2 * c + r), 0, thread) for r, c, thread in threads]
    _, lines = drawn(
        launch(moved, (1, 1, 1), (8, 4, 1)), tensor("x", X, 2, 3), tensor("y", Y, 3, 2)
    )
    assert lines[1:5] == [
        "  y (3×2)  each written once: [r, c] by thread (r, c) of the grid",
        "    [0, 0..1]  0,0 0,1",
        "    [1, 0..1]  1,0 1,1",
        "    [2, 0..1]  2,0 2,1",
    ]
    assert lines[5] == "  x (2×3)  each read once: [r, c] by thread (c, r) of the grid"


def test_what_was_missed_or_hit_twice_is_named() -> None:
    stores = [access("write", Y + 4 * i, 0, thread) for thread, i in enumerate((0, 1, 1, 3, 4))]
    _, lines = drawn(launch(stores, (1, 1, 1), (8, 1, 1)), tensor("y", Y, 4), never={"y": [2]})
    assert "each written 1 to 2 times; 1 element NEVER WRITTEN (—)" in lines[1]
    assert (
        lines[2].strip()
        == "OUT OF BOUNDS: 1 element written beside it, as y[4] of 4 by thread 4 of"
    )
    assert lines[4].split() == ["[0..3]", "t0", "t1+t2", "—", "t3"]


def test_an_output_that_nothing_writes_is_shown() -> None:
    _, lines = drawn(launch([], (1, 1, 1), (8, 1, 1)), tensor("y", Y, 4), never={"y": [0, 1, 2, 3]})
    assert lines[1:] == [
        "  y (4)  never written",
        "    [0..3]  — — — —",
        "  all threads touched nothing",
    ]


def tree(threads: int) -> Accesses:
    """Return the accesses of a tree reduction of an array at 1024."""
    for thread in range(threads):
        yield access("write", 1024 + 4 * thread, 0, thread)
    half, phase = threads // 2, 1
    while half:
        for thread in range(half):
            yield access("read", 1024 + 4 * thread, 0, thread, phase)
            yield access("read", 1024 + 4 * (thread + half), 0, thread, phase)
            yield access("write", 1024 + 4 * thread, 0, thread, phase)
        half, phase = half // 2, phase + 1
    yield access("write", Y, 0, 0, phase)


def test_a_tree_halves_its_threads_from_barrier_to_barrier() -> None:
    array = SharedVariable(1024, 128, "float partial[BLOCK]")
    recorded = launch(tree(32), (1, 1, 1), (32, 1, 1), [array], barriers=6)
    found, lines = drawn(recorded, tensor("y", Y, 1))
    text = "\n".join(lines)
    assert "from barrier to barrier: 32, 16, 8, 4, 2, 1" in text
    assert "thread 0 combines the elements 0+16, 0+8, 0+4, 0+2, 0+1" in text
    assert "threads 1 to 31 touched shared memory only" in text
    assert "each block passed 6 barriers" in text
    assert found.shared[0].phases[1].links == [(thread + 16, thread) for thread in range(16)]


def test_a_tile_is_drawn_as_a_matrix_of_the_shape_that_is_declared() -> None:
    array = SharedVariable(1024, 80, "float tile[SIDE][SIDE + 1]")
    cells = [
        access("write", 1024 + 4 * (5 * r + c), 0, 4 * r + c) for r in range(2) for c in (0, 1)
    ]
    cells += [
        access("read", 1024 + 4 * (5 * c + r), 0, 4 * r + c, 1) for r in (0, 1) for c in (0, 1)
    ]
    found, lines = drawn(launch(cells, (1, 1, 1), (4, 4, 1), [array], 1))
    tile = found.shared[0].cells
    assert tile is not None and tile.shape == (4, 5)
    assert "  shared tile (4×5)  4 of 20 read once: [r, c] by thread (r, c) of its block" in lines


def test_constants_of_a_source_are_known() -> None:
    text = (
        "constexpr int TILE = 32;  // a\nconstexpr int PITCH = TILE + 1;\nconstexpr float X = 0.5f;"
    )
    assert constants_of([text]) == {"TILE": 32, "PITCH": 33}


def test_a_drawing_without_a_launch_says_so() -> None:
    call = DrawnCall("rung", "", [], ["it launches no kernel of the day's library"])
    assert call.lines() == ["rung: no launch", "  it launches no kernel of the day's library"]
    rungs = DrawnRungs([call], ["other: it is interpreted"])
    assert rungs.lines()[-1] == "other: it is interpreted"
    assert "it is interpreted" in rungs.svg()
