"""What day 78 computes, by its definition in float64 and as PyTorch's users do; a chi-square."""

import math

import torch

from common.day import print_table

STANDING_OUT = 64  # tokens of a timed row that are far above the others, and differ from each other
MOST_SETTLED = 1 << 22  # columns
CLOSE = 2e-6  # of the mass of a row: how near to each other fp32 may take two sums for equal


def prefixes(logits, temperature, top_k, top_p):
    """Each row's tokens in order, their masses, their running sums, and how many are kept. A row
    that is not valid is computed as zeros."""
    x = logits.double()
    valid = (x.isnan() | (x == torch.inf)).logical_not().all(-1) & (x > -torch.inf).any(-1)
    x = torch.where(valid[:, None], x, 0)
    x, places = torch.sort(x, dim=-1, descending=True, stable=True)
    k = min(top_k, x.shape[1])
    mass = ((x - x[:, :1]) / temperature).exp()
    mass[:, k:] = 0
    sums = mass.cumsum(-1)
    kept = torch.full_like(places[:, 0], k)
    if top_p < 1:
        kept = (sums < top_p * sums[:, -1:]).sum(-1) + 1
    return valid, places, mass, sums, kept


def sample(logits, u, temperature, top_k, top_p):
    """Tokens, their probabilities, and how many tokens are kept, per row."""
    valid, places, mass, sums, kept = prefixes(logits, temperature, top_k, top_p)
    valid = valid & (u >= 0) & (u < 1)
    total = sums.gather(1, kept[:, None] - 1)
    t = torch.where(valid, u.double(), 0)[:, None] * total
    place = torch.searchsorted(sums, t, right=True)
    token = places.gather(1, place)[:, 0]
    p = (mass.gather(1, place) / total)[:, 0]
    kind = torch.promote_types(logits.dtype, torch.float32)
    return (
        torch.where(valid, token, -1),
        torch.where(valid, p, math.nan).to(kind),
        torch.where(valid, kept, 0),
    )


def settle(logits, u, *options):
    """Changes u and, seldom, rows, so that no sum is nearer to its threshold than fp32 can tell:
    u becomes the middle of its token's interval; a row whose top-p ends too close is shrunk."""
    for _ in range(20):
        valid, places, mass, sums, kept = prefixes(logits, *options)
        distance = (sums / sums[:, -1:] - options[-1]).abs().min(-1)[0]
        close = valid & (distance < CLOSE) & (options[-1] < 1)
        if not close.any():
            break
        logits[close] *= 0.95
    total = sums.gather(1, kept[:, None] - 1)
    place = torch.searchsorted(sums, u.double()[:, None] * total, right=True)
    u.copy_(((sums - mass / 2).gather(1, place) / total)[:, 0])


def inputs(case, draw, temperature, top_k, top_p, steps=0, wrong_u=False):
    """steps > 0 rounds logits to multiples of 1 / steps, so that many are equal."""
    rows, columns = case.shape
    logits = draw(rows, columns)
    u = draw(rows, dtype="float32", low=0, high=1)
    if steps and case.values == "normal":
        logits.copy_((logits * steps).round() / steps)
    if draw.fast and columns > STANDING_OUT:
        at = torch.rand(rows, columns, device=u.device).topk(STANDING_OUT)[1]
        apart = 12 + torch.arange(STANDING_OUT, device=u.device) / 16
        logits.scatter_(1, at, apart.to(logits.dtype).expand(rows, -1))
    if 0 < columns <= MOST_SETTLED and rows:
        settle(logits, u, temperature, top_k, top_p)
    if wrong_u:
        u[:4].copy_(torch.tensor([-0.25, 1.0, math.nan, math.inf])[: len(u)])
    return logits, u, temperature, top_k, top_p


def by_pytorch(logits, u, temperature, top_k, top_p):
    """The chain of a sampler: topk where it is enough, else sort; the draw by the inverse of the
    running sum, since u is given."""
    if top_k < logits.shape[1]:
        x, places = torch.topk(logits, top_k)
    else:
        x, places = torch.sort(logits, descending=True)
    p = torch.softmax(x.float() / temperature, -1)
    sums = p.cumsum(-1)
    keep = sums - p < top_p
    p = torch.where(keep, p, 0)
    p = p / p.sum(-1, keepdim=True)
    place = torch.searchsorted(p.cumsum(-1), u[:, None], right=True)
    place = place.clamp(max=p.shape[1] - 1)
    return places.gather(1, place)[:, 0], p.gather(1, place)[:, 0], keep.sum(-1)


def print_chi_square(operators, device, columns=1000):
    """Draws many tokens from one row. If the draws are right, chi-square has the mean d and the
    standard deviation sqrt(2 d), with d one less than the number of tokens that are kept."""
    n = 1 << 20 if device.type == "cuda" else 1 << 7
    generator = torch.Generator().manual_seed(78)
    row = torch.randn(1, columns, generator=generator).to(device)
    u = torch.rand(n, generator=generator).to(device)
    rows = []
    for temperature, top_k, top_p in ((1.0, columns, 1.0), (0.7, 50, 1.0), (1.0, columns, 0.5)):
        drawn = operators.sampling_v4_bound(
            row.expand(n, -1).contiguous(), u, temperature, top_k, top_p
        )[0]
        _, places, mass, sums, kept = prefixes(row, temperature, top_k, top_p)
        count = int(kept)
        expected = mass[0, :count] / sums[0, count - 1] * n
        found = torch.bincount(drawn, minlength=columns)[places[0]]
        outside = int(found[count:].sum())
        chi = float(((found[:count] - expected).square() / expected).sum())
        off = (chi - (count - 1)) / math.sqrt(2 * (count - 1))
        title = f"T = {temperature:g}, k = {top_k}, p = {top_p:g}"
        rows.append([title, count, outside, f"{chi:.1f}", f"{off:+.2f} σ"])
    print_table([f"{n:,} draws", "kept", "drawn outside", "chi-square", "off by"], rows)
