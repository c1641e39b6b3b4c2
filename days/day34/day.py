"""Day 34: image augmentation."""

if __name__ == "__main__":  # python days/day34/day.py: build, call, compare with PyTorch
    import sys

    sys.path[0] = __file__.rsplit("/", 3)[0]  # where common/ is
    from common.run.driver import main

    sys.exit(main(__file__))  # torch.utils.cpp_extension.load, then torch.ops.day34

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F

from common.day import COMPILE, Case, Cost, Library, Problem, Rung, Target, Tolerance
from common.report.picture import hills_at_night, save_pictures

TITLE = "Image augmentation"
TEACHES = "Crop, flip, bilinear resize and colours in one pass, around a mean of the whole image"
TOPICS = ("images", "augmentation", "resize", "bilinear", "colour", "fusion", "clusters")
SOURCE = "image_augmentation.cu"
INTRODUCES = ("bilinear interpolation", "hue", "thread block cluster")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
GREY = (0.2989, 0.587, 0.114)


def inputs(case, draw):
    """shape: images, rows and columns of each, rows and columns of the result."""
    count, rows, cols, height, width = case.shape
    images = draw(count, rows, cols, 3, dtype="uint8")
    size = draw(count, 2, dtype="float32", low=0.5, high=1.0).cpu()
    place = draw(count, 2, dtype="float32", low=0.0, high=1.0).cpu()
    room = torch.tensor([rows, cols])
    size = (size * room).int().clamp(min=1)
    crops = torch.cat([(place * (room - size + 1)).int(), size], 1).to(images.device)
    flips = draw(count, dtype="bool")
    factors = draw(count, 4, dtype="float32", low=0.6, high=1.4)
    factors[:, 3] -= 1.0  # hue: up to 0.4 of a circle both ways
    mean, std = (torch.tensor(values, device=images.device) for values in (MEAN, STD))
    return images, crops, flips, factors, mean, std, height, width


def neighbours(crops, axis, to, size, dtype):
    """Two indices and the weight of the second, each (images, to), for one axis of the result."""
    start, length = crops[:, axis, None].long(), crops[:, axis + 2, None].long()
    places = torch.arange(to, device=crops.device, dtype=dtype) + 0.5
    at = (places * (length.to(dtype) / to) - 0.5).clamp(min=0)
    first = torch.minimum(at.long(), length - 1)
    second = torch.minimum(first + 1, length - 1)
    return *((start + i).clamp(0, size - 1) for i in (first, second)), at - first


def resize(images, crops, flips, height, width, dtype):
    """Crop, resize and flip: channels in [0, 1], (images, 3, height, width)."""
    rows, cols = images.shape[1:3]
    y0, y1, down = (part[:, :, None] for part in neighbours(crops, 0, height, rows, dtype))
    across = neighbours(crops, 1, width, cols, dtype)
    x0, x1, right = (torch.where(flips[:, None], v.flip(1), v)[:, None] for v in across)
    image = torch.arange(len(images), device=images.device)[:, None, None]

    def row(y):
        left, other = (images[image, y, x].to(dtype) for x in (x0, x1))
        return left + (other - left) * right[..., None]

    upper, lower = row(y0), row(y1)
    return ((upper + (lower - upper) * down[..., None]) / 255).permute(0, 3, 1, 2)


def grey(planes):
    r, g, b = planes.unbind(1)
    return (GREY[0] * r + GREY[1] * g + GREY[2] * b)[:, None]


def blend(planes, other, ratio):
    return (ratio * planes + (1 - ratio) * other).clamp(0, 1)


def shift_hue(planes, shift):
    """To HSV and back, by torchvision's formulas."""
    r, g, b = planes.unbind(1)
    most, least = planes.amax(1), planes.amin(1)
    flat = most == least
    span = torch.where(flat, 1.0, most - least)
    saturation = (most - least) / torch.where(flat, 1.0, most)
    rc, gc, bc = ((most - channel) / span for channel in (r, g, b))
    hue = torch.where(most == r, bc - gc, torch.where(most == g, 2 + rc - bc, 4 + gc - rc))
    hue = (hue / 6 + shift) % 1.0 * 6
    part = hue - hue.floor()
    p, q = most * (1 - saturation), most * (1 - saturation * part)
    t = most * (1 - saturation * (1 - part))
    sector = hue.floor().long()[:, None] % 6

    def channel(*choices):
        return torch.stack(choices, 1).gather(1, sector)

    red, green = channel(most, q, p, p, t, most), channel(t, most, most, q, p, p)
    return torch.cat([red, green, channel(p, p, t, most, most, q)], 1)


def augment(images, crops, flips, factors, mean, std, height, width):
    """torchvision's math on floats in [0, 1]: ColorJitter with its operations in this order."""
    planes = resize(images, crops, flips, height, width, factors.dtype)
    return coloured(planes, factors, mean, std)


