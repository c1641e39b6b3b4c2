"""Guard memory: poison before the first write, and bands on both sides that must not change."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from common.check.draw import dtype_name

if TYPE_CHECKING:
    from common.check.device import Backend
    from common.cpu.backend import Runtime

BAND = 16 * 1024  # bytes before and after each tensor
ALLOCATED = "that the operator allocates"  # end of a tensor's name until it is known as an output
ALIGNMENT = 256  # bytes: guaranteed by cudaMalloc, and assumed by kernels with 16-byte loads

_INDICES = (torch.int32, torch.int64)
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# The bodies of all tensors of one memory carry this tag; the bands carry the tensor's own.
_BODY = 0


def bits(tensor: Tensor) -> Tensor:
    """Return the same memory viewed as signed integers of the same width (1 to 8 bytes)."""
    return tensor.view(_INTEGERS[tensor.element_size()])


@lru_cache(maxsize=1024)
def _poison(dtype: torch.dtype, variant: int, tag: int) -> int:
    """Return the bits of one element of poison, as a signed integer of its width.

    variant 0: a quiet NaN for floating dtypes, which spreads to everything computed from it.
    variant 1: a large finite number, for kernels that lose a NaN (fmaxf does); see _fresh.
    variant 2: an ordinary number, which shows in a sum or product with another one.
    tag: makes the poison of each tensor distinct, to detect poison copied between bands.
    Raise ValueError for complex dtypes.
    """
    if dtype.is_complex:
        raise ValueError(f"dtype: complex tensors are not guarded, got {dtype}")
    if dtype == torch.bool:
        # A body holds an ordinary value, a band a byte that no kernel writes.
        return variant % 2 if tag == _BODY else -91 - tag % 29
    if not dtype.is_floating_point:
        step = 29 * tag + 7 * variant
        if dtype.itemsize == 1:
            return (0xA5 + step) % 256 - 128
        limits = torch.iinfo(_INTEGERS[dtype.itemsize])
        return limits.max - 0x1234 - step
    if variant in (1, 2):
        number = torch.finfo(dtype).max / (4 + tag % 16) if variant == 1 else 0.5 + tag % 61 / 128
        return int(bits(torch.tensor([number], dtype=torch.float64).to(dtype)).item())
    quiet = int(bits(torch.tensor([math.nan], dtype=dtype)).item())
    if dtype.itemsize == 1:
        return quiet
    # Exponent and quiet bit are those of the default NaN; the payload below is ours.
    payload_bits = {2: 6 if dtype == torch.bfloat16 else 9, 4: 22, 8: 51}[dtype.itemsize]
    return quiet | (0x2B + 37 * tag) % (1 << payload_bits)


def _fresh(dtype: torch.dtype, variant: int, tag: int = _BODY) -> tuple[int, int]:
    """Return the bits of the even and of the odd elements of fresh memory.

    They differ in variant 1, where large numbers of both signs alternate: a minimum with unwritten
    memory hides a positive number, a maximum hides a negative one.
    """
    even = _poison(dtype, variant, tag)
    if variant == 1 and dtype.is_floating_point and dtype.itemsize > 1:
        return even, even + torch.iinfo(_INTEGERS[dtype.itemsize]).min  # with the sign's bit
    return even, even


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    sizes = [max(size, 1) for size in shape]
    return tuple(math.prod(sizes[place + 1 :]) for place in range(len(sizes)))


def is_poison(tensor: Tensor) -> Tensor:
    """Return a bool mask, shaped like `tensor`, of the elements that equal fresh memory of its
    dtype.

    Always False for bool, whose values are all ordinary.
    """
    result = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    if tensor.dtype == torch.bool or tensor.dtype.is_complex or not tensor.numel():
        return result
    for number in {*_fresh(tensor.dtype, 0), *_fresh(tensor.dtype, 1)}:
        result |= bits(tensor) == number
    return result


@dataclass
class _Record:
    buffer: Tensor  # uint8, with both bands
    start: int  # byte where the body starts
    size: int  # bytes of the body
    dtype: torch.dtype
    shape: tuple[int, ...]
    name: str
    poison: int  # of the bands
    around: Tensor | None = None  # the content of both bands, if it is not poison
    fresh: tuple[int, int] = (0, 0)  # of the body

    def __str__(self) -> str:
        kind = dtype_name(self.dtype)
        return f"{self.name or 'a tensor'} ({kind}, shape {self.shape})"

    def bands(self) -> tuple[Tensor, Tensor]:
        """Return the bands before and after the body, as integers of the width of its elements."""
        integer = _INTEGERS[self.dtype.itemsize]
        before, after = self.buffer[: self.start], self.buffer[self.start + self.size :]
        return before.view(integer), after.view(integer)

    def changed(self) -> tuple[Tensor, Tensor]:
        """Return bool masks of the elements of both bands that were written."""
        before, after = self.bands()
        if self.around is None:
            return before != self.poison, after != self.poison
        return before != self.around[: len(before)], after != self.around[len(before) :]

    def surround(self, values: Tensor) -> None:
        """Fill the bands with these values, again and again."""
        before, after = self.bands()
        length = len(before) + len(after)
        some = bits(values).flatten()[:length]
        self.around = some.repeat(-(-length // len(some)) if length else 1)[:length]
        before.copy_(self.around[: len(before)])
        after.copy_(self.around[len(before) :])


@dataclass(frozen=True)
class GuardedTensor:
    """The memory of a tensor. name: of the argument or output, "" for others. itemsize: bytes per
    element. address: of the first element. span: of all its memory, including the bands."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    address: int
    span: tuple[int, int]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def holds(self, address: int) -> bool:
        """Return True if the address is in its memory or in one of its bands."""
        return self.span[0] <= address < self.span[1]


