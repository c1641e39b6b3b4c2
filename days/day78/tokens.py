"""What day 78 computes, by its definition in float64 and as PyTorch's users do; a chi-square."""

import math

import torch

from common.day import print_table
from common.references.rivals import use_nvcc

TEMPERATURE = 0.8
STANDING_OUT = 64  # tokens of a timed row that are far above the others, and differ from each other
MOST_SETTLED = 1 << 22  # columns
GROUPS = 16  # of tokens, with about equal probabilities, whose draws are counted
LIMIT = 5.0  # standard deviations
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
        valid, _, mass, sums, kept = prefixes(logits, *options)
        distance = (sums / sums[:, -1:] - options[-1]).abs().min(-1)[0]
        close = valid & (distance < CLOSE) & (options[-1] < 1)
        if not close.any():
            break
        logits[close] *= 0.95
    total = sums.gather(1, kept[:, None] - 1)
    place = torch.searchsorted(sums, u.double()[:, None] * total, right=True)
    u.copy_(((sums - mass / 2).gather(1, place) / total)[:, 0])


def inputs(case, draw):
    """The shape is (rows, tokens, k, percent of top-p). Uniform logits are multiples of a quarter,
    so that most are equal, and four rows have a u that is not in [0, 1). With an offset, the first
    sixth of the logits is larger by 2, on average."""
    rows, columns, top_k, percent = case.shape
    top_p = percent / 100
    logits = draw(rows, columns, values="normal" if case.values == "offset" else None)
    u = draw(rows, dtype="float32", low=0, high=1)
    if case.values == "uniform":
        logits.copy_((logits * 4).round() / 4)
    if case.values == "offset":
        logits[:, : columns // 6] += 2
    if draw.fast and columns > STANDING_OUT:
        at = torch.rand(rows, columns, device=u.device).topk(STANDING_OUT)[1]
        apart = 12 + torch.arange(STANDING_OUT, device=u.device) / 16
        logits.scatter_(1, at, apart.to(logits.dtype).expand(rows, -1))
    if 0 < columns <= MOST_SETTLED and rows:
        settle(logits, u, TEMPERATURE, top_k, top_p)
    if case.values == "uniform":
        u[:4].copy_(torch.tensor([-0.25, 1.0, math.nan, math.inf])[: len(u)])
    return logits, u, TEMPERATURE, top_k, top_p


def by_pytorch(logits, u, temperature, top_k, top_p):
    """The chain of a sampler: topk where it is enough, else sort; the draw by the inverse of the
    running sum, since u is given. Scaling u by what is kept saves a second softmax and sum."""
    if top_k < logits.shape[1]:
        x, places = torch.topk(logits, top_k)
    else:
        x, places = torch.sort(logits, descending=True)
    p = torch.softmax(x.float() / temperature, -1)
    sums = p.cumsum(-1)
    kept = (sums - p < top_p).sum(-1, keepdim=True)
    total = sums.gather(1, kept - 1)
    place = torch.searchsorted(sums, u[:, None] * total, right=True).minimum(kept - 1)
    return places.gather(1, place)[:, 0], (p.gather(1, place) / total)[:, 0], kept[:, 0]


def flashinfer(logits, u, temperature, top_k, top_p):
    """FlashInfer draws by rejection, from random numbers of its own instead of u: there is no
    output to compare."""
    use_nvcc()
    from flashinfer import sampling

    p = sampling.softmax(logits, temperature)
    if top_k < logits.shape[1]:
        sampling.top_k_top_p_sampling_from_probs(p, top_k, top_p)
    else:
        sampling.top_p_sampling_from_probs(p, top_p)
    return ()


def distance(found, p):
    """How far counts are from draws of probabilities p, which add up to 1, with the largest first:
    chi-square of groups of neighbours, and its distance from its mean in standard deviations."""
    n = int(found.sum())
    group = ((p.cumsum(0) - p / 2) * GROUPS).long()
    q = torch.zeros(GROUPS, dtype=p.dtype, device=p.device).index_add(0, group, p)
    counts = torch.zeros_like(q).index_add(0, group, found.to(q.dtype))
    q, counts = q[q > 0], counts[q > 0]
    chi = float(((counts - n * q).square() / (n * q)).sum())
    k = len(q)
    variance = 2 * (k - 1) + (float((1 / q).sum()) - k * k - 2 * k + 2) / n
    return chi, (chi - (k - 1)) / math.sqrt(variance)


def print_chi_square(operators, device, columns=500):
    """Draws many tokens from one row and compares their counts with the exact probabilities. The
    last line compares the same draws with a wrong temperature. Raises RuntimeError if a right
    distribution is too far away, or the wrong one is not."""
    n = 1 << 18 if device.type == "cuda" else 1 << 8
    generator = torch.Generator().manual_seed(78)
    row = torch.randn(1, columns, generator=generator).to(device)
    u = torch.rand(n, generator=generator).to(device)
    rows, wrong = [], []
    for drawn_at, of, top_k, top_p in (
        (0.4, 0.4, 50, 1.0),
        (1.0, 1.0, columns, 0.5),
        (1.0, 1.0, columns, 1.0),
        (1.0, 2.0, columns, 1.0),
    ):
        many = row.expand(n, -1).contiguous()
        drawn = operators.sampling_v4_bound(many, u, drawn_at, top_k, top_p)[0]
        _, places, mass, sums, kept = prefixes(row, of, top_k, top_p)
        found = torch.bincount(drawn, minlength=columns)[places[0]]
        count = int(kept)
        outside = int(found[count:].sum())
        chi, off = distance(found[:count], mass[0, :count] / sums[0, count - 1])
        title = f"k {top_k}, p {top_p:g}, drawn at T {drawn_at:g}, compared with T {of:g}"
        rows.append([title, count, outside, f"{chi:.1f}", f"{off:+.2f} σ"])
        if (abs(off) < LIMIT) != (drawn_at == of) or outside:
            wrong.append(f"{title}: {off:+.1f} standard deviations, {outside} outside")
    print_table([f"{n:,} draws", "kept", "outside", "chi-square", "off by"], rows)
    if wrong:
        raise RuntimeError("the draws have another distribution: " + "; ".join(wrong))
