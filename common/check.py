"""Checks a rung on every declared case: is its result right, and does it behave as an operator?

What is compared. The outputs of a rung are the tensors that it returns, in order, followed by each
argument that its schema marks as written, `Tensor(a!)`, and that is not itself among those
returned. The reference is called with copies of the same arguments. It returns as many tensors in
the same order; or it writes into the arguments it was given, as the rung does, and returns only
what the rung returns.
"""

from __future__ import annotations

import inspect
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from common.compare import Mismatch, Pair, compare, same_values
from common.day import Case, Problem, Rung
from common.draw import Draw
from common.guard import GuardedAllocations, GuardedMemory, bits

if TYPE_CHECKING:
    from common.backend import Backend, Schedule

FEW = 16  # outputs of fewer elements get PyTorch's error from further inputs too
SLEEP_CYCLES = 20_000_000  # of the GPU, about 10 ms: longer than a launch takes to issue
CACHED_BYTES = 4 << 30  # of references kept for the next rung


@dataclass(frozen=True)
class Failure:
    """What went wrong. summary: one line that names the case. details: lines that explain it."""

    summary: str
    details: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"    {line}" for line in self.details)])

    def about(self, case: Case | str) -> Failure:
        """The same, naming the case."""
        return replace(self, summary=f"{case}: {self.summary}")


@dataclass
class CheckResult:
    """checked: number of cases that were gone through, a failing one included.
    failure: the first one, after which no further case is tried.
    remarks: what was not tried, or was tried in another way, and why."""

    checked: int = 0
    failure: Failure | None = None
    remarks: list[str] = field(default_factory=list)

    def remark(self, text: str) -> None:
        if text and text not in self.remarks:
            self.remarks.append(text)


class ProblemError(Exception):
    """The day's declaration, not a rung, is at fault; the message says what to change."""


# ---------------------------------------------------------------- what is called


@dataclass(frozen=True)
class Signature:
    """names: of the arguments in order. writes: positions of those that the call may write."""

    names: tuple[str, ...]
    writes: tuple[int, ...] = ()


def signature_of(call: Callable[..., Any]) -> Signature:
    """The signature of an operator of torch.ops, from its schema, or of a Python function.

    A Python function writes the arguments that its attribute `writes` names, if it has one.
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
    names = tuple(inspect.signature(call).parameters)
    return Signature(names, tuple(names.index(name) for name in getattr(call, "writes", ())))


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors that a call returned, in order. Raises TypeError for anything else in there."""
    leaves = [leaf for leaf in tree_leaves(result) if leaf is not None]
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise TypeError(f"a rung and its reference return tensors, got {type(leaf).__name__}")
    return leaves


def _map_tensors(function: Callable[[Tensor], Tensor], args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, args)


def message_of(error: BaseException) -> str:
    """An exception's own words, without the C++ stack that PyTorch may add."""
    text = re.split(r"\n?(?:Exception raised from|C\+\+ CapturedTraceback)", str(error))[0]
    return text.strip() or type(error).__name__


# ---------------------------------------------------------------- what is wanted


