"""What every rank of the proof does: python -m days.day88.ranks DEVICE, as several processes.

Rank 0 prints one line of JSON. A check that fails raises RuntimeError, in its own rank.
"""

import ctypes
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn import functional as F

from common.build.library import operators_of
from days.day87.peers import rendezvous, start
from days.day87.ranks import equal_bits, synchronise

from .network import gelu
from .sharded import Sharded

VERSIONS = {1: "v1 separate", 2: "v2 chunks", 3: "v3 fused"}
SHAPES = [(1, 8, 16), (300, 392, 96)]  # (rows, width, hidden values per rank)
CALLS = 3


def weights(shape, rank, dtype):
    """Of one rank, which any rank can make."""
    _, width, own = shape
    generator = torch.Generator().manual_seed(88 + rank)
    up = torch.randn(own, width, generator=generator) * width**-0.5
    down = torch.randn(width, own, generator=generator) * own**-0.5
    return up.to(dtype), down.to(dtype)


def numbers(shape, call, dtype):
    """x of a call, the same on all ranks."""
    generator = torch.Generator().manual_seed(1000 + call)
    return torch.randn(shape[:2], generator=generator).to(dtype)


def parts(x, shape, world):
    """What each rank adds to the sum, in the dtype of x."""
    for rank in range(world):
        up, down = (w.to(x.dtype) for w in weights(shape, rank, torch.bfloat16))
        yield F.linear(gelu(F.linear(x, up)), down)


def check_output(out, shape, call, world, title):
    """The largest error against float64, in units of that of PyTorch's bf16 products."""
    x = numbers(shape, call, torch.bfloat16)
    truth = sum(parts(x.double(), shape, world))
    allowed = (sum(parts(x, shape, world)).double() - truth).abs().max().item()
    allowed = max(allowed, torch.finfo(x.dtype).eps * truth.abs().max().item())
    error = (out.cpu().double() - truth).abs().max().item() / allowed
    if not error <= 4:
        raise RuntimeError(f"{title}, {shape}: the error is {error:.2g} times PyTorch's")
    if not equal_bits(out):
        raise RuntimeError(f"{title}, {shape}: ranks differ in bits")
    return error


def check_shape(operators, device, shape, errors):
    """Several calls of each version, one behind the other without waiting, on new numbers; on a
    GPU also one that is captured and replayed. Afterwards, all flags are 0."""
    rank, world = dist.get_rank(), dist.get_world_size()
    up, down = (w.to(device) for w in weights(shape, rank, torch.bfloat16))
    network = Sharded(operators, shape[0], up, down, world)
    inputs = [numbers(shape, call, torch.bfloat16).to(device) for call in range(CALLS)]
    for version, title in VERSIONS.items():
        outs = [network(x, version=version, blocks=2).clone() for x in inputs]
        if device.type == "cuda":
            x = inputs[0].clone()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                network(x, version=version, blocks=2)
            outs = []
            for each in inputs:
                x.copy_(each)
                graph.replay()
                outs.append(network.out.clone())
        synchronise(device)
        for call, out in enumerate(outs):
            error = check_output(out, shape, call, world, title)
            errors[title] = max(errors.get(title, 0.0), error)
        if bool(network.flags().any()):
            raise RuntimeError(f"{title}, {shape}: a flag is not 0 after the calls")
        rendezvous()  # the next call of another rank sets flags here
    return network


def absent(network, device):
    """What a call says whose peers never come."""
    x = numbers(network.out.shape, 0, torch.bfloat16).to(device)
    try:
        network(x, version=3, blocks=1, timeout_ms=200)
        synchronise(device)
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        return next((line for line in lines if "trap" in line or "launch" in line), lines[0])
    raise RuntimeError("a call without its peer returned")


def main(name):
    device = start(name)
    operators = [operators_of(day, device.type)[0] for day in (87, 88)]
    errors = {}
    networks = [check_shape(operators, device, shape, errors) for shape in SHAPES]
    rendezvous()
    if dist.get_rank() == 0:
        print(json.dumps({"errors": errors, "absent": absent(networks[-1], device)}))
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)  # what the kernel printed
    rendezvous()  # the others keep their memory until then
    # After a launch that failed on rank 0, the end of its process is not sure to work; after that
    # one has gone, the end of Gloo's threads in the others is not.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
