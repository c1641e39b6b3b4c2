"""Decide whether a rung has reached its targets, from its times and the GPU's ceilings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.base.ceilings import Ceilings, reached
from common.base.declaration import Target
from common.base.outcome import Timing
from common.base.rivals import PACKAGES

PYTORCH = "pytorch"
OF_CEILINGS = ("copy", "read", "tensor", "fp32")  # other targets are ratios of two times


def all_met(
    targets: Sequence[Target],
    mine: Timing,
    others: Mapping[str, Timing],
    ceilings: Ceilings | None,
) -> bool | None:
    """Return True if the time `mine` reaches all targets, False if it misses one; None without a
    target, or if a target is a share of an unknown ceiling.

    others: the times of the problem's rungs, by name. A target of a rival that was not timed
    leaves the verdict open unless another target is missed; of something else, it is missed.
    """
    rates = ceilings.rates if ceilings else {}
    if not targets or any(each.of in OF_CEILINGS and each.of not in rates for each in targets):
        return None
    known = [each for each in targets if each.of not in PACKAGES or each.of in mine.libraries]
    if not all(_ratio(each.of, mine, others, rates) >= each.at_least for each in known):
        return False
    return True if len(known) == len(targets) else None


def _ratio(
    of: str, mine: Timing, others: Mapping[str, Timing], rates: Mapping[str, float]
) -> float:
    """Return the rate over the ceiling `of`, or the time of `of` over mine; 0 if one is unknown."""
    if of in OF_CEILINGS:
        return (reached(mine, of) or 0.0) / rates[of]
    theirs = {PYTORCH: mine.pytorch_ms, **mine.libraries}.get(of)
    if theirs is None and of in others:
        theirs = others[of].ms
    return (theirs or 0.0) / mine.ms