@dataclass
class Wanted:
    """What a rung should give for `args`.

    args: the arguments, never written. returned, written: for what the reference returned and
    for the arguments that the rung writes, pairs of (truth, PyTorch's own in the rung's dtype).
    rough: like returned + written, with PyTorch's in float32 where its own is the truth itself.
    """

    args: tuple[Any, ...]
    returned: list[Pair]
    written: list[Pair]
    rough: list[Pair]
    remark: str = ""

    def pairs(self, outputs: int) -> list[Pair] | None:
        """A pair for each of so many outputs; None if that is not their number."""
        if len(self.returned) == outputs:
            return self.returned
        together = self.returned + self.written
        return together if len(together) == outputs else None

    def bytes(self) -> int:
        pairs = [tensor for pair in self.returned + self.written for tensor in pair]
        leaves = [leaf for leaf in tree_leaves(self.args) if isinstance(leaf, Tensor)]
        return sum(tensor.nbytes for tensor in pairs + leaves)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """So that a reference that makes floating numbers out of integers makes them of this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _reference(
    problem: Problem, args: tuple[Any, ...], writes: tuple[int, ...], dtype: torch.dtype | None
) -> tuple[list[Tensor], list[Tensor]]:
    """(returned, written) of the reference on copies, floating ones in `dtype` unless None."""

    def copy(tensor: Tensor) -> Tensor:
        clone = tensor.clone(memory_format=torch.preserve_format)
        return clone.to(dtype) if dtype is not None and clone.is_floating_point() else clone

    copies = _map_tensors(copy, args)
    with torch.no_grad(), _default_dtype(dtype or torch.get_default_dtype()):
        returned = tensors_of(problem.reference(*copies))
    return returned, [copies[place] for place in writes]


def _lacks_kernel(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) or "not implemented for" in str(error)


def evaluate(problem: Problem, args: tuple[Any, ...], writes: tuple[int, ...] = ()) -> Wanted:
    """The reference on `args`, in float64 and as they are.

    writes: positions of the arguments that the rung writes.
    Raises whatever the reference raises; ProblemError if it does not compute in float64 when
    it is given float64.
    """
    floating = [
        leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
    truths = _reference(problem, args, writes, torch.float64)
    remark = ""
    try:
        own = _reference(problem, args, writes, None)
    except (RuntimeError, NotImplementedError) as error:
        short = [t.dtype for t in floating if t.element_size() < 4]
        if not short or not _lacks_kernel(error):
            raise
        own = _reference(problem, args, writes, torch.float32)
        own = tuple([t.to(short[0]) if t.dtype == torch.float32 else t for t in o] for o in own)
        name = str(short[0]).removeprefix("torch.")
        remark = (
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
    return Wanted(args, pairs[0], pairs[1], rough, remark)


class _Expectations:
    """Wanted results of the problem that is being checked, kept for its next rung."""

    def __init__(self) -> None:
        self.owner: tuple[Any, ...] = ()
        self.kept: dict[tuple[Any, ...], Wanted] = {}
        self.size = 0

    def get(
        self, problem: Problem, case: Case, backend: Backend, signature: Signature, draw: int
    ) -> Wanted:
        """For the `draw`-th set of inputs of that case."""
        owner = (problem.name, problem.inputs, problem.reference, str(backend.device))
        if owner != self.owner:
            self.owner, self.kept, self.size = owner, {}, 0
        key = (case, signature.writes, draw)
        if key in self.kept:
            return self.kept[key]
        seed = zlib.crc32(str(case).encode()) + draw
        args = problem.inputs(case, Draw(case, backend, seed))
        if not isinstance(args, tuple):
            raise ProblemError(
                f"the inputs of {problem.name!r} must be a tuple of arguments, "
                f"got {type(args).__name__}"
            )
        if len(args) > len(signature.names):
            raise ProblemError(
                f"the inputs of {problem.name!r} are {len(args)} arguments, the rung takes "
                f"{len(signature.names)}: {', '.join(signature.names)}"
            )
        try:
            wanted = evaluate(problem, args, signature.writes)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ProblemError(
                f"the reference of {problem.name!r} raised {type(error).__name__}: "
                f"{message_of(error)}"
            ) from error
        if self.size + wanted.bytes() <= CACHED_BYTES:
            self.kept[key] = wanted
            self.size += wanted.bytes()
        return wanted


_expectations = _Expectations()


# ---------------------------------------------------------------- one call


@dataclass
class Call:
    """One call of a rung that came back: its arguments as they are now, and its outputs."""

    args: tuple[Any, ...]
    outputs: list[Tensor]
    names: list[str]
    memory: GuardedMemory


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def outputs_of(
    result: Any, args: tuple[Any, ...], signature: Signature
) -> tuple[list[Tensor], list[str]]:
    """The outputs as the module's docstring defines them, and what to call each."""
    returned = tensors_of(result)
    outputs = list(returned)
    many = len(returned) > 1
    names = [f"output {place}" if many else "the output" for place in range(len(returned))]
    for place in signature.writes:
        argument = args[place]
        if not isinstance(argument, Tensor):
            continue
        for i, tensor in enumerate(returned):
            if tensor is argument or (tensor.numel() and _storage(tensor) == _storage(argument)):
                names[i] = f"argument {signature.names[place]}, returned"
                break
        else:
            outputs.append(argument)
            names.append(f"argument {signature.names[place]}")
    return outputs, names


