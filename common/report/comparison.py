"""Compare two reports: list the rungs that are slower or faster, and that fail or pass now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.base.figures import duration
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome

WORSE = ("slower", "fails now", "skipped now", "gone")  # changes that make a comparison fail
QUIET = ("same", "not timed")  # changes that are counted, but not listed


@dataclass(frozen=True)
class Change:
    """One rung in both reports.

    rung: its name, with its problem's if the day has several rungs of this name. what: "slower",
    "faster", "unclear", "fails now", "skipped now", "passes now", "gone", "new", "same", or "not
    timed" if only one report has its time. before, after: times as text, or states. factor: the new
    time divided by the old one, None without both.
    """

    day: int
    rung: str
    what: str
    before: str = ""
    after: str = ""
    factor: float | None = None

    @property
    def worse(self) -> bool:
        return self.what in WORSE

    @property
    def percent(self) -> str:
        """Return "+12.3 %", "" without both times."""
        return "" if self.factor is None else f"{(self.factor - 1) * 100:+.1f} %"


Key = tuple[int, str, str]


def compare(old: Sequence[DayOutcome], new: Sequence[DayOutcome], threshold: float) -> list[Change]:
    """Return every rung of either report, in the order of the days.

    threshold: the least relative change of a time that counts, e.g. 0.05; a larger change that is
    within the spread of the two measurements is "unclear". Days in only one of the reports are left
    out, since a run may cover fewer days. See `in_one_only`.
    """
    days = {o.number for o in old} & {o.number for o in new}
    before, after = _rungs(old, days), _rungs(new, days)
    keys = sorted({*before, *after}, key=lambda key: (key[0], _place(key, after, before)))
    named = Counter((day, rung) for day, _, rung in keys)
    changes = [_change(key, before.get(key), after.get(key), threshold) for key in keys]
    return [
        replace(change, rung=f"{rung} ({problem})") if named[day, rung] > 1 else change
        for (day, problem, rung), change in zip(keys, changes, strict=True)
    ]


def in_one_only(old: Sequence[DayOutcome], new: Sequence[DayOutcome]) -> tuple[set[int], set[int]]:
    """Return the days in the old report only, and those in the new one only."""
    before, after = {o.number for o in old}, {o.number for o in new}
    return before - after, after - before


def _rungs(outcomes: Sequence[DayOutcome], days: set[int]) -> dict[Key, RungOutcome]:
    """Return the rungs of these days. A day without rungs, which did not build, has a nameless
    one."""
    found: dict[Key, RungOutcome] = {}
    for outcome in outcomes:
        if outcome.number in days:
            for rung in outcome.rungs:
                found[outcome.number, rung.problem, rung.rung] = rung
            if not outcome.rungs:
                whole = RungOutcome("", "the whole day", "", outcome.status, outcome.reason)
                found[outcome.number, "", ""] = whole
    return found


def _place(key: Key, *rungs: dict[Key, RungOutcome]) -> int:
    return min(list(each).index(key) if key in each else 1 << 30 for each in rungs)


def _change(key: Key, old: RungOutcome | None, new: RungOutcome | None, threshold: float) -> Change:
    name = (new or old or RungOutcome("", "", "", PASS)).rung
    if old is None or new is None:
        present = new or old
        assert present
        what = "new" if old is None else "gone"
        states = ("", _state(present)) if old is None else (_state(present), "")
        return Change(key[0], name, what, *states)
    before, after = _state(old), _state(new)
    if old.status != FAIL and new.status == FAIL:
        return Change(key[0], name, "fails now", before, after)
    if old.status == FAIL and new.status != FAIL:
        return Change(key[0], name, "passes now", before, after)
    if old.status == PASS and new.status == SKIP:
        return Change(key[0], name, "skipped now", before, after)
    if old.timing is None or new.timing is None:
        what = "same" if old.timing is new.timing else "not timed"
        return Change(key[0], name, what, before, after)
    factor = new.timing.ms / old.timing.ms
    change = max(factor, 1 / factor) - 1
    if change <= threshold:
        what = "same"
    elif change <= 2 * (old.timing.spread + new.timing.spread):
        what = "unclear"
    else:
        what = "slower" if factor > 1 else "faster"
    return Change(key[0], name, what, before, after, factor)


def _state(rung: RungOutcome) -> str:
    if rung.status != PASS:
        return rung.status
    return duration(rung.timing.ms / 1e3) if rung.timing else "checked"


def compared_lines(changes: Sequence[Change]) -> list[tuple[str, str]]:
    """Return a line with its style for each change, and a last line with the counts."""
    shown = [change for change in changes if change.what not in QUIET]
    width = max((len(change.rung) for change in shown), default=0)
    lines = []
    for change in sorted(shown, key=lambda change: not change.worse):
        text = f"{change.day:>3} {change.rung:<{width}}  {change.what:<11}"
        text += f"  {change.before:>9} -> {change.after:<9} {change.percent}"
        style = "red" if change.worse else _STYLES.get(change.what, "green")
        lines.append((text.rstrip(), style))
    if any(change.what == "unclear" for change in shown):
        lines.append((_UNCLEAR, "yellow"))
    counts = [f"{sum(c.what == what for c in changes)} {what}" for what in _ORDER]
    counted = ", ".join(text for text in counts if not text.startswith("0 "))
    lines.append((f"{len(changes)} rungs compared: {counted or 'none in both reports'}", "bold"))
    return lines


_ORDER = (*WORSE, "unclear", "faster", "passes now", "new", *reversed(QUIET))
_STYLES = {"new": "dim", "unclear": "yellow"}
_UNCLEAR = "unclear: the times of one report spread as much as the two differ; measure again"
