"""One network over several GPUs, beside one GPU and beside NCCL:

torchrun --nproc-per-node 2 -m days.day88.measure --write

Writes tensor_parallel.json into results/show. `python run_day.py 88 --write` measures the same on a
machine with several GPUs, and writes the README as well.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F

from common.build.library import operators_of
from common.day import print_table
from days.day87.measure import library, seconds
from days.day87.peers import rendezvous, start

from .network import signal_words
from .proof import FILE
from .ranks import VERSIONS
from .sharded import Sharded

SIZES = {"cuda": ((8192, 4096, 16384), (2048, 4096, 16384)), "cpu": ((256, 64, 128),)}
BLOCKS = {"cuda": (2, 4, 8, 16), "cpu": (2,)}  # of the sums of v2 and v3
CALLS = 4  # per graph
TARGET = 1.6


def local(x, up, down):
    return F.gelu(x @ up.T, approximate="tanh") @ down.T


def check(out, expected, name):
    """Against PyTorch's sum of the same parts: another rounding, but no other number."""
    distance = (out.float() - expected.float()).norm() / expected.float().norm()
    if not distance.item() <= 0.01:
        raise RuntimeError(f"{name}: off by {distance.item():.2g} of the norm")


def measured(operators, device, shape):
    """Rows of name, blocks and seconds per call."""
    rows, width, hidden = shape
    rank, world = dist.get_rank(), dist.get_world_size()
    own = hidden // world
    torch.manual_seed(88)  # the same numbers on all ranks
    x, up = (torch.randn(n, width, device=device).bfloat16() for n in (rows, hidden))
    down = torch.randn(width, hidden, device=device).bfloat16() * (width * hidden) ** -0.5
    part = slice(rank * own, (rank + 1) * own)
    my_up, my_down = up[part].contiguous(), down[:, part].contiguous()
    network = Sharded(operators, rows, my_up, my_down, world)
    outs = [torch.empty_like(x)]
    signals = [torch.zeros(signal_words(rows, width, 1), dtype=torch.int32, device=device)]

    def alone():
        operators[1].ffn_v1_separate(x, [up], [down], outs, signals, 1)

    def by_library():
        out = local(x, my_up, my_down)
        dist.all_reduce(out)
        return out

    expected = by_library().clone()
    ways = [
        ("one GPU: PyTorch", 0, lambda: local(x, up, down)),
        ("one GPU: own products", 0, alone),
        ("products alone: PyTorch", 0, lambda: local(x, my_up, my_down)),
        (library(device), 0, by_library),
    ]
    for version, name in VERSIONS.items():
        for blocks in BLOCKS[device.type] if version > 1 else (0,):

            def call(version=version, blocks=blocks):
                network(x, version=version, blocks=blocks or 1)

            call()
            check(network.out, expected, name)
            ways.append((name, blocks, call))
    found = []
    for name, blocks, way in ways:
        if device.type == "cuda":
            torch.cuda.synchronize()
        rendezvous()
        took = seconds(way, device, CALLS if device.type == "cuda" else 1)
        found.append({"shape": shape, "name": name, "blocks": blocks, "seconds": took})
    network.close()
    return found


def fastest(rows, *names):
    return min((row for row in rows if row["name"] in names), key=lambda row: row["seconds"])


def print_rows(rows, shape, world):
    """Milliseconds, and the speed-up against the faster of the two ways on one GPU."""
    alone = fastest(rows, "one GPU: PyTorch", "one GPU: own products")["seconds"]
    print_table(
        [f"{world} ranks, {' × '.join(map(str, shape))}", "blocks", "ms", "× one GPU"],
        [
            [
                row["name"],
                str(row["blocks"] or ""),
                f"{row['seconds'] * 1e3:.3f}",
                f"{alone / row['seconds']:.2f}",
            ]
            for row in rows
        ],
    )
    ratio = alone / fastest(rows, "v3 fused")["seconds"]
    verdict = "reached" if ratio >= TARGET else "missed"
    print(f"v3: {ratio:.2f} × one GPU; target on 2 GPUs ≥ {TARGET} ×: {verdict}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default)
    parser.add_argument("--write", action="store_true", help="write the file of the day's folder")
    parser.add_argument("--into", type=Path, help="write the file into this folder instead")
    given = parser.parse_args()
    device = start(given.device)
    operators = [operators_of(day, device.type)[0] for day in (87, 88)]
    rows = []
    for shape in SIZES[device.type]:
        found = measured(operators, device, shape)
        if dist.get_rank() == 0:
            print_rows(found, shape, dist.get_world_size())
        rows += found
    folder = given.into or (Path(__file__).parent / "results/show" if given.write else None)
    if dist.get_rank() == 0 and folder:
        gpu = torch.cuda.get_device_name() if device.type == "cuda" else "CPU backend"
        result = {"device": gpu, "ranks": dist.get_world_size(), "torch": torch.__version__}
        (folder / FILE).write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")
    rendezvous()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
