"""What a rung should give: the reference in float64, beside PyTorch's own in the rung's dtype.

The outputs of a rung are the tensors that it returns, in order, followed by each argument that its
schema marks as written, `Tensor(a!)`, and that is not itself among those returned. Of a list that
is marked, `Tensor(a!)[]`, each tensor counts as such an argument. The reference is called with
copies of the same arguments. It returns as many tensors in the same order; or it writes into the
arguments it was given, as the rung does, and returns only what the rung returns.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from common.base.declaration import Problem
from common.base.paths import ROOT
from common.check.compare import ENOUGH, Pair, same_values

KEPT_BYTES = 4 << 30  # of what is expected, for the next rung
SAMPLES = 8  # further inputs that tell PyTorch's error, where an output is not right without


# How far a reference may be from itself in float32 on ordinary numbers: of its own size, and of its
# arguments'. More is no rounding: it draws other numbers, or takes another way.
FAR, NOTABLE = 0.25, 1e-3


class ProblemError(Exception):
    """The day's declaration, not a rung, is at fault; the message says what to change."""


# What the inputs or the reference of a problem raise for a shape that they do not know, such as
# patches of no pixels.
RAISED = (RuntimeError, ValueError, TypeError, AssertionError, LookupError, ArithmeticError)


# ---------------------------------------------------------------- what is called


@dataclass(frozen=True)
class Signature:
    """names: of the arguments in order. writes: positions of those that the call may write."""

    names: tuple[str, ...]
    writes: tuple[int, ...] = ()


def signature_of(call: Callable[..., Any], like: Callable[..., Any] | None = None) -> Signature:
    """Return the signature of an operator of torch.ops, from its schema, or of a Python function.

    A Python function writes the arguments that its attribute `writes` names, if it has one.
    like: has the names where `call` is compiled and does not tell them.
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
    """Return the tensors that a call returned, in order. Raises TypeError for anything else in
    there."""
    leaves = [leaf for leaf in tree_leaves(result) if leaf is not None]
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise TypeError(f"a rung and its reference return tensors, got {type(leaf).__name__}")
    return leaves


def map_tensors(function: Callable[[Tensor], Tensor], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with `function` of each tensor in its place, also inside lists and
    tuples."""

    def mapped(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        if isinstance(value, (int, float, str, type(None))):  # tree_map takes a while to say so
            return value
        return tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, value)

    return tuple(mapped(value) for value in args)


def message_of(error: BaseException) -> str:
    """Return an exception's own words, without the C++ stack that PyTorch may add. Of Triton's
    compiler, what is wrong first, then where."""
    text = re.split(r"\n?(?:Exception raised from|C\+\+ CapturedTraceback)", str(error))[0].strip()
    if wrong := getattr(error, "error_message", None):
        text = f"{wrong}\n{text.removesuffix(wrong).rstrip()}"
    return text or type(error).__name__


def passed_on(error: BaseException) -> BaseException:
    """Return the exception of a kernel in Python that Triton passes on in one of its own: the one
    that the interpreter met, or that of the innermost function that does not compile."""
    while (cause := error.__cause__) is not None and (
        type(error).__name__ == "InterpreterError" or type(cause).__module__.startswith("triton.")
    ):
        error = cause
    return error


def places_of(error: BaseException, of_days: bool = False) -> list[str]:
    """Return lines of an exception's traceback, "days/day61/vector_ops_triton.py:21 in
    leaky_add_kernel: mask = i < n": those of days and learners. of_days: nothing where there is
    none; else those of common/, or of elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(f"{ROOT}/")]
    days = [frame for frame in ours if not frame.filename.startswith(f"{ROOT}/common/")]
    return [
        f"{frame.filename.removeprefix(f'{ROOT}/')}:{frame.lineno} in {frame.name}: {frame.line}"
        for frame in (days if of_days else days or ours or frames[-3:])
    ]


# ---------------------------------------------------------------- what is expected


@dataclass
class Expected:
    """What a rung should give for `args`.

    args: the arguments, never written. returned, written: for what the reference returned and
    for the arguments that the rung writes, pairs of (truth, PyTorch's own in the rung's dtype).
    rough: like returned + written, with PyTorch's in float32 where its own is the truth itself.
    aside: how PyTorch's error was found, where not as usual. on_host: whether host arrays are among
    the arguments. accepted: see `accept`.
    """

    args: tuple[Any, ...]
    returned: list[Pair]
    written: list[Pair]
    rough: list[Pair]
    aside: str = ""
    on_host: bool = False
    accepted: tuple[Hashable, list[Tensor]] | None = None

    def pairs(self, outputs: int) -> list[Pair] | None:
        """Return a pair for each of so many outputs; None if that is not their number."""
        if len(self.returned) == outputs:
            return self.returned
        together = self.returned + self.written
        return together if len(together) == outputs else None

    def bytes(self) -> int:
        """Return the bytes of all tensors, with those that `accept` keeps: they are as large as
        PyTorch's own."""
        pairs = [tensor for pair in self.returned + self.written for tensor in (*pair, pair[1])]
        leaves = [leaf for leaf in tree_leaves(self.args) if isinstance(leaf, Tensor)]
        return sum(tensor.nbytes for tensor in pairs + leaves)

    def accept(self, outputs: Sequence[Tensor], how: Hashable) -> None:
        """Note that these outputs are right: judging equal ones again would say the same.

        how: all that their judgement depends on beside them and this object.
        """
        if all(output.device.type != "meta" for output in outputs):
            self.accepted = how, [output.clone() for output in outputs]

    def accepts(self, outputs: Sequence[Tensor], how: Hashable) -> bool:
        """Return whether outputs of these very bits, in the same layout, were accepted last."""
        if self.accepted is None or self.accepted[0] != how:
            return False
        return all(
            (new.device, new.stride()) == (old.device, old.stride()) and same_values(new, old)
            for new, old in zip(outputs, self.accepted[1], strict=True)
        )


