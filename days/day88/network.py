"""The network in PyTorch, whole and split, and the sizes of what the ranks exchange."""

import torch
from torch.nn import functional as F

SIGNAL_WORDS = 2176  # of int32 per rank: struct Signals of day 87
TILE_ROWS, TILE_COLS = 128, 192  # of exchange.cuh


def gelu(v):
    if v.dtype != torch.float64:
        return F.gelu(v, approximate="tanh")
    # The truth, in the form that keeps its digits for large negative v (day 83).
    return v * torch.sigmoid((8 / torch.pi) ** 0.5 * (v + 0.044715 * v**3))


def share_of(rows, width, ranks):
    """How many tiles of the output a rank adds, at most."""
    return -(-(-(-rows // TILE_ROWS) * -(-width // TILE_COLS)) // ranks)


def signal_words(rows, width, ranks):
    return SIGNAL_WORDS + share_of(rows, width, ranks) * ranks


def slot_elements(rows, width, ranks):
    return ranks * share_of(rows, width, ranks) * TILE_ROWS * TILE_COLS


def inputs(case, draw):
    """Shape (rows, C, H, ranks, blocks); each rank has H // ranks of the hidden values."""
    rows, C, H, ranks, blocks = case.shape
    own = H // ranks
    w1 = [draw(own, C, values="normal").mul_(max(C, 1) ** -0.5) for _ in range(ranks)]
    w2 = [draw(C, own, values="normal").mul_(max(H, 1) ** -0.5) for _ in range(ranks)]
    outs = [draw(rows, C) for _ in range(ranks)]
    words = signal_words(rows, C, ranks)
    signals = [draw(words, dtype="int32", low=0, high=1) for _ in range(ranks)]
    return draw(rows, C), w1, w2, outs, signals, blocks


def split(x, w1, w2, outs, signals, blocks):
    """Writes the outputs; the signals are 0 afterwards."""
    total = torch.zeros_like(x)
    for up, down in zip(w1, w2, strict=True):
        total += F.linear(gelu(F.linear(x, up)), down)
    for out in outs:
        out.copy_(total)


def eager(x, w1, w2, outs, signals, blocks):
    total = None
    for up, down in zip(w1, w2, strict=True):
        hidden = F.gelu(x @ up.T, approximate="tanh")
        total = hidden @ down.T if total is None else total.addmm_(hidden, down.T)
    torch._foreach_copy_(outs, [total] * len(outs))  # type: ignore[list-item]  # w1 is not empty
