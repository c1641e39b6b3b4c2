"""Sectors per request of each rung: predicted from addresses, counted on the CPU backend, measured
by Nsight Compute."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common.day import print_table

STRIDES = (1, 2, 4, 8, 16, 32)  # in elements
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

# Per load and per store of a kernel, on average over its requests.
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


class NotCounted(Exception):
    """The profiler gave no counts; the message says why."""


def profile(device):
    """The rungs of `run_day.py 41 --profile` as JSON, each with the counts of its kernels.

    Raises NotCounted where they did not pass.
    """
    days = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="sectors-") as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, str(days.parent / "run_day.py"), "41", "--days", str(days)]
        command += ["--device", device, "--profile", "--quick", "--json", str(report)]
        done = subprocess.run(command, capture_output=True, text=True)
        if not report.is_file():
            raise NotCounted(f"run_day.py gave no report: {done.stderr.strip()}")
        (day,) = json.loads(report.read_text())["days"]
    for outcome in (day, *day["rungs"]):
        if outcome["status"] != "PASS":
            raise NotCounted(outcome["reason"])
    return day["rungs"]


def per_request(counts):
    """(per load, per store) of one kernel's counts."""

    def mean(kind):
        of_kind = [line for line in counts if line["kind"] == kind]
        return sum(c["sectors"] for c in of_kind) / sum(c["requests"] for c in of_kind)

    return mean("global load"), mean("global store")


def counted_on_cpu():
    """(per load, per store) by "problem: rung", counted from the addresses of every access."""
    rungs = profile("cpu")
    return {f"{r['problem']}: {r['rung']}": per_request(r["counts"]) for r in rungs}


def measured_by_ncu(names):
    """The same by the GPU's counters; names: of the rungs in their order, one kernel each."""
    (outcome,) = profile("cuda")
    kernels = outcome["counts"]
    if len(kernels) != 2 * len(names):  # loads and stores of each
        raise NotCounted(f"ncu saw {len(kernels) // 2} kernels, expected {len(names)}")
    pairs = zip(kernels[::2], kernels[1::2], strict=True)
    return {name: per_request(pair) for name, pair in zip(names, pairs, strict=True)}


def print_sectors(problems, device):
    """Prints a row per rung with the predicted sectors per request, those that the CPU backend
    counts and, on a GPU, those that ncu measures. Raises RuntimeError where two of them differ."""
    names = [f"{problem.name}: {rung.name}" for problem in problems for rung in problem.rungs]
    columns = {"predicted": PREDICTED, "CPU backend": counted_on_cpu()}
    if device.type == "cuda":
        try:
            columns["ncu"] = measured_by_ncu(names)
        except NotCounted as reason:
            print(f"no column of ncu: {reason}")
    print("sectors per request, loads / stores")
    rows = [
        [
            name,
            *(
                " / ".join(f"{v:.2f}".rstrip("0").rstrip(".") for v in c[name])
                for c in columns.values()
            ),
        ]
        for name in names
    ]
    print_table(["", *columns], rows)
    for row in rows:
        if len(set(row[1:])) > 1:
            raise RuntimeError(f"the columns differ for {row[0]}: {', '.join(row[1:])}")
