"""Compare a rung's output with the truth, and explain a difference so that one can act on it.

The truth is the reference in float64. The allowed distance from it depends on the error that
PyTorch's own operator makes on outputs of similar size:

    |got - truth| <= ulps · eps · max(|truth|, tiny) + factor · E(|truth|)

and additionally `at_zero` where the truth is exactly 0.

E(m) is the largest error of PyTorch's operator, beyond the unavoidable rounding of its result, over
outputs in the binade of m and the three above it, and further ones until sixteen elements are seen.
Thus one element that PyTorch computes exactly does not make the bound zero, and the error of large
outputs does not hide that of small ones.

In 16-bit dtypes the mean error and the root mean square error are compared with PyTorch's as well.

Integer outputs are exact, unless the day's Tolerance has `levels` and `share`: then none may differ
by more than that many levels from the truth, and no more than that share may differ at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from common.base.declaration import Tolerance
from common.base.figures import counted
from common.check.draw import dtype_name
from common.check.guard import bits, near_host
from common.check.patterns import NO_LOOK, Look, Wrong, hints

CHUNK = 1 << 22  # elements compared at a time: bounds the memory of a comparison
WORST = 4  # how many wrong elements are shown
AROUND = (7, 5, 3)  # numbers of elements shown around the worst: the first that fits
WIDTH = 74  # characters per line: a terminal's 80 minus a margin
BINADES = 3  # binades above an output whose PyTorch errors count for it
ENOUGH = 16  # elements from which an error is taken
MANY_ULPS = 1000  # beyond, ulps do not measure a rounding error
MANY = 256  # elements from which average errors are compared
DRAWN_FACTOR = 4.0  # times the usual factor of PyTorch's error, on inputs drawn in each run
RARE = 2**-20  # share of such an output that may be off by CANCELLED
CANCELLED = 4.0  # units of rounding of a whole output
NEARLY = 4.0  # times the allowed error: below, rounding may be the cause

_NEARLY_RIGHT = (
    f"hint: each is off by less than {NEARLY:g} times what is allowed, so it may be rounding "
    "alone: is a sum kept in a type that is too small, or added up in one long chain where PyTorch "
    "has a tree?"
)

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Mismatch:
    """The reason why an output was not accepted.

    kind: "shape", "dtype", "device", "strides" or "values". summary: one line. details: lines with
    the worst elements, their neighbours and, if a pattern is found, its likely cause. wrong: number
    of wrong elements.
    """

    kind: str
    summary: str
    details: list[str] = field(default_factory=list)
    wrong: int = 0

    def __str__(self) -> str:
        return "\n".join([self.summary, *self.details])


def compare(
    got: Tensor,
    truth: Tensor,
    own: Tensor,
    tolerance: Tolerance,
    exact: bool = False,
    samples: Sequence[Pair] = (),
    look: Look = NO_LOOK,
    drawn: bool = False,
) -> Mismatch | None:
    """Return None if `got` is accepted, else the mismatch.

    got: a rung's output. truth: the reference's result in float64 (any dtype if the output is not
    floating). own: PyTorch's result in the dtype of the rung; it defines the expected shape, dtype,
    device and strides, and the usual size of an error.
    exact: require equal bits; NaN equals NaN. Always so if the output is not floating and the
        tolerance has no levels.
    samples: more pairs of (truth, own), from other inputs, for outputs of so few elements that
        PyTorch's error on them is a matter of luck. A sample whose `own` has a longer eps than
        `got` counts with its error scaled down by the ratio.
    look: further facts about the call, for the explanation.
    drawn: the inputs were drawn in this run, from its seed. A right rung must pass with all inputs
        that it is ever given, but PyTorch's error on a few shows the worst only by luck: so
        DRAWN_FACTOR times as much is allowed, and of millions of elements, a few, whose terms
        cancel, may be off by CANCELLED units of the whole output's rounding.
    Raise ValueError naming the argument if `truth` and `own` do not have the same shape or are
    not on one device.
    """
    if truth.shape != own.shape:
        raise ValueError(f"truth: shape {tuple(truth.shape)} is not own's {tuple(own.shape)}")
    if truth.device != own.device:
        raise ValueError(f"truth: on {truth.device}, but own is on {own.device}")
    metadata = _compare_metadata(got, own)
    if metadata is not None or got.device.type == "meta":
        return metadata
    if got.dtype.is_complex:
        raise ValueError(f"got: complex outputs cannot be compared yet, got {got.dtype}")
    got, truth, own, *flat = near_host([got, truth, own, *(t for pair in samples for t in pair)])
    samples = list(zip(flat[::2], flat[1::2], strict=True))
    if drawn:
        tolerance = replace(tolerance, factor=DRAWN_FACTOR * tolerance.factor)
    bound = _bound_of(got, truth, own, tolerance, exact, samples)
    levels = tolerance if bound is None and not exact else Tolerance()
    cancelled = int(RARE * got.numel()) if drawn and bound is not None else 0
    wrong = _compare_values(got, truth, own, bound, levels, look.on(got.device), cancelled)
    if wrong is None and bound is not None and got.element_size() == 2:
        wrong = _compare_on_average(got, truth, own, tolerance)
    return wrong


def wrong_elements(
    got: Tensor,
    truth: Tensor,
    own: Tensor,
    tolerance: Tolerance,
    exact: bool = False,
    samples: Sequence[Pair] = (),
) -> Tensor:
    """Return a bool mask, shaped like `got`, of the elements that are not accepted.

    The arguments are those of `compare`; a tolerance's `levels` and `share` apply to a whole output
    and are ignored here.
    """
    bound = _bound_of(got, truth, own, tolerance, exact, samples)
    wrong, _ = _wrong_in_chunk(got.reshape(-1), truth.reshape(-1), own.reshape(-1), bound)
    mask = torch.zeros(got.numel(), dtype=torch.bool, device=got.device)
    mask[wrong] = True
    return mask.reshape(got.shape)


def _bound_of(
    got: Tensor,
    truth: Tensor,
    own: Tensor,
    tolerance: Tolerance,
    exact: bool,
    samples: Sequence[Pair],
) -> _Bound | None:
    """Return the allowed errors; None if elements must be equal."""
    if exact or not got.dtype.is_floating_point:
        return None
    return _Bound(got.dtype, tolerance, [(truth, own), *samples])


def same_values(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors have equal shape, dtype and bits, where any NaN equals any
    other."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(bits(a), bits(b)) or not bool(_differ(a, b).any())


def _differ(a: Tensor, b: Tensor) -> Tensor:
    different = bits(a) != bits(b)
    if a.dtype.is_floating_point:
        different &= ~(_wide(a).isnan() & _wide(b).isnan())
    return different


def _wide(tensor: Tensor) -> Tensor:
    """Return the tensor in a dtype that all operations support; few support float8."""
    one_byte = tensor.dtype.is_floating_point and tensor.element_size() == 1
    return tensor.float() if one_byte else tensor


def _compare_metadata(got: Tensor, own: Tensor) -> Mismatch | None:
    if got.device != own.device:
        return Mismatch("device", f"the output is on {got.device}, expected on {own.device}")
    if got.dtype != own.dtype:
        return Mismatch(
            "dtype", f"the output is {dtype_name(got.dtype)}, expected {dtype_name(own.dtype)}"
        )
    if got.shape != own.shape:
        hint = []
        if sorted(got.shape) == sorted(own.shape):
            hint.append("hint: the same sizes in another order: are two dimensions swapped?")
        elif got.numel() != own.numel():
            hint.append(f"it has {counted(got.numel(), 'element')}, expected {own.numel()}")
        return Mismatch(
            "shape", f"the output has shape {tuple(got.shape)}, expected {tuple(own.shape)}", hint
        )
    if got.numel() == 0:
        return None
    # The stride of a dimension of one element never matters.
    strides = [
        (mine, theirs)
        for mine, theirs, size in zip(got.stride(), own.stride(), got.shape, strict=True)
        if size > 1
    ]
    if any(mine != theirs for mine, theirs in strides):
        return Mismatch(
            "strides",
            f"the output has strides {got.stride()}, expected {own.stride()} "
            f"for shape {tuple(got.shape)}",
        )
    return None


# ---------------------------------------------------------------- the bound


def _power_of_two_below(magnitude: Tensor) -> Tensor:
    """Return 2^floor(log2 m) for float64 m >= 0, by clearing the mantissa: exact, and fast on every
    device."""
    return (magnitude.view(torch.int64) & (0x7FF << 52)).view(torch.float64)


def _ulp(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the distance of neighbouring numbers of `dtype` around a float64 magnitude, in
    float64."""
    limits = torch.finfo(dtype)
    return _power_of_two_below(magnitude).clamp(min=limits.smallest_normal) * limits.eps


