"""A small network: its weights quantised after training, and trained with fake quantisation."""

import copy
import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from common.day import print_table


class FakeQuantize(torch.autograd.Function):
    """The day's kernels. Only x and s are stored for the backward pass."""

    @staticmethod
    def forward(ctx, x, s, qmin, qmax, factor):
        ctx.save_for_backward(x, s)
        ctx.numbers = qmin, qmax, factor
        return torch.ops.day73.fake_quantize_v2_chunks(x, s, qmin, qmax)

    @staticmethod
    def backward(ctx, g):
        backward = torch.ops.day73.fake_quantize_backward_v3_chunks
        gx, gs = backward(g.contiguous(), *ctx.saved_tensors, *ctx.numbers)
        return gx, gs, None, None, None


def load_function(builder):
    builder.operators()

    def call(x, s, qmin, qmax, factor=1.0):
        return FakeQuantize.apply(x, s, qmin, qmax, factor)

    return call


ARMS, WIDTH, BATCH, TESTED = 5, 64, 256, 4000


def spirals(count, generator):
    """Points (count, 2) on ARMS arms of a spiral, with noise, and the number of each one's arm."""
    arm = torch.randint(ARMS, (count,), generator=generator)
    radius = torch.rand(count, generator=generator).sqrt()
    angle = 2 * math.pi / ARMS * arm + 3.5 * radius
    angle += 0.25 * torch.randn(count, generator=generator)
    return 2 * torch.stack([radius * angle.cos(), radius * angle.sin()], 1), arm


def network():
    sizes = (2, WIDTH, WIDTH, WIDTH, ARMS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(73)
        return nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))


def logits(layers, weights, x):
    """With these weights, and the biases of the layers."""
    for layer, weight in zip(layers, weights, strict=True):
        x = F.linear(x if layer is layers[0] else x.relu(), weight, layer.bias)
    return x


def plain(layers):
    return [layer.weight for layer in layers]


def quantised(layers, steps, bits):
    """The weights, quantised; LSQ's factor keeps the updates of a step as small, relative to it,
    as those of its weights."""
    qmin, qmax = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return [
        FakeQuantize.apply(layer.weight, s, qmin, qmax, (qmax * layer.weight.shape[1]) ** -0.5)
        for layer, s in zip(layers, steps, strict=True)
    ]


@torch.no_grad()
def best_steps(weight, bits):
    """For each row, of 91 steps the one with the least squared error."""
    qmin, qmax = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    shares = torch.linspace(0.1, 1, 91, device=weight.device)
    s = weight.abs().amax(1, keepdim=True) * shares / -qmin
    rounded = (weight[:, None] / s[..., None]).round().clamp(qmin, qmax) * s[..., None]
    error = (rounded - weight[:, None]).square().sum(2)
    return s.gather(1, error.argmin(1, keepdim=True))[:, 0]


def train(layers, weights, rounds, rate, steps=()):
    """weights: () -> those of all layers. steps: learnt too, at a tenth of the rate."""
    device = layers[0].weight.device
    groups = [{"params": list(layers.parameters())}, {"params": list(steps), "lr": rate / 10}]
    optimiser = torch.optim.Adam(groups if steps else groups[:1], lr=rate)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, rounds)
    generator = torch.Generator().manual_seed(rounds)
    for _ in range(rounds):
        x, arm = (t.to(device) for t in spirals(BATCH, generator))
        loss = F.cross_entropy(logits(layers, weights(), x), arm)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        decay.step()


@torch.no_grad()
def accuracy(layers, weights):
    """The share of TESTED other points whose arm is found."""
    x, arm = (t.to(layers[0].weight.device) for t in spirals(TESTED, torch.Generator()))
    return float((logits(layers, weights, x).argmax(1) == arm).double().mean())


@dataclass(frozen=True)
class Size:
    """Rounds of the training in fp32, and of that with fake quantisation after it; bits."""

    rounds: int
    more: int
    bits: tuple[int, ...]


ON_GPU, ON_CPU = Size(1500, 500, (4, 3, 2)), Size(300, 80, (2,))


def tuned(layers, steps, size, bits, learn):
    """The accuracy after further training with fake quantisation, of copies."""
    layers = copy.deepcopy(layers)
    steps = [s.clone().requires_grad_(learn) for s in steps]
    train(layers, lambda: quantised(layers, steps, bits), size.more, 2e-3, steps if learn else ())
    return accuracy(layers, quantised(layers, steps, bits))


def show(operators, device):
    """Prints accuracies. Raises RuntimeError where training with learnt steps leaves more than
    half of the wrong answers that quantising after training makes, from 3 bits down."""
    size = ON_GPU if device.type == "cuda" else ON_CPU
    layers = network().to(device)
    train(layers, lambda: plain(layers), size.rounds, 5e-3)
    exact, rows = accuracy(layers, plain(layers)), []
    for bits in size.bits:
        steps = [best_steps(layer.weight, bits) for layer in layers]
        after = accuracy(layers, quantised(layers, steps, bits))
        fixed, learnt = (tuned(layers, steps, size, bits, learn) for learn in (False, True))
        shares = (exact, after, fixed, learnt)
        rows.append([str(bits), *(f"{100 * share:.1f} %" for share in shares)])
        if bits <= 3 and not 1 - learnt < (1 - after) / 2:
            raise RuntimeError(f"{bits} bits: {learnt:.1%} right, {after:.1%} without training")
    print(f"points on {ARMS} arms of a spiral, right answers of a network of {len(layers)} layers")
    print_table(["bits", "fp32", "quantised after", "trained, fixed s", "trained, learnt s"], rows)
