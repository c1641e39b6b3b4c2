"""What the day's `show` proves and draws: a tissue of known regions, without and with the field."""

from pathlib import Path

import torch

from common.day import print_table
from common.report.picture import save_pictures

from .mixture import by_products, hexagons

HEIGHT, WIDTH, FEATURES, REGIONS = 72, 96, 16, 6
SIGNAL, SEED = 0.75, 93
STARTS, STEPS = 4, 40  # without the field
BETA, MORE = 1.0, 15  # with it
PALETTE = (
    (37, 64, 97), (214, 96, 77), (120, 171, 110), (244, 196, 92),
    (132, 94, 158), (98, 182, 203),
)  # fmt: skip
SIZE = 3  # pixels per spot


def tissue():
    """Regions, int64 (n,), and expression, fp32 (n, FEATURES), of a hexagonal grid of spots.

    A region holds the spots nearest to its anchor, in coordinates that two waves bend. Each region
    has its own mean; the noise of a spot is as large as the distance of two means.
    """
    generator = torch.Generator().manual_seed(SEED)
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    x = x + 0.5 * (y % 2)
    across = x + 6 * torch.sin(y / 11.0)
    down = y + 5 * torch.sin(x / 9.0)
    anchors = torch.rand(REGIONS, 2, generator=generator) * torch.tensor([HEIGHT, WIDTH])
    places = torch.stack([down.flatten(), across.flatten()], 1)
    region = torch.cdist(places, anchors).argmin(1)
    means = SIGNAL * torch.randn(REGIONS, FEATURES, generator=generator)
    noise = torch.randn(len(region), FEATURES, generator=generator)
    return region, means[region] + noise


def adjusted_rand(a, b):
    """The adjusted Rand index of two labellings: 1 for equal partitions, about 0 for unrelated ones
    (Hubert, Arabie, 1985)."""
    counts = torch.bincount(a * REGIONS + b, minlength=REGIONS**2).view(REGIONS, REGIONS).double()

    def pairs(values):
        return float((values * (values - 1) / 2).sum())

    both, first, second = pairs(counts), pairs(counts.sum(1)), pairs(counts.sum(0))
    expected = first * second / (len(a) * (len(a) - 1) / 2)
    return (both - expected) / ((first + second) / 2 - expected)


def started(x, chosen):
    """q, weights, means and variances before the first step: all clusters are equally likely."""
    q = torch.full((len(x), len(chosen)), 1 / len(chosen), device=x.device)
    variances = x.var(0, unbiased=False).repeat(len(chosen), 1)
    return q, q[0].clone(), x[chosen], variances


def clustered(step, x, neighbours, state, beta, steps):
    """The state after so many steps."""
    for _ in range(steps):
        state = step(x, neighbours, *state, beta)
    return state


def likelihood(x, weights, means, variances):
    """The mean log-likelihood per spot, without the field and without the term of 2π."""
    inverse = 1 / variances
    constant = weights.log() - 0.5 * (variances.log() + means.square() * inverse).sum(1)
    logits = constant + x @ (means * inverse).T - 0.5 * x.square() @ inverse.T
    return float(logits.logsumexp(1).mean())


def renamed(labels, region):
    """The labels, each replaced by the region that most of its spots lie in."""
    counts = torch.bincount(labels * REGIONS + region, minlength=REGIONS**2)
    return counts.view(REGIONS, REGIONS).argmax(1)[labels]


def picture(labels):
    """uint8 RGB of the spots, odd rows half a spot to the right."""
    colours = torch.tensor(PALETTE, dtype=torch.uint8)[labels].view(HEIGHT, WIDTH, 3)
    pixels = colours.repeat_interleave(SIZE, 0).repeat_interleave(SIZE, 1)
    shifted = (torch.arange(WIDTH * SIZE) - SIZE // 2).clamp(min=0)
    rows = [row[shifted] if i // SIZE % 2 else row for i, row in enumerate(pixels)]
    return torch.stack(rows)


def show(operators, device):
    """Clusters a synthetic tissue: a mixture, the likeliest of some starts, then with the field.

    Raises RuntimeError where a rung and float64 disagree on more than 1 spot in 1000 after the
    steps with the field, or where the field does not help.
    """
    region, expression = tissue()
    x, neighbours = expression.to(device), hexagons(HEIGHT, WIDTH, device)
    mixtures = []
    for seed in range(STARTS):
        start = started(x, operators.kmeans_plus_plus(x, REGIONS, seed))
        mixtures.append(
            clustered(operators.spatial_em_v3_one_pass, x, neighbours, start, 0.0, STEPS)
        )
    mixture = max(mixtures, key=lambda state: likelihood(x, *state[1:]))
    steps = {
        name: getattr(operators, name)
        for name in ("spatial_em_v1_separate", "spatial_em_v2_tiles", "spatial_em_v3_one_pass")
    }
    fields = {
        name: clustered(step, x, neighbours, mixture, BETA, MORE)[0].argmax(1).cpu()
        for name, step in steps.items()
    }
    exact = [t.double().cpu() for t in mixture]
    truth = clustered(by_products, expression.double(), neighbours.cpu(), exact, BETA, MORE)
    for name, labels in fields.items():
        differ = int((labels != truth[0].argmax(1)).sum())
        if differ * 1000 > len(labels):
            raise RuntimeError(f"{name}: {differ} spots have another label than in float64")
    found = {
        "mixture": mixture[0].argmax(1).cpu(),
        "mixture and field": fields["spatial_em_v3_one_pass"],
    }
    index = {title: adjusted_rand(labels, region) for title, labels in found.items()}
    drawn = {title: renamed(labels, region) for title, labels in found.items()}
    rows = [
        [title, f"{index[title]:.3f}", f"{float((labels == region).double().mean()):.1%}"]
        for title, labels in drawn.items()
    ]
    headings = [f"{len(region):,} spots", "adjusted Rand index", "in their region"]
    print_table(headings, rows)
    if not index["mixture and field"] > index["mixture"] + 0.1:
        raise RuntimeError(f"the field does not help: {index}")
    gap = torch.full((HEIGHT * SIZE, 2 * SIZE, 3), 255, dtype=torch.uint8)
    parts = [part for labels in (region, *drawn.values()) for part in (picture(labels), gap)]
    save_pictures(Path(__file__).parent, {"tissue": torch.cat(parts[:-1], 1)})