def _binade(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the biased exponent of float64 magnitudes, 0 to 2047; magnitudes below the smallest
    normal number of `dtype` share one binade."""
    smallest = torch.finfo(dtype).smallest_normal
    return magnitude.clamp(min=smallest).view(torch.int64) >> 52


class _Errors:
    """The largest error and the number of elements for each binade of the truth."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self.largest = np.zeros(2048)
        self.count = np.zeros(2048, dtype=np.int64)

    def add(self, truth: Tensor, own: Tensor) -> None:
        """Add one result of PyTorch's. Elements that are not finite are ignored."""
        eps = torch.finfo(own.dtype).eps
        scale = min(1.0, torch.finfo(self.dtype).eps / eps)
        flat_truth, flat_own = truth.reshape(-1), own.reshape(-1)
        for start in range(0, flat_truth.numel(), CHUNK):
            t = flat_truth[start : start + CHUNK].double()
            o = flat_own[start : start + CHUNK].double()
            magnitude = t.abs()
            error = ((o - t).abs() - 0.5 * _ulp(magnitude, own.dtype)).clamp_(min=0) * scale
            binade = _binade(magnitude, self.dtype)
            # Elements that are not finite go into the last binade, which no finite truth has.
            usable = error.isfinite()
            binade = torch.where(usable, binade, 2047)
            error = torch.where(usable, error, 0.0)
            self._add_chunk(binade, error)
        self.count[2047] = 0

    def _add_chunk(self, binade: Tensor, error: Tensor) -> None:
        count = torch.bincount(binade, minlength=2048)
        largest = torch.zeros(2048, dtype=torch.float64, device=error.device)
        if error.device.type == "cpu":
            largest.scatter_reduce_(0, binade, error, "amax")
        else:
            # Atomic maxima of millions of elements in few places would be slow.
            for present in count.nonzero().flatten().tolist():
                largest[present] = torch.where(binade == present, error, 0.0).max()
        self.count += count.cpu().numpy()
        self.largest = np.maximum(self.largest, largest.cpu().numpy())

    def table(self) -> np.ndarray:
        """Return E by binade: float64, 2048 values."""
        result = np.zeros(2048)
        present = np.flatnonzero(self.count)
        counts, errors = self.count[present].tolist(), self.largest[present].tolist()
        binades = present.tolist()
        for at, binade in enumerate(binades):
            top, seen, error = at, 0, 0.0
            while top < len(binades) and (binades[top] <= binade + BINADES or seen < ENOUGH):
                seen += counts[top]
                error = max(error, errors[top])
                top += 1
            # At the upper end there are no binades above: continue below.
            low = at - 1
            while low >= 0 and seen < ENOUGH:
                seen += counts[low]
                error = max(error, errors[low])
                low -= 1
            result[binade] = error
        return result


class _Bound:
    """The allowed error of an element as a function of its truth's magnitude."""

    def __init__(self, dtype: torch.dtype, tolerance: Tolerance, pairs: Sequence[Pair]):
        self.dtype = dtype
        self.tolerance = tolerance
        self.pairs = pairs
        self._table: Tensor | None = None

    def always(self, magnitude: Tensor) -> Tensor:
        """Return the part that does not depend on PyTorch's error; float64."""
        limits = torch.finfo(self.dtype)
        ulps = magnitude.clamp(min=limits.smallest_normal) * (self.tolerance.ulps * limits.eps)
        if self.tolerance.at_zero:
            ulps[magnitude == 0] += self.tolerance.at_zero
        return ulps

    def allowed(self, magnitude: Tensor) -> Tensor:
        """Return the whole allowed error; float64. The first call evaluates PyTorch's errors."""
        if self._table is None:
            errors = _Errors(self.dtype)
            for pair in self.pairs:
                errors.add(*pair)
            self._table = torch.from_numpy(errors.table()).to(magnitude.device)
        own = self._table[_binade(magnitude, self.dtype)]
        return self.always(magnitude) + self.tolerance.factor * own


# ---------------------------------------------------------------- the values


def _wrong_floating(
    got: Tensor, truth: Tensor, own: Tensor, bound: _Bound
) -> tuple[Tensor, Tensor]:
    """Return (wrong, |got - truth| divided by the allowed error, float64) of flat tensors."""
    limits = torch.finfo(got.dtype)
    g, t, o = got.double(), truth.double(), own.double()
    magnitude = t.abs()
    finite = t.isfinite()
    allowed = bound.allowed(torch.where(finite, magnitude, 0.0))
    difference = (g - t).abs()
    right = g.isfinite() & (difference <= allowed)
    # Infinity is right if the truth, or the allowed interval around it, overflows the dtype.
    overflow = limits.max * (1 + limits.eps / 4)
    right |= g.isinf() & (g.sign() == t.sign()) & (magnitude + allowed >= overflow)
    right = torch.where(finite, right, (g == t) | (g.isnan() & t.isnan()))
    # If PyTorch's result is not finite although the truth is, ours may equal it.
    strayed = finite & ~o.isfinite()
    right |= strayed & ((g == o) | (g.isnan() & o.isnan()))
    # A number for a NaN or the other way round is worse than any distance.
    severity = difference / allowed
    return ~right, torch.where(severity.isnan(), math.inf, severity)


def _wrong_in_chunk(
    got: Tensor, truth: Tensor, own: Tensor, bound: _Bound | None
) -> tuple[Tensor, Tensor]:
    """Return (indices of wrong elements, severity of each, float64) of flat chunks."""
    if bound is None:
        wrong = _differ(got, truth.to(got.dtype)).nonzero().flatten()
        severity = (got[wrong].double() - truth[wrong].double()).abs()
        return wrong, torch.where(severity.isnan(), math.inf, severity)
    # Most elements of a right output are within the part of the bound that is cheap to compute.
    t = truth.double()
    near = (got.double() - t).abs_() <= bound.always(t.abs())
    near &= t.isfinite()
    if bool(near.all()):
        suspects = torch.zeros(0, dtype=torch.int64, device=got.device)
        return suspects, suspects.double()
    suspects = (~near).nonzero().flatten()
    wrong, severity = _wrong_floating(got[suspects], truth[suspects], own[suspects], bound)
    return suspects[wrong], severity[wrong]


def _compare_values(
    got: Tensor,
    truth: Tensor,
    own: Tensor,
    bound: _Bound | None,
    tolerance: Tolerance,
    look: Look,
    cancelled: int = 0,
) -> Mismatch | None:
    """Return the mismatch of values, or None. tolerance: levels and share, used if `bound` is
    None. cancelled: number of elements that may be off by little, next to the whole output."""
    flat_got, flat_truth, flat_own = got.reshape(-1), truth.reshape(-1), own.reshape(-1)
    found: list[tuple[Tensor, Tensor]] = []
    for start in range(0, flat_got.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        wrong, severity = _wrong_in_chunk(flat_got[part], flat_truth[part], flat_own[part], bound)
        if wrong.numel():
            found.append((wrong + start, severity))
    if not found:
        return None
    places = torch.cat([wrong for wrong, _ in found])
    severity = torch.cat([severity for _, severity in found])
    if places.numel() <= cancelled and _by_little(flat_got, flat_truth, places):
        return None
    within = bound is None and float(severity.max()) <= tolerance.levels
    allowed = math.ceil(tolerance.share * got.numel())
    if within and places.numel() <= allowed:
        return None
    # Among equally wrong elements take the first, so that a failure's report is stable.
    top = severity.topk(min(64 * WORST, severity.numel())).indices.sort().values
    order = severity[top].argsort(descending=True, stable=True)[:WORST]
    worst = places[top[order]].tolist()
    mismatch = _explain(flat_got, flat_truth, places, worst, bound, got.shape, look)
    if bound is not None and float(severity.max()) < NEARLY and not look.explained:
        mismatch.details.insert(0, _NEARLY_RIGHT)
    if within:
        hint = (
            f"hint: each is within {tolerance.levels} of what is expected, but at most {allowed:,} "
            f"of {got.numel():,} may differ: is it rounded another way?"
        )
        mismatch.details.insert(0, hint)
    return mismatch


def _by_little(got: Tensor, truth: Tensor, places: Tensor) -> bool:
    """Return True if these elements are off by less than CANCELLED units of rounding of the
    output's root mean square."""
    usable = truth[truth.isfinite()].double()
    unit = torch.finfo(got.dtype).eps * float(usable.norm()) / max(1, usable.numel()) ** 0.5
    return bool(((got[places].double() - truth[places].double()).abs() <= CANCELLED * unit).all())


# ---------------------------------------------------------------- on average


@dataclass(frozen=True)
class _Average:
    """Errors of a whole output, as shares of the mean magnitude of its truth.

    bias: of the error away from zero (0.01 for an output 1.01 times too large); offset: of the
    error itself; noise: size of either if errors are independent and have no preferred sign;
    bias_of_rows, offset_of_rows: their size if the elements of a row share an error, such as that
    of the row's sum, and rows are independent; rms: the root mean square error, as a share of the
    truth's.
    """

    bias: float
    offset: float
    noise: float
    bias_of_rows: float
    offset_of_rows: float
    rms: float


def _average(got: Tensor, truth: Tensor) -> _Average | None:
    """Return the errors, or None if there are too few elements or too many of them are equal."""
    flat_got, flat_truth = got.reshape(-1), truth.reshape(-1)
    if flat_got.numel() < MANY:
        return None
    g, t = flat_got.double(), flat_truth.double()
    usable = g.isfinite() & t.isfinite()
    first = t[: 64 * MANY][usable[: 64 * MANY]]
    if torch.unique(first).numel() < MANY:
        return None
    error = (g - t).masked_fill_(~usable, 0.0)
    t = t.masked_fill(~usable, 0.0)
    size = float(t.abs().sum())
    if not 0 < size < math.inf:
        return None
    columns = truth.shape[-1]
    away = (error * t.sign()).reshape(-1, columns).sum(-1)
    aside = error.reshape(-1, columns).sum(-1)
    return _Average(
        bias=float(away.sum()) / size,
        offset=float(aside.sum()) / size,
        noise=float(error.norm()) / size,
        bias_of_rows=float(away.norm()) / size,
        offset_of_rows=float(aside.norm()) / size,
        rms=float(error.norm() / t.norm()),
    )


def _compare_on_average(
    got: Tensor, truth: Tensor, own: Tensor, tolerance: Tolerance
) -> Mismatch | None:
    """Return a mismatch if errors are small one by one, but mostly of one sign or all nearly as
    large as allowed: in short dtypes, a constant factor that is 1 % off hides within a few ulps."""
    ours = _average(got, truth)
    if ours is None:
        return None
    eps = torch.finfo(got.dtype).eps
    one_sided = eps * tolerance.ulps / 32 + 5 * ours.noise
    rough = eps * tolerance.ulps / 8
    if max(abs(ours.bias), abs(ours.offset)) <= one_sided and ours.rms <= rough:
        return None  # right, however large PyTorch's error is
    theirs = _average(own, truth)
    if theirs is None:
        return None
    # PyTorch's errors may lean to either side by chance, row by row; ours may lean as far.
    their_bias = max(theirs.bias, theirs.bias_of_rows, key=abs)
    their_offset = max(theirs.offset, theirs.offset_of_rows, key=abs)
    limits = {
        "the errors lean away from zero or towards it": (ours.bias, their_bias, one_sided),
        "the errors lean to one side": (ours.offset, their_offset, one_sided),
        "the root mean square error is too large": (ours.rms, theirs.rms, rough),
    }
    for what, (mine, pytorchs, always) in limits.items():
        allowed = always + tolerance.factor * abs(pytorchs)
        if abs(mine) > allowed:
            return Mismatch(
                "values",
                f"each element is nearly right, but {what}",
                [
                    f"{mine:+.3%} on average, where {allowed:.3%} is allowed and PyTorch's own has "
                    f"{pytorchs:+.3%}",
                    "hint: is a factor slightly off, does a rounding always go one way, or is an "
                    "intermediate result kept in a short dtype?",
                ],
                got.numel(),
            )
    return None


# ---------------------------------------------------------------- the explanation


def _explain(
    got: Tensor,
    truth: Tensor,
    places: Tensor,
    worst: list[int],
    bound: _Bound | None,
    shape: torch.Size,
    look: Look,
) -> Mismatch:
    """Return the mismatch. got, truth: flat. places: flat indices of the wrong elements, in order.
    worst: flat indices of the worst."""
    total, count = got.numel(), places.numel()
    if total == 1:
        summary = "the only element is wrong"
    elif count == total:
        summary = f"all {total:,} elements are wrong"
    else:
        verb = "is" if count == 1 else "are"
        summary = f"{count:,} of {total:,} elements {verb} wrong ({100 * count / total:.3g} %)"
    lines = [f"hint: {text}" for text in hints(Wrong(got, truth, places, tuple(shape), look))]
    lines += _table(got, truth, worst, bound, shape)
    lines += _neighbourhood(got, truth, places, worst[0], shape)
    return Mismatch("values", summary, lines, count)


def _index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, tuple(shape))) if shape else ()


