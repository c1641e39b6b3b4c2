"""Gaussian splatting in PyTorch: inputs, references, and the calls that the rungs are timed beside.

Where a rung decides (is the pixel in the ellipse, the tile in the list?), the references decide in
fp32, operation by operation as the kernels do: a number that is on the other side in float64 would
be another picture. All else is in the dtype of the arguments.
"""

import math
from functools import cache, lru_cache

import torch

from common.day import Cost
from common.references.rivals import use_nvcc

SIDE, CHUNK = 16, 32  # pixels of a tile, list entries at a time
MAX_ALPHA, LEAST = 0.99, 1e-4
NEAR, BLUR, OUTSIDE = 0.2, 0.3, 1.3
FOCAL = 0.9  # of the width


# ---------------------------------------------------------------- inputs


def scene_inputs(case, draw):
    """Gaussians around the point at which a camera looks from 2 away: some are behind it."""
    n, width, height = case.shape
    means, quaternions = draw(n, 3), draw(n, 4)
    scales = draw(n, 3, low=0.0, high=0.3, dtype="float32")
    opacities = draw(n, low=0.0, high=1.0, dtype="float32")
    if n >= 9:
        scales[0], scales[1, 0] = 0.0, 1e5
        quaternions[2] = 0.0
        opacities[3], opacities[4], opacities[5] = 0.0, 1.0, math.nan
        means[6, 1], means[7] = math.nan, torch.tensor([0.1, 0.2, -9.0])
        scales[8] = math.inf
    view = draw(3, 4, dtype="float32")
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(n)))[0]
    view.copy_(torch.cat([turn, torch.tensor([[0.1], [-0.2], [2.0]])], 1))
    return means, quaternions, scales, opacities, view, FOCAL * width, FOCAL * width, width, height


def splat_inputs(case, draw, degenerate=True):
    """Ellipses of about `size` pixels (standard deviation) all over the image, and around it."""
    n, width, height, size = case.shape
    splats, depths = draw(n, 8), draw(n)
    place, spread = draw(n, 2, low=-0.1, high=1.1), draw(n, 2, low=0.3, high=1.5)
    angle, opacity = draw(n, low=0.0, high=3.2), draw(n, low=0.0, high=1.0)
    wide = torch.promote_types(splats.dtype, torch.float32)
    sizes = (size * spread.to(wide)).square()
    cos2, sin2 = (2 * angle).cos(), (2 * angle).sin()
    mean, half = sizes.mean(1), (sizes[:, 0] - sizes[:, 1]) / 2
    xx, yy, xy = mean + half * cos2 + BLUR, mean - half * cos2 + BLUR, half * sin2
    splats.copy_(with_boxes(place * place.new_tensor([width, height]), xx, xy, yy, opacity))
    depths.copy_((depths.abs() * (n / 4)).floor() / 8)  # some are equal
    if degenerate and n >= 12:
        splats[0, 5], splats[1, 5], splats[2, 5] = -1.0, math.nan, 0.0
        splats[3, 0], splats[4, 2], splats[5, 6] = math.nan, math.nan, -3.0
        splats[6, 2:] = splats.new_tensor([0.0, 0.0, 0.0, 3.0, math.inf, math.inf])  # everywhere
        splats[7, 2:5] = splats.new_tensor([-0.01, 0.0, 0.02])  # no ellipse
        splats[8, 0:2], splats[8, 6:8] = 1e30, 1e30
        splats[9, 4], splats[9, 5] = 0.0, math.inf
        depths[10], depths[11] = math.nan, -0.0
    return splats, depths


def picture_inputs(case, draw):
    splats, depths = splat_inputs(case, draw)
    return splats, depths, draw(len(splats), 3, low=0.0, high=1.0), *case.shape[1:3]


def list_inputs(case, draw):
    return *splat_inputs(case, draw), *case.shape[1:3]


def with_boxes(centres, xx, xy, yy, opacity):
    """(n, 8): the splats of covariances."""
    level = (255 * opacity).log2()
    half = 0.5 / math.log(2) / (xx * yy - xy * xy)
    reach = (2 * math.log(2) * level.clamp(min=0)).sqrt()
    parts = [half * yy, -2 * half * xy, half * xx, level, reach * xx.sqrt(), reach * yy.sqrt()]
    return torch.cat([centres, torch.stack(parts, 1)], 1)


# ---------------------------------------------------------------- projection


def fma(a, b, c):
    """round(a · b + c) in fp32; the product of two fp32 numbers is exact in float64."""
    return (a.double() * b + c.double()).float()


