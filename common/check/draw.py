"""Random inputs of a case: the same numbers on every device, in the memory that is requested."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.base.declaration import Case

if TYPE_CHECKING:
    from common.check.device import Backend


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name, e.g. "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype of that name, e.g. "bfloat16". Raise ValueError naming an unknown
    one."""
    if isinstance(name, torch.dtype):
        return name
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        known = [key for key in vars(torch) if isinstance(getattr(torch, key), torch.dtype)]
        near = difflib.get_close_matches(name, known, 1)
        raise ValueError(
            f"dtype: {name!r} is no dtype of torch" + (f"; {near[0]!r} is" if near else "")
        )
    return dtype


class _Source:
    """Random numbers of one draw: float64 on the CPU or, if speed matters, on the device."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        number: int,
    ):
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.seed = seed
        self.number = number  # how many tensors of the same draw came before
        # 1,000,003 calls of one Draw before two seeds share a stream of numbers.
        self.generator = torch.Generator(device).manual_seed(seed * 1_000_003 + number)
        self.precision = torch.float64

    def normal(self) -> Tensor:
        empty = torch.empty(self.shape, dtype=self.precision, device=self.device)
        return empty.normal_(generator=self.generator)

    def uniform(self) -> Tensor:
        """Return numbers in [0, 1)."""
        empty = torch.empty(self.shape, dtype=self.precision, device=self.device)
        return empty.uniform_(generator=self.generator)

    def integers(self, low: int, high: int) -> Tensor:
        """Return numbers in [low, high)."""
        return torch.randint(low, high, self.shape, generator=self.generator, device=self.device)


def _tiny(source: _Source) -> Tensor:
    scale = torch.finfo(source.dtype).smallest_normal
    small = source.normal() * scale
    return torch.where(source.uniform() < 0.5, small, source.normal())


def _extreme(source: _Source) -> Tensor:
    limits = torch.finfo(source.dtype)
    kind = source.integers(0, 6)
    sign = source.integers(0, 2) * 2.0 - 1.0
    # Below the maximum by a factor that survives the rounding to the dtype.
    values = source.normal()
    values = torch.where(kind == 0, limits.max * (1 - 0.5 * source.uniform()) * sign, values)
    values = torch.where(kind == 1, limits.max * sign, values)
    values = torch.where(kind == 2, 0.0, values)
    values = torch.where(kind == 3, -0.0, values)
    return torch.where(kind == 4, limits.smallest_normal * sign, values)


NONFINITE_ROWS = 8  # kinds of rows; the seeds from 0 to 7 put each of them first


def _nonfinite(source: _Source) -> Tensor:
    """Return rows of kinds that a kernel may get wrong separately; neighbouring rows differ in
    kind.

    One NaN; one +inf; some -inf; all -inf; ordinary; subnormals; one each of +inf, -inf and NaN;
    one each of +inf and -inf. Most tensors of a case after the first are ordinary, since one NaN in
    each would hide all other errors.
    """
    # Positive: when sums of both signs cancel, the rest is rounding, which another order of
    # the additions changes.
    ordinary = source.normal().abs()
    if not source.shape or not ordinary.numel():
        return ordinary
    rows = ordinary.reshape(-1, source.shape[-1])
    length = rows.shape[1]
    chance = source.uniform().reshape(rows.shape)
    row = torch.arange(rows.shape[0], device=source.device).unsqueeze(1)
    column = torch.arange(length, device=source.device).unsqueeze(0)
    # 7 and 5 are coprime to the usual lengths, so the position moves from row to row.
    after = (column - 7 * row - 5 * source.seed - length // 2) % length
    one = after == 0
    kind = (row + source.seed) % NONFINITE_ROWS
    if source.number > 0 and (source.seed + source.number) % 4:
        kind = torch.full_like(kind, 4)
    tiny = rows * (0.5 * torch.finfo(source.dtype).smallest_normal)
    values = torch.where((kind == 0) & one, math.nan, rows)
    values = torch.where((kind == 1) & one, math.inf, values)
    values = torch.where((kind == 2) & (chance < 0.25), -math.inf, values)
    values = torch.where(kind == 3, -math.inf, values)
    values = torch.where(kind == 5, tiny, values)
    values = torch.where((kind >= 6) & one, math.inf, values)
    values = torch.where((kind >= 6) & (after == 1), -math.inf, values)
    values = torch.where((kind == 6) & (after == 2), math.nan, values)
    return values.reshape(source.shape)


def _constant(source: _Source) -> Tensor:
    value = torch.empty((), dtype=source.precision, device=source.device)
    return value.normal_(generator=source.generator).expand(source.shape)


# The kinds of `values` for floating dtypes. Integers are uniform, see `Draw`.
VALUES: dict[str, Callable[[_Source], Tensor]] = {
    "normal": _Source.normal,  # N(0, 1)
    "uniform": _Source.uniform,  # [0, 1)
    "offset": lambda source: source.normal() + 1e4,  # a mean far from 0: cancellation
    "large": lambda source: source.normal() * 50,  # exp overflows unless the maximum is subtracted
    "huge": lambda source: source.normal() * 1e31,  # beyond what stands for infinity in kernels
    "tiny": _tiny,  # half of them around the smallest normal number, subnormals among them
    "extreme": _extreme,  # ± the largest, 0, -0, ± the smallest normal, some ordinary
    "nonfinite": _nonfinite,  # kinds by row: one NaN, one +inf, some -inf, all -inf, …
    "constant": _constant,  # one value everywhere
}


class Draw:
    """Draw the tensors of one case, one after the other; passed to a problem's `inputs`.

    case: defines the dtype and the values if a call names none.
    seed: fixes the numbers, with the number of the call and the case. They are drawn on the CPU
        in float64 and rounded, so that every device gets the same ones.
    fast: draw on the device, in float32 at most, for the large tensors of a timing. The numbers
        then depend on the device.
    """

    def __init__(self, case: Case, backend: Backend, seed: int = 0, fast: bool = False):
        self.case = case
        self.device = torch.device(backend.device)
        self.seed = seed
        self.fast = fast
        self.calls = 0
        self.on_host = False  # True once a host array was drawn

    def __call__(
        self,
        *shape: int,
        dtype: str | torch.dtype | None = None,
        values: str | None = None,
        low: float | None = None,
        high: float | None = None,
        device: str | torch.device | None = None,
        pinned: bool = False,
    ) -> Tensor:
        """Return a contiguous tensor of that shape.

        dtype: a name or a torch dtype; None for the case's.
        values: a key of VALUES, for a floating dtype; None for the case's. Integers are uniform
            over all of their dtype's range; bool is even.
        low, high: uniform in [low, high) instead, for integers and floating dtypes.
        device: None for the backend's; "cpu" for a host array.
        pinned: a host array in page-locked memory, if the backend is a GPU.
        Raise ValueError naming the argument for an unknown dtype or values, a negative size, an
        empty range or one with only one end.
        """
        kind = dtype_named(self.case.dtype if dtype is None else dtype)
        name = self.case.values if values is None else values
        if name not in VALUES:
            near = difflib.get_close_matches(name, VALUES, 1, cutoff=0.0)[0]
            raise ValueError(
                f"values: {name!r} is unknown, did you mean {near!r}? (one of {', '.join(VALUES)})"
            )
        if any(size < 0 for size in shape):
            raise ValueError(f"shape: sizes must not be negative, got {shape}")
        if (low is None) != (high is None):
            raise ValueError(f"low, high: give both or none, got low={low}, high={high}")
        if low is not None and high is not None and not low < high:
            raise ValueError(f"low, high: low must be less than high, got low={low}, high={high}")

        place = self.device if device is None else torch.device(device)
        if pinned and place.type != "cpu":
            raise ValueError(f"pinned: only host arrays can be, got device={place}")
        source_device = place if self.fast else torch.device("cpu")
        source = _Source(shape, kind, source_device, self.seed, self.calls)
        self.calls += 1
        self.on_host |= device is not None and place.type == "cpu"
        if self.fast and kind != torch.float64:
            source.precision = torch.float32
        result = torch.empty(shape, dtype=kind, device=place)
        if pinned and self.device.type == "cuda":
            result = result.pin_memory()
        with torch.no_grad():
            result.copy_(_numbers(source, name, low, high))
        return result


def _numbers(source: _Source, name: str, low: float | None, high: float | None) -> Tensor:
    kind = source.dtype
    if kind == torch.bool:
        return source.integers(0, 2).to(torch.bool)
    if not kind.is_floating_point:
        limits = torch.iinfo(kind)
        if low is not None and high is not None:
            if low < limits.min or high - 1 > limits.max:
                raise ValueError(
                    f"low, high: {kind} holds {limits.min} to {limits.max}, got [{low}, {high})"
                )
            return source.integers(int(low), int(high))
        # All bit patterns, of which the copy keeps the lower ones. randint's upper end is exclusive
        # and cannot be 2^63.
        return source.integers(-(2**63), 2**63 - 1)
    if low is not None and high is not None:
        values = low + (high - low) * source.uniform()
        # Rounding to a short dtype may reach `high`, which is excluded.
        return torch.where(values.to(kind) >= high, low, values)
    return VALUES[name](source)
