"""Two moons: a small network learns to predict noise, and the day's kernels sample from it."""

import math

import torch
from torch import nn

STEPS = 100  # of the diffusion
POINTS = 1600  # sampled
SHOWN = (100, 40, 20, 8, 0)  # what is left of the steps in each panel


def moons(count, generator):
    """Points on two half circles, with a little noise: fp32 (count, 2), mean 0, about unit size."""
    angle = math.pi * torch.rand(count, generator=generator)
    upper = torch.arange(count) % 2 == 0
    x = torch.where(upper, angle.cos(), 1 - angle.cos()) - 0.5
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin()) - 0.25
    points = torch.stack([x, y], -1)
    return (points + 0.05 * torch.randn(count, 2, generator=generator)) * 1.25


def distance_to_moons(points):
    """The mean distance of points (n, 2) to the half circles."""
    x, y = (points.double() / 1.25 + torch.tensor([0.5, 0.25])).unbind(-1)

    def to_arc(x, y):
        ends = torch.minimum((x - 1).square() + y.square(), (x + 1).square() + y.square()).sqrt()
        return torch.where(y >= 0, ((x * x + y * y).sqrt() - 1).abs(), ends)

    return float(torch.minimum(to_arc(x, y), to_arc(1 - x, 0.5 - y)).mean())


def waves(values, frequencies):
    """Sines and cosines of each value, (n, k) -> (n, 2 · k · frequencies): a network of few layers
    learns fine detail in them that it misses in the values."""
    angles = (values[:, :, None] * torch.tensor(frequencies)).flatten(1)
    return torch.cat([angles.sin(), angles.cos()], -1)


class Denoiser(nn.Module):
    """Predicts the noise in points (n, 2) at times (n,)."""

    def __init__(self, width=96):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2 + 12 + 10, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2),
        )  # fmt: skip

    def forward(self, x, t):
        time = t[:, None] * (math.pi / 2 / STEPS)
        features = [x, waves(x, [1.0, 2.0, 4.0]), waves(time, [1.0, 2.0, 4.0, 8.0, 16.0])]
        return self.layers(torch.cat(features, -1))


def schedule():
    """beta and abar of each step, float64: betas that grow linearly, as in the paper, but more of
    each because there are 100 steps instead of 1000."""
    beta = torch.linspace(1e-3, 0.1, STEPS, dtype=torch.float64)
    return beta, (1 - beta).cumprod(0)


def trained(rounds=2000, batch=256):
    """A denoiser after some seconds on the CPU."""
    generator = torch.Generator().manual_seed(33)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(33)
        model = Denoiser()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, rounds)
    abar = schedule()[1].float()
    for _ in range(rounds):
        t = torch.randint(STEPS, (batch,), generator=generator)
        noise = torch.randn(batch, 2, generator=generator)
        signal = abar[t, None]
        x = signal.sqrt() * moons(batch, generator) + (1 - signal).sqrt() * noise
        loss = (model(x, t) - noise).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        decay.step()
    return model


@torch.no_grad()
def sampled(operators, device, model):
    """What is left of each number of steps in SHOWN: points on the CPU."""
    beta, abar = schedule()
    state = torch.tensor([33, 0], dtype=torch.int64, device=device)
    x = operators.noise(torch.empty(POINTS, 2, device=device), state)
    found = {STEPS: x.cpu()}
    for t in reversed(range(STEPS)):
        alpha, before = 1 - beta[t], abar[t - 1] if t else torch.ones(())
        variance = beta[t] * (1 - before) / (1 - abar[t])  # 0 at the last step: no noise
        c = torch.stack(
            [alpha.rsqrt(), -beta[t] * (alpha * (1 - abar[t])).rsqrt(), variance.sqrt()]
        )
        predicted = model(x.cpu(), torch.full((POINTS,), t)).to(device)
        state[1] += 1  # another step of the stream: other numbers
        x = operators.ddpm_step_v2_fused(x, predicted, c.float().to(device), state)
        found[t] = x.cpu()
    return found


def svg(panels, titles, side=150):
    """Panels of points, (n, 2), side by side; those beyond [-3, 3] are left out."""
    width = side * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {side + 20}" '
        f'font-family="sans-serif" font-size="11" width="{width}">',
        f'<rect width="{width}" height="{side + 20}" fill="#ffffff"/>',
    ]
    for number, (points, title) in enumerate(zip(panels, titles, strict=True)):
        left = number * side
        inside = points[points.abs().amax(1) < 2.9]
        places = (inside * torch.tensor([1.0, -1.0]) / 6 + 0.5) * side
        dots = "".join(f"M{x + left:.0f} {y:.0f}h0" for x, y in places.tolist())
        parts.append(
            f'<rect x="{left + 1}" y="1" width="{side - 2}" height="{side - 2}" fill="#f4f6f8"/>'
            f'<path d="{dots}" stroke="#1f5fa8" stroke-width="1.8" stroke-linecap="round" '
            f'stroke-opacity="0.55"/><text x="{left + side / 2:g}" y="{side + 14}" '
            f'text-anchor="middle" fill="#333333">{title}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def sample_moons(operators, device):
    """A picture of the samples at several steps from noise to moons, as a file; prints the mean
    distance of the last ones to the moons. Raises RuntimeError where that is too large."""
    found = sampled(operators, device, trained())
    data = distance_to_moons(moons(POINTS, torch.Generator().manual_seed(1)))
    noise, last = (distance_to_moons(found[t]) for t in (STEPS, 0))
    print(f"mean distance to two moons: noise {noise:.3f}, samples {last:.3f}, data {data:.3f}")
    if not last < 2.5 * data:
        raise RuntimeError(f"the samples are {last:.3f} from the moons on average")
    titles = [f"{left} steps left" for left in SHOWN[:-1]] + ["samples"]
    return {"moons.svg": svg([found[left] for left in SHOWN], titles)}
