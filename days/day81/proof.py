"""What the day's `show` proves: equal to PyTorch's optimiser, rounding without bias, training."""

import json
from types import SimpleNamespace

import torch

from common.day import figure_as_svg, print_table

from .stepping import NUMBERS, fused, fused_master

FILES = ("training.json", "training.svg")
SIZES = [(70, 64), (4099,), (1,), (3, 5, 7), (2048,)]
FAR = 5  # standard deviations, from which a mean counts as biased: once in 1.7 million


# ---------------------------------------------------------------- equal to torch.optim.AdamW


def drawn(generator, device, dtype=torch.float32):
    return [torch.randn(size, generator=generator).to(device, dtype) for size in SIZES]


def optimised(device, dtype, steps, **options):
    """The parameters after so many steps of torch.optim.AdamW, on gradients that are drawn."""
    generator = torch.Generator().manual_seed(81)
    params = drawn(generator, device, dtype)
    lr, beta1, beta2, eps, weight_decay, _ = NUMBERS
    optimiser = torch.optim.AdamW(
        params, lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay, **options
    )
    for _ in range(steps):
        for p, g in zip(params, drawn(generator, device, dtype), strict=True):
            p.grad = g
        optimiser.step()
    return params


def stepped(call, device, steps):
    """The same by a function on lists in fp32; p, then m, then v of all tensors."""
    generator = torch.Generator().manual_seed(81)
    lists = [drawn(generator, device)]
    lists += [[torch.zeros_like(p) for p in lists[0]] for _ in range(2)]
    for step in range(1, steps + 1):
        call(lists[0], drawn(generator, device), *lists[1:], *NUMBERS[:-1], step)
    return [t for each in lists for t in each]


def mixed(call, device, steps):
    """The same with bf16 gradients and a master copy: p, then the bf16 weights."""
    generator = torch.Generator().manual_seed(81)
    lists = [drawn(generator, device)]
    lists += [[torch.zeros_like(p) for p in lists[0]] for _ in range(2)]
    weights = [torch.empty_like(p, dtype=torch.bfloat16) for p in lists[0]]
    for step in range(1, steps + 1):
        grads = drawn(generator, device, torch.bfloat16)
        call(weights, lists[0], grads, *lists[1:], *NUMBERS[:-1], step)
    return [*lists[0], *weights]


def largest_error(params, truth):
    pairs = zip(params[: len(truth)], truth, strict=True)
    return max(float((p.double() - t).abs().max()) for p, t in pairs)


def print_errors(operators, device, steps=10):
    """Raises RuntimeError where rungs differ in a bit, where they or a call that they are timed
    beside round more than twice as much as torch.optim.AdamW(fused=True), or where weights are not
    their master copy, rounded."""
    truth = optimised(device, torch.float64, steps)
    theirs = largest_error(optimised(device, torch.float32, steps, fused=True), truth)
    rungs = ("adamw_v1_scalar", "adamw_v2_packs", "adamw_v3_one_launch")
    results = [stepped(getattr(operators, name), device, steps) for name in rungs]
    for name, result in zip(rungs, results, strict=True):
        if not all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True)):
            raise RuntimeError(f"{name} gives other bits than {rungs[0]}")
    master = mixed(operators.adamw_v4_master, device, steps)
    half = len(SIZES)
    if not all(torch.equal(p.bfloat16(), w) for p, w in zip(master, master[half:], strict=False)):
        raise RuntimeError("adamw_v4_master: weights are not their master copy, rounded")
    found = {
        "torch.optim.AdamW(fused=True)": theirs,
        "its kernels, called as they are timed": largest_error(
            stepped(fused, device, steps), truth
        ),
        "v1, v2 and v3, of equal bits": largest_error(results[0], truth),
        "v4 master, beside PyTorch's calls for it": largest_error(
            master, [t.double() for t in mixed(fused_master, device, steps)]
        ),
    }
    print_table(
        [f"largest error after {steps} steps", "in a parameter"],
        [[title, f"{error:.2g}"] for title, error in found.items()],
    )
    for title, error in found.items():
        if not error <= 2 * theirs:
            raise RuntimeError(f"{title}: off by {error:.3g}, torch.optim by {theirs:.3g}")


# ---------------------------------------------------------------- rounding without bias

GAP = 2.0**-8  # of bf16 below 1


def rounded_up(operators, device, lr, *, n=1 << 16, seed=81, step=1, place=0):
    """Whether each of n numbers 1 - lr became 1. Weights of 1 take a first step of lr."""
    lists = [torch.ones(n, device=device, dtype=torch.bfloat16) for _ in range(2)]
    lists += [torch.zeros(n, device=device) for _ in range(2)]
    one = [t[:0] for t in lists]  # empty tensors in front give it another place in the list
    # beta1 = beta2 = 0: m / sqrt(v) is 1 in every step
    call = operators.adamw_v4_rounded
    call(*([e] * place + [t] for e, t in zip(one, lists, strict=True)), lr, 0, 0, 0, 0, step, seed)
    wrong = (lists[0] != 1) & (lists[0] != 1 - GAP)
    if bool(wrong.any()):
        raise RuntimeError(f"{1 - lr} was rounded to {float(lists[0][wrong][0])}")
    return (lists[0] == 1).double()


