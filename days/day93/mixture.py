"""Day 93's mathematics: a step of EM with a Potts field, and k-means++; in PyTorch and in NumPy."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from common.day import Cost
from common.references.philox import philox_words

PSEUDO, LEAST = 1e-3, 1e-6  # as in the .cu
HEXAGON = 6


# ---------------------------------------------------------------- inputs


def hexagons(height, width, device="cpu"):
    """The neighbours of a hexagonal grid, int32 (height · width, 6), -1 where there is none."""
    y, x = torch.meshgrid(
        torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij"
    )
    odd = y % 2  # odd rows lie half a spot to the right
    steps: list[tuple[int, int | torch.Tensor]]
    steps = [(0, -1), (0, 1), (-1, odd - 1), (-1, odd), (1, odd - 1), (1, odd)]
    columns = []
    for dy, dx in steps:
        there, right = y + dy, x + dx
        inside = (there >= 0) & (there < height) & (right >= 0) & (right < width)
        columns.append(torch.where(inside, there * width + right, -1).flatten())
    return torch.stack(columns, 1).to(torch.int32)


def step_inputs(case, draw):
    """Shape: (points, features, clusters, neighbours). A large square is a hexagonal grid; else the
    neighbours are drawn, some of them outside [0, n)."""
    n, d, k, degree = case.shape
    x = draw(n, d)
    side = math.isqrt(n)
    if n >= 1 << 16 and n == side * side and degree == HEXAGON:
        neighbours = hexagons(side, side, x.device)
    else:
        neighbours = draw(n, degree, dtype="int32", low=-2, high=n + 2)
    q = torch.softmax(2 * draw(n, k, values="normal"), 1)
    weights = draw(k, low=0.5, high=1.5)
    centre = 1e4 if case.values == "offset" else 0.0  # near the points
    means = centre + 0.5 * draw(k, d, values="normal")
    return x, neighbours, q, weights / weights.sum(), means, draw(k, d, low=0.5, high=2.0), 0.7


def small_inputs(case, draw):
    """As step_inputs, in other units: x, means and deviations are a hundredth of theirs, so that
    variances are far below 1."""
    x, neighbours, q, weights, means, variances, beta = step_inputs(case, draw)
    return x / 100, neighbours, q, weights, means / 100, variances / 10_000, beta


def seeding_inputs(case, draw):
    """Shape: (points, features, clusters). Integers, so that all sums are exact: distances in fp32,
    and their sums in float64, which are beyond 2^24 where the values are large."""
    n, d, clusters = case.shape
    most = 400 if case.values == "large" else 4
    return draw(n, d, low=-most, high=most + 1).floor(), clusters, 93 + n


# ---------------------------------------------------------------- costs


def step_cost(case):
    n, d, k, degree = case.shape
    return Cost(bytes=4 * n * (d + 2 * k + degree), flops=n * k * (8 * d + degree + 6))


def seeding_cost(case):
    n, d, clusters = case.shape
    passes = max(clusters - 1, 0)
    return Cost(bytes=4 * n * (d + 2) * passes, flops=3 * n * d * passes)


# ---------------------------------------------------------------- the truth


def field_of(q, neighbours):
    """Σ q over the neighbours: a bag of embeddings, without the neighbours outside [0, n)."""
    valid = (neighbours >= 0) & (neighbours < len(q))
    if not neighbours.numel():
        return torch.zeros_like(q)
    return F.embedding_bag(
        torch.where(valid, neighbours, 0), q, mode="sum", per_sample_weights=valid.to(q.dtype)
    )


def em_step(x, neighbours, q, weights, means, variances, beta):
    """One step by the definition, cluster by cluster; no difference of squares anywhere."""
    logits = [
        w.log() - 0.5 * (v.log() + (x - m).square() / v).sum(1)
        for w, m, v in zip(weights, means, variances, strict=True)
    ]
    valid = (neighbours >= 0) & (neighbours < len(q))
    field = torch.zeros_like(q)
    for j, inside in zip(neighbours.T, valid.T, strict=True):
        field = field + torch.where(inside[:, None], q[torch.where(inside, j, 0).long()], 0)
    new = torch.softmax(torch.stack(logits, 1) + beta * field, 1)
    points = new.sum(0) + PSEUDO
    shifts, spreads = [], []
    for share, m, v, count in zip(new.T, means, variances, points, strict=True):
        difference = x - m
        shift = (share[:, None] * difference).sum(0) / count
        square = ((share[:, None] * difference.square()).sum(0) + PSEUDO * v) / count
        shifts.append(shift)
        spreads.append(square - shift.square())
    spread = torch.stack(spreads)
    spread = torch.where(spread < LEAST, LEAST, spread)
    total = len(x) + PSEUDO * len(weights)
    return new, points / total, means + torch.stack(shifts), spread


def kmeans_plus_plus(x, clusters, seed):
    """The chosen points, int64 (clusters,), by the same random words as the kernels."""
    n = len(x)
    number = torch.arange(clusters, dtype=torch.int64, device=x.device)
    key = torch.full_like(number, seed)
    words = philox_words(key, number, torch.zeros_like(number))
    uniform = ((words[:, 0] << 21) | (words[:, 1] >> 11)).double() * 2.0**-53
    chosen, nearest = [], None
    for u in uniform:
        flat = (u * n).long().clamp(max=n - 1)
        if nearest is None:
            chosen.append(flat)
        else:
            prefix = nearest.double().cumsum(0)
            place = torch.searchsorted(prefix, u * prefix[-1], right=True).clamp(max=n - 1)
            chosen.append(torch.where(prefix[-1] > 0, place, flat))
        distance = (x - x.index_select(0, chosen[-1][None])).square().sum(1)
        nearest = distance if nearest is None else torch.minimum(nearest, distance)
    return torch.stack(chosen) if chosen else number


# ---------------------------------------------------------------- PyTorch, as it is timed


def by_products(x, neighbours, q, weights, means, variances, beta):
    """The step by four matrix products, and a bag of embeddings for the field."""
    inverse = 1 / variances
    constant = weights.log() - 0.5 * (variances.log() + means.square() * inverse).sum(1)
    squares = x.square()
    logits = torch.addmm(constant, x, (means * inverse).T)
    logits = torch.addmm(logits, squares, -0.5 * inverse.T)
    new = torch.softmax(torch.add(logits, field_of(q, neighbours), alpha=beta), 1)
    points = new.sum(0) + PSEUDO
    mean = torch.addmm(PSEUDO * means, new.T, x) / points[:, None]
    second = torch.addmm(PSEUDO * (variances + means.square()), new.T, squares) / points[:, None]
    variance = (second - mean.square()).clamp(min=LEAST)
    return new, points / (len(x) + PSEUDO * len(weights)), mean, variance


# ---------------------------------------------------------------- NumPy, as it is timed

_arrays = WeakTensorKeyDictionary()


def array_of(value):
    """The array of a tensor, on the host; copied once, so that the copy is not timed."""
    if not isinstance(value, torch.Tensor):
        return value
    if value not in _arrays:
        _arrays[value] = value.cpu().numpy()
    return _arrays[value]


def numpy_step(*arguments):
    """`by_products` in NumPy: the same four products, and one gather per neighbour."""
    x, neighbours, q, weights, means, variances, beta = map(array_of, arguments)
    inverse = 1 / variances
    squares = np.square(x)
    logits = x @ (means * inverse).T
    logits -= squares @ (0.5 * inverse).T
    logits += np.log(weights) - 0.5 * (np.log(variances) + np.square(means) * inverse).sum(1)
    padded = np.concatenate([q, np.zeros_like(q[:1])])  # its last row is that of no neighbour
    valid = (neighbours >= 0) & (neighbours < len(q))
    places = np.where(valid, neighbours, len(q))
    field = padded[places[:, 0]]
    for column in places.T[1:]:
        field += padded[column]
    field *= np.float32(beta)
    logits += field
    logits -= logits.max(1, keepdims=True)
    new = np.exp(logits, out=logits)
    new /= new.sum(1, keepdims=True)
    points = new.sum(0, dtype=np.float64).astype(np.float32) + np.float32(PSEUDO)
    mean = (new.T @ x + PSEUDO * means) / points[:, None]
    second = (new.T @ squares + PSEUDO * (variances + np.square(means))) / points[:, None]
    variance = np.maximum(second - np.square(mean), LEAST)
    weight = points / (len(x) + PSEUDO * len(weights))
    return tuple(torch.from_numpy(a.astype(np.float32)) for a in (new, weight, mean, variance))
