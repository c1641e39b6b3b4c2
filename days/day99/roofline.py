"""All days on one roofline, from the stored results: which share of its limit each day reaches.

A kernel that moves b bytes and does f operations takes at least the longer of b / bandwidth and
f / peak rate. Which of the two it is depends on f / b, the arithmetic intensity. The bandwidth and
the peak rates are the ceilings that day 50 has measured on the card.
"""

from dataclasses import dataclass

from common.base.outcome import RungOutcome, Timing
from common.base.where import slug
from common.day import print_table
from common.report.roofline import roofline

IN_L2 = "mostly in L2"  # in the note of a time whose bytes fit into L2: memory is not its limit
NOTHING = "Nothing is stored yet. On a GPU, python run_day.py all --write stores the results."


@dataclass(frozen=True)
class Standing:
    """Where a day stands on a card. share: of the limit; None where no limit is known. In L2, of
    the limit that memory would be."""

    day: int
    first: Timing
    best: RungOutcome
    share: float | None

    @property
    def in_l2(self):
        timing = self.best.timing
        return timing is not None and IN_L2 in timing.note


def copy_rate(rungs):
    """The card's copy in GB/s, which the shares imply; None without a share of it."""
    timings = (rung.timing for rung in rungs)
    return next((t.gbs / t.share for t in timings if t.share and t.bound == "copy"), None)


def share_of(timing, copy):
    """The share of the limit that the intensity allows."""
    if timing.share is None and IN_L2 in timing.note and copy:
        return timing.gbs / copy
    return timing.share


def standings(results):
    """The days of one card, the largest share first, those without a share last. results: what is
    stored of it, a Stored per day. Days without a time are left out."""
    timed = [(one, [rung for rung in one.rungs if rung.timing]) for one in results]
    copy = copy_rate([rung for _, rungs in timed for rung in rungs])
    found = []
    for one, rungs in timed:
        if not rungs:
            continue
        first = next(rung for rung in rungs if rung.problem == one.best.problem)
        found.append(Standing(one.day, first.timing, one.best, share_of(one.best.timing, copy)))
    return sorted(found, key=lambda each: (each.share is None, -(each.share or 0), each.day))


def by_card(stored):
    """The stored results of each card, by the name of its folder."""
    cards = {}
    for one in (one for found in stored.values() for one in found):
        cards.setdefault(slug(one.where), []).append(one)
    return dict(sorted(cards.items()))


def cells(standing):
    """A line of the table."""
    t = standing.best.timing
    intensity = f"{1e3 * t.tflops / t.gbs:.3g}" if t.gbs and t.tflops else ""
    limit = t.bound if t.share is not None else "L2" if standing.in_l2 else ""
    share = "" if standing.share is None else f"{standing.share:.0%}"
    speed = f"{t.pytorch_ms / t.ms:.2f}" if t.pytorch_ms else ""
    met = {True: "met", False: "missed", None: ""}[standing.best.target_met]
    name = standing.best.rung
    name = name if len(name) <= 32 else f"{name[:31]}…"
    return [f"{standing.day:>3} {name}", intensity, limit, share, f"{t.ms:.3g}", speed, met]


HEADER = ["day", "op/byte", "limit", "share", "ms", "× PyTorch", "target"]


def print_standings(name, found):
    """The table of a card."""
    known = sum(each.share is not None for each in found)
    print(f"{name}: {len(found)} days, {known} with a share of a limit; the worst at the end")
    print_table(HEADER, [cells(each) for each in found])
    if any(each.in_l2 for each in found):
        print("L2: the bytes fit into L2; the share is of the copy rate, as if they did not.")


def show_all(stored):
    """Prints a table per card. Returns the plots: SVGs by file name, one per card.

    One per card, since its ceilings do not scale by one factor from card to card: normalised to
    the ceilings, a day would stand on another side of the ridge than on the card it ran on.
    """
    if not stored:
        print(NOTHING)
        return {}
    plots = {}
    for name, results in by_card(stored).items():
        found = standings(results)
        if not found:
            print(f"{name}: no day was timed")
            continue
        print_standings(name, found)
        picture = roofline(
            [(each.day, each.best.timing) for each in found],
            {each.day: each.first for each in found if each.first is not each.best.timing},
        )
        if picture:
            plots[f"roofline-{name}.svg"] = picture + "\n"
    return plots