def print_statistics(operators, device):
    """Raises RuntimeError where a share or a correlation is further than FAR from what is due."""
    rows = []

    def row(title, value, expected, deviation):
        off = (value - expected) / deviation
        rows.append([title, f"{value:.5f}", f"{expected:.5f}", f"{off:+.2f} σ"])
        if not abs(off) < FAR:
            raise RuntimeError(f"{title}: {value:.5f} where {expected:.5f} is due, {off:+.1f} σ")

    for share in (0.1, 0.5, 2 / 3):
        up = rounded_up(operators, device, (1 - share) * GAP)
        deviation = (share * (1 - share) / len(up)) ** 0.5
        row(f"rounded up, {share:.3f} of the way", up.mean().item(), share, deviation)
    once, again = (rounded_up(operators, device, GAP / 2) for _ in range(2))
    if not torch.equal(once, again):
        raise RuntimeError("the same seed, step and place in the list round otherwise")
    first = 2 * once - 1
    others = {
        "neighbours": first.roll(1),
        "elements 4 apart": first.roll(4),
        "two steps": 2 * rounded_up(operators, device, GAP / 2, step=2) - 1,
        "two tensors": 2 * rounded_up(operators, device, GAP / 2, place=1) - 1,
        "two seeds": 2 * rounded_up(operators, device, GAP / 2, seed=82) - 1,
    }
    for title, other in others.items():
        row(f"correlation, {title}", (first * other).mean().item(), 0, len(first) ** -0.5)
    print_table([f"{len(first):,} elements", "measured", "expected", "off by"], rows)


# ---------------------------------------------------------------- a small training

LR, STEPS, EVERY, N = 5e-4, 400, 20, 2048


def trained(operators, device, way):
    """The mean distance of N weights to their targets, before the first step and after every 20.

    Weights begin between 0.75 and 1, 0.15 above their targets; the loss is half the squared
    distance. A step of 0.0005 is less than half the gap of bf16 there, 0.002.
    """
    generator = torch.Generator().manual_seed(81)
    start = (0.75 + 0.25 * torch.rand(N, generator=generator)).bfloat16().float().to(device)
    target = start - 0.15
    s = SimpleNamespace(p=start.clone(), m=torch.zeros_like(start), v=torch.zeros_like(start))
    weights = start.bfloat16()
    numbers = (LR, 0.9, 0.98, 1e-8, 0.0)
    distances = [float((start - target).abs().mean())]
    for step in range(1, STEPS + 1):
        gradient = weights.float() - target if way != "fp32" else s.p - target
        half = gradient.bfloat16()
        if way == "bf16, stochastic":
            operators.adamw_v4_rounded([weights], [half], [s.m], [s.v], *numbers, step, 81)
        elif way == "bf16, master copy":
            operators.adamw_v4_master([weights], [s.p], [half], [s.m], [s.v], *numbers, step)
        else:
            operators.adamw_v3_one_launch([s.p], [gradient], [s.m], [s.v], *numbers, step)
            if way == "bf16, nearest":
                weights = s.p.bfloat16()
                s.p = weights.float()
        if step % EVERY == 0:
            now = s.p if way == "fp32" else weights.float()
            distances.append(float(f"{float((now - target).abs().mean()):.4g}"))
    return distances


def show(operators, device):
    """Prints the proofs; returns the training as data and as a plot. Raises RuntimeError where
    rounding to nearest does not stall, or another way ends further away than fp32 by more than a
    gap of bf16: it cannot be nearer than that to every target."""
    print_errors(operators, device)
    print_statistics(operators, device)
    ways = ("fp32", "bf16, nearest", "bf16, stochastic", "bf16, master copy")
    found = {way: trained(operators, device, way) for way in ways}
    print_table(
        ["distance to the targets", "at first", f"after {STEPS // 2} steps", f"after {STEPS}"],
        [[way, *(f"{d[i]:.4f}" for i in (0, len(d) // 2, -1))] for way, d in found.items()],
    )
    if found["bf16, nearest"][-1] < 0.9 * found["bf16, nearest"][0]:
        raise RuntimeError("rounding to nearest was to stall, and came closer")
    for way in ways[2:]:
        if found[way][-1] > found["fp32"][-1] + GAP:
            raise RuntimeError(f"{way} is {found[way][-1]:.4f} away, fp32 {found['fp32'][-1]:.4f}")
    text = json.dumps({"every": EVERY, "distance": found}, indent=1) + "\n"
    return dict(zip(FILES, (text, svg(found)), strict=True))


def svg(found):
    """The mean distance over the steps, a line per way."""

    def draw(figure):
        axis = figure.subplots()
        styles = ("-", "-", "--", ":")
        for (way, distances), style in zip(found.items(), styles, strict=True):
            steps = [EVERY * i for i in range(len(distances))]
            axis.plot(steps, distances, style, linewidth=2, label=way)
        axis.set_xlabel("step")
        axis.set_ylabel("mean distance to the targets")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend()

    return figure_as_svg((7.2, 3.4), draw)