def covariance(quaternions, scales, view, across, down, z, fx, fy, width, height):
    """xx, xy, yy of Σ' and its determinant."""
    w, x, y, q = (quaternions / quaternions.norm(dim=1, keepdim=True)).unbind(1)
    rotation = torch.stack(
        [
            1 - 2 * (y * y + q * q), 2 * (x * y - w * q), 2 * (x * q + w * y),
            2 * (x * y + w * q), 1 - 2 * (x * x + q * q), 2 * (y * q - w * x),
            2 * (x * q - w * y), 2 * (y * q + w * x), 1 - 2 * (x * x + y * y),
        ],
        1,
    ).view(-1, 3, 3)  # fmt: skip
    rows = (view[:, :3] @ rotation) * scales[:, None, :]
    side, up = (OUTSIDE / 2 * size / f for size, f in ((width, fx), (height, fy)))
    u = (fx / z)[:, None] * (rows[:, 0] - across.clamp(-side, side)[:, None] * rows[:, 2])
    v = (fy / z)[:, None] * (rows[:, 1] - down.clamp(-up, up)[:, None] * rows[:, 2])
    uu, vv = u.square().sum(1), v.square().sum(1)
    cross = torch.linalg.cross(u, v).square().sum(1)
    return uu + BLUR, (u * v).sum(1), vv + BLUR, cross + BLUR * (uu + vv) + BLUR * BLUR


def project(means, quaternions, scales, opacities, view, fx, fy, width, height, exact=True):
    """(n, 8), (n): splats and depths. exact: decides by z in fp32, operation by operation."""
    if means.shape[1:] != (3,) or scales.shape != means.shape or view.shape != (3, 4):
        raise ValueError("expected means and scales (n, 3), view (3, 4)")
    if quaternions.shape != (len(means), 4) or opacities.shape != means.shape[:1]:
        raise ValueError("expected quaternions (n, 4) and opacities (n)")
    seen = means @ view[:, :3].T + view[:, 3]
    z = seen[:, 2]
    across, down = seen[:, 0] / z, seen[:, 1] / z
    xx, xy, yy, determinant = covariance(
        quaternions, scales, view, across, down, z, fx, fy, width, height
    )
    level = (255 * opacities).log2()
    half = 0.5 / math.log(2) / determinant
    reach = 2 * math.log(2) * level
    splats = torch.stack(
        [
            fx * across + width / 2, fy * down + height / 2, half * yy, -2 * half * xy, half * xx,
            level, (reach * xx).sqrt(), (reach * yy).sqrt(),
        ],
        1,
    )  # fmt: skip
    single = z
    if exact:
        m, r = means.float(), view[2].float()
        single = fma(r[0], m[:, 0], fma(r[1], m[:, 1], fma(r[2], m[:, 2], r[3])))
    drawn = (single > NEAR) & (255 * opacities.float() > 1) & splats.isfinite().all(1)
    nothing = torch.cat([splats.new_zeros(5), splats.new_full((3,), -1)])
    return torch.where(drawn[:, None], splats, nothing), torch.where(drawn, z, 0.0)


def own_project(*arguments):
    return project(*arguments, exact=False)


# ---------------------------------------------------------------- lists


def check_scene(splats, depths, width, height):
    if splats.dim() != 2 or splats.shape[1:] != (8,) or depths.shape != splats.shape[:1]:
        raise ValueError("expected splats (n, 8) and depths (n)")
    if not 1 <= width <= 32768 or not 1 <= height <= 32768:
        raise ValueError("width, height: expected 1 to 32768")


