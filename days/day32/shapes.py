"""Pictures to classify: one of five shapes each, drawn by code."""

import torch

NAMES = ("circle", "square", "triangle", "cross", "ring")
SIZE = 32  # pixels of a side


def draw_shapes(count, generator, size=SIZE):
    """Pictures (count, 3, size, size), fp32 in about [-1, 1], and the numbers of their shapes.

    Place, size, angle and both colours are random, and noise lies over all. The generator is on the
    CPU, so a seed draws the same pictures for every device.
    """

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(count, *shape, 1, 1, generator=generator)

    labels = torch.randint(len(NAMES), (count,), generator=generator)
    radius = uniform(0.3, 0.45)
    centre = 0.5 + (0.48 - radius) * uniform(-1, 1, 2).transpose(0, 1)
    at = (torch.arange(size) + 0.5) / size
    y, x = (at[:, None] - centre[0]) / radius, (at - centre[1]) / radius  # the shape: about 1
    angle = uniform(-0.3, 0.3)
    u, v = x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()
    a, b, r = u.abs(), v.abs(), (u * u + v * v).sqrt()
    inside = torch.stack([
        r < 0.9,
        torch.maximum(a, b) < 0.75,
        (v > -0.5) & (v + 3**0.5 * a < 1),
        (torch.minimum(a, b) < 0.28) & (torch.maximum(a, b) < 0.95),
        (r < 1) & (r > 0.6),
    ])  # fmt: skip
    shape = inside[labels, torch.arange(count)][:, None]
    paper, ink = uniform(-1, -0.2, 3), uniform(0.2, 1, 3)
    noise = 0.05 * torch.randn(count, 3, size, size, generator=generator)
    return torch.where(shape, ink, paper) + noise, labels
