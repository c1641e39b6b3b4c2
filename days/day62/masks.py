"""Dropout's mask by its formula in PyTorch, and what a mask has to be statistically."""

import torch

from common.day import print_table
from common.references.philox import philox_words

STEPS = 65536  # values of 16 random bits, and steps of p


def kept(n, p, state):
    """Which of n elements are kept, and the factor of those, with p a multiple of 2^-16."""
    below = round(p * STEPS)
    group = torch.arange((n + 7) // 8, device=state.device)
    drawn = philox_words(state[0].expand_as(group), group, state[1].expand_as(group))
    halves = torch.stack([drawn & 0xFFFF, drawn >> 16], -1).flatten()[:n]
    return halves >= below, STEPS / (STEPS - below) if below < STEPS else 0.0


def dropout(x, p, state):
    """x: any shape; state: (2,), seed and step."""
    keep, scale = kept(x.numel(), p, state)
    return torch.where(keep.view(x.shape), x * scale, 0)


def print_statistics(call, device, n=1 << 18):
    """The share that is dropped and three correlations, each with its distance in standard
    deviations of independent elements."""
    ones = torch.ones(n, device=device)
    rows = []

    def mask(p, seed=62, step=0):
        state = torch.tensor([seed, step], device=device)
        return (call(ones, p, state) == 0).double()

    def row(title, value, expected, deviation):
        off = (value - expected) / deviation
        rows.append([title, f"{value:.5f}", f"{expected:g}", f"{off:+.2f} σ"])

    for p in (0.1, 0.5, 0.9):
        row(f"dropped, p = {p}", mask(p).mean().item(), p, (p * (1 - p) / n) ** 0.5)
    first = mask(0.5) * 2 - 1
    others = {
        "neighbours": first.roll(1),
        "two steps": mask(0.5, step=1) * 2 - 1,
        "two seeds": mask(0.5, seed=63) * 2 - 1,
    }
    for title, other in others.items():
        row(f"correlation, {title}", (first * other).mean().item(), 0, n**-0.5)
    print_table([f"{n:,} elements", "measured", "expected", "off by"], rows)