def call_guarded(
    call: Callable[..., Any],
    signature: Signature,
    args: tuple[Any, ...],
    backend: Backend,
    variant: int = 0,
) -> Call:
    """Calls a rung on copies of `args` in guarded memory, its own allocations guarded as well.

    variant: what fresh memory holds, see `GuardedMemory`. Raises what the call raises, and the
    error that the device reports after it.
    """
    memory = GuardedMemory(backend.device, variant)
    copies = list(args)
    for place, value in enumerate(args):
        name = f"argument {signature.names[place]}"
        copies[place] = _map_tensors(
            lambda tensor, name=name: (
                memory.copy_of(tensor, name) if tensor.device.type != "meta" else tensor
            ),
            (value,),
        )[0]
    with torch.no_grad(), GuardedAllocations(memory):
        result = call(*copies)
    backend.synchronize()
    outputs, names = outputs_of(result, tuple(copies), signature)
    for tensor, name in zip(outputs, names, strict=True):
        if tensor.device.type != "meta" and not name.startswith("argument"):
            memory.rename(tensor, name)
    return Call(tuple(copies), outputs, names, memory)


def side_effects(done: Call, before: tuple[Any, ...], signature: Signature) -> Failure | None:
    """Memory written where the call had no business to write."""
    outside = done.memory.violations()
    if outside:
        return Failure("memory outside its tensors was written", outside)
    for place, (now, was) in enumerate(zip(done.args, before, strict=True)):
        if place in signature.writes:
            continue
        pairs = zip(tree_leaves(now), tree_leaves(was), strict=True)
        for mine, theirs in pairs:
            if not isinstance(mine, Tensor) or mine.device.type == "meta":
                continue
            name = signature.names[place]
            changed = bits(mine) != bits(theirs)
            if bool(changed.any()):
                index = tuple(changed.nonzero()[0].tolist())
                return Failure(
                    f"argument {name} was modified, and the schema does not mark it as written",
                    [
                        f"{int(changed.sum()):,} of {changed.numel():,} elements, the first at "
                        f"{index}: {theirs[index].item()} became {mine[index].item()}"
                    ],
                )
            for output, title in zip(done.outputs, done.names, strict=True):
                if output.numel() and _storage(output) == _storage(mine):
                    return Failure(f"{title} shares its memory with argument {name}")
    return None


def judge(
    problem: Problem,
    wanted: Wanted,
    outputs: Sequence[Tensor],
    names: Sequence[str],
    signature: Signature,
    samples: Sequence[Wanted] = (),
) -> Failure | None:
    """Compares outputs with what is wanted. samples: of further inputs, for PyTorch's error."""
    pairs = wanted.pairs(len(outputs))
    if pairs is None:
        return Failure(
            f"the rung gives {len(outputs)} tensors ({', '.join(names) or 'none'}), "
            f"the reference {len(wanted.returned)}"
        )

    def mismatch(place: int, against: int) -> Mismatch | None:
        truth, own = pairs[against]
        more = list(wanted.rough[against : against + 1])
        for sample in samples:
            others = sample.pairs(len(outputs)) or []
            more += [*others[against : against + 1], *sample.rough[against : against + 1]]
        return compare(outputs[place], truth, own, problem.tolerance, problem.outputs_exact, more)

    for place, name in enumerate(names):
        found = mismatch(place, place)
        if found is None:
            continue
        details = list(found.details)
        for other in range(len(outputs)):
            if other != place and mismatch(place, other) is None:
                details.insert(0, f"hint: it is what {names[other]} should be: swapped?")
                break
        for position, argument in enumerate(wanted.args):
            if isinstance(argument, Tensor) and argument.numel() > 1:
                output = outputs[place]
                if argument.device == output.device and same_values(argument, output):
                    details.insert(0, f"hint: it is argument {signature.names[position]} unchanged")
                    break
        return Failure(f"{name}: {found.summary}", details)
    return None


