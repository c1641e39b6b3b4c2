"""What the day's `show` proves: equal bits and exact decay of heat; a collision of two clusters."""

import math

import torch

from common.day import print_table

from .stencil import C

HEAT = ("heat_v1_point", "heat_v2_march", "heat_v3_ring", "heat_v4_two_steps")

# ---------------------------------------------------------------- heat


def print_decay(operators, device, shape=(20, 30, 124), steps=21):
    """A product of three sines, each half a wave, shrinks by the same factor in every step.

    Raises RuntimeError where rungs differ in a bit, or the factor is another."""
    waves = [torch.sin(math.pi * torch.arange(1, n + 1) / (n + 1)) for n in shape]
    u = (waves[0][:, None, None] * waves[1][:, None] * waves[2]).to(device)
    factor = 1 - 2 * C * sum(1 - math.cos(math.pi / (n + 1)) for n in shape)
    results = [getattr(operators, name)(u, C, steps) for name in HEAT]
    for name, result in zip(HEAT, results, strict=True):
        if not torch.equal(result, results[0]):
            raise RuntimeError(f"{name} gives other bits than {HEAT[0]}")
    error = float((results[0].double() - factor**steps * u.double()).abs().max())
    print_table(
        [f"half a wave, {steps} steps", "expected", "largest error"],
        [["v1 to v4, of equal bits", f"{factor**steps:.6f}", f"{error:.1e}"]],
    )
    if not error < steps * 2**-23:
        raise RuntimeError(f"off by {error:.3g} after {steps} steps")


# ---------------------------------------------------------------- two clusters

N, EPS = 512, 0.1
STEPS, DT = 520, 1 / 128
SHOWN = (0, 300, 400, 520)  # steps


def clusters():
    """Positions and masses (N, 4), velocities (N, 3): two balls that fly at each other. The second
    is the first, mirrored, so the momentum is 0."""
    generator = torch.Generator().manual_seed(94)
    half = 0.2 * torch.randn(N // 2, 3, generator=generator)
    speeds = 0.4 * torch.randn(N // 2, 3, generator=generator)
    half = half - half.mean(0) + torch.tensor([-1.0, -0.2, 0.0])
    speeds = speeds - speeds.mean(0) + torch.tensor([0.2, 0.0, 0.0])
    bodies = torch.cat([torch.cat([half, -half]), torch.full((N, 1), 1 / N)], 1)
    return bodies, torch.cat([speeds, -speeds])


def energy(bodies, v):
    """Kinetic and potential energy together, in float64."""
    bodies, v = bodies.double(), v.double()
    m, place = bodies[:, 3], bodies[:, :3]
    distance = (torch.cdist(place, place).square() + EPS * EPS).sqrt()
    pairs = m * m[:, None] / distance
    potential = -(pairs.sum() - pairs.diagonal().sum()) / 2
    return float((m[:, None] * v * v).sum() / 2 + potential)


def momentum(bodies, v):
    return float((bodies[:, 3:].double() * v.double()).sum(0).norm())


def flown(accelerations, bodies, v):
    """Leapfrog: half a step of the velocities, a step of the places, half a step of the velocities.
    Positions after the steps SHOWN, and for each the energy and the momentum."""
    bodies, v = bodies.clone(), v.clone()
    places, found = [], []
    a = accelerations(bodies, EPS)
    for step in range(STEPS + 1):
        if step in SHOWN:
            places.append(bodies[:, :2].to("cpu", copy=True))
            found.append((energy(bodies, v), momentum(bodies, v)))
        v += DT / 2 * a
        bodies[:, :3] += DT * v
        a = accelerations(bodies, EPS)
        v += DT / 2 * a
    return places, found


def print_collision(operators, device):
    """The picture of a collision. Raises RuntimeError where energy or momentum is not kept."""
    bodies, v = (t.to(device) for t in clusters())
    places, found = flown(operators.nbody_v4_fast_root, bodies, v)
    start = found[0][0]
    print_table(
        [f"{N} bodies, after steps", "energy", "drift", "momentum"],
        [
            [step, f"{e:.6f}", f"{(e - start) / abs(start):+.1e}", f"{p:.1e}"]
            for step, (e, p) in zip(SHOWN, found, strict=True)
        ],
    )
    for step, (e, p) in zip(SHOWN, found, strict=True):
        if not abs(e - start) < 1e-3 * abs(start):
            raise RuntimeError(f"the energy is {e:.6f} after {step} steps, {start:.6f} at first")
        if not p < 1e-6:
            raise RuntimeError(f"the momentum is {p:.2g} after {step} steps")
    return {"clusters.svg": svg(places, [f"step {step}" for step in SHOWN])}


def svg(panels, titles, side=180, reach=1.8):
    """Panels of points, (n, 2), side by side; those beyond `reach` are left out."""
    width = side * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {side + 20}" '
        f'font-family="sans-serif" font-size="11" width="{width}">',
        f'<rect width="{width}" height="{side + 20}" fill="#ffffff"/>',
    ]
    for number, (points, title) in enumerate(zip(panels, titles, strict=True)):
        left = number * side
        parts.append(
            f'<rect x="{left + 1}" y="1" width="{side - 2}" height="{side - 2}" fill="#f4f6f8"/>'
        )
        for half, colour in zip(points.chunk(2), ("#1f5fa8", "#b5451b"), strict=True):
            inside = half[half.abs().amax(1) < 0.98 * reach]
            spots = (inside * torch.tensor([1.0, -1.0]) / (2 * reach) + 0.5) * side
            dots = "".join(f"M{x + left:.0f} {y:.0f}h0" for x, y in spots.tolist())
            parts.append(
                f'<path d="{dots}" stroke="{colour}" stroke-width="2" stroke-linecap="round" '
                'stroke-opacity="0.6"/>'
            )
        parts.append(
            f'<text x="{left + side / 2:g}" y="{side + 14}" text-anchor="middle" '
            f'fill="#333333">{title}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def show(operators, device):
    """Prints the proofs; returns the picture of the collision."""
    print_decay(operators, device)
    return print_collision(operators, device)
