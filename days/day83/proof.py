"""What the day's `show` proves: what dropout's mask is like, and a training beside torch.nn."""

import torch
from torch.nn import functional as F

from common.day import print_table

from .network import FeedForward, Twin

VERSIONS = ("v1_separate", "v2_fused", "v3_epilogues", "v4_wide")
FAR = 5  # standard deviations, from which a mean counts as biased: once in 1.7 million
STEPS = 50


# ---------------------------------------------------------------- the mask


def mask(operators, version, device, p, seed=83, step=0, rows=320, width=200):
    """Which elements are kept, as a matrix of 0 and 1: x is 0, and the branch is 1."""
    zeros = torch.zeros(rows, width, device=device, dtype=torch.bfloat16)
    w1, w2 = zeros[:8], zeros[:8].t().contiguous()
    b1, b2 = zeros[0, :8], torch.ones_like(zeros[0])
    state = torch.tensor([seed, step], device=device)
    call = getattr(operators, f"ffn_{version}")
    return (call(zeros, w1, b1, w2, b2, p, state)[0] != 0).double()


def print_statistics(operators, device):
    """Raises RuntimeError where rungs draw different masks, or one is not random enough."""
    rows = []

    def row(title, value, expected, deviation):
        off = (value - expected) / deviation
        rows.append([title, f"{value:.5f}", f"{expected:g}", f"{off:+.2f} σ"])
        if not abs(off) < FAR:
            raise RuntimeError(f"{title}: {value:.5f} where {expected:g} is due, {off:+.1f} σ")

    masks = [mask(operators, version, device, 0.5) for version in VERSIONS]
    if not all(torch.equal(each, masks[0]) for each in masks):
        raise RuntimeError("the rungs draw different masks from one state")
    n = masks[0].numel()
    for p in (0.1, 0.5, 0.9):
        share = 1 - mask(operators, "v3_epilogues", device, p).mean().item()
        row(f"dropped, p = {p}", share, p, (p * (1 - p) / n) ** 0.5)
    first = 2 * masks[0] - 1
    others = {
        "neighbours in a row": first.roll(1, 1),
        "neighbours in a column": first.roll(1, 0),
        "two steps": 2 * mask(operators, "v3_epilogues", device, 0.5, step=1) - 1,
        "two seeds": 2 * mask(operators, "v3_epilogues", device, 0.5, seed=84) - 1,
    }
    for title, other in others.items():
        row(f"correlation, {title}", (first * other).mean().item(), 0, n**-0.5)
    print_table([f"{n:,} elements, v3", "measured", "expected", "off by"], rows)


# ---------------------------------------------------------------- a training


def trained(module, dtype, device, rows, width):
    """The loss before each step: the distance of the network's output from that of a fixed map."""
    generator = torch.Generator().manual_seed(83)
    x = torch.randn(rows, width, generator=generator).to(device)
    target = x.roll(1, 1) * x.sign()
    optimiser = torch.optim.AdamW(module.parameters(), 2e-3, weight_decay=0)
    losses = []
    for _ in range(STEPS + 1):
        with torch.autocast(device.type, torch.bfloat16, dtype == torch.bfloat16):
            out = module(x.to(dtype))
        loss = F.mse_loss(out.float(), target)
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return losses


def print_training(operators, device):
    """Raises RuntimeError where v3 without dropout is more than twice as far from fp32 as torch.nn
    in bf16 is, or with dropout does not learn."""
    rows, width = (8192, 512) if device.type == "cuda" else (64, 32)
    half = torch.bfloat16
    ways = {
        "torch.nn, fp32": (Twin, 0.0, torch.float32),
        "torch.nn, bf16": (Twin, 0.0, half),
        "v3, bf16": (FeedForward, 0.0, half),
        "torch.nn, bf16, dropout": (Twin, 0.1, half),
        "v3, bf16, dropout": (FeedForward, 0.1, half),
    }
    found = {}
    for way, (kind, p, dtype) in ways.items():
        torch.manual_seed(83)
        module = kind(operators, "v3_epilogues", width, p).to(device)
        found[way] = trained(module, dtype, device, rows, width)
    shown = (0, 10, 25, STEPS)
    print_table(
        ["loss", *(f"step {i}" for i in shown)],
        [[way, *(f"{losses[i]:.5f}" for i in shown)] for way, losses in found.items()],
    )
    truth, theirs, ours = list(found.values())[:3]

    def distance(losses):
        return max(abs(a - b) / b for a, b in zip(losses, truth, strict=True))

    print(f"furthest from fp32: torch.nn {distance(theirs):.1e}, v3 {distance(ours):.1e}")
    if distance(ours) > max(2 * distance(theirs), 1e-3):
        raise RuntimeError("without dropout, v3 is further from fp32 than torch.nn in bf16")
    with_dropout = found["v3, bf16, dropout"]
    if not with_dropout[-1] < 0.9 * with_dropout[0]:
        raise RuntimeError("with dropout, v3 does not learn")


def show(operators, device):
    """Prints both; raises RuntimeError where something is not as it has to be."""
    print_statistics(operators, device)
    print_training(operators, device)
