"""The patterns in PyTorch: by the formula, and by angle sums as a product of matrices."""

from functools import cache

import torch

from common.day import Cost

TURN = 2 * torch.pi / 2**32  # radians per unit of phase
WAVES, CHANNELS = 4, 3


def angle(phase):
    """int64 phases in turns / 2^32, of any size -> radians in [-π, π), in the default dtype."""
    wrapped = (phase + 2**31 & 2**32 - 1) - 2**31
    return wrapped.to(torch.get_default_dtype()) * TURN


def axes(waves, frames, height, width):
    """Phases (4, frames, 1, 1), (4, 1, height, 1) and (4, 1, 1, width); the first has the start."""
    x, y, t, start = waves.long().T[..., None, None, None]
    counts = (torch.arange(n, device=waves.device) for n in (width, height, frames))
    columns, rows, times = counts
    return t * times[:, None, None] + start, y * rows[:, None], x * columns


def formula(waves, palette, frames, height, width):
    """waves: (4, 4), palette: (3,), int32 -> (frames, height, width, 3) uint8."""
    parts = axes(waves, frames, height, width)
    s0, s1, s2, s3 = (torch.sin(angle(t + y + x)) for t, y, x in zip(*parts, strict=True))
    theta = torch.pi / 4 * (s0 + s1 + s2 + s3)
    shade = theta[..., None] + angle(palette.long())
    return (128 + 127.5 * torch.cos(shade)).floor().to(torch.uint8)


def angle_sums(waves, palette, frames, height, width):
    """sin(a + b) = sin a · cos b + cos a · sin b, summed over the waves: a product with an inner
    dimension of 8. In place, so that one tensor of all angles is all that is needed."""
    t, y, x = axes(waves, frames, height, width)
    rows, columns = angle(t + y).view(WAVES, -1), angle(x).view(WAVES, width)
    left = torch.cat([rows.sin(), rows.cos()]).T * (torch.pi / 4)
    theta = left @ torch.cat([columns.cos(), columns.sin()])
    shade = theta.view(frames, height, width, 1) + angle(palette.long())
    return shade.cos_().mul_(127.5).add_(128).to(torch.uint8)


@cache
def compiled_formula():
    """All in one kernel, which the compiler makes of the formula."""
    return torch.compile(formula, dynamic=False)


def inputs(case, draw):
    """Waves and palettes of all 2^32 phases each, and the sizes."""
    return (
        draw(WAVES, 4, dtype="int32"),
        draw(CHANNELS, dtype="int32"),
        *case.shape,
    )


def cost(case):
    """The bytes written; of the operations, the multiply-adds of v3."""
    frames, height, width = case.shape
    pixels = frames * height * width
    return Cost(bytes=CHANNELS * pixels, flops=28 * pixels)
