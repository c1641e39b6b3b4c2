"""Sectors per request of each rung: predicted from addresses, counted on the CPU backend, measured
by Nsight Compute."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common.day import print_table

STRIDES = (1, 2, 8, 16, 32)  # in elements
STORED = Path(__file__).with_name("sectors.json")  # the last column of each device
LIMIT = 13  # seconds that ncu may take
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

    Raises NotCounted where they did not pass, or took more than LIMIT on a GPU.
    """
    days = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="sectors-") as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, str(days.parent / "run_day.py"), "41", "--days", str(days)]
        command += ["--device", device, "--profile", "--quick", "--json", str(report)]
        command += ["--time-limit", str(LIMIT)] if device == "cuda" else []
        done = subprocess.run(command, capture_output=True, text=True)
        if not report.is_file():
            raise NotCounted(f"run_day.py gave no report: {done.stderr.strip()}")
        (day,) = json.loads(report.read_text())["days"]
    for outcome in (*day["rungs"], day):
        if outcome["status"] != "PASS":
            raise NotCounted(outcome["reason"])
    return day["rungs"]


def per_request(counts):
    """[per load, per store] of one kernel's counts."""

    def mean(kind):
        of_kind = [line for line in counts if line["kind"] == kind]
        requests = sum(line["requests"] for line in of_kind)
        return sum(line["sectors"] for line in of_kind) / requests if requests else 0.0

    return [mean("global load"), mean("global store")]


def counted_on_cpu(names):
    """[per load, per store] by name, from the address of every access on the CPU backend.

    Raises RuntimeError where a count is not as predicted.
    """
    rungs = {f"{r['problem']}: {r['rung']}": per_request(r["counts"]) for r in profile("cpu")}
    for name in names:
        if shown(rungs[name]) != shown(PREDICTED[name]):
            raise RuntimeError(
                f"{name}: {shown(PREDICTED[name])} sectors per load and store are predicted, "
                f"the CPU backend counts {shown(rungs[name])}"
            )
    return {name: rungs[name] for name in names}


def measured_by_ncu(names):
    """The same by the GPU's counters. names: of the last rungs, one kernel each; the problem that
    is only checked comes before them. Raises NotCounted."""
    (outcome,) = profile("cuda")
    return by_name(names, outcome["counts"])


def by_name(names, kernels):
    """ncu's counts of loads and stores, kernel after kernel, as [per load, per store] by name."""
    if len(kernels) != 2 * (len(names) + 1):
        raise NotCounted(f"ncu saw {len(kernels) // 2} kernels, expected {len(names) + 1}")
    pairs = zip(kernels[2::2], kernels[3::2], strict=True)
    return {name: per_request(pair) for name, pair in zip(names, pairs, strict=True)}


def store(columns):
    """Writes the columns to STORED, a line per rung, if they changed."""
    parts = []
    for title, column in columns.items():
        lines = (f"  {json.dumps(name)}: {json.dumps(pair)}" for name, pair in column.items())
        parts.append(f" {json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n }")
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    if not STORED.is_file() or STORED.read_text() != text:
        STORED.write_text(text)


def shown(pair):
    """ "8.5 / 16"."""
    return " / ".join(f"{value:.2f}".rstrip("0").rstrip(".") for value in pair)


def print_sectors(problems, device):
    """Prints a row per rung with the predicted sectors per request, those that the CPU backend
    counts and those that ncu measures. The column of this device is taken anew and stored, the
    other one is the stored one. Says where they differ: a compiler may choose other instructions.
    Raises RuntimeError where the CPU backend differs."""
    names = [f"{problem.name}: {rung.name}" for problem in problems for rung in problem.rungs]
    stored = json.loads(STORED.read_text())
    if device.type == "cpu":
        stored["CPU backend"] = counted_on_cpu(names)
        store(stored)
    else:
        try:
            stored["ncu"] = measured_by_ncu(names)
            store(stored)
        except NotCounted as reason:
            print(f"the column of ncu is the stored one: {reason}")
    columns = {"predicted": PREDICTED, **stored}
    rows = [[name, *(shown(column[name]) for column in columns.values())] for name in names]
    print("sectors per request, loads / stores")
    print_table(["", *columns], rows)
    differ = [row[0] for row in rows if len(set(row[1:])) > 1]
    print(f"the columns differ for {', '.join(differ)}" if differ else "the columns agree")