class GuardedMemory:
    """Allocate tensors between guard bands, and report which bands were written.

    device: the default device of tensors.
    variant: 0 poisons floating tensors with NaN, 1 with large finite numbers of alternating
        signs, 2 with a different ordinary number for each tensor.
    name: called with every new tensor and its name in messages.
    """

    def __init__(
        self,
        device: torch.device,
        variant: int = 0,
        name: Callable[[Tensor, str], None] | None = None,
    ):
        self.device = torch.device(device)
        self.variant = variant
        self._records: list[_Record] = []
        self._name = name

    def empty(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | None = None,
        name: str = "",
        pinned: bool = False,
        shift: int = 0,
    ) -> Tensor:
        """Return a contiguous tensor full of poison, 256-byte aligned, with a band on both sides.

        name: its name in `violations`. pinned: use page-locked host memory.
        shift: start this many elements after an aligned address instead.
        """
        shape = tuple(int(size) for size in shape)
        size = math.prod(shape) * dtype.itemsize
        where = self.device if device is None else torch.device(device)
        # Without bands the tensor fills its memory, so that a tool detects the first byte beyond.
        slack = ALIGNMENT if BAND else 0
        length = slack + shift * dtype.itemsize + BAND + size + BAND
        buffer = torch.empty(length, dtype=torch.uint8, device=where, pin_memory=pinned)
        aligned = -(buffer.data_ptr() + BAND) % ALIGNMENT if BAND else 0
        start = BAND + aligned + shift * dtype.itemsize
        # The band after the body starts right after its last element.
        buffer = buffer[: start + size + BAND]
        tag = 1 + len(self._records)
        poison = _poison(dtype, self.variant, tag)
        record = _Record(buffer, start, size, dtype, shape, name, poison)
        for band in record.bands():
            band.fill_(poison)
        body = torch.empty(0, dtype=dtype, device=where)
        body.set_(buffer.untyped_storage(), start // dtype.itemsize, shape, _strides(shape))
        own = tag if self.variant == 2 else _BODY
        record.fresh = even, odd = _fresh(dtype, self.variant, own)
        bits(body).fill_(even)
        if odd != even:
            bits(body).view(-1)[1::2] = odd
        self._records.append(record)
        if self._name is not None:
            self._name(body, str(record))
        return body

    def copy_of(self, tensor: Tensor, name: str = "") -> Tensor:
        """Return a copy of `tensor` in guarded memory of its kind, with its strides and
        misalignment. In variant 1, the bands around indices hold valid ones: a kernel that reads
        too many would leave out numbers that are none."""
        shift = tensor.data_ptr() % 16 // tensor.element_size()
        place = (tensor.dtype, tensor.device, name, tensor.is_pinned(), shift)
        if tensor.is_contiguous():
            copy = self.empty(tensor.shape, *place).copy_(tensor)
            if self.variant == 1 and tensor.dtype in _INDICES and tensor.numel():
                self._records[-1].surround(tensor)
            return copy
        strides = tensor.stride()
        steps = zip(tensor.shape, strides, strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in steps) if tensor.numel() else 0
        flat = self.empty((extent,), *place)
        result = flat.as_strided(tensor.shape, strides, flat.storage_offset())
        # A stride of 0 repeats elements: write each once.
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
        result[once].copy_(tensor[once])
        return result

    def refill(self, tensor: Tensor, source: Tensor) -> bool:
        """Copy the values of `source` into a tensor made by `copy_of`; return False if their
        layouts differ. The stride of a dimension of one element does not affect the layout."""

        def layout(of: Tensor) -> tuple[Any, ...]:
            steps = [step for size, step in zip(of.shape, of.stride(), strict=True) if size != 1]
            return of.shape, of.dtype, of.device, steps

        if layout(tensor) != layout(source):
            return False
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in source.stride())
        tensor[once].copy_(source[once])
        return True

    def argument_of(self, tensor: Tensor) -> str:
        """Return the name of the argument whose memory holds this tensor, or ""."""
        place = tensor.untyped_storage().data_ptr()
        for record in self._records:
            mine = record.name.startswith("argument")
            if mine and record.buffer.untyped_storage().data_ptr() == place:
                return record.name
        return ""

    def add_arguments(self, runtime: Runtime, written: Collection[str]) -> None:
        """Register the arguments in this memory with the runtime. written: names of those that a
        call may write."""
        for record in self._records:
            if record.name.startswith("argument") and record.size:
                address = record.buffer.data_ptr() + record.start
                writable = record.name in written
                runtime.add_tensor(address, record.size, BAND, writable, record.name)

    def still_held(self) -> list[str]:
        """Return the tensors of this memory, except arguments, that are still referenced
        elsewhere."""
        return [
            str(record)
            for record in self._records
            if not record.name.startswith("argument")
            # The buffer's own reference, and the one made by this query.
            and torch._C._storage_Use_Count(record.buffer.untyped_storage()._cdata) > 2
        ]

    def tensors(self) -> list[GuardedTensor]:
        """Return the memory of each allocated tensor, in order."""
        return [
            GuardedTensor(
                record.name,
                dtype_name(record.dtype),
                record.shape,
                record.dtype.itemsize,
                record.buffer.data_ptr() + record.start,
                (record.buffer.data_ptr(), record.buffer.data_ptr() + record.buffer.numel()),
            )
            for record in self._records
        ]

    def rename(self, tensor: Tensor, name: str) -> None:
        """Set the name of the record that holds `tensor`, if there is one."""
        for record in self._records:
            if record.buffer.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                record.name = name

    def untouched(self, tensor: Tensor) -> Tensor:
        """Return a bool mask of the elements of `tensor` that still hold its memory's fill. Always
        False for bool, whose values are all ordinary, and for memory from elsewhere."""
        place = tensor.untyped_storage().data_ptr()
        for record in self._records:
            mine = record.buffer.untyped_storage().data_ptr() == place
            if mine and tensor.dtype == record.dtype != torch.bool:
                even, odd = record.fresh
                return (bits(tensor) == even) | (bits(tensor) == odd)
        return torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)

    def violations(self) -> list[str]:
        """Return a line for each band that was written: tensor, side, distance in elements.

        Synchronises with the device if there is a band to compare.
        """
        sides = [
            (record, side, changed)
            for record in self._records
            for side, changed in zip(("before", "after"), record.changed(), strict=True)
        ]
        touched = values_of([changed.any() for _, _, changed in sides])
        found: list[str] = []
        for (record, side, changed), wrong in zip(sides, touched, strict=True):
            if not wrong:
                continue
            items = changed.nonzero().flatten()
            if side == "before":
                where = f"nearest: {_elements(changed.numel() - int(items[-1]))} before its start"
            else:
                where = f"nearest: {_elements(int(items[0]) + 1)} past its end"
            found.append(f"{record}: {_elements(items.numel())} written {side} it, {where}")
        return found