def _number(value: float, dtype: torch.dtype) -> str:
    """Return the value with enough digits to distinguish neighbouring numbers of the dtype."""
    if not dtype.is_floating_point:
        return str(bool(value)) if dtype == torch.bool else str(int(value))
    digits = math.ceil(1 - math.log10(torch.finfo(dtype).eps)) + 1
    return f"{value:.{digits}g}"


def _table(
    got: Tensor, truth: Tensor, worst: list[int], bound: _Bound | None, shape: torch.Size
) -> list[str]:
    """Return the worst elements in columns, with a heading."""
    dtype = got.dtype
    rows = [("index", "got", "expected", "difference", "allowed")]
    for flat in worst:
        place = str(_index(flat, shape)) if shape else "()"
        have, want = got[flat].item(), truth[flat].item()
        difference, allowed = "", ""
        if dtype.is_floating_point:
            here = truth[flat : flat + 1].double()
            ulp = float(_ulp(here.abs(), dtype))
            distance = abs(have - want)
            if math.isfinite(distance):
                difference = f"{distance:.3g}{_in_ulps(distance / ulp)}"
            if bound is not None and math.isfinite(want):
                most = float(bound.allowed(here.abs()))
                allowed = f"{most:.3g}{_in_ulps(most / ulp)}"
        elif dtype != torch.bool:
            difference = f"{int(have) - int(want):+d}"
        expected = _number(want, dtype)
        if dtype.is_floating_point and math.isfinite(want):
            rounded = truth[flat : flat + 1].double().to(dtype).double().item()
            if math.isinf(rounded):
                expected = f"{rounded} ({expected} overflows {dtype_name(dtype)})"
        rows.append((place, _number(have, dtype), expected, difference, allowed))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _in_ulps(count: float) -> str:
    """Return " = 2.5 ulp", or "" for a large count, of which the difference itself is more
    readable."""
    return f" = {count:.3g} ulp" if count < MANY_ULPS else ""


