"""Day 13: images, converted to grey and blurred."""

import math
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F

from common.day import (
    COMPILE,
    Case,
    Cost,
    Exercise,
    Library,
    Problem,
    Rung,
    Target,
    grid,
    hills_at_night,
    save_pictures,
)

TITLE = "Images: grey and blurred"
TEACHES = "Bytes packed in words, fixed-point arithmetic, separable filters in shared memory"
TOPICS = ("images", "grey", "blur", "convolution", "shared memory", "integers")
SOURCE = "color2gray.cu"
INTRODUCES = ("fixed point", "separable filter")

EXERCISE = Exercise(
    function="luma_of_four",
    task=(
        "Compute four grey pixels from twelve bytes in three words, RGBR GBRG BRGB, and pack "
        "them into one word, the first pixel in the lowest byte."
    ),
    hints=(
        "byte_of(word, k) is byte k of a word, 0 the lowest. Which bytes of which words belong "
        "to the second pixel?",
        "The pixels are: three bytes of the first word; its last byte and two of the second; the "
        "second's last two and one of the third; the third's last three.",
        "luma(r, g, b) gives 0 to 255, so four of them fit: y0 | y1 << 8 | y2 << 16 | y3 << 24.",
    ),
)

SIZES = [(1, 1), (1, 3), (5, 3), (3, 5), (16, 16), (31, 33), (64, 65), (7, 1031), (0, 4), (4, 0)]


def image_of(case, draw):
    white = {"low": 255, "high": 256} if case.values == "constant" else {}  # finds overflow
    return draw(*case.shape[:2], 3, **white)


def grey_reference(image):
    r, g, b = image.to(torch.int32).unbind(-1)
    return ((19595 * r + 38470 * g + 7471 * b + 32768) >> 16).to(torch.uint8)


def grey_in_place(image):
    """Exact, with one int32 image: each addition reads bytes and widens them itself."""
    r, g, b = image.unbind(-1)
    y = torch.full(r.shape, 32768, dtype=torch.int32, device=image.device)
    y.add_(r, alpha=19595).add_(g, alpha=38470).add_(b, alpha=7471)
    return y.bitwise_right_shift_(16).to(torch.uint8)


def grey_cost(case):
    pixels = case.shape[0] * case.shape[1]
    return Cost(bytes=4 * pixels, flops=6 * pixels, unit="int32")


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


SMALL = [(1, 1, 1), (5, 3, 2), (33, 35, 3), (31, 67, 4), (64, 32, 1)]
PROBLEMS = (
    Problem(
        name="grey",
        inputs=lambda case, draw: (image_of(case, draw),),
        reference=grey_reference,
        pytorch=grey_in_place,
        libraries=(COMPILE,),
        rungs=(
            Rung("grey_v1_thread_per_pixel", "one thread per pixel"),
            Rung("grey_v2_four_pixels", "three words in, one word out"),
            Rung("grey_v3_sixteen_pixels", "16-byte loads", target=Target(0.85, "copy")),
        ),
        cases=(*grid(SIZES, ["uint8"]), Case((9, 13), "uint8", "constant")),
        bench=Case((16384, 16384), "uint8"),
        bench_cpu=Case((1024, 1024), "uint8"),
        cost=grey_cost,
    ),
    blur("Gaussian blur", gaussian, [*SMALL, (3, 41, 15), (70, 2, 7), (0, 4, 2), (4, 0, 2)]),
    blur("box blur", box, [(1, 7, 1), (7, 5, 2), (33, 31, 0), (12, 40, 15)]),
)


def show(operators, device):
    """Saves a picture as drawn, in grey, and blurred with both filters."""
    image = hills_at_night().to(device)
    pictures = {
        "picture": image,
        "grey": operators.grey_v3_sixteen_pixels(image),
        "box": operators.blur_v3_register_window(image, box(4)),
        "gaussian": operators.blur_v3_register_window(image, gaussian(4)),
    }
    save_pictures(Path(__file__).parent, pictures)
