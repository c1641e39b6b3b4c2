"""Processes of several GPUs, one per rank, and the memory in which they reach each other."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from common.day import print_table

SIGNAL_WORDS = 2176  # of int32 per rank: struct Signals of all_reduce.cu
HANDLE_BYTES = 64
ROOT = Path(__file__).parents[2]
ALIGNMENT = 256  # of a buffer, in bytes
TIMEOUT_MS = 60_000
MOST = 8  # processes


def rounded_up(size):
    return -(-size // ALIGNMENT) * ALIGNMENT


def start(device):
    """Joins the ranks that torchrun, or `run_ranks`, has started; this rank's device. Gloo carries
    what the processes tell each other, NCCL is the baseline."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    place = torch.device("cpu")
    if device == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    dist.init_process_group(backend, timeout=timedelta(minutes=5))
    return place


def rendezvous():
    """All processes wait for each other. Not for their GPUs: synchronise these before."""
    dist.all_reduce(torch.zeros(1))


def run_ranks(world, module, *arguments, limit=200):
    """Runs `python -m module arguments` as `world` processes; what rank 0 printed.

    Raises RuntimeError with the last lines of the ranks that failed, TimeoutExpired after `limit`
    seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    common |= {"OMP_NUM_THREADS": "1", "CUDACPU_THREADS": "1"}
    command = [sys.executable, "-m", module, *arguments]
    pipe, ranks = subprocess.PIPE, []
    for rank in range(world):
        own = {**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(
            subprocess.Popen(command, env=own, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
        )
    try:
        said = [process.communicate(timeout=limit) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    failed = [
        f"rank {rank} ended with {process.returncode}:\n"
        + "\n".join((out + errors).strip().splitlines()[-6:])
        for rank, (process, (out, errors)) in enumerate(zip(ranks, said, strict=True))
        if process.returncode
    ]
    if failed:
        raise RuntimeError("\n".join(failed))
    return said[0][0]


def gpus_of(device):
    return torch.cuda.device_count() if torch.device(device).type == "cuda" else 0


def prove(module, device, column):
    """Runs a day's proof as one process per GPU, or as two on the CPU backend, and prints the error
    of each version, under the title `column`.

    Returns the number of processes and what rank 0 found: with its "absent", what is said of a rank
    that never comes. None in its place, where one GPU's time was too short for the CPU backend.
    """
    gpus = gpus_of(device)
    if gpus == 1:
        print("one GPU: several processes are tried on the CPU backend, and nothing is timed")
    world, place = (min(gpus, MOST), "cuda") if gpus > 1 else (2, "cpu")
    try:
        lines = run_ranks(world, module, place, limit=60 if gpus == 1 else 200).splitlines()
    except subprocess.TimeoutExpired:
        if gpus != 1:
            raise
        print("not tried: the CPU backend was not ready in time; run --device cpu")
        return world, None
    found = json.loads(next(line for line in lines if line.startswith("{")))
    print_table(
        [f"{world} processes", column],
        [[title, f"{error:.2f}"] for title, error in found["errors"].items()],
    )
    said = [line for line in lines if "did not arrive" in line]
    return world, {**found, "absent": (said or [found["absent"]])[0]}


def measured_files(module, device, names):
    """What `module` measures with several GPUs, which is printed, too: its files by name. None with
    fewer."""
    if (gpus := gpus_of(device)) < 2:
        return None
    world = min(gpus, MOST)
    with tempfile.TemporaryDirectory() as folder:
        print(run_ranks(world, module, "--into", folder).rstrip())
        return {name: (Path(folder) / name).read_text() for name in names}


class Peers:
    """Memory of every rank, `size` bytes each, that all ranks of the process group reach.

    memory: this rank's own, first its signals, then the bytes for `buffer`. addresses: of every
    rank's memory, for this rank's GPU. The GPUs have to be equal, so that all choose the same grid.
    """

    def __init__(self, operators, device, size):
        self.operators = operators
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.require_equal_gpus(device)
        self.on = torch.empty(0, device=device)
        size = rounded_up(4 * SIGNAL_WORDS) + rounded_up(size)
        self.memory = operators.peer_memory_allocate(self.on, size)
        handle = torch.zeros(HANDLE_BYTES, dtype=torch.uint8)
        operators.peer_memory_export(self.memory, handle)
        handles = [torch.empty_like(handle) for _ in range(self.world)]
        dist.all_gather(handles, handle)
        self.addresses = torch.tensor(
            [
                self.memory.data_ptr()
                if rank == self.rank
                else operators.peer_memory_import(self.on, handles[rank])
                for rank in range(self.world)
            ]
        )
        rendezvous()  # no rank frees memory that another one has not yet opened

    def require_equal_gpus(self, device):
        if device.type != "cuda":
            return
        found = torch.cuda.get_device_properties(device)
        mine = (found.name, found.multi_processor_count)
        all_of_them = [None] * self.world
        dist.all_gather_object(all_of_them, mine)
        if any(other != mine for other in all_of_them):
            raise RuntimeError(f"ranks need equal GPUs, got {all_of_them}")

    def buffer(self, n, dtype, begin=0):
        """n elements of this rank's memory, from byte `begin` on."""
        begin += rounded_up(4 * SIGNAL_WORDS)
        return self.memory[begin : begin + n * dtype.itemsize].view(dtype)

    def all_reduce(self, buffer, *, version=4, blocks=64, timeout_ms=TIMEOUT_MS):
        """Replaces the buffer by the sum over the ranks, on the current stream. All ranks call it
        with a buffer of the same place, in the same order. blocks: how many multiprocessors it may
        take."""
        self.operators.all_reduce_of_rank(
            buffer, self.memory, self.addresses, version, self.rank, blocks, timeout_ms
        )

    def signals(self):
        return self.memory[: 4 * SIGNAL_WORDS].view(torch.int32)

    def close(self):
        """Lets go of the memory: a rank frees its own after all others have closed it. No tensor
        of `buffer` may be used afterwards."""
        if self.on.is_cuda:
            torch.cuda.synchronize()
        rendezvous()
        for rank, address in enumerate(self.addresses.tolist()):
            if rank != self.rank:
                self.operators.peer_memory_close(self.on, address)
        rendezvous()
        self.memory = None