def boxes(splats, width, height):
    """First tile and number of tiles, in x and in y, int64; fp32 splats."""
    columns, rows = -(-width // SIDE), -(-height // SIDE)
    low, high = splats[:, 0:2] - splats[:, 6:8], splats[:, 0:2] + splats[:, 6:8]
    drawn = (low <= high).all(1) & (splats[:, 5] >= 0)
    limit = low.new_tensor([columns, rows])
    first = (low / SIDE).floor().nan_to_num().clamp(min=0).minimum(limit).long()
    last = (high / SIDE).floor().nan_to_num().clamp(min=-1).minimum(limit - 1).long()
    size = torch.where(drawn[:, None], last + 1 - first, 0)
    return first, torch.where((size > 0).all(1)[:, None], size, 0)


def form(a, b, c, dx, dy):
    return fma(dx, fma(a, dx, b * dy), dy * (c * dy))


def touches(s, tile_x, tile_y):
    """Whether the tile is kept, see `touches` of tile_lists.cuh; fp32 splats."""
    x, y, a, b, c, level = s[:, :6].unbind(1)
    x0, y0 = (tile_x * SIDE + 0.5).float() - x, (tile_y * SIDE + 0.5).float() - y
    x1, y1 = x0 + (SIDE - 1), y0 + (SIDE - 1)
    dx, dy = x0.clamp(min=0).minimum(x1), y0.clamp(min=0).minimum(y1)
    side = form(a, b, c, dx, (-0.5 * (b * dx) / c).maximum(y0).minimum(y1))
    level_side = form(a, b, c, (-0.5 * (b * dy) / a).maximum(x0).minimum(x1), dy)
    least = torch.where(dx != 0, side, math.inf)
    least = torch.where(dy != 0, least.fmin(level_side), least)
    far_x, far_y = x0.abs().maximum(x1.abs()), y0.abs().maximum(y1.abs())
    reach = form(a, b.abs(), c, far_x, far_y) + level
    convex = (a > 0) & (c > 0) & (b * b <= 4 * (a * c))
    outside = (dx != 0) | (dy != 0)
    margin = torch.tensor(1e-6, dtype=torch.float32, device=s.device)
    return ~(outside & convex & (least > fma(margin, reach, level)))


def lists(splats, depths, width, height, ellipse=False):
    """(pairs), (tiles + 1), int32: the ids of each tile's splats from front to back, and where its
    list begins."""
    check_scene(splats, depths, width, height)
    columns, tiles = -(-width // SIDE), -(-width // SIDE) * -(-height // SIDE)
    order = torch.sort(depths.float(), stable=True).indices
    ordered = splats.float()[order]
    first, size = boxes(ordered, width, height)
    counts = size.prod(1)
    rank = torch.repeat_interleave(counts)
    place = torch.arange(len(rank), device=rank.device) - (counts.cumsum(0) - counts)[rank]
    across = size[rank, 0]
    tile_x, tile_y = first[rank, 0] + place % across, first[rank, 1] + place // across
    tile = (tile_y * columns + tile_x).int()
    if ellipse:
        kept = touches(ordered[rank], tile_x, tile_y)
        rank, tile = rank[kept], tile[kept]
    sorted_tiles, by_tile = torch.sort(tile, stable=True)
    ends = torch.arange(tiles + 1, device=tile.device, dtype=torch.int32)
    begins = torch.searchsorted(sorted_tiles, ends, out_int32=True)
    return order[rank[by_tile]].int(), begins


def ellipse_lists(splats, depths, width, height):
    return lists(splats, depths, width, height, ellipse=True)


# ---------------------------------------------------------------- pictures


def exponent(s, x, y):
    """q of splats (…, 1, 8) at pixels (…): for PyTorch's own picture."""
    dx, dy = x - s[..., 0], y - s[..., 1]
    return s[..., 5] - (s[..., 2] * dx * dx + s[..., 3] * dx * dy + s[..., 4] * dy * dy)


def inside(s, x, y):
    """Whether q >= 0 in fp32, in the order of the kernels."""
    s, x, y = s.float(), x.float(), y.float()
    dx, dy = x - s[..., 0], y - s[..., 1]
    rest = fma(-dy, s[..., 4] * dy, s[..., 5])
    return fma(-dx, fma(s[..., 2], dx, s[..., 3] * dy), rest) >= 0


def step(s, colours, valid, x, y, t, exact=True):
    """CHUNK entries of the lists of some tiles, s (tiles, entries, 8): what they add to the pixels'
    colours (tiles, pixels, 3), and t after them. x, y, t: (tiles, pixels)."""
    s, x, y = s[:, None], x[..., None], y[..., None]  # pixels, then entries
    q = exponent(s, x, y)
    drawn = valid[:, None] & (inside(s, x, y) if exact else q >= 0)
    q = torch.where(drawn, q.minimum(s[..., 5]), -math.inf)
    alpha = (q.exp2() / 255).clamp(max=MAX_ALPHA)
    passes = torch.cumprod(1 - alpha, -1) * t[..., None]
    before = torch.cat([t[..., None], passes[..., :-1]], -1)
    weight = before.clamp(min=LEAST) - passes.clamp(min=LEAST)
    return weight @ colours, passes[..., -1]


def picture(splats, depths, colours, width, height, step_of=step):
    """(height, width, 4): colour, and the sum of the weights."""
    if colours.shape != (len(splats), 3):
        raise ValueError("expected colours (n, 3)")
    ids, begins = lists(splats, depths, width, height)
    columns, rows = -(-width // SIDE), -(-height // SIDE)
    lengths, device = begins.diff(), splats.device
    tile = torch.arange(columns * rows, device=device)[:, None]
    pixel = torch.arange(SIDE * SIDE, device=device)
    x = (tile % columns * SIDE + pixel % SIDE + 0.5).to(splats.dtype)
    y = (tile // columns * SIDE + pixel // SIDE + 0.5).to(splats.dtype)
    t = torch.ones_like(x)
    image = torch.zeros(*x.shape, 3, device=device, dtype=splats.dtype)
    for first in range(0, int(lengths.max()), CHUNK):
        active = ((lengths > first) & (t > LEAST).any(1)).nonzero().flatten()
        place = first + torch.arange(CHUNK, device=device)
        valid = place < lengths[active, None]
        id = ids[(begins[:-1][active, None] + place).clamp(max=len(ids) - 1)]
        added, t[active] = step_of(splats[id], colours[id], valid, x[active], y[active], t[active])
        image[active] += added
    image = torch.cat([image, 1 - t.clamp(min=LEAST)[..., None]], -1)
    image = image.view(rows, columns, SIDE, SIDE, 4).transpose(1, 2)
    return image.reshape(rows * SIDE, columns * SIDE, 4)[:height, :width].contiguous()


def own_step(*arguments):
    return step(*arguments, exact=False)


def own_picture(*arguments):
    return picture(*arguments, step_of=own_step)


@cache
def compiled_step():
    return torch.compile(own_step, dynamic=True)


def compiled_picture(*arguments):
    return picture(*arguments, step_of=compiled_step())


@lru_cache(maxsize=1)
def for_gsplat(splats, width, height):
    """(1, n, …): centres, radii, conics and opacities. gsplat's exponent is half of a quadratic
    form, ours has powers of two. A splat that is not drawn, or that gsplat's integers cannot hold,
    has the radii 0."""
    _, size = boxes(splats, width, height)
    drawn = size.prod(1) > 0
    centres, (a, b, c, level) = splats[:, 0:2], splats[:, 2:6].unbind(1)
    drawn &= (centres.abs() < 1e6).all(1) & splats[:, 2:5].isfinite().all(1)
    radii = splats[:, 6:8].clamp(max=2.0 * max(width, height)).ceil()
    radii = torch.where(drawn[:, None], radii, 0).int()
    conics = math.log(2) * torch.stack([2 * a, b, 2 * c], 1)
    opacities = level.exp2().clamp(max=1e6) / 255
    parts = (centres, conics, opacities)
    centres, conics, opacities = (x.nan_to_num(0, 0, 0)[None].contiguous() for x in parts)
    return centres, radii[None], conics, opacities


def by_gsplat(splats, depths, colours, width, height):
    """Sorted and blended by gsplat, in whose format the splats are before the timing."""
    use_nvcc()
    from gsplat import isect_offset_encode, isect_tiles, rasterize_to_pixels

    centres, radii, conics, opacities = for_gsplat(splats, width, height)
    columns, rows = -(-width // SIDE), -(-height // SIDE)
    _, keys, ids = isect_tiles(centres, radii, depths[None], SIDE, columns, rows)
    begins = isect_offset_encode(keys, 1, columns, rows)
    image, weights = rasterize_to_pixels(
        centres, conics, colours[None], opacities, width, height, SIDE, begins, ids
    )
    return torch.cat([image, weights], -1)[0]


# ---------------------------------------------------------------- costs


def project_cost(case):
    return Cost(bytes=80 * case.shape[0], flops=150 * case.shape[0])


def lists_cost(case):
    """Splats and depths read, ids written: of the ten tiles or so that an ellipse's box touches,
    each once."""
    n, width, height, _ = case.shape
    return Cost(bytes=36 * n + 4 * round(pairs_of(case)) + width * height // 64)


def pairs_of(case):
    """About how many pairs there are: splats over 1.2 · 1.2 of the image's area, boxes half as wide
    as 2.9 · 0.94 `size`, the mean root of 2 ln(255 · opacity) times the mean deviation."""
    n, _, _, size = case.shape
    return n / 1.44 * ((2 * 2.9 * 0.94 * size + SIDE) / SIDE) ** 2


def picture_cost(case):
    """20 operations per pixel and ellipse. An ellipse has 2π times ln(255 · opacity), on average
    4.54, times 0.81 `size`² pixels. About 70 layers let 10⁻⁴ of the light through, counted at the
    size that is timed: what is behind them costs nothing."""
    n, width, height, size = case.shape
    layers = n / 1.44 * 2 * math.pi * 4.54 * 0.81 * size**2 / (width * height)
    return Cost(
        bytes=48 * n + 16 * width * height, flops=round(20 * min(layers, 70) * width * height)
    )
