"""What the trained model makes of new pictures, and pictures of what it attends to."""

from pathlib import Path

import torch

from common.day import print_table
from common.report.picture import save_pictures

from .model import class_attention, forward, fused, stacked, twin
from .shapes import NAMES, draw_shapes
from .train import PATCH, entry

GAP = 4  # pixels between the tiles of a picture


def sheet(rows):
    """Tiles (height, width, 3) of one size, in rows and columns, with white gaps."""

    def joined(tiles, dim):
        shape = list(tiles[0].shape)
        shape[dim] = GAP
        white = torch.full(shape, 255, dtype=torch.uint8)
        return torch.cat([part for tile in tiles for part in (tile, white)][:-1], dim)

    return joined([joined(row, 1) for row in rows], 0)


def pixels(image, scale):
    """An image (3, height, width) in [-1, 1] as uint8 (height, width, 3), enlarged."""
    bytes_ = ((image.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0)
    return bytes_.repeat_interleave(scale, 0).repeat_interleave(scale, 1)


def cut(image):
    """The patches of an image, as rows of tiles."""
    rows = image.split(PATCH, 1)
    return [[pixels(patch, 6) for patch in row.split(PATCH, 2)] for row in rows]


def spotlight(image, attention):
    """The image, each patch as bright as its share of the attention (patches,)."""
    side = image.shape[1] // PATCH
    light = (attention / attention.max()).view(side, side)
    light = light.repeat_interleave(PATCH, 0).repeat_interleave(PATCH, 1)
    return pixels((image.clamp(-1, 1) + 1) * light - 1, 3)


def show_trained(device):
    """Names shapes that the model has never seen, and saves patches.png and attention.png."""
    if not entry().ready:
        print("no trained weights: python -m days.day32.train makes them, in about a minute")
        return
    fp32 = [tensor.to(device) for tensor in stacked(torch.load(entry().path))]
    bf16 = [tensor.bfloat16() for tensor in fp32]
    count = 1000 if device.type == "cuda" else 100
    images, labels = draw_shapes(count, torch.Generator().manual_seed(7))
    images = images.to(device)
    attended = []
    with torch.no_grad():
        answers = {
            "this day's operators, bf16": forward(
                fused(), images.bfloat16(), *bf16, attended=attended
            ),
            "torch.nn, bf16": twin(images.bfloat16(), *bf16),
            "torch.nn, fp32": twin(images, *fp32),
        }
    logits = {name: answer.float().cpu() for name, answer in answers.items()}
    exact = logits["torch.nn, fp32"]
    rows = [
        (name, f"{int((x.argmax(1) == labels).sum())}", f"{(x - exact).abs().max():.3f}")
        for name, x in logits.items()
    ]
    print_table((f"{count} new pictures", "right", "logits off by"), rows)
    chosen = [int((labels == kind).nonzero()[0]) for kind in range(len(NAMES))]
    maps = class_attention(*attended[-1])[chosen].cpu()  # (5, heads, patches), of the last layer
    shown = images[chosen].cpu()
    columns = [
        [pixels(image, 3), *(spotlight(image, head) for head in heads)]
        for image, heads in zip(shown, maps, strict=True)
    ]
    pictures = {
        "patches": sheet(cut(shown[2])),
        "attention": sheet(list(zip(*columns, strict=True))),
    }
    save_pictures(Path(__file__).parent, pictures)
