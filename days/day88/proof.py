"""What the day's `show` proves: several processes compute one network, and agree in all bits."""

import json
import subprocess
import tempfile
from pathlib import Path

import torch

from common.day import print_table

FILE = "tensor_parallel.json"


def show(operators, device):
    """Prints the proofs, of as many processes as there are GPUs, or of two on the CPU backend.

    With several GPUs, also times all versions beside one GPU and NCCL, and returns the figures.
    """
    from days.day87.peers import run_ranks  # not where day 88 is practised without the others

    gpus = torch.cuda.device_count() if torch.device(device).type == "cuda" else 0
    if gpus == 1:
        print("one GPU: several processes are tried on the CPU backend, and nothing is timed")
    world, place = (min(gpus, 8), "cuda") if gpus > 1 else (2, "cpu")
    try:
        lines = run_ranks(world, "days.day88.ranks", place, limit=60 if gpus == 1 else 200)
    except subprocess.TimeoutExpired:
        if gpus != 1:
            raise
        print("not tried: the CPU backend was not ready in time; run --device cpu")
        return None
    found = json.loads(next(line for line in lines.splitlines() if line.startswith("{")))
    print_table(
        [f"{world} processes", "error, × PyTorch's"],
        [[title, f"{error:.2f}"] for title, error in found["errors"].items()],
    )
    said = [line for line in lines.splitlines() if "did not arrive" in line]
    print(f"a rank that never comes: {(said or [found['absent']])[0]}")
    if gpus < 2:
        return None
    with tempfile.TemporaryDirectory() as folder:
        print(run_ranks(world, "days.day88.measure", "--into", folder).rstrip())
        return {FILE: (Path(folder) / FILE).read_text()}
