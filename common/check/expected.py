"""Evaluate a rung's expected results: the reference in float64, and PyTorch's in the rung's dtype.

The outputs of a rung are the tensors that it returns, in order, followed by each argument that its
schema marks as written, `Tensor(a!)`, unless it is among those returned. Each tensor of a marked
list, `Tensor(a!)[]`, counts as such an argument. The reference is called with copies of the same
arguments. It returns as many tensors in the same order; or it writes into its arguments, as the
rung does, and returns only what the rung returns.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from common.base.declaration import Problem
from common.base.paths import ROOT
from common.check.compare import ENOUGH, Pair, same_values
from common.check.draw import dtype_name
from common.check.guard import near_host

KEPT_BYTES = 4 << 30  # of expected results, kept for the next rung
SAMPLES = 8  # further inputs for PyTorch's error, used if an output fails without them


# Allowed distance of a reference in float32 from float64, on ordinary numbers: of its size, and its
# arguments'. More is not rounding: it draws other numbers, or computes something else.
FAR, NOTABLE = 0.25, 1e-3
NEAR = 0.02  # the same for results that did not overflow: more than a rounding to bfloat16


class ProblemError(Exception):
    """An error in the day's declaration, not in a rung; the message names the change to make."""


# Exceptions of a problem's inputs or reference for a shape that they do not support, such as
# patches of no pixels.
RAISED = (RuntimeError, ValueError, TypeError, AssertionError, LookupError, ArithmeticError)


# ---------------------------------------------------------------- the call


@dataclass(frozen=True)
class Signature:
    """Argument names in order. writes: positions of the arguments that the call may write."""

    names: tuple[str, ...]
    writes: tuple[int, ...] = ()


