"""What the README reads: counters of each rung, predicted, counted and measured, and a trace of
torch.profiler."""

import json
from functools import partial
from pathlib import Path

import torch
from torch.profiler import record_function

from common.bench.counters import (
    SECTORS,
    WAVEFRONTS,
    Kernel,
    NotCounted,
    columns_file,
    counted_columns,
)
from common.bench.traces import traced_events
from common.day import print_table

LANES = range(32)
SECTOR = 32  # bytes
ROW = 128  # bytes of a row of x: 32 floats
TRACE = "trace.json"  # what --write stores of a GPU, for a viewer
KEPT = {"user_annotation", "cpu_op", "cuda_runtime", "gpu_user_annotation", "kernel", "ac2g"}
ARGUMENTS = ("grid", "block", "registers per thread", "shared memory")  # that are kept of a kernel


def sectors(apart, width):
    """Sectors that a request touches whose lanes access `width` bytes each, `apart` bytes apart."""
    firsts = (lane * apart for lane in LANES)
    return len({byte // SECTOR for first in firsts for byte in range(first, first + width)})


def passes(apart):
    """Passes over the banks of shared memory, of a request whose lanes access words that lie
    `apart` words apart; 0 apart is one word for all."""
    words = {lane * apart for lane in LANES}
    banks = [word % 32 for word in words]
    return max(banks.count(bank) for bank in set(banks))


def tile_ratio(stride):
    """Wavefronts per ideal wavefront of center_tile_kernel, from the requests for 32 rows: 32 store
    a row, 32 load a column, 1 stores means, 32 load a row and 32 a mean."""
    requests = [
        (32, passes(1)),
        (32, passes(stride)),
        (1, passes(1)),
        (32, passes(1)),
        (32, passes(0)),
    ]
    return sum(n * each for n, each in requests) / sum(n for n, _ in requests)


COALESCED = sectors(4, 4), sectors(4, 4)
# Sectors per load, sectors per store, wavefronts per ideal wavefront.
PREDICTED = {
    "center_v1_thread_per_row": (sectors(ROW, 4), sectors(ROW, 4), 0),
    "center_v2_tile": (*COALESCED, tile_ratio(32)),
    "center_v3_padded": (*COALESCED, tile_ratio(33)),
    "center_v4_lanes": (sectors(16, 16), sectors(16, 16), 0),
}


def by_rung(kernels):
    """The counters of each rung, which launches one kernel. Raises NotCounted where it does not."""
    if len(kernels) != len(PREDICTED):
        raise NotCounted(f"{len(kernels)} kernels were seen, expected {len(PREDICTED)}")
    return {rung: kernel.counters for rung, kernel in zip(PREDICTED, kernels, strict=True)}


def print_counters(device, metrics):
    """Prints what is predicted, what the CPU backend counts and what ncu measures, and all that ncu
    measures by its names; returns the columns as a file. Raises RuntimeError where the CPU backend
    does not count what is predicted."""
    columns = counted_columns(Path(__file__).parent, device.type, by_rung)
    ratios = (*SECTORS.values(), WAVEFRONTS)
    shown = {"predicted": {name: [f"{v:.2f}" for v in PREDICTED[name]] for name in PREDICTED}}
    for title, column in columns.items():
        shown[title] = {
            name: [f"{Kernel(name, counters).ratio(*pair):.2f}" for pair in ratios]
            for name, counters in column.items()
        }
    print("sectors per load / sectors per store / wavefronts per ideal wavefront")
    rows = [[name, *(" / ".join(shown[title][name]) for title in shown)] for name in PREDICTED]
    print_table(["", *shown], rows)
    differ = [row[0] for row in rows if len(set(row[1:])) > 1]
    print(f"the columns differ for {', '.join(differ)}" if differ else "the columns agree")
    if shown["CPU backend"] != shown["predicted"]:
        raise RuntimeError("the CPU backend counts something else than is predicted")
    if measured := columns.get("ncu"):
        print("ncu")
        rows = [
            [m, *(f"{measured[name].get(m, float('nan')):.4g}" for name in measured)]
            for m in metrics
        ]
        print_table(["", *(name.split("_")[1] for name in measured)], rows)
    return columns_file(columns)


def traced(operators, x):
    """The events of a trace in which each rung runs once, in a range of its own name."""
    calls = {name: partial(getattr(operators, name), x) for name in PREDICTED}
    for call in calls.values():
        call()  # the first launch loads the kernel

    def run():
        for name, call in calls.items():
            with record_function(name):
                call()

    return traced_events(run)


def reduced(events):
    """What a viewer needs of a trace, times from its first event on: ranges, operators, launches,
    kernels, the arrows from launches to kernels, and which rows are the CPU's and the GPU's."""
    kept = [event for event in events if event.get("cat") in KEPT]
    began = min(event["ts"] for event in kept)
    rows = {event["pid"] for event in kept}
    found = [
        {k: event[k] for k in ("ph", "name", "pid", "args")}
        for event in events
        if event["name"] == "process_labels" and event["pid"] in rows
    ]
    for event in kept:
        new = {k: event[k] for k in ("ph", "cat", "name", "pid", "tid", "id", "bp") if k in event}
        new["ts"] = round(event["ts"] - began, 3)
        if "dur" in event:
            new["dur"] = event["dur"]
        arguments = {k: event["args"][k] for k in ARGUMENTS if k in event.get("args", {})}
        found.append(new | ({"args": arguments} if arguments else {}))
    return found


def print_trace(operators, device, rows):
    """Prints what the trace has per range; returns it as a file on a GPU. Raises RuntimeError where
    a range lacks its operator or, on a GPU, the trace a kernel."""
    events = reduced(traced(operators, torch.rand(rows, 32, device=device)))
    print("the trace of torch.profiler, µs")
    lines = []
    for name in PREDICTED:
        (span,) = (e for e in events if e.get("cat") == "user_annotation" and e["name"] == name)
        inside = [
            e["name"]
            for e in events
            if e.get("cat") == "cpu_op" and span["ts"] <= e["ts"] <= span["ts"] + span["dur"]
        ]
        if f"day49::{name}" not in inside:
            raise RuntimeError(f"{name}: the range has {inside}, not the operator")
        lines.append([name, f"{span['dur']:.0f}", ", ".join(inside)])
    print_table(["range", "host", "operators"], lines)
    if device.type != "cuda":
        return {}
    kernels = [e for e in events if e.get("cat") == "kernel"]
    if len(kernels) != len(PREDICTED):
        raise RuntimeError(f"the trace has {len(kernels)} kernels, expected {len(PREDICTED)}")
    times = [[name, f"{e['dur']:.1f}"] for name, e in zip(PREDICTED, kernels, strict=True)]
    print_table(["kernel of", "GPU"], times)
    text = ",\n".join(json.dumps(event) for event in events)
    return {TRACE: '{"traceEvents": [\n' + text + "\n]}\n"}