def coloured(planes, factors, mean, std):
    """The colours of (images, 3, height, width), and the normalisation."""
    dtype = factors.dtype
    brightness, contrast, saturation, hue = factors[:, :, None, None].unbind(1)
    planes = (planes * brightness[:, None]).clamp(0, 1)
    planes = blend(planes, grey(planes).mean((1, 2, 3), keepdim=True), contrast[:, None])
    planes = blend(planes, grey(planes), saturation[:, None])
    planes = shift_hue(planes, hue)
    planes = (planes - mean[:, None, None]) / std[:, None, None]
    return planes.to(torch.bfloat16 if dtype == torch.float32 else dtype).contiguous()


def augment_by_grid_sample(images, crops, flips, factors, mean, std, height, width):
    """The same with F.grid_sample as crop, resize and flip. It reads the image as fp32 planes."""
    rows, cols = images.shape[1:3]
    axes = []
    for axis, (to, size) in enumerate(((height, rows), (width, cols))):
        start, length = crops[:, axis, None], crops[:, axis + 2, None]
        at = (torch.arange(to, device=crops.device) + 0.5) * (length / to) - 0.5
        at = torch.minimum(at.clamp(min=0), length - 1) + start
        axes.append((at + 0.5) * 2 / size - 1)  # grid_sample's edges are at -1 and 1
    y, x = axes[0], torch.where(flips[:, None], axes[1].flip(1), axes[1])
    shape = (len(images), height, width)
    grid = torch.stack([x[:, None, :].expand(shape), y[:, :, None].expand(shape)], -1)
    planes = images.permute(0, 3, 1, 2).float() / 255
    planes = F.grid_sample(planes, grid, padding_mode="border", align_corners=False)
    return coloured(planes, factors, mean, std)


@cache
def compiled():
    return torch.compile(augment, dynamic=False)


def cost(case):
    """The crops' expected bytes, (3/4)² of the images, and the result; 110 operations per pixel."""
    count, rows, cols, height, width = case.shape
    pixels = count * height * width
    return Cost(bytes=count * rows * cols * 3 * 9 // 16 + 6 * pixels, flops=110 * pixels)


SHAPES = [
    (1, 1, 1, 1, 1), (2, 5, 7, 3, 4), (3, 33, 31, 17, 19), (2, 9, 40, 70, 33), (1, 64, 48, 32, 32),
    (5, 16, 20, 9, 36), (2, 8, 8, 0, 4), (0, 8, 8, 4, 4), (1, 20, 30, 8, 700),
]  # fmt: skip

PROBLEMS = (
    Problem(
        name="augmentation",
        inputs=inputs,
        reference=augment,
        rungs=(
            Rung("augment_v1_separate", "one kernel per operation"),
            Rung("augment_v2_two_passes", "resized once for the mean, once for the result"),
            Rung("augment_v3_one_pass", "a cluster per image", target=Target(2.0, "compile")),
        ),
        cases=tuple(Case(shape, "uint8") for shape in SHAPES),
        refused=(Case((1, 1 << 24, 1, 1, 1), "uint8"),),
        bench=Case((640, 320, 320, 224, 224), "uint8"),
        bench_cpu=Case((2, 96, 96, 64, 64), "uint8"),
        cost=cost,
        pytorch=augment_by_grid_sample,
        libraries=(COMPILE, Library("compiled indexing", lambda *batch: compiled()(*batch))),
        tolerance=Tolerance(
            ulps=4, factor=4, why="bf16 around 2 is 1/64 apart; a level of 255 is 1/57 there"
        ),
    ),
)


def show(operators, device):
    """Saves six augmentations of one picture, and the picture."""
    picture = hills_at_night().to(device)
    generator = torch.Generator().manual_seed(34)
    count, (rows, cols) = 6, picture.shape[:2]
    size = torch.tensor([rows, cols]) * (0.4 + 0.6 * torch.rand(count, 1, generator=generator))
    size = size.int()
    place = torch.rand(count, 2, generator=generator)
    place = (place * (torch.tensor([rows, cols]) - size + 1)).int()
    factors = 0.6 + 0.8 * torch.rand(count, 4, generator=generator)
    factors[:, 3] = (factors[:, 3] - 1) / 2
    flips = torch.rand(count, generator=generator) < 0.5
    batch = (torch.cat([place, size], 1), flips, factors, torch.zeros(3), torch.ones(3))
    images = picture.expand(count, -1, -1, -1).contiguous()
    # With mean 0 and deviation 1 the result is the colours in [0, 1].
    result = operators.augment_v3_one_pass(images, *(t.to(device) for t in batch), 100, 160)
    tiles = (result.float() * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
    sheet = torch.cat([torch.cat(list(tiles[:3]), 1), torch.cat(list(tiles[3:]), 1)], 0)
    save_pictures(Path(__file__).parent, {"before": picture.cpu(), "after": sheet})