def signature_of(call: Callable[..., Any], like: Callable[..., Any] | None = None) -> Signature:
    """Return the signature of an operator of torch.ops, from its schema, or of a Python function.

    A Python function writes the arguments that its attribute `writes` names, if it has one. like: a
    function with the names, used if `call` is compiled and has no signature.
    """
    if isinstance(call, torch._ops.OpOverloadPacket):
        overloads = call.overloads()
        call = getattr(call, "default" if "default" in overloads else overloads[0])
    if isinstance(call, torch._ops.OpOverload):
        arguments = call._schema.arguments
        writes = [
            place
            for place, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        return Signature(tuple(argument.name for argument in arguments), tuple(writes))
    try:
        names = tuple(inspect.signature(call).parameters)
    except ValueError:
        if like is None:
            raise
        names = tuple(inspect.signature(like).parameters)
    return Signature(names, tuple(names.index(name) for name in getattr(call, "writes", ())))


def tensors_of(result: Any) -> list[Tensor]:
    """Return the tensors that a call returned, in order. Raise TypeError for any other value."""
    leaves = [leaf for leaf in tree_leaves(result) if leaf is not None]
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise TypeError(f"a rung and its reference return tensors, got {type(leaf).__name__}")
    return leaves


def map_tensors(function: Callable[[Tensor], Tensor], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with each tensor replaced by `function` of it, also inside lists and
    tuples."""

    def mapped(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        if isinstance(value, (int, float, str, type(None))):  # tree_map would be slow
            return value
        return tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, value)

    return tuple(mapped(value) for value in args)


def message_of(error: BaseException) -> str:
    """Return an exception's message without the C++ stack that PyTorch may add. A message of
    Triton's compiler is reordered: the error first, then its position."""
    text = re.split(r"\n?(?:Exception raised from|C\+\+ CapturedTraceback)", str(error))[0].strip()
    if wrong := getattr(error, "error_message", None):
        text = f"{wrong}\n{text.removesuffix(wrong).rstrip()}"
    return text or type(error).__name__


def passed_on(error: BaseException) -> BaseException:
    """Return the exception that Triton wrapped in another one: that of the interpreted kernel in
    Python, or that of the innermost function that does not compile."""
    while (cause := error.__cause__) is not None and (
        type(error).__name__ == "InterpreterError" or type(cause).__module__.startswith("triton.")
    ):
        error = cause
    return error


def places_of(error: BaseException, of_days: bool = False) -> list[str]:
    """Return lines of an exception's traceback, "days/day61/vector_ops_triton.py:21 in
    leaky_add_kernel: mask = i < n", from files of days and learners. of_days: return [] if there
    are none; otherwise use lines of common/ or, without those, the last three."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(f"{ROOT}/")]
    days = [frame for frame in ours if not frame.filename.startswith(f"{ROOT}/common/")]
    return [
        f"{frame.filename.removeprefix(f'{ROOT}/')}:{frame.lineno} in {frame.name}: {frame.line}"
        for frame in (days if of_days else days or ours or frames[-3:])
    ]


# ---------------------------------------------------------------- the expected results


@dataclass
class Expected:
    """The expected results of a rung for `args`.

    args: the arguments, never written. returned, written: pairs of (truth, PyTorch's result in the
    rung's dtype) for the reference's return values and for the arguments that the rung writes.
    rough: like returned + written, with PyTorch's result in float32 if its usual one is the truth.
    aside: how PyTorch's error was found, if not as usual. on_host: True if an argument is a host
    array. accepted: see `accept`.
    """

    args: tuple[Any, ...]
    returned: list[Pair]
    written: list[Pair]
    rough: list[Pair]
    aside: str = ""
    on_host: bool = False
    accepted: tuple[Hashable, list[Tensor]] | None = None

    def pairs(self, outputs: int) -> list[Pair] | None:
        """Return one pair for each of `outputs` outputs; None if their number differs."""
        if len(self.returned) == outputs:
            return self.returned
        together = self.returned + self.written
        return together if len(together) == outputs else None

    def bytes(self) -> int:
        """Return the bytes of all tensors, including those that `accept` keeps, which are as large
        as PyTorch's."""
        pairs = [tensor for pair in self.returned + self.written for tensor in (*pair, pair[1])]
        leaves = [leaf for leaf in tree_leaves(self.args) if isinstance(leaf, Tensor)]
        return sum(tensor.nbytes for tensor in pairs + leaves)

    def accept(self, outputs: Sequence[Tensor], how: Hashable) -> None:
        """Record that these outputs are right, so that equal ones need not be judged again.

        how: everything else that the judgement depends on, except this object.
        """
        if all(output.device.type != "meta" for output in outputs):
            self.accepted = how, [output.clone() for output in outputs]

    def accepts(self, outputs: Sequence[Tensor], how: Hashable) -> bool:
        """Return True if outputs with equal bits and layout were the last ones accepted."""
        if self.accepted is None or self.accepted[0] != how:
            return False
        before = self.accepted[1]
        layouts = [[(each.device, each.stride()) for each in some] for some in (outputs, before)]
        if layouts[0] != layouts[1]:
            return False
        near = near_host([*outputs, *before])
        return all(map(same_values, near[: len(before)], near[len(before) :]))


class Expectations:
    """Expected results of the current problem, kept for its next rung."""

    def __init__(self) -> None:
        self._owner: tuple[Any, ...] = ()
        self._kept: dict[Hashable, Expected] = {}
        self._size = 0

    def get(
        self, problem: Problem, device: torch.device, key: Hashable, make: Callable[[], Expected]
    ) -> Expected:
        """Return the results stored for this key of the problem, or store and return `make()`."""
        owner = (problem.name, problem.inputs, problem.reference, device)
        if owner != self._owner:
            self.clear()
            self._owner = owner
        if key in self._kept:
            return self._kept[key]
        expected = make()
        if self._size + expected.bytes() <= KEPT_BYTES:
            self._kept[key] = expected
            self._size += expected.bytes()
        return expected

    def clear(self) -> None:
        """Drop all stored results."""
        self._owner, self._kept, self._size = (), {}, 0


expectations = Expectations()


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype, in which a reference creates floating numbers from integers."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _reference(
    problem: Problem, args: tuple[Any, ...], writes: tuple[int, ...], dtype: torch.dtype | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return (returned, written) of the reference on copies; floating ones in `dtype` unless
    None."""

    def copy(tensor: Tensor) -> Tensor:
        same = dtype is None or not tensor.is_floating_point()
        return tensor.to(tensor.dtype if same else dtype, copy=True)

    copies = map_tensors(copy, args)
    with torch.no_grad(), _default_dtype(dtype or torch.get_default_dtype()):
        returned = tensors_of(problem.reference(*copies))
    written = tree_leaves([copies[place] for place in writes])
    return returned, [leaf for leaf in written if isinstance(leaf, Tensor)]


def _rounded(tensors: list[Tensor], half: torch.dtype) -> list[Tensor]:
    return [t.to(half) if t.dtype == torch.float32 else t for t in tensors]


def _lacks_kernel(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) or "not implemented for" in str(error)


def evaluate(problem: Problem, args: tuple[Any, ...], writes: tuple[int, ...] = ()) -> Expected:
    """Return the results of the reference on `args`, in float64 and in their own dtypes.

    writes: positions of the arguments that the rung writes. Raise what the reference raises;
    ProblemError if it does not compute in float64 for float64 arguments.
    """
    floating = [
        leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
    truths = _reference(problem, args, writes, torch.float64)
    aside = ""
    try:
        own = _reference(problem, args, writes, None)
    except (RuntimeError, NotImplementedError) as error:
        short = [t.dtype for t in floating if t.element_size() < 4]
        if not short or not _lacks_kernel(error):
            raise
        own = _reference(problem, args, writes, torch.float32)
        half = short[0]
        written, returned = own
        own = _rounded(written, half), _rounded(returned, half)
        name = dtype_name(short[0])
        aside = (
            f"PyTorch has no kernel for {name} here: its error is taken from float32, then rounded"
        )
    pairs = [list(zip(truth, mine, strict=True)) for truth, mine in zip(truths, own, strict=True)]
    rough: list[Pair] = []
    for truth, mine in pairs[0] + pairs[1]:
        exact = problem.outputs_exact or not mine.is_floating_point()
        if not exact and truth.dtype != torch.float64:
            raise ProblemError(
                f"the reference of {problem.name!r} gives {truth.dtype} for float64 arguments, so "
                "the truth is not known: let it compute in the dtype of its arguments (or in "
                "torch.promote_types(x.dtype, torch.float32), or torch.get_default_dtype())"
            )
    if any(mine.dtype == torch.float64 for _, mine in pairs[0] + pairs[1]):
        # PyTorch's own is the truth itself and shows no error; float32's, scaled, shows how much
        # the computation amplifies rounding.
        single = _reference(problem, args, writes, torch.float32)
        both = zip(pairs[0] + pairs[1], single[0] + single[1], strict=True)
        rough = [(truth, mine) for (truth, _), mine in both]
    return Expected(args, pairs[0], pairs[1], rough, aside)


def check_same_in_both(problem: Problem, expected: Expected) -> None:
    """Raise ProblemError if the reference's results in float32 and float64 differ by more than
    rounding: PyTorch's error, their difference, would then accept any result. If terms cancel, only
    rounding is left, so the difference must also be large relative to the arguments."""
    leaves = [leaf for leaf in tree_leaves(expected.args) if isinstance(leaf, Tensor)]
    pairs = expected.returned + expected.written
    near = iter(near_host([*leaves, *(tensor for pair in pairs for tensor in pair)]))
    leaves = list(islice(near, len(leaves)))
    largest = max((_size(leaf) for leaf in leaves if leaf.is_floating_point()), default=1.0)
    for truth, own in zip(near, near, strict=True):
        if own.dtype != torch.float32 or truth.shape != own.shape:
            continue
        usable = truth.isfinite() & own.isfinite()
        distance, size = _size((own - truth)[usable]), _size(truth[usable])
        if distance > max(FAR * size, NOTABLE * largest):
            raise ProblemError(
                f"the reference of {problem.name!r} does not compute the same in float32 and in "
                f"float64: {distance:.3g} apart, where numbers are {size:.3g} (root mean squares): "
                "does it draw numbers, or depend on the default dtype?"
            )


def in_range(expected: Expected) -> bool:
    """Return True if no number overflows on the way to the results: the truth is finite, and so are
    PyTorch's, in the rung's dtype, for float64 also in float32, and near it; integers are equal."""

    def near(truth: Tensor, own: Tensor) -> bool:
        if not own.is_floating_point():
            return torch.equal(truth, own)
        truth, own = truth.double(), own.double()  # CUDA has no isfinite of 8-bit floats
        if not (truth.isfinite().all() and own.isfinite().all()):
            return False
        return _size(own - truth) <= NEAR * _size(truth)

    pairs = expected.returned + expected.written + expected.rough
    return all(near(truth, own) for truth, own in pairs)


def _size(tensor: Tensor) -> float:
    """Return the root mean square; 0 for an empty tensor."""
    return float(tensor.double().norm()) / max(tensor.numel(), 1) ** 0.5


def truths(problem: Problem, args: tuple[Any, ...], writes: tuple[int, ...] = ()) -> list[Tensor]:
    """Return the reference's results on `args` in float64: returned tensors, then written ones.
    writes: as for `evaluate`. Raise what the reference raises."""
    returned, written = _reference(problem, args, writes, torch.float64)
    return returned + written


def samples_needed(problem: Problem, expected: Expected) -> int:
    """Return the number of further inputs needed for a reliable estimate of PyTorch's error.

    Outputs with few elements need them, and so do a few rows: all elements of a row may share one
    error, that of their sum. 0 if no floating output is compared.
    """
    owns = [own for _, own in expected.returned + expected.written]
    sizes = [own.numel() for own in owns if own.is_floating_point() and own.numel()]
    if not sizes or problem.outputs_exact:
        return 0
    leaves = [leaf for leaf in tree_leaves(expected.args) if isinstance(leaf, Tensor)]
    large = sum(leaf.numel() for leaf in leaves) > 1 << 22
    return 4 if large else max(SAMPLES, -(-ENOUGH // min(sizes)))


def rolled_samples(problem: Problem, expected: Expected, writes: tuple[int, ...]) -> list[Expected]:
    """Return the results on the samples needed: the arguments with their elements rotated.

    For arguments that no case draws: the numbers keep their range, but the roundings differ.
    """
    samples = []
    for step in range(1, 1 + samples_needed(problem, expected)):
        args = map_tensors(
            lambda t, step=step: torch.roll(t, step) if t.is_floating_point() else t, expected.args
        )
        samples.append(evaluate(problem, args, writes))
    return samples


# ---------------------------------------------------------------- gradients


@dataclass
class Gradients:
    """The expected gradients. places: positions of the arguments with a gradient. names: their
    names in messages. expected: its `returned` are the gradients. upstream: the gradient of each
    output that backward starts from, None for an output that is not floating."""

    places: list[int]
    names: list[str]
    expected: Expected
    upstream: list[Tensor | None]


def backward(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    places: list[int],
    upstream: list[Tensor | None],
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Return the gradients of the arguments at `places`; floating arguments in `dtype` unless
    None."""

    def copy(tensor: Tensor) -> Tensor:
        same = dtype is None or not tensor.is_floating_point()
        return tensor.detach().to(tensor.dtype if same else dtype, copy=True)

    copies = map_tensors(copy, args)
    inputs = [copies[place].requires_grad_() for place in places]
    with _default_dtype(dtype or torch.get_default_dtype()):
        outputs = tensors_of(function(*copies))
    pairs = [
        (output, seed.to(output.dtype))
        for output, seed in zip(outputs, upstream, strict=True)
        if seed is not None
    ]
    if not all(output.requires_grad for output, _ in pairs):
        raise RuntimeError("the output does not require a gradient: no backward is registered")
    found = torch.autograd.grad([o for o, _ in pairs], inputs, [s for _, s in pairs])
    return [gradient.detach() for gradient in found]


def expected_gradients(
    problem: Problem, args: tuple[Any, ...], signature: Signature, expanded: bool = False
) -> Gradients:
    """Return the gradients by PyTorch's autograd through the reference, in float64 and in the
    dtypes of `args`, for every floating tensor argument; the upstream gradient is drawn from N(0,
    1).

    expanded: expand its first row to all rows, with a stride of 0. Raise ProblemError for a rung
    that writes its arguments.
    """
    if signature.writes:
        raise ProblemError(
            f"{problem.name!r} has gradients, which cannot be checked for a rung that writes its "
            f"argument {signature.names[signature.writes[0]]}"
        )
    places = [
        place
        for place, argument in enumerate(args)
        if isinstance(argument, Tensor) and argument.is_floating_point()
    ]
    generator = torch.Generator().manual_seed(20)
    upstream: list[Tensor | None] = []
    with torch.no_grad():
        for output in tensors_of(problem.reference(*map_tensors(torch.clone, args))):
            seed = torch.randn(output.shape, generator=generator, dtype=torch.float64)
            seed = seed.to(output.dtype).to(output.device)
            if expanded and seed.numel():
                seed = seed[:1].expand(seed.shape) if seed.dim() else seed
            upstream.append(seed if output.is_floating_point() else None)
    truth = backward(problem.reference, args, places, upstream, torch.float64)
    own = backward(problem.reference, args, places, upstream)
    names = [f"the gradient of {signature.names[place]}" for place in places]
    rough: list[Pair] = []
    if any(gradient.dtype == torch.float64 for gradient in own):
        single = backward(problem.reference, args, places, upstream, torch.float32)
        rough = list(zip(truth, single, strict=True))
    expected = Expected(args, list(zip(truth, own, strict=True)), [], rough)
    return Gradients(places, names, expected, upstream)
