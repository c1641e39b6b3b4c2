"""Make a picture for the days about images, and write PNG files of their results."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def hills_at_night(height: int = 200, width: int = 320) -> Tensor:
    """Return hills at night with a moon, stars and a railing of thin bars: uint8 (height, width,
    3)."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    image = torch.stack([20 + y // 3, 24 + y // 2, 70 + y // 2], dim=-1)

    def paint(where: Tensor, *colour: int) -> None:
        image[where] = torch.tensor(colour)

    paint((x * 7919 + y * 104729 + x * y * 31) % 397 == 0, 255, 255, 235)  # stars
    paint((x - 245) ** 2 + (y - 52) ** 2 < 30**2, 250, 240, 200)  # the moon
    for base, height_of, step, colour in ((120, 22, 47, (48, 72, 66)), (150, 14, 29, (34, 52, 40))):
        ridge = [base - height_of * math.sin(i / step) - 5 * math.sin(i / 11) for i in range(width)]
        paint(y > torch.tensor(ridge).round(), *colour)
    paint((y > 165) & (y < 192) & (x % 8 < 3), 205, 180, 140)  # the railing
    paint((y > 172) & (y < 176), 205, 180, 140)
    return image.to(torch.uint8)


def png(image: Tensor) -> bytes:
    """Return the PNG file of a uint8 tensor of shape (height, width), grey, or (height, width, 3),
    RGB.

    Format: W3C, Portable Network Graphics; a signature, then three chunks, each with its length,
    name, data and checksum. Raises ValueError for another dtype or shape.
    """
    colours = {2: 0, 3: 2}  # PNG's codes for grey and for RGB, by number of dimensions
    if (
        image.dtype != torch.uint8
        or image.dim() not in colours
        or image.shape[2:] not in ((), (3,))
    ):
        raise ValueError(
            f"image: expected uint8 (H, W) or (H, W, 3), got {image.dtype} {tuple(image.shape)}"
        )
    height, width = image.shape[:2]
    # Each row starts with the number of its filter; 0 means unfiltered.
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in image.cpu())
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colours[image.dim()], 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n"
    for name, body in chunks:
        data += struct.pack(">I", len(body)) + name + body
        data += struct.pack(">I", zlib.crc32(name + body))
    return data


def save_pictures(folder: Path, pictures: Mapping[str, Tensor]) -> None:
    """Write each picture to `folder`/<name>.png, see `png`, and print its shape and size."""
    for name, pixels in pictures.items():
        path = folder / f"{name}.png"
        path.write_bytes(png(pixels))
        print(f"{path.name:<14}{tuple(pixels.shape)!s:<15}{path.stat().st_size:>7,} bytes")
