"""Day 13: images, converted to grey and blurred."""

import math
import struct
import zlib
from pathlib import Path

import torch
from torch.nn import functional

from common.day import COMPILE, Case, Cost, Problem, Rung, Target, grid

TITLE = "Images: grey and blurred"
TEACHES = "Bytes packed in words, fixed-point arithmetic, separable filters in shared memory"
TOPICS = ("images", "grey", "blur", "convolution", "shared memory", "integers")
SOURCE = "color2gray.cu"
INTRODUCES = ("fixed point", "separable filter")

SIZES = [(1, 1), (1, 3), (5, 3), (3, 5), (16, 16), (31, 33), (64, 65), (7, 1031), (0, 4), (4, 0)]


def image_of(case, draw):
    height, width = case.shape[:2]
    if case.values == "constant":  # white must stay white: finds overflow
        return draw(height, width, 3, low=255, high=256)
    return draw(height, width, 3)


def grey_inputs(case, draw):
    return (image_of(case, draw),)


def grey_reference(image):
    r, g, b = image.to(torch.int32).unbind(-1)
    return ((19595 * r + 38470 * g + 7471 * b + 32768) >> 16).to(torch.uint8)


def grey_cost(case):
    height, width = case.shape
    return Cost(bytes=4 * height * width, flops=6 * height * width)


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


def blur_pytorch(image, weights):
    """Two depthwise convolutions, along rows and along columns."""
    count, total = len(weights), sum(weights)
    row = torch.cat([torch.full((1,), w / total, device=image.device) for w in weights])
    planes = image.permute(2, 0, 1)[None].float()
    planes = functional.pad(planes, [count // 2] * 4, mode="replicate")
    planes = functional.conv2d(planes, row.expand(3, 1, 1, count), groups=3)
    planes = functional.conv2d(planes, row[:, None].expand(3, 1, count, 1), groups=3)
    return planes[0].permute(1, 2, 0).round().to(torch.uint8).contiguous()


def blur_cost(case):
    height, width, radius = case.shape
    values = 3 * height * width
    return Cost(bytes=2 * values, flops=4 * (2 * radius + 1) * values)


def blur_problem(name, weights, cases):
    return Problem(
        name=name,
        inputs=lambda case, draw: (image_of(case, draw), weights(case.shape[2])),
        reference=blur_reference,
        pytorch=blur_pytorch,
        rungs=(
            Rung("blur_v1_direct", "all neighbours of each output"),
            Rung("blur_v2_separable", "rows, then columns, in shared memory"),
            Rung("blur_v3_register_window", "four outputs from registers"),
        ),
        cases=cases,
        bench=Case((8192, 8192, 4), "uint8"),
        bench_cpu=Case((96, 96, 4), "uint8"),
        cost=blur_cost,
    )


PROBLEMS = (
    Problem(
        name="grey",
        inputs=grey_inputs,
        reference=grey_reference,
        rungs=(
            Rung("grey_v1_thread_per_pixel", "one thread per pixel"),
            Rung("grey_v2_four_pixels", "three words in, one word out"),
            Rung("grey_v3_sixteen_pixels", "16-byte loads", target=Target(0.85, "copy")),
        ),
        cases=(*grid(SIZES, ["uint8"]), Case((9, 13), "uint8", "constant")),
        bench=Case((16384, 16384), "uint8"),
        bench_cpu=Case((1024, 1024), "uint8"),
        cost=grey_cost,
        libraries=(COMPILE,),
    ),
    blur_problem(
        "Gaussian blur",
        gaussian,
        (
            *grid([(1, 1, 1), (5, 3, 2), (33, 35, 3), (31, 67, 4), (64, 32, 1)], ["uint8"]),
            *grid([(3, 41, 15), (70, 2, 7), (0, 4, 2), (4, 0, 2)], ["uint8"]),
            Case((9, 13, 4), "uint8", "constant"),
        ),
    ),
    blur_problem(
        "box blur",
        box,
        (
            *grid([(1, 7, 1), (7, 5, 2), (33, 31, 0), (12, 40, 15)], ["uint8"]),
            Case((9, 13, 15), "uint8", "constant"),
        ),
    ),
)


def picture(height=200, width=320):
    """Hills at night with a moon, stars and a railing of thin bars: uint8 (H, W, 3)."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    image = torch.stack([20 + y // 3, 24 + y // 2, 70 + y // 2], dim=-1)

    def paint(where, *colour):
        image[where] = torch.tensor(colour)

    paint((x * 7919 + y * 104729 + x * y * 31) % 397 == 0, 255, 255, 235)  # stars
    paint((x - 245) ** 2 + (y - 52) ** 2 < 30**2, 250, 240, 200)  # the moon
    for base, height_of, step, colour in ((120, 22, 47, (48, 72, 66)), (150, 14, 29, (34, 52, 40))):
        ridge = [base - height_of * math.sin(i / step) - 5 * math.sin(i / 11) for i in range(width)]
        paint(y > torch.tensor(ridge).round(), *colour)
    paint((y > 165) & (y < 192) & (x % 8 < 3), 205, 180, 140)  # the railing
    paint((y > 172) & (y < 176), 205, 180, 140)
    return image.to(torch.uint8)


def save_png(image, path):
    """Writes uint8 (H, W) or (H, W, 3) as a PNG: a signature, then three chunks, each with its
    length, name, data and checksum."""
    height, width = image.shape[:2]
    colour = 2 if image.dim() == 3 else 0
    # Each row starts with the number of its filter; 0 means unfiltered.
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in image.cpu())
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n"
    for name, body in chunks:
        data += struct.pack(">I", len(body)) + name + body
        data += struct.pack(">I", zlib.crc32(name + body))
    path.write_bytes(data)


def show(operators, device):
    """Saves a picture as drawn, in grey, and blurred with both filters."""
    image = picture().to(device)
    pictures = {
        "picture": image,
        "grey": operators.grey_v3_sixteen_pixels(image),
        "box": operators.blur_v3_register_window(image, box(4)),
        "gaussian": operators.blur_v3_register_window(image, gaussian(4)),
    }
    for name, pixels in pictures.items():
        path = Path(__file__).with_name(f"{name}.png")
        save_png(pixels, path)
        print(f"{path.name:<14}{tuple(pixels.shape)!s:<15}{path.stat().st_size:>7,} bytes")
