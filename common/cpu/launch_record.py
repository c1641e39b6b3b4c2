"""Hold the CPU backend's record of a launch as plain data: the reads and writes of each thread."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from common.cpu.backend import Runtime
from common.cpu.findings import kernel_name

Kind = Literal["read", "write", "atomic"]
_KINDS: tuple[Kind, ...] = ("read", "write", "atomic")


@dataclass(frozen=True)
class RecordedAccess:
    """One access of a thread. block, thread: their numbers in the grid and in the block, x first.
    phase: barriers that the block had passed. address: of memory; in shared memory, the byte offset
    in the block's. owner: the block of the shared memory."""

    kind: Kind
    shared: bool
    block: int
    thread: int
    phase: int
    owner: int
    address: int
    bytes: int


@dataclass(frozen=True)
class SharedVariable:
    """An array in the shared memory of each block. offset: its first byte. declaration: as in
    "float tile[32][33]"."""

    offset: int
    bytes: int
    declaration: str


@dataclass(frozen=True)
class RecordedLaunch:
    """A launch of a kernel and its accesses in the order in which they ran.

    grid: blocks along x, y, z. block: threads along x, y, z. barriers: passed by each block, by its
    number. warp_meetings: how often lanes of a warp met (shuffles, votes, __syncwarp), by block and
    warp. allocations: first byte and bytes of each allocation of the runtime API that was accessed.
    left_out: number of accesses beyond the recorded ones.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    barriers: dict[int, int]
    warp_meetings: dict[tuple[int, int], int]
    shared: list[SharedVariable]
    allocations: list[tuple[int, int]]
    accesses: list[RecordedAccess]
    left_out: int


def take(runtime: Runtime) -> list[RecordedLaunch]:
    """Return the launches recorded since the last call; `runtime` is of the variant "trace"."""
    report = json.loads(runtime.take_trace())
    names = [kernel_name(kernel["name"]) for kernel in report["kernels"]]
    return [_launch(item, names) for item in report["launches"]]


def _launch(item: dict[str, Any], names: list[str]) -> RecordedLaunch:
    accesses = [
        RecordedAccess(_KINDS[kind], bool(shared), *numbers)
        for kind, shared, *numbers in item["accesses"]
    ]
    gx, gy, gz = item["grid"]
    bx, by, bz = item["block"]
    return RecordedLaunch(
        names[item["kernel"]],
        (gx, gy, gz),
        (bx, by, bz),
        dict(item["barriers"]),
        {(block, warp): times for block, warp, times in item["warp_meetings"]},
        [SharedVariable(*each) for each in item["shared"]],
        [(begin, size) for begin, size in item["allocations"]],
        accesses,
        item["left_out"],
    )
