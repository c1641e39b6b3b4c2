"""A scene of Gaussians, made from formulas: a torus knot that floats above a polished floor."""

import math

import torch
from torch.nn.functional import normalize

FOCAL = 0.9  # of the width
EYE, TARGET = (1.0, 1.9, 6.9), (0.0, 0.95, 0.0)
LIGHT = (-0.5, 0.75, 0.55)  # direction to it
HAZE = (0.98, 0.62, 0.45)
SQUARE = 0.8  # side of a floor tile
TUBE, TURNS, WAVES = 0.2, 2, 3  # radius; the knot winds twice around the axis, thrice along it


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float32)


def camera():
    """(3, 4): rows to the right, down and forward; the last column is the translation."""
    eye = vector(*EYE)
    forward = normalize(vector(*TARGET) - eye, dim=0)
    right = normalize(torch.linalg.cross(forward, vector(0, 1, 0)), dim=0)
    rows = torch.stack([right, torch.linalg.cross(forward, right), forward])
    return torch.cat([rows, -(rows @ eye)[:, None]], 1)


def knot(phi):
    """(n, 3): points of the knot's curve."""
    wide = 0.86 + 0.4 * (WAVES * phi).cos()
    flat = torch.stack(
        [wide * (TURNS * phi).cos(), wide * (TURNS * phi).sin(), 0.4 * (WAVES * phi).sin()], 1
    )
    return flat + vector(0, 1.62, 0)


def disc(normals):
    """(n, 4): the rotation that takes the z axis to each normal, as a quaternion w, x, y, z."""
    x, y, z = normals.unbind(1)
    return torch.stack([(1 + z).clamp(min=1e-3), -y, x, torch.zeros_like(x)], 1)


def lit(colour, normals, points):
    """Colours (n, 3) under the light and the sky, with a highlight and a bright rim."""
    light, look = normalize(vector(*LIGHT), dim=0), normalize(vector(*EYE) - points, dim=1)
    diffuse = (normals @ light).clamp(min=0)[:, None]
    sky = 0.5 + 0.5 * normals[:, 1:2]
    highlight = (normals * normalize(look + light, dim=1)).sum(1, keepdim=True).clamp(min=0)
    rim = (1 - (normals * look).sum(1, keepdim=True).clamp(0, 1)) ** 3
    shaded = colour * (0.16 + 0.3 * sky + 0.75 * diffuse)
    return shaded + 0.8 * highlight**70 + 0.45 * rim * vector(*HAZE)


def knot_splats(n):
    """Flat discs on the tube: means, quaternions, scales, opacities, colours."""
    # n points, evenly spread by a golden-ratio sequence around the tube
    phi = (torch.arange(n) + 0.5) / n * (2 * math.pi)
    around = (torch.arange(n) * 0.6180339887 % 1) * (2 * math.pi)
    centre, along = knot(phi), normalize(knot(phi + 1e-3) - knot(phi - 1e-3), dim=1)
    side = normalize(torch.linalg.cross(along, vector(0.1, 0.2, 1).expand_as(along)), dim=1)
    other = torch.linalg.cross(along, side)
    normals = around.cos()[:, None] * side + around.sin()[:, None] * other
    points = centre + TUBE * normals
    hue = (phi / math.pi)[:, None] + vector(0.0, 0.33, 0.62)
    colour = 0.52 + 0.45 * (2 * math.pi * hue).cos()
    stripe = 0.5 + 0.5 * (14 * WAVES * phi + 2 * around).sin()  # a fine twist
    colour = colour * (0.72 + 0.28 * (6 * stripe - 2.5).clamp(0, 1))[:, None]
    scales = vector(0.026, 0.026, 0.004).repeat(n, 1)
    return points, disc(normals), scales, torch.full((n,), 0.85), lit(colour, normals, points)


