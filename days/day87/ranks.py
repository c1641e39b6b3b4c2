"""What every rank of the proof does: python -m days.day87.ranks DEVICE, as several processes.

Rank 0 prints one line of JSON. A check that fails raises RuntimeError, in its own rank.
"""

import ctypes
import json
import os
import sys

import torch
import torch.distributed as dist

from common.build.library import operators_of

from . import train
from .peers import Peers, rendezvous, rounded_up, start

VERSIONS = {1: "v1 one_shot", 2: "v2 two_shot", 3: "v3 ring", 4: "v4 in_flight"}
SIZES = (1, 3001, 20_004, 7 * 4096)  # elements; successive calls have other grids and other chunks
DTYPES = (torch.float32, torch.bfloat16)


def numbers(rank, n, dtype, seed):
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(n, generator=generator).to(dtype)


def synchronise(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def equal_bits(tensor):
    """Whether all ranks have the bits that rank 0 has."""
    first = tensor.cpu().contiguous().view(torch.uint8).clone()
    dist.broadcast(first, 0)
    return torch.equal(first, tensor.cpu().contiguous().view(torch.uint8))


def check_sums(peers, device, version):
    """The largest error of a call, in units of its dtype's eps. All sizes and dtypes, one call
    behind the other, without waiting in between."""
    begin, calls = 0, []
    for seed, n in enumerate(SIZES):
        for dtype in DTYPES:
            mine = peers.buffer(n, dtype, begin)
            begin += rounded_up(n * dtype.itemsize)
            mine.copy_(numbers(peers.rank, n, dtype, seed))
            calls.append((seed, mine))
    rendezvous()
    for _, mine in calls:
        peers.all_reduce(mine, version=version, blocks=3)
    synchronise(device)
    worst = 0.0
    for seed, mine in calls:
        n, dtype = mine.numel(), mine.dtype
        parts = [numbers(rank, n, dtype, seed).double() for rank in range(peers.world)]
        scale = sum(part.abs() for part in parts) * torch.finfo(dtype).eps
        error = ((mine.cpu().double() - sum(parts)).abs() / scale).max().item()
        if not error <= peers.world:
            raise RuntimeError(f"{VERSIONS[version]}, {n} of {dtype}: off by {error:.2g} eps")
        if not equal_bits(mine):
            raise RuntimeError(f"{VERSIONS[version]}, {n} of {dtype}: ranks differ in bits")
        worst = max(worst, error)
    return worst


def check_repeated(peers, device, version, calls=5):
    """Ones become world^calls, exactly: in successive calls and, on a GPU, in a graph of them that
    is replayed. Also the flags are 0 again."""
    mine = peers.buffer(5000, torch.float32)
    mine.fill_(1)
    synchronise(device)
    rendezvous()
    for _ in range(calls):
        peers.all_reduce(mine, version=version, blocks=2)
    expected = float(peers.world) ** calls
    synchronise(device)
    if not bool((mine == expected).all()):
        raise RuntimeError(f"{VERSIONS[version]}: {calls} calls give {mine[0]} of {expected}")
    if device.type == "cuda":
        mine.fill_(1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            peers.all_reduce(mine, version=version, blocks=2)
        torch.cuda.synchronize()
        rendezvous()
        for _ in range(calls):
            graph.replay()
        torch.cuda.synchronize()
        if not bool((mine == expected).all()):
            raise RuntimeError(f"{VERSIONS[version]}, replayed: {mine[0]} of {expected}")
    if bool(peers.signals().any()):
        raise RuntimeError(f"{VERSIONS[version]}: a flag is not 0 after a call")


def absent(peers, device):
    """What a call says whose peers never come."""
    mine = peers.buffer(8, torch.float32)
    try:
        peers.all_reduce(mine, timeout_ms=200)
        synchronise(device)
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        return next((line for line in lines if "trap" in line or "launch" in line), lines[0])
    raise RuntimeError("a call without its peer returned")


def main(name):
    device = start(name)
    operators, _ = operators_of(87, device.type)
    peers = Peers(operators, device, 1 << 20)
    errors = {}
    for version, title in VERSIONS.items():
        errors[title] = check_sums(peers, device, version)
        check_repeated(peers, device, version)
    losses = train.compare(operators, device)
    rendezvous()
    if dist.get_rank() == 0:
        print(json.dumps({"errors": errors, "losses": losses, "absent": absent(peers, device)}))
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)  # what the kernel printed
    rendezvous()  # the others keep their memory until then
    # After a launch that failed on rank 0, the end of its process is not sure to work; after that
    # one has gone, the end of Gloo's threads in the others is not.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
