"""Blur: cases, formulas, rungs."""

import math
from functools import cache

import torch
import torch.nn.functional as F

from common.day import Case, Cost, Library, Problem, Rung, grid

from .grey import image_of

SMALL = [(1, 1, 1), (5, 3, 2), (33, 35, 3), (31, 67, 4), (64, 32, 1)]


def box(radius):
    return [1] * (2 * radius + 1)


def gaussian(radius):
    """Integer weights of a normal distribution with σ = radius / 2; their sum is 256."""
    bell = [math.exp(-2 * (i / radius) ** 2) for i in range(-radius, radius + 1)]
    weights = [round(256 * value / sum(bell)) for value in bell]
    weights[radius] += 256 - sum(weights)
    return weights


def along(values, dim, weights):
    """Weighted sums of neighbours along `dim`; beyond the edge, the value at the edge."""
    size, radius = values.shape[dim], len(weights) // 2
    middle = torch.arange(size, device=values.device)
    shifted = ((middle + i - radius).clamp(0, size - 1) for i in range(len(weights)))
    return sum(w * values.index_select(dim, at) for w, at in zip(weights, shifted, strict=True))


def blur_reference(image, weights):
    if image.numel() == 0:
        return image.clone()
    total = sum(weights) ** 2
    sums = along(along(image.to(torch.int32), 0, weights), 1, weights)
    return ((sums + total // 2) // total).to(torch.uint8)


def blur_convolutions(image, weights):
    """Two depthwise convolutions, along rows and along columns; a bias of 0.5 rounds to nearest."""
    count, total = len(weights), sum(weights)
    row = torch.cat([torch.full((1,), w / total, device=image.device) for w in weights])
    half = torch.full((3,), 0.5, device=image.device)
    planes = F.pad(image.permute(2, 0, 1)[None].float(), [count // 2] * 4, mode="replicate")
    planes = F.conv2d(planes, row.expand(3, 1, 1, count), groups=3)
    planes = F.conv2d(planes, row[:, None].expand(3, 1, count, 1), half, groups=3)
    return planes.to(torch.uint8, memory_format=torch.channels_last)[0].permute(1, 2, 0)


@cache
def blur_compiled():
    """The sums of shifted images, in integers, which the compiler fuses."""
    return torch.compile(blur_reference, dynamic=False)


def blur_cost(case):
    height, width, radius = case.shape
    values = 3 * height * width
    return Cost(bytes=2 * values, flops=4 * (2 * radius + 1) * values, unit="int32")


def blur(name, weights, cases):
    return Problem(
        name=name,
        inputs=lambda case, draw: (image_of(case, draw), weights(case.shape[2])),
        reference=blur_reference,
        pytorch=blur_convolutions,
        libraries=(Library("compile", lambda *arguments: blur_compiled()(*arguments)),),
        rungs=(
            Rung("blur_v1_direct", "all neighbours of each output"),
            Rung("blur_v2_separable", "rows, then columns, in shared memory"),
            Rung("blur_v3_register_window", "four outputs from registers"),
        ),
        cases=(
            *grid(cases, ["uint8"]),
            *grid([(9, 13, 4), (9, 13, 15)], ["uint8"], values="constant"),
        ),
        bench=Case((8192, 8192, 4), "uint8"),
        bench_cpu=Case((96, 96, 4), "uint8"),
        cost=blur_cost,
    )


BLURS = (
    blur("Gaussian blur", gaussian, [*SMALL, (3, 41, 15), (70, 2, 7), (0, 4, 2), (4, 0, 2)]),
    blur("box blur", box, [(1, 7, 1), (7, 5, 2), (33, 31, 0), (12, 40, 15)]),
)