def _neighbourhood(
    got: Tensor, truth: Tensor, places: Tensor, flat: int, shape: torch.Size
) -> list[str]:
    """Return the elements around an element of its row, expected above got, wrong ones marked; as
    many as fit on a line."""
    for count in AROUND:
        lines = _around(got, truth, places, flat, shape, count)
        if max(map(len, lines), default=0) <= WIDTH:
            break
    return lines


def _around(
    got: Tensor, truth: Tensor, places: Tensor, flat: int, shape: torch.Size, count: int
) -> list[str]:
    width = shape[-1] if len(shape) else 1
    row = flat - flat % width
    first = max(row, flat - count // 2)
    last = min(row + width, first + count)
    first = max(row, last - count)
    if last - first < 2:
        return []
    wrong = set(places[(places >= first) & (places < last)].tolist())
    place = _index(first, shape)
    where = ", ".join([*map(str, place[:-1]), f"{place[-1]}:{place[-1] + last - first}"])
    cells = [[f"around it, [{where}]", "expected", "got"]]
    for i in range(first, last):
        mark = "*" if i in wrong else ""
        if got.dtype.is_floating_point:
            pair = [f"{truth[i].item():.5g}", f"{got[i].item():.5g}{mark}"]
        else:
            pair = [_number(truth[i].item(), got.dtype), _number(got[i].item(), got.dtype) + mark]
        cells.append(["", *pair])
    widths = [max(len(text) for text in column[1:]) for column in cells]
    lines = [f"{cells[0][0]}  (* wrong)"]
    for line in (1, 2):
        texts = [column[line].rjust(w) for column, w in zip(cells, widths, strict=True)]
        lines.append("  " + "  ".join(texts))
    return lines
