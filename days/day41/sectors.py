"""Sectors per request of each rung: predicted from addresses, counted on the CPU backend, measured
by Nsight Compute."""

from functools import partial
from pathlib import Path

from common.bench.counters import SECTORS, NotCounted, columns_file, counted_columns
from common.day import print_table

STRIDES = (1, 2, 8, 16, 32)  # in elements
SECTOR = 32  # bytes
LANES = range(32)


def touched(width, stride, start=0, lanes=LANES):
    """Sectors that one request touches if lane l accesses `width` bytes from
    start + l · stride on; byte 0 is the first of a sector."""
    firsts = (start + lane * stride for lane in lanes)
    return len({byte // SECTOR for first in firsts for byte in range(first, first + width)})


FLOAT, FLOAT4, PARTICLE = 4, 16, 32  # bytes
COALESCED = touched(FLOAT, FLOAT)
COALESCED4 = touched(FLOAT4, FLOAT4)
LAST_LANE = touched(
    FLOAT4, FLOAT4, start=FLOAT4, lanes=[31]
)  # of shifted_v2: the pack after its own

# Per load and per store of a kernel, on average over its requests. Bulk copies make none.
PREDICTED = {
    **{f"stride {s}: strided": (touched(FLOAT, s * FLOAT), COALESCED) for s in STRIDES},
    "misaligned start: shifted_v1_scalar": (touched(FLOAT, FLOAT, start=FLOAT), COALESCED),
    "misaligned start: shifted_v2_packs": ((COALESCED4 + LAST_LANE) / 2, COALESCED4),
    "particles, AoS: particles_v1_aos_scalar": (touched(FLOAT, PARTICLE),) * 2,
    "particles, AoS: particles_v2_aos_float4": (touched(FLOAT4, PARTICLE),) * 2,
    "particles, AoS: particles_v3_aos_lane_pairs": (COALESCED4, COALESCED4),
    "particles, SoA: particles_v4_soa": (COALESCED, COALESCED),
    "swap: swap_v1_scalar": (COALESCED, COALESCED),
    "swap: swap_v2_float4": (COALESCED4, COALESCED4),
}


def per_request(kernel):
    """[per load, per store]."""
    return [kernel.ratio(*counters) for counters in SECTORS.values()]


def by_name(names, kernels):
    """[per load, per store] of those that are predicted. names: of all rungs, one kernel each.
    Raises NotCounted where there are other kernels."""
    if len(kernels) != len(names):
        raise NotCounted(f"{len(kernels)} kernels were seen, expected {len(names)}")
    pairs = zip(names, kernels, strict=True)
    return {name: per_request(kernel) for name, kernel in pairs if name in PREDICTED}


def shown(pair):
    """ "8.5 / 16"."""
    return " / ".join(f"{value:.2f}".rstrip("0").rstrip(".") for value in pair)


def print_sectors(problems, device):
    """Prints a row per rung with the predicted sectors per request, those that the CPU backend
    counts and those that ncu measures; returns the two counted columns as a file. Says where they
    differ: a compiler may choose other instructions. Raises RuntimeError where the CPU backend
    differs."""
    names = [f"{problem.name}: {rung.name}" for problem in problems for rung in problem.rungs]
    counted = counted_columns(
        Path(__file__).parent, device.type, partial(by_name, names), quick=True
    )
    names = [name for name in names if name in PREDICTED]
    columns = {"predicted": PREDICTED, **counted}
    rows = [[name, *(shown(column[name]) for column in columns.values())] for name in names]
    print("sectors per request, loads / stores")
    print_table(["", *columns], rows)
    differ = [row[0] for row in rows if len(set(row[1:])) > 1]
    print(f"the columns differ for {', '.join(differ)}" if differ else "the columns agree")
    wrong = [
        name for name in names if shown(counted["CPU backend"][name]) != shown(PREDICTED[name])
    ]
    if wrong:
        raise RuntimeError(f"the CPU backend counts other sectors than predicted: {wrong}")
    return columns_file(counted)