def _elements(count: int) -> str:
    return f"{count} element" + ("" if count == 1 else "s")


def values_of(flags: Sequence[Tensor]) -> list[bool]:
    """Return the values of these bool tensors of one element each.

    Each device is synchronised once: if several processes share a GPU, a wait may last until it is
    this process's turn.
    """
    found = [False] * len(flags)
    for device in {flag.device for flag in flags}:
        places = [i for i, flag in enumerate(flags) if flag.device == device]
        values = torch.stack([flags[i] for i in places]).tolist()
        for i, value in zip(places, values, strict=True):
            found[i] = bool(value)
    return found


SMALL = 1 << 16  # elements, up to which tensors are compared on the host


def near_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors; if they are on a GPU and together small, contiguous copies on the host.

    If several processes share a GPU, each of the many waits of a comparison may last until it is
    this process's turn.
    """
    small = sum(tensor.numel() for tensor in tensors) <= SMALL
    if not (small and tensors and all(tensor.is_cuda for tensor in tensors)):
        return list(tensors)
    return on_host(tensors)


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return contiguous copies of tensors of one device on the host, made by one transfer."""
    ends = list(accumulate(-(-tensor.nbytes // 8) * 8 for tensor in tensors))
    packed = torch.empty(ends[-1], dtype=torch.uint8, device=tensors[0].device)
    places = [slice(end, end + t.nbytes) for end, t in zip([0, *ends], tensors, strict=False)]
    for place, tensor in zip(places, tensors, strict=True):
        packed[place].view(tensor.dtype).view(tensor.shape).copy_(tensor)
    host = packed.cpu()
    return [
        host[place].view(tensor.dtype).view(tensor.shape)
        for place, tensor in zip(places, tensors, strict=True)
    ]


class GuardedAllocations(TorchDispatchMode):
    """Guard and poison, while active, the memory that an operator allocates through PyTorch.

    A C++ operator allocates through PyTorch's dispatcher (the stable ABI's empty_like, new_empty,
    new_zeros, full, ...), which this mode intercepts. The operator itself passes through the mode
    first, with the mode switched off; so its kernel is called from here with the mode on again.

    foreign: PyTorch's operators that an operator calls and that compute something.
    modified: arguments that PyTorch's operators wrote although the call may not write them, with
        the operator.
    key: dispatch key whose kernel is called, if PyTorch must not choose it.
    """

    def __init__(
        self,
        memory: GuardedMemory,
        backend: Backend | None = None,
        written: Collection[str] = (),
        key: str = "",
    ):
        super().__init__()
        self.memory = memory
        self.allocated = 0
        self.foreign: list[str] = []
        self.modified: list[str] = []
        self._backend = backend
        self._written = written
        self._key = getattr(torch._C.DispatchKey, key) if key else None
        self._inside = 0  # nesting depth of operators that are not PyTorch's
        # Late work may use a tensor that the launcher has freed, as on a GPU, whose memory is used
        # again only for work that comes after it.
        self._results: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True, the default, makes the first call import torch._dynamo and sympy: a second.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in ("aten", "prim", "prims"):
            allocate = _ALLOCATIONS.get(str(func))
            return (
                self._pytorchs(func, args, kwargs)
                if allocate is None
                else allocate(self, args, kwargs)
            )
        key = self._key or _dispatch_key(args, kwargs)
        if key is None or not torch._C._dispatch_has_computed_kernel_for_dispatch_key(
            func.name(), key.name
        ):
            return func(*args, **kwargs)  # PyTorch refuses it with its own message
        self._inside += 1
        try:
            with self:
                return func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)
        finally:
            self._inside -= 1

    def _pytorchs(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = str(func)
        if self._inside and name.split(".")[1] not in _COPIES and name not in self.foreign:
            self.foreign.append(name)
        changed: list[Tensor] = []
        for argument, value in zip(func._schema.arguments, args, strict=False):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if writes and isinstance(value, Tensor):
                changed.append(value)
                whose = self.memory.argument_of(value)
                if whose and whose not in self._written and not _onto_itself(name, args):
                    self.modified.append(f"{whose}, by {name}")
        if self._backend is None:
            return func(*args, **kwargs)
        if name.split(".")[1] not in _VIEWS:
            self._backend.catch_up()
        self._backend.open_tensors(True)
        try:
            result = func(*args, **kwargs)
        finally:
            self._backend.open_tensors(False)
        for tensor in changed:
            self._backend.written(tensor)
        self._results.append(result)
        return result

    def take(
        self, shape: Sequence[int], dtype: torch.dtype | None, device: Any, fill: Any = None
    ) -> Tensor:
        """Return guarded memory for one allocation, filled with `fill` unless None."""
        self.allocated += 1
        place = torch.device("cpu" if device is None else device)
        kind = torch.get_default_dtype() if dtype is None else dtype
        if place.type == "meta":
            return torch.empty(tuple(shape), dtype=kind, device=place)
        name = f"tensor {self.allocated} {ALLOCATED}"
        result = self.memory.empty(shape, kind, place, name)
        if fill is not None:
            return result.fill_(fill)
        if self._backend is not None:
            self._backend.follow(result)
        return result


def _dispatch_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the key that PyTorch would choose from these arguments, or None if unknown."""
    leaves = tree_leaves((args, kwargs))
    kinds = {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)}
    for kind, key in (("meta", "Meta"), ("cuda", "CUDA"), ("cpu", "CPU")):
        if kind in kinds:
            return getattr(torch._C.DispatchKey, key)
    return None


def _plain(mode: GuardedAllocations, args: Any, kwargs: Any, fill: Any = None) -> Tensor:
    return mode.take(args[0], kwargs.get("dtype"), kwargs.get("device"), fill)


def _like(mode: GuardedAllocations, args: Any, kwargs: Any, fill: Any = None) -> Tensor:
    """Allocate for the *_like and new_* family; missing options come from the first argument."""
    model: Tensor = args[0]
    shape = args[1] if len(args) > 1 and not isinstance(args[1], (int, float, bool)) else None
    dtype = kwargs.get("dtype") or model.dtype
    device = kwargs.get("device") or model.device
    strided = shape is None and not model.is_contiguous()
    if strided and kwargs.get("memory_format") in (None, torch.preserve_format):
        # Like PyTorch, use dense strides in the order of the model's.
        layout = torch.empty_like(model, dtype=dtype, device="meta")
        if not layout.is_contiguous():
            flat = mode.take((layout.numel(),), dtype, device, fill)
            return flat.as_strided(layout.shape, layout.stride(), flat.storage_offset())
    return mode.take(model.shape if shape is None else shape, dtype, device, fill)


def _strided(mode: GuardedAllocations, args: Any, kwargs: Any) -> Tensor:
    shape, strides = args[0], args[1]
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    flat = mode.take((max(extent, 0),), kwargs.get("dtype"), kwargs.get("device"))
    return flat.as_strided(shape, strides, flat.storage_offset())


def _new_strided(mode: GuardedAllocations, args: Any, kwargs: Any) -> Tensor:
    options = {"dtype": kwargs.get("dtype") or args[0].dtype}
    options["device"] = kwargs.get("device") or args[0].device
    return _strided(mode, args[1:], options)


def _onto_itself(name: str, args: Sequence[Any]) -> bool:
    """Return True if a copy's target is its source, so that nothing changes, as when Triton's
    interpreter copies arguments on the CPU back to the CPU."""
    if not name.startswith("aten.copy_"):
        return False
    target, source = args[:2]
    return target.data_ptr() == source.data_ptr() and target.nbytes == source.nbytes


# PyTorch's operators that view memory in another way, and access none.
_VIEWS = frozenset(
    (
        *("alias", "as_strided", "detach", "expand", "flatten", "lift_fresh", "narrow", "permute"),
        *("_reshape_alias", "select", "slice", "split", "squeeze", "t", "transpose", "is_pinned"),
        *("unflatten", "unsqueeze", "view", "view_as", "_unsafe_view", "record_stream"),
    )
)
# PyTorch's operators that an operator may call: they copy, fill or view. All others compute, which
# the rung's kernels must do.
_COPIES = _VIEWS | {
    *("copy_", "clone", "contiguous", "to", "_to_copy", "pin_memory", "_pin_memory"),
    *("fill_", "zero_", "resize_", "set_", "reshape"),
}

_ALLOCATIONS = {
    "aten.empty.memory_format": _plain,
    "aten.zeros.default": lambda m, a, k: _plain(m, a, k, 0),
    "aten.ones.default": lambda m, a, k: _plain(m, a, k, 1),
    "aten.full.default": lambda m, a, k: _plain(m, a, _with_dtype(k, a[1]), a[1]),
    "aten.empty_like.default": _like,
    "aten.zeros_like.default": lambda m, a, k: _like(m, a, k, 0),
    "aten.ones_like.default": lambda m, a, k: _like(m, a, k, 1),
    "aten.full_like.default": lambda m, a, k: _like(m, a, k, a[1]),
    "aten.new_empty.default": _like,
    "aten.new_zeros.default": lambda m, a, k: _like(m, a, k, 0),
    "aten.new_ones.default": lambda m, a, k: _like(m, a, k, 1),
    "aten.new_full.default": lambda m, a, k: _like(m, a, k, a[2]),
    "aten.empty_strided.default": _strided,
    "aten.new_empty_strided.default": _new_strided,
}


def _with_dtype(kwargs: dict[str, Any], value: Any) -> dict[str, Any]:
    """Return `kwargs` with the dtype of `value` if they have none, as aten::full does."""
    if kwargs.get("dtype") is not None:
        return kwargs
    return {**kwargs, "dtype": torch.full((), value).dtype}