def floor_splats(width, height, pitch):
    """Flat ellipses, one per `pitch` × `pitch` pixels below the horizon, as long as they have to
    be to touch the next; half transparent, so that what is mirrored shows."""
    view, focal = camera(), FOCAL * width
    y, x = torch.meshgrid(
        torch.arange(-2, height / pitch + 3), torch.arange(-2, width / pitch + 3), indexing="ij"
    )
    x, y = (x + 0.5 * (y % 2)).flatten() * pitch, y.flatten() * pitch
    rays = torch.stack([(x - width / 2) / focal, (y - height / 2) / focal, torch.ones_like(x)], 1)
    rays = rays @ view[:, :3]
    rays = rays[rays[:, 1] < -0.012]
    reach = -EYE[1] / rays[:, 1]
    points = vector(*EYE) + reach[:, None] * rays
    heading = torch.atan2(rays[:, 0], rays[:, 2])
    far = rays.norm(dim=1) * reach
    across = 0.62 * pitch * reach / focal
    deep = across * far / EYE[1]
    zero = torch.zeros_like(far)
    quaternions = torch.stack([(heading / 2).cos(), zero, (heading / 2).sin(), zero], 1)
    # The sign of a sine, smoothed over the width of an ellipse.
    waves = (points[:, [0, 2]] * (math.pi / SQUARE)).sin()
    edges = (waves * (0.5 * SQUARE / math.pi / torch.stack([across, deep], 1))).clamp(-1, 1)
    white = 0.5 - 0.5 * edges.prod(1)
    colour = torch.lerp(vector(0.10, 0.11, 0.17), vector(0.80, 0.78, 0.76), white[:, None])
    curve, light = knot(torch.linspace(0, 2 * math.pi, 400)), vector(*LIGHT)
    shadow = (curve - curve[:, 1:2] / light[1] * light)[:, [0, 2]]
    distance = torch.cdist(points[:, [0, 2]], shadow).amin(1)
    colour = colour * (1 - 0.72 * (-((distance / 0.26) ** 4)).exp())[:, None]
    haze = (1 - (-far / 22).exp())[:, None]
    colour = torch.lerp(colour, 0.8 * vector(*HAZE), haze)
    opacities = 0.26 + 0.6 * haze[:, 0]
    return points, quaternions, torch.stack([across, zero + 1e-4, deep], 1), opacities, colour


def lights(n, generator):
    """Small glowing balls around the knot, each in a wide faint halo."""
    angle = torch.rand(n, generator=generator) * (2 * math.pi)
    wide = 1.7 + 1.6 * torch.rand(n, generator=generator)
    high = 0.25 + 2.4 * torch.rand(n, generator=generator) ** 1.5
    points = torch.stack([wide * angle.cos(), high, wide * angle.sin()], 1)
    size = 0.012 + 0.012 * torch.rand(n, generator=generator)
    cold = (torch.rand(n, 1, generator=generator) > 0.7).float()
    colour = torch.lerp(vector(1.0, 0.75, 0.35), vector(0.55, 0.85, 1.0), cold)
    still = vector(1, 0, 0, 0).repeat(2 * n, 1)
    scales = torch.cat([size, 7 * size])[:, None].expand(-1, 3)
    opacities = torch.cat([torch.full((n,), 0.95), torch.full((n,), 0.16)])
    return points.repeat(2, 1), still, scales, opacities, torch.cat([0.4 + 0.6 * colour, colour])


def mirrored(points, quaternions, scales, opacities, colours):
    """What the floor shows: the same below it. Mirroring y turns (w, x, y, z) to (w, -x, y, -z)."""
    return (
        points * vector(1, -1, 1), quaternions * vector(1, -1, 1, -1), scales, opacities,
        0.75 * colours,
    )  # fmt: skip


def gaussians(width, height, many=9000):
    """Means, quaternions, scales, opacities and colours of the whole scene, fp32 on the CPU."""
    generator = torch.Generator().manual_seed(92)
    ring, glow = knot_splats(many), lights(42, generator)
    parts = [ring, glow, mirrored(*ring), mirrored(*glow), floor_splats(width, height, 2.0)]
    return tuple(torch.cat(each).contiguous() for each in zip(*parts, strict=True))


def sky(width, height):
    """(height, width, 3): dusk, mirrored below the horizon."""
    view, focal = camera(), FOCAL * width
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    rays = torch.stack([(x - width / 2) / focal, (y - height / 2) / focal, torch.ones_like(x)], -1)
    rays = normalize(rays @ view[:, :3], dim=-1)
    high = rays[..., 1].abs()[..., None]
    colours = [HAZE, (0.80, 0.38, 0.50), (0.30, 0.22, 0.47), (0.07, 0.09, 0.24)]
    image = torch.tensor(HAZE).expand(height, width, 3)
    for start, end, colour in zip((0.0, 0.1, 0.24), (0.1, 0.24, 0.5), colours[1:], strict=True):
        share = ((high - start) / (end - start)).clamp(0, 1)
        image = torch.lerp(image, vector(*colour), share * share * (3 - 2 * share))
    sun = normalize(vector(-0.52, 0.075, -0.9), dim=0)
    near = torch.cat([rays[..., :1], high, rays[..., 2:]], -1) @ sun[:, None]
    image = image + 0.5 * near.clamp(min=0) ** 50 * vector(1.0, 0.82, 0.55)
    image = image + 0.9 * ((near - 0.9991) * 6000).clamp(0, 1) * vector(1.0, 0.82, 0.55)
    return torch.where(rays[..., 1:2] < 0, 0.8 * image, image).clamp(max=1)