# ---------------------------------------------------------------- one case


class _CaseCheck:
    """All that is tried with one rung on one case."""

    def __init__(
        self,
        problem: Problem,
        rung: Rung,
        call: Callable[..., Any],
        case: Case,
        backend: Backend,
        schedules: Sequence[Schedule],
        result: CheckResult,
    ):
        self.problem = problem
        self.rung = rung
        self.call = call
        self.case = case
        self.backend = backend
        self.schedules = schedules
        self.result = result
        self.signature = signature_of(call)
        self.first = self._wanted(0)
        self.second = self._wanted(1)
        self.samples = self._samples()
        result.remark(self.first.remark)

    def _wanted(self, draw: int) -> Wanted:
        return _expectations.get(self.problem, self.case, self.backend, self.signature, draw)

    def _samples(self) -> list[Wanted]:
        """Further inputs where an output has so few elements that PyTorch's error is luck."""
        owns = [own for _, own in self.first.returned + self.first.written]
        sizes = [t.numel() for t in owns if t.is_floating_point() and 0 < t.numel() < FEW]
        if not sizes or self.problem.outputs_exact:
            return []
        elements = sum(
            leaf.numel() for leaf in tree_leaves(self.first.args) if isinstance(leaf, Tensor)
        )
        draws = min(-(-FEW // min(sizes)), FEW if elements <= 1 << 22 else 4)
        return [self._wanted(draw) for draw in range(1, 1 + draws)]

    def _judge(self, wanted: Wanted, outputs: list[Tensor], names: list[str]) -> Failure | None:
        return judge(self.problem, wanted, outputs, names, self.signature, self.samples)

    def _attempt(
        self, wanted: Wanted, variant: int = 0, compare_values: bool = True
    ) -> tuple[Call | None, Failure | None]:
        """One guarded call, and what was wrong with it."""
        try:
            done = call_guarded(self.call, self.signature, wanted.args, self.backend, variant)
        except Exception as error:
            return None, _raised(error)
        failure = side_effects(done, wanted.args, self.signature)
        if failure is None and compare_values:
            failure = self._judge(wanted, done.outputs, done.names)
        return done, failure

    def run(self) -> Failure | None:
        """The first failure, not yet naming the case."""
        self.backend.use(self.schedules[0])
        done, failure = self._attempt(self.first)
        if failure is not None:
            return self._with_race_hint(done, failure)
        assert done is not None
        kept = [output.clone() for output in done.outputs]
        steps: list[Callable[[], Failure | None]] = [
            lambda: self._second_call(done, kept),
            lambda: self._same_again(kept),
            lambda: self._other_orders(kept),
        ]
        if self.backend.name == "cuda":
            steps.append(self._side_stream)
            if not self.rung.not_captured:
                steps.append(self._graph)
        if self.problem.gradients:
            steps.append(self._gradients)
        for step in steps:
            failure = step()
            if failure is not None:
                return failure
        return None

    def _with_race_hint(self, done: Call | None, failure: Failure) -> Failure:
        """A wrong result that another order or another run does not show comes from a race."""
        if done is None:
            return failure
        for schedule in self.schedules[1:]:
            self.backend.use(schedule)
            if self._attempt(self.first)[1] is None:
                hint = (
                    f"hint: with threads in {schedule} order it is right, in {self.schedules[0]} "
                    "order it is not: it depends on the order in which threads run, a race"
                )
                return replace(failure, details=[hint, *failure.details])
        if len(self.schedules) == 1 and not self.rung.not_repeatable:
            again, _ = self._attempt(self.first, compare_values=False)
            if again is not None and _first_difference(done.outputs, again.outputs, done.names):
                hint = "hint: a second run gives other values: a race, or memory read unwritten"
                return replace(failure, details=[hint, *failure.details])
        return failure

    def _second_call(self, done: Call, kept: list[Tensor]) -> Failure | None:
        """Other numbers in the same shape: nothing may be left over from the call before."""
        again, failure = self._attempt(self.second)
        if failure is not None:
            details = failure.details
            if again is not None and _first_difference(kept, again.outputs, done.names) is None:
                details = ["hint: it is the result of the call before, on other inputs", *details]
            return Failure(f"in a second call, on other inputs, {failure.summary}", details)
        changed = _first_difference(kept, done.outputs, done.names)
        if changed is not None:
            return Failure(
                "a second call overwrote the result of the first",
                ["the two share a buffer: allocate the output in each call", changed],
            )
        return None

    def _same_again(self, kept: list[Tensor]) -> Failure | None:
        """The same input, with other numbers in all memory that was not written yet."""
        again, failure = self._attempt(self.first, variant=1)
        if failure is not None:
            return Failure(
                f"with large numbers in fresh memory instead of NaN, {failure.summary}",
                ["hint: memory is read that was not written", *failure.details],
            )
        assert again is not None
        difference = _first_difference(kept, again.outputs, again.names)
        if difference is None or self.rung.not_repeatable:
            return None
        return Failure(
            "two runs on the same input differ in bits",
            [
                difference,
                "the order of the additions changes (atomics?), or memory is read unwritten; "
                "if it is meant, the rung says why in not_repeatable",
            ],
        )

    def _other_orders(self, kept: list[Tensor]) -> Failure | None:
        race = "depends on the order in which threads run: a race"
        for schedule in self.schedules[1:]:
            self.backend.use(schedule)
            done, failure = self._attempt(self.first)
            if failure is not None:
                return Failure(
                    f"with threads in {schedule} order, {failure.summary}",
                    [f"right in {self.schedules[0]} order: it {race}", *failure.details],
                )
            assert done is not None
            difference = _first_difference(kept, done.outputs, done.names)
            if difference is not None and not self.rung.not_repeatable:
                return Failure(
                    f"the result {race}",
                    [f"{self.schedules[0]} order against {schedule} order: {difference}"],
                )
        self.backend.use(self.schedules[0])
        return None

    def _side_stream(self) -> Failure | None:
        """On a stream that is still busy, with the true input arriving on it behind that work."""
        stale = _map_tensors(torch.clone, self.second.args)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        try:
            with torch.no_grad(), torch.cuda.stream(stream):
                torch.cuda._sleep(SLEEP_CYCLES)
                _fill(stale, self.first.args)
                result = self.call(*stale)
            torch.cuda.synchronize()
            outputs, names = outputs_of(result, stale, self.signature)
        except Exception as error:
            return _raised(error, "on a side stream, ")
        failure = self._judge(self.first, outputs, names)
        if failure is None:
            return None
        hint = "hint: some work is not on the current stream, so it reads its input too early"
        return Failure(f"on a side stream, {failure.summary}", [hint, *failure.details])

    def _graph(self) -> Failure | None:
        """Captured with one input, replayed with another in the same memory."""
        static = _map_tensors(torch.clone, self.first.args)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.no_grad(), warnings.catch_warnings():
                # A case without elements launches nothing.
                warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    result = self.call(*static)
            outputs, names = outputs_of(result, static, self.signature)
            for output, name in zip(outputs, names, strict=True):
                if not name.startswith("argument") and output.numel():
                    bits(output).fill_(-1)
            _fill(static, self.second.args)
            graph.replay()
            torch.cuda.synchronize()
        except Exception as error:
            failure = _raised(error, "captured in a CUDA graph, ")
            note = "if it cannot be captured, the rung says why in not_captured"
            return replace(failure, details=[*failure.details, note])
        failure = self._judge(self.second, outputs, names)
        if failure is None:
            return None
        hint = (
            "hint: the graph was captured with other inputs: something was computed once, at "
            "capture, or on another stream"
        )
        return Failure(f"replayed from a CUDA graph, {failure.summary}", [hint, *failure.details])

    def _gradients(self) -> Failure | None:
        wanted = gradients_wanted(self.problem, self.first.args, self.signature)
        if isinstance(wanted, Failure):
            return wanted
        before: list[Tensor] | None = None
        for schedule in self.schedules:
            self.backend.use(schedule)
            for _ in range(2):
                failure, found = gradients_of(
                    self.problem, self.call, self.first.args, self.signature, wanted, self.backend
                )
                if failure is not None:
                    return replace(failure, summary=f"{failure.summary} ({schedule} order)")
                names = wanted.names
                difference = _first_difference(before, found, names) if before else None
                if difference is not None and not self.rung.not_repeatable:
                    return Failure("two backward passes on one input differ", [difference])
                before = found
        self.backend.use(self.schedules[0])
        return None


def _raised(error: Exception, where: str = "") -> Failure:
    lines = message_of(error).splitlines()
    kind = "" if type(error) in (RuntimeError, Exception) else f"{type(error).__name__}: "
    return Failure(f"{where}it raised {kind}{lines[0]}", lines[1:])


def _fill(into: tuple[Any, ...], source: tuple[Any, ...]) -> None:
    """Copies the tensors of one set of arguments into another, on the current stream."""
    for mine, theirs in zip(tree_leaves(into), tree_leaves(source), strict=True):
        if isinstance(mine, Tensor):
            mine.copy_(theirs, non_blocking=True)


def _first_difference(
    before: Sequence[Tensor], after: Sequence[Tensor], names: Sequence[str]
) -> str | None:
    """Where two lists of tensors first differ in bits (any NaN equal to any), in words."""
    for old, new, name in zip(before, after, names, strict=True):
        if same_values(old, new):
            continue
        if old.shape != new.shape or old.dtype != new.dtype:
            return f"{name}: {old.dtype} {tuple(old.shape)} and {new.dtype} {tuple(new.shape)}"
        different = bits(old) != bits(new)
        index = tuple(different.nonzero()[0].tolist())
        return (
            f"{name}: {int(different.sum()):,} of {different.numel():,} elements, the first at "
            f"{index}: {old[index].item()!r} and {new[index].item()!r}"
        )
    return None


# ---------------------------------------------------------------- gradients


@dataclass
class _Gradients:
    """places: positions of the arguments with a gradient. names: what to call each.
    pairs: (truth, PyTorch's own) of each. upstream: what backward starts from, an output each."""

    places: list[int]
    names: list[str]
    pairs: list[Pair]
    upstream: list[Tensor | None]


def _backward(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    places: list[int],
    upstream: list[Tensor | None],
    dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """The gradients of the arguments at `places`, floating arguments in `dtype` unless None."""

    def copy(tensor: Tensor) -> Tensor:
        clone = tensor.detach().clone()
        return clone.to(dtype) if dtype is not None and clone.is_floating_point() else clone

    copies = _map_tensors(copy, args)
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


def gradients_wanted(
    problem: Problem, args: tuple[Any, ...], signature: Signature
) -> _Gradients | Failure:
    """The gradients by PyTorch's autograd through the reference, in float64 and as `args` are.

    Of every floating tensor argument; the upstream gradient is drawn from N(0, 1).
    """
    if signature.writes:
        return Failure("gradients of an operator that writes its arguments cannot be checked")
    places = [
        place
        for place, argument in enumerate(args)
        if isinstance(argument, Tensor) and argument.is_floating_point()
    ]
    generator = torch.Generator().manual_seed(20)
    upstream: list[Tensor | None] = []
    with torch.no_grad():
        for output in tensors_of(problem.reference(*_map_tensors(torch.clone, args))):
            seed = torch.randn(output.shape, generator=generator, dtype=torch.float64)
            seed = seed.to(output.dtype).to(output.device)
            upstream.append(seed if output.is_floating_point() else None)
    truth = _backward(problem.reference, args, places, upstream, torch.float64)
    own = _backward(problem.reference, args, places, upstream)
    names = [f"the gradient of {signature.names[place]}" for place in places]
    return _Gradients(places, names, list(zip(truth, own, strict=True)), upstream)


def gradients_of(
    problem: Problem,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    signature: Signature,
    wanted: _Gradients,
    backend: Backend,
) -> tuple[Failure | None, list[Tensor]]:
    """The rung's gradients, and what is wrong with them."""
    try:
        found = _backward(call, args, wanted.places, wanted.upstream)
        backend.synchronize()
    except Exception as error:
        return _raised(error, "in the backward pass "), []
    as_wanted = Wanted(args, wanted.pairs, [], [])
    failure = judge(problem, as_wanted, found, wanted.names, signature)
    return failure, found


# ---------------------------------------------------------------- all cases


def quick_cases(cases: Sequence[Case]) -> list[Case]:
    """One case for each dtype, small and, where there is one, with an odd size in its shape."""

    def rank(case: Case) -> tuple[bool, bool, bool, int]:
        volume = 1
        for size in case.shape:
            volume *= size
        odd = any(size % 2 and size > 1 for size in case.shape)
        return (case.values != "normal", volume < 2, not odd, volume)

    best: dict[str, Case] = {}
    for case in cases:
        if case.dtype not in best or rank(case) < rank(best[case.dtype]):
            best[case.dtype] = case
    return list(best.values())


def check_rung(
    problem: Problem,
    rung: Rung,
    call: Callable[..., Any],
    backend: Backend,
    *,
    quick: bool = False,
) -> CheckResult:
    """Checks a rung on all cases of its dtypes, until the first failure.

    call: an operator of torch.ops or a Python function. quick: one thread order, and only the
    cases of `quick_cases`. On each case, with the outputs and all memory that the operator
    allocates poisoned and everything between guard bands:

    - the result against the reference in float64, its shape, dtype, device and strides;
    - nothing written outside of tensors, no argument modified that the schema does not mark;
    - a second call on other inputs, then the first input again with other poison: equal bits;
    - on the CPU every thread order, on CUDA a busy side stream and a CUDA graph replayed with
      changed input; gradients where the problem has them.
    """
    result = CheckResult()
    cases = [case for case in problem.cases if not rung.dtypes or case.dtype in rung.dtypes]
    if not cases:
        result.failure = Failure(
            f"no case to check: the problem's cases are of {_dtypes(problem.cases)}, "
            f"the rung takes {', '.join(rung.dtypes)}"
        )
        return result
    schedules = list(backend.schedules())
    if quick:
        cases, schedules = quick_cases(cases), schedules[:1]
    if rung.not_captured and backend.name == "cuda":
        result.remark(f"not captured in a CUDA graph: {rung.not_captured}")
    if rung.not_repeatable:
        result.remark(f"two runs are not compared bit for bit: {rung.not_repeatable}")
    for case in cases:
        result.checked += 1
        try:
            failure = _CaseCheck(problem, rung, call, case, backend, schedules, result).run()
        except ProblemError as error:
            failure = Failure(str(error))
        if failure is not None:
            result.failure = failure.about(case)
            return result
    return result


def check_outputs(
    problem: Problem,
    call: Callable[..., Any],
    before: tuple[Any, ...],
    after: tuple[Any, ...],
    result: Any,
) -> Failure | None:
    """Judges the result of a call that somebody else made, e.g. after timing it.

    before: the arguments as they were; only for a rung that writes none may it be `after` itself.
    """
    signature = signature_of(call)
    outputs, names = outputs_of(result, after, signature)
    wanted = evaluate(problem, before, signature.writes)
    return judge(problem, wanted, outputs, names, signature)


def _dtypes(cases: Sequence[Case]) -> str:
    return ", ".join(dict.fromkeys(case.dtype for case in cases))
