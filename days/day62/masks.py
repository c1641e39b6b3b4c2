"""Dropout's mask by its formula in PyTorch, and what a mask has to be statistically."""

import torch

from common.day import print_table

STEPS = 65536  # values of 16 random bits, and steps of p
WORD = 0xFFFFFFFF


def words(seed, group, step):
    """Philox4x32-10 of int64 tensors of one shape; the words 0 to 2^32 - 1 in a new last dim."""
    counter = [group & WORD, group >> 32 & WORD, step & WORD, step >> 32 & WORD]
    for turn in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        k0 = (seed & WORD) + turn * 0x9E3779B9 & WORD
        k1 = (seed >> 32 & WORD) + turn * 0xBB67AE85 & WORD
        counter = [
            (b >> 32 & WORD) ^ counter[1] ^ k0,
            b & WORD,
            (a >> 32 & WORD) ^ counter[3] ^ k1,
            a & WORD,
        ]
    return torch.stack(counter, -1)


def kept(n, p, state):
    """Which of n elements are kept, and the factor of those, with p a multiple of 2^-16."""
    below = round(p * STEPS)
    group = torch.arange((n + 7) // 8, device=state.device)
    drawn = words(state[0].expand_as(group), group, state[1].expand_as(group))
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
