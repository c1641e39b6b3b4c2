"""What the day's `show` proves and draws: equal pictures of all rungs, and a picture of a scene."""

import math
from pathlib import Path

import torch

from common.day import print_table
from common.report.picture import save_pictures

from .scene import FOCAL, camera, gaussians, sky
from .splatting import BLUR, LEAST, MAX_ALPHA, exponent, inside

RUNGS = ("splat_v1_all", "splat_v2_lists", "splat_v3_staged", "splat_v4_ellipse", "splat_v5_rows")
WIDTH, HEIGHT = 480, 270
SMALL = 72, 40, 700  # width, height, Gaussians of the knot


def projected(operators, device, width, height, many=9000):
    """Splats, depths and colours of the scene."""
    means, quaternions, scales, opacities, colours = (
        each.to(device) for each in gaussians(width, height, many)
    )
    splats, depths = operators.splat_project(
        means, quaternions, scales, opacities, camera().to(device), FOCAL * width, FOCAL * width,
        width, height,
    )  # fmt: skip
    return splats, depths, colours


def without_lists(splats, depths, colours, width, height):
    """The picture in float64: every splat, in order of depth, at every pixel."""
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    t = torch.ones(height, width, dtype=torch.float64)
    image = torch.zeros(height, width, 4, dtype=torch.float64)
    for i in torch.sort(depths, stable=True).indices.tolist():
        s = splats[i]
        if s[5] < 0:
            continue
        q = exponent(s.double(), x.double(), y.double()).minimum(s[5].double())
        alpha = (q.exp2() / 255).clamp(max=MAX_ALPHA) * inside(s, x, y)
        weight = (alpha * t).minimum(t - LEAST)
        t = t - weight
        image += weight[..., None] * torch.cat([colours[i], colours.new_ones(1)])
    return image


def print_equality(operators, device):
    """Raises RuntimeError where rungs differ in a bit, or from the picture without lists by more
    than rounding."""
    width, height, many = SMALL
    scene = projected(operators, device, width, height, many)
    images = {name: getattr(operators, name)(*scene, width, height).cpu() for name in RUNGS}
    first = images[RUNGS[0]]
    for name, image in images.items():
        if not torch.equal(image, first):
            raise RuntimeError(f"{name} gives other bits than {RUNGS[0]}")
    splats, depths, colours = (each.cpu() for each in scene)
    truth = without_lists(splats, depths, colours, width, height)
    error = float((first - truth).abs().max())
    print_table(
        [f"{len(scene[0]):,} Gaussians, {width} × {height} pixels", ""],
        [
            ["rungs of equal bits", f"{len(images)} of {len(RUNGS)}"],
            ["largest difference to float64 without lists", f"{error:.1e}"],
        ],
    )
    if not error < 1e-4:
        raise RuntimeError(f"the picture is off by {error:.3g}")


def print_samples(operators, device, n=400_000):
    """Projects points of one Gaussian one by one. Raises RuntimeError where their covariance is not
    the projected one, within 2 %."""
    generator = torch.Generator().manual_seed(92)
    mean, scale = torch.tensor([[0.6, 1.4, 0.3]]), torch.tensor([[0.05, 0.02, 0.002]])
    turn = torch.tensor([[0.6, -0.3, 0.5, 0.4]])
    one, focal, view = torch.ones(1), FOCAL * WIDTH, camera()
    arguments = (mean, turn, scale, one, view)
    splat = operators.splat_project(*(a.to(device) for a in arguments), focal, focal, WIDTH, HEIGHT)
    a, b, c = splat[0][0, 2:5].double().cpu().tolist()
    found = torch.tensor([[2 * a, b], [b, 2 * c]], dtype=torch.float64).mul(math.log(2)).inverse()
    found -= BLUR * torch.eye(2)
    # A vector is turned by a unit quaternion (w, r) to p + 2 r × (r × p + w p).
    unit = turn[0] / turn[0].norm()
    p = torch.randn(n, 3, generator=generator) * scale
    r = unit[1:].expand_as(p)
    p = p + 2 * torch.linalg.cross(r, torch.linalg.cross(r, p) + unit[0] * p) + mean
    seen = p @ view[:, :3].T + view[:, 3]
    sampled = torch.cov((focal * seen[:, :2] / seen[:, 2:]).double().T)
    rows = []
    for title, i, j in (("xx", 0, 0), ("xy", 0, 1), ("yy", 1, 1)):
        rows.append([title, f"{sampled[i, j]:.3f}", f"{found[i, j]:.3f}"])
    print_table([f"covariance, pixels², {n:,} points", "of the points", "projected"], rows)
    if not (sampled - found).abs().max() < 0.02 * found.norm():
        raise RuntimeError("the points of a Gaussian have another covariance than its projection")


def show(operators, device):
    """Prints the proofs, and saves the picture of the scene."""
    print_samples(operators, device)
    print_equality(operators, device)
    splats, depths, colours = projected(operators, device, WIDTH, HEIGHT)
    rows = [["Gaussians", f"{len(splats):,}"], ["drawn", f"{int((splats[:, 5] >= 0).sum()):,}"]]
    counts = []
    for title, name in (("box", "lists_v2_depth_first"), ("ellipse", "lists_v3_ellipse")):
        ids, begins = getattr(operators, name)(splats, depths, WIDTH, HEIGHT)
        counts.append(len(ids))
        rows.append([f"pairs by {title}", f"{len(ids):,}"])
        rows.append([f"longest list by {title}", f"{int(begins.diff().max()):,}"])
    rows.append(["pairs that the ellipse drops", f"{1 - counts[1] / counts[0]:.0%}"])
    print_table([f"the scene, {WIDTH} × {HEIGHT} pixels", ""], rows)
    image = operators.splat_v5_rows(splats, depths, colours, WIDTH, HEIGHT).cpu()
    image = image[..., :3] + (1 - image[..., 3:]) * sky(WIDTH, HEIGHT)
    pixels = (255 * image.clamp(0, 1)).round().to(torch.uint8)
    save_pictures(Path(__file__).parent, {"scene": pixels})
