"""Data-parallel training: torchrun --nproc-per-node 2 -m days.day87.train [--device cpu]

Every rank has the whole model and a share of each batch. The gradients are added up over the ranks,
in buckets, while the backward pass goes on.
"""

import argparse
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from common.build.library import operators_of
from common.day import print_table

from .peers import Peers, rendezvous, rounded_up, start

BUCKET_BYTES = 96 << 10
STEPS, BATCH, INPUTS, CLASSES = 12, 48, 32, 10
RATE, MOMENTUM = 0.2, 0.9


class Bucket:
    """Parameters whose gradients lie side by side, and go over NVLink together."""

    def __init__(self):
        self.parameters, self.size, self.missing = [], 0, 0

    def add(self, parameter):
        self.parameters.append(parameter)
        self.size += parameter.numel()

    def bytes(self):
        return rounded_up(4 * self.size)


class Gradients:
    """The gradients of a model in the memory of `peers`, added up over the ranks.

    A hook per parameter says when its gradient is complete. A bucket is added up as soon as all of
    its gradients are complete and the buckets before it have been launched, so that all ranks
    launch the buckets in the same order.
    """

    def __init__(self, model, peers):
        self.peers = peers
        # With priority: its blocks go before those of the backward pass that have not begun.
        self.stream = torch.cuda.Stream(priority=-1) if peers.memory.is_cuda else None
        # The backward pass begins with the last layer.
        self.buckets = in_buckets(reversed(list(model.parameters())))
        self.sums, begin = [], 0
        for bucket in self.buckets:
            # Whole chunks of 16 bytes: what lies behind the last gradient is 0 on all ranks.
            self.sums.append(peers.buffer(bucket.bytes() // 4, torch.float32, begin))
            begin += bucket.bytes()
            place = 0
            for parameter in bucket.parameters:
                own = self.sums[-1][place : place + parameter.numel()]
                parameter.grad = own.view_as(parameter)
                parameter.register_post_accumulate_grad_hook(self.hook(bucket))
                place += parameter.numel()
        self.early = 0  # buckets of the last step that were launched before its last gradient

    def zero(self):
        for bucket, sums in zip(self.buckets, self.sums, strict=True):
            sums.zero_()
            bucket.missing = len(bucket.parameters)
        self.launched = 0

    def hook(self, bucket):
        def complete(parameter):
            bucket.missing -= 1
            while self.launched < len(self.buckets) and not self.buckets[self.launched].missing:
                self.early = self.launched
                self.launch(self.sums[self.launched])
                self.launched += 1

        return complete

    def launch(self, sums):
        if self.stream is None:
            self.peers.all_reduce(sums)
            return
        self.stream.wait_stream(torch.cuda.current_stream())  # the gradients are complete
        with torch.cuda.stream(self.stream):
            self.peers.all_reduce(sums, blocks=32)

    def wait(self):
        """The current stream waits for all sums. Raises RuntimeError without a gradient."""
        if self.launched < len(self.buckets):
            raise RuntimeError("a parameter has no gradient: its bucket was never added up")
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


def in_buckets(parameters):
    buckets = [Bucket()]
    for parameter in parameters:
        if buckets[-1].size and 4 * (buckets[-1].size + parameter.numel()) > BUCKET_BYTES:
            buckets.append(Bucket())
        buckets[-1].add(parameter)
    return buckets


def bytes_of(model):
    """Of peer memory that `Gradients` needs."""
    return sum(bucket.bytes() for bucket in in_buckets(reversed(list(model.parameters()))))


def model_on(device):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(87)
        sizes = (INPUTS, 128, 160, 128)
        layers = [
            layer for one, two in pairwise(sizes) for layer in (nn.Linear(one, two), nn.Tanh())
        ]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], CLASSES)).to(device)


def batch_of(step, device):
    """Points and their classes, the same on all ranks."""
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(BATCH, INPUTS, generator=generator)
    classes = x[:, :CLASSES].argmax(1)
    return x.to(device), classes.to(device)


def trained(device, peers=None):
    """The loss of each step over the whole batch, and how many of how many buckets were launched
    before the last gradient was complete. Without peers, one process computes it all."""
    model = model_on(device)
    optimiser = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM)
    gradients = Gradients(model, peers) if peers else None
    rank, world = (peers.rank, peers.world) if peers else (0, 1)
    losses = []
    for step in range(STEPS):
        x, classes = batch_of(step, device)
        if gradients:
            gradients.zero()
        else:
            optimiser.zero_grad()
        # The mean over the batch is the sum of the ranks' losses.
        loss = F.cross_entropy(model(x[rank::world]), classes[rank::world]) / world
        loss.backward()
        if gradients:
            gradients.wait()
        optimiser.step()
        losses.append(loss.detach())
    found = torch.stack(losses).cpu()
    if peers:
        dist.all_reduce(found)
    return found.tolist(), (gradients.early, len(gradients.buckets)) if gradients else (0, 0)


def compare(operators, device):
    """Trains with all ranks, and on rank 0 with one process. Raises RuntimeError where the losses
    differ by more than fp32 explains, or do not fall. Returns both, and the buckets."""
    peers = Peers(operators, device, bytes_of(model_on(device)))
    together, buckets = trained(device, peers)
    alone, _ = trained(device)
    for step, (one, other) in enumerate(zip(together, alone, strict=True)):
        if not abs(one - other) <= 1e-4 * other:
            raise RuntimeError(f"step {step}: a loss of {one}, and of {other} in one process")
    if not alone[-1] < alone[0]:
        raise RuntimeError(f"the loss began at {alone[0]} and ended at {alone[-1]}")
    peers.close()
    return together, alone, buckets


def print_losses(world, together, alone, buckets):
    steps = range(0, STEPS, STEPS // 4)
    print_table(
        ["loss", *(f"step {step}" for step in steps)],
        [
            [f"{world} processes", *(f"{together[step]:.5f}" for step in steps)],
            ["one process", *(f"{alone[step]:.5f}" for step in steps)],
        ],
    )
    print(f"{buckets[0]} of {buckets[1]} buckets were added up during the backward pass")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cuda", "cpu"), default=default)
    device = start(parser.parse_args().device)
    operators, _ = operators_of(87, device.type)
    found = compare(operators, device)
    if dist.get_rank() == 0:
        print_losses(dist.get_world_size(), *found)
    rendezvous()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
