"""Bandwidth of all rungs beside NCCL, 1 KB to 1 GB:

torchrun --nproc-per-node 2 -m days.day87.measure --write

Writes all_reduce.json and all_reduce.svg into results/show. `python run_day.py 87 --write` measures
the same on a machine with several GPUs, and writes the README as well.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist

from common.build.library import operators_of
from common.day import figure_as_svg, print_table

from .peers import Peers, rendezvous, start

FILES = ("all_reduce.json", "all_reduce.svg")
VERSIONS = {"v1 one_shot": 1, "v2 two_shot": 2, "v3 ring": 3, "v4 in_flight": 4}
BLOCKS = (16, 32, 64, 128)
CALLS = 20  # per graph
TARGET_BYTES, TARGET = 256 << 20, 0.8


def library(device):
    return "NCCL" if device.type == "cuda" else "gloo"


def repeated(call, calls):
    """`calls` calls, as a graph where they can be captured."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(calls):
                call()
    except RuntimeError as error:
        print(f"not captured: {str(error).splitlines()[0]}")
        return lambda: [call() for _ in range(calls)]
    return graph.replay


def seconds(call, device, calls):
    """Per call, of the slowest rank. On a GPU, a graph of the calls is replayed, so that the time
    in which Python issues them does not count."""
    for _ in range(3):
        call()
    if device.type == "cpu":
        rendezvous()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        took = torch.tensor((time.perf_counter() - began) / calls)
    else:
        repeat = repeated(call, calls)
        repeat()
        torch.cuda.synchronize()
        rendezvous()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(5):
            begin.record()
            repeat()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / calls)
        took = torch.tensor(sorted(times)[2])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def check(peers, mine, call, name):
    """Small integers, of which every order of additions gives the same sum."""
    mine.copy_(torch.arange(mine.numel(), device=mine.device) % 1024 + peers.rank)
    first = mine[:1].clone()
    if mine.is_cuda:
        torch.cuda.synchronize()
    rendezvous()
    call()
    expected = torch.arange(mine.numel(), device=mine.device) % 1024
    expected = peers.world * expected + peers.world * (peers.world - 1) // 2
    if not bool((mine == expected).all()):
        raise RuntimeError(f"{name}: a sum of {mine.numel()} elements is wrong ({first})")
    del expected
    mine.zero_()  # so that the sums of the timing stay finite


def measured(operators, device, sizes):
    """Rows of bytes, algorithm and blocks, and seconds per call."""
    peers = Peers(operators, device, sizes[-1])
    rows = []
    for size in sizes:
        own = peers.buffer(size // 4, torch.float32)
        ways = [(library(device), 0, lambda own=own: dist.all_reduce(own))]
        for name, version in VERSIONS.items():
            for blocks in BLOCKS if name == "v4 in_flight" and size >= 1 << 20 else (64,):

                def call(own=own, version=version, blocks=blocks):
                    peers.all_reduce(own, version=version, blocks=blocks)

                ways.append((name, blocks, call))
        for name, blocks, way in ways:
            check(peers, own, way, name)
            if device.type == "cuda":
                torch.cuda.synchronize()
            rendezvous()
            took = seconds(way, device, CALLS if size <= 64 << 20 else 4)
            rows.append({"bytes": size, "name": name, "blocks": blocks, "seconds": took})
    if device.type == "cuda":
        rows += copies(peers, sizes[-1])
    peers.close()
    return rows


def copies(peers, size):
    """What the links can do: all ranks copy the next rank's memory into their own at one time."""
    address = peers.addresses[(peers.rank + 1) % peers.world].item()
    own = torch.empty(size, dtype=torch.uint8, device=peers.on.device)
    took = seconds(lambda: peers.operators.peer_memory_read(own, address), own.device, 4)
    return [{"bytes": size, "name": "copy", "blocks": 0, "seconds": took}]


def size_name(size):
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def best(rows, size, name):
    found = [row for row in rows if row["bytes"] == size and row["name"] == name]
    return min(found, key=lambda row: row["seconds"])


def print_rows(rows, world, device):
    """Microseconds and bus bandwidth, and the verdict at 256 MB."""
    names = [library(device), *VERSIONS]
    factor = 2 * (world - 1) / world
    sizes = sorted({row["bytes"] for row in rows if row["name"] != "copy"})
    print_table(
        [f"{world} ranks: µs", *names],
        [
            [size_name(size), *(f"{best(rows, size, name)['seconds'] * 1e6:.1f}" for name in names)]
            for size in sizes
        ],
    )
    print_table(
        ["bus bandwidth, GB/s", *names, "blocks of v4"],
        [
            [
                size_name(size),
                *(
                    f"{factor * size / best(rows, size, name)['seconds'] / 1e9:.1f}"
                    for name in names
                ),
                str(best(rows, size, "v4 in_flight")["blocks"]),
            ]
            for size in sizes
        ],
    )
    for row in rows:
        if row["name"] == "copy":
            print(
                f"copy from the next rank's memory: {row['bytes'] / row['seconds'] / 1e9:.1f} GB/s"
            )
    if TARGET_BYTES in sizes:
        ratio = (
            best(rows, TARGET_BYTES, names[0])["seconds"]
            / best(rows, TARGET_BYTES, "v4 in_flight")["seconds"]
        )
        verdict = "reached" if ratio >= TARGET else "missed"
        print(f"v4 at 256 MB: {ratio:.2f} × {names[0]}; target ≥ {TARGET} × {names[0]}: {verdict}")


def svg(rows, world, device):
    """Bus bandwidth over the size."""

    factor = 2 * (world - 1) / world

    def draw(figure):
        axis = figure.subplots()
        sizes = sorted({row["bytes"] for row in rows if row["name"] != "copy"})
        for name in (library(device), *VERSIONS):
            rates = [factor * size / best(rows, size, name)["seconds"] / 1e9 for size in sizes]
            axis.plot(sizes, rates, "--" if name == library(device) else "-", label=name)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [size_name(size) for size in sizes], rotation=30)
        axis.set_ylabel("bus bandwidth, GB/s")
        axis.grid(alpha=0.3)
        axis.legend()

    return figure_as_svg((7.2, 3.4), draw)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default)
    parser.add_argument("--write", action="store_true", help="write the files of the day's folder")
    parser.add_argument("--into", type=Path, help="write the files into this folder instead")
    given = parser.parse_args()
    device = start(given.device)
    sizes = [1 << k for k in (range(10, 31, 2) if device.type == "cuda" else (10, 12, 14))]
    operators, _ = operators_of(87, device.type)
    rows = measured(operators, device, sizes)
    if dist.get_rank() == 0:
        world = dist.get_world_size()
        print_rows(rows, world, device)
        folder = given.into or (Path(__file__).parent / "results/show" if given.write else None)
        if folder:
            gpu = torch.cuda.get_device_name() if device.type == "cuda" else "CPU backend"
            found = {"device": gpu, "ranks": world, "torch": torch.__version__, "rows": rows}
            text = json.dumps(found, indent=1) + "\n"
            for name, content in zip(FILES, (text, svg(rows, world, device)), strict=True):
                (folder / name).write_text(content)
    rendezvous()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
