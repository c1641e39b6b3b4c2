"""Statistics of the noise: mean, variance, skewness, kurtosis, correlation, Kolmogorov-Smirnov."""

import math

import torch

from common.day import print_table

SEED = 2026
LIMIT = 4.0  # standard deviations; one of the ten figures exceeds it by chance once in 1,600 seeds


def distance_to_normal(z):
    """Kolmogorov-Smirnov: the largest distance of the empirical distribution of z, float64 (n,),
    from the normal one. For large n, √n · distance exceeds 1.95 with a probability of 0.001."""
    n = z.numel()
    expected = torch.special.ndtr(z.sort().values)
    steps = torch.arange(n + 1, dtype=torch.float64, device=z.device) / n
    return max(float((steps[1:] - expected).max()), float((expected - steps[:-1]).max()))


def correlation(a, b):
    """Of two vectors with mean 0 and variance 1."""
    return float((a * b).mean())


def print_statistics(operators, device):
    """Prints each statistic beside what is expected; raises RuntimeError for one that is off."""
    rows, cols = (1024, 16384) if device.type == "cuda" else (64, 4096)
    zeros = torch.zeros(rows, cols, device=device)

    def drawn(step, seed=SEED):
        state = torch.tensor([seed, step], dtype=torch.int64, device=device)
        # Through the fused kernel of 16-bit types, which is the least exact: 0 · x + 1 · z.
        one = torch.ones(rows, device=device)
        half = zeros.to(torch.float16)
        fast = operators.add_noise_v4_fast_math(half, 0 * one, one, state)
        exact = operators.noise(zeros, state)
        if float((fast - exact).abs().max()) > 2e-3 + 2**-9:
            raise RuntimeError("the noise of the fused kernel is not that of `noise`")
        return exact.double()

    z, n = drawn(0), rows * cols
    flat = z.flatten()
    figures = [
        ("mean", float(z.mean()), 0.0, 1 / math.sqrt(n)),
        ("variance", float(z.var()), 1.0, math.sqrt(2 / n)),
        ("skewness", float((z**3).mean()), 0.0, math.sqrt(15 / n)),
        ("kurtosis", float((z**4).mean()), 3.0, math.sqrt(96 / n)),
        *(
            (f"correlation, {name}", correlation(a, b), 0.0, 1 / math.sqrt(len(a)))
            for name, a, b in (
                ("sine and cosine", flat[0::2], flat[1::2]),
                ("their squares", *((flat[k::2] ** 2 - 1) / math.sqrt(2) for k in (0, 1))),
                ("neighbouring groups", flat[:-4], flat[4:]),
                ("neighbouring rows", z[:-1].flatten(), z[1:].flatten()),
                ("two steps", flat, drawn(1).flatten()),
                ("two seeds", flat, drawn(0, SEED + 1).flatten()),
            )
        ),
    ]
    table, off = [], []
    for name, value, expected, deviation in figures:
        away = (value - expected) / deviation
        table.append([name, f"{value:.5f}", f"{expected:g}", f"{away:+.2f} σ"])
        if not abs(away) < LIMIT:
            off.append(f"{name} is {away:+.1f} standard deviations off")
    distance = math.sqrt(n) * distance_to_normal(flat)
    table.append(["Kolmogorov-Smirnov, √n · D", f"{distance:.2f}", "< 1.95", ""])
    if not distance < 1.95:
        off.append(f"√n · D is {distance:.2f}")
    print_table([f"{n:,} normal numbers", "measured", "expected", "off by"], table)
    if off:
        raise RuntimeError("the noise is not normal: " + "; ".join(off))