class Expectations:
    """Expected results of the problem that is being checked, kept for its next rung."""

    def __init__(self) -> None:
        self._owner: tuple[Any, ...] = ()
        self._kept: dict[Hashable, Expected] = {}
        self._size = 0

    def get(
        self, problem: Problem, device: torch.device, key: Hashable, make: Callable[[], Expected]
    ) -> Expected:
        """Return what `make` gave for this key of the problem before, or gives now."""
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
        """Keep nothing any longer."""
        self._owner, self._kept, self._size = (), {}, 0


expectations = Expectations()


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype, so that a reference that makes floating numbers out of integers makes
    them of this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _reference(
    problem: Problem, args: tuple[Any, ...], writes: tuple[int, ...], dtype: torch.dtype | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return (returned, written) of the reference on copies, floating ones in `dtype` unless
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
    """Return the reference on `args`, in float64 and as they are.

    writes: positions of the arguments that the rung writes.
    Raises whatever the reference raises; ProblemError if it does not compute in float64 when
    it is given float64.
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
        name = str(short[0]).removeprefix("torch.")
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
    """Raise ProblemError where the reference computes one thing in float32 and another in float64:
    then PyTorch's error, which it tells, accepts any result. Where terms cancel, rounding is all
    that is left: a difference counts that is large beside the arguments, too."""
    leaves = [leaf for leaf in tree_leaves(expected.args) if isinstance(leaf, Tensor)]
    largest = max((_size(leaf) for leaf in leaves if leaf.is_floating_point()), default=1.0)
    for truth, own in expected.returned + expected.written:
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


def _size(tensor: Tensor) -> float:
    """Return the root mean square; 0 of no elements."""
    return float(tensor.double().norm()) / max(tensor.numel(), 1) ** 0.5


def truths(problem: Problem, args: tuple[Any, ...], writes: tuple[int, ...] = ()) -> list[Tensor]:
    """Return the reference on `args` in float64: what it returns, then what it writes. writes: as
    for `evaluate`. Raises whatever the reference raises."""
    returned, written = _reference(problem, args, writes, torch.float64)
    return returned + written


def samples_needed(problem: Problem, expected: Expected) -> int:
    """Return how many further inputs it takes until PyTorch's error is no matter of luck.

    Not only outputs of few elements need them: all elements of a row may share one error, that
    of their sum, and a few rows are few errors. 0 where nothing floating is compared.
    """
    owns = [own for _, own in expected.returned + expected.written]
    sizes = [own.numel() for own in owns if own.is_floating_point() and own.numel()]
    if not sizes or problem.outputs_exact:
        return 0
    leaves = [leaf for leaf in tree_leaves(expected.args) if isinstance(leaf, Tensor)]
    large = sum(leaf.numel() for leaf in leaves) > 1 << 22
    return 4 if large else max(SAMPLES, -(-ENOUGH // min(sizes)))


def rolled_samples(problem: Problem, expected: Expected, writes: tuple[int, ...]) -> list[Expected]:
    """Return the samples needed, from the arguments themselves with their elements moved along.

    For arguments that no case draws: the numbers stay in their range, the roundings differ.
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
    """places: positions of the arguments with a gradient. names: what to call each.
    expected: its `returned` are the gradients. upstream: what backward starts from, an output
    each, None for one that is not floating."""

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
    """Return the gradients of the arguments at `places`, floating arguments in `dtype` unless
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
    """Return the gradients by PyTorch's autograd through the reference, in float64 and as `args`
    are.

    Of every floating tensor argument; the upstream gradient is drawn from N(0, 1). expanded: its
    first row is expanded to all, with a stride of 0. Raises ProblemError for a rung that writes its
    arguments.
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
