"""Call a rung with bad input derived from a good case.

A rung must either compute the reference's result for a bad input, or refuse it with an exception
that names the argument. A crash, a wrong result, an accepted input that the reference refuses, or a
device that does not work afterwards is a failure.
"""

from __future__ import annotations

import math
import random
import resource
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from common.base.declaration import Case, Problem, Rung
from common.base.outcome import Mistake
from common.check.call import Call, Failure, call_guarded, judge, raised, side_effects, storage_of
from common.check.compilations import triton_compilations
from common.check.draw import Draw, dtype_name
from common.check.expected import (
    Expected,
    ProblemError,
    Signature,
    evaluate,
    expectations,
    map_tensors,
    message_of,
    rolled_samples,
    signature_of,
)
from common.check.lacks import Lacking, lacking
from common.check.refusal import GAVE_UP, names_one_of
from common.check.rungs import CheckResult

if TYPE_CHECKING:
    from common.check.device import Backend

REFUSALS = 3  # in a row, each of which leaves something allocated
QUICK = 4  # a quick check tries one of so many bad inputs
HUGE = 2**62  # larger than any size, and than the 32 bits to which it may be narrowed


@dataclass(frozen=True)
class BadInput:
    """One set of arguments.

    argument: name of the changed argument, or several names joined by " and ". how: the change.
    names: a refusal has to contain one of these. by_dispatcher: PyTorch may refuse the call with
    its own message, because no kernel is registered for the device. key: dispatch key whose kernel
    is called instead of PyTorch's choice, which is the CUDA kernel if one tensor is on a GPU, but
    never on the CPU backend. index: one value of an integer tensor is out of range if the values
    are indices; a launcher cannot read them. other_device: position of the argument that is on a
    second GPU (of a list, its last tensor); the call must be refused.
    """

    argument: str
    how: str
    args: tuple[Any, ...]
    names: tuple[str, ...]
    by_dispatcher: bool = False
    index: bool = False
    key: str = ""
    other_device: int | None = None

    def __str__(self) -> str:
        return f"{self.argument} {self.how}"


def check_bad_input(
    problem: Problem,
    rung: Rung,
    call: Callable[..., Any],
    backend: Backend,
    *,
    only_shifted: bool = False,
    quick: bool = False,
) -> CheckResult:
    """Try all bad inputs derived from one small good case, then that case again; also try unaligned
    tensors derived from cases whose sizes allow vector loads.

    only_shifted: try unaligned tensors only. quick: try every QUICK-th bad input, and one of the
    cases that fit vector loads, starting at a different one for each rung, so that the rungs of a
    problem together try most or all of them. In the result, `checked` is the number of bad inputs
    tried; the failure names the argument, its change and the outcome.
    """
    result = CheckResult()
    cases = problem.cases_of(rung)
    if not cases:
        result.failure = Failure(f"no case to derive bad input from, of {', '.join(rung.dtypes)}")
        return result
    signature, words = signature_of(call, problem.reference), problem.case_words
    first, every = (_place(problem, rung) % QUICK, QUICK) if quick else (0, 1)
    backend.use(backend.schedules()[0])
    good, *aligned = starting_cases(cases)
    if quick and aligned:
        aligned = [aligned[_place(problem, rung) % len(aligned)]]
    for case in (good, *aligned):
        drawn = Draw(case, backend, seed=3)
        args = problem.inputs(case, drawn)
        everything = case == good and not only_shifted
        # The bad inputs and their order depend on these.
        two_gpus = everything and backend.watches_calls and rung.of_library
        source = (case, everything, two_gpus)
        run = Attempt(problem, call, signature, backend, args, drawn.on_host, source)
        try:
            before = run.judge_good()
        except Lacking as lacks:
            result.remark(f"no bad input was tried: {case}: {lacks}")
            continue
        if before is not None:
            result.failure = before.about(f"{words(case)}, before any bad input was tried")
            return result
        if everything:
            tried = bad_inputs(args, signature, backend, drawn.on_host, two_gpus)
        else:
            tried = fewer_bad_inputs(args, signature, only_shifted)
        unseen: list[str] = []  # refused calls since the GPU was waited for
        for number, bad in islice(enumerate(tried), first, None, every):
            result.checked += 1
            with triton_compilations() as compiled:
                failure, refused = run.attempt(bad, number)
            unseen = [*unseen, str(bad)] if refused else []
            if compiled:
                what = f"for the bad input {bad}, which no case needs"
                result.aside(f"Triton compiled {', '.join(compiled)} {what}")
            if failure is not None:
                where = "" if case == good else f", from {words(case)}"
                result.failure = _late(failure, unseen, backend)
                result.failure = result.failure.about(f"bad input{where}, {bad}")
                return result
        after = run.judge_good()
        if after is not None:
            after = _late(after, unseen, backend)
            result.failure = after.about(
                f"the good case {words(case)}, after bad inputs were refused"
            )
            return result
    for case in () if only_shifted else problem.refused:
        drawn = Draw(case, backend, seed=3)
        args = problem.inputs(case, drawn)
        result.checked += 1
        run = Attempt(problem, call, signature, backend, args, drawn.on_host, case)
        failure = run.refusal()
        if failure is not None:
            result.failure = failure.about(f"bad input, {words(case)}")
            return result
    return result


def _place(problem: Problem, rung: Rung) -> int:
    """Return the number at which a quick check starts: another one for each rung, and for problems
    of one rung usually another one for each."""
    names = [each.name for each in problem.rungs]
    return random.Random(f"{problem.name} {names[0]}").randrange(100) + names.index(rung.name)


def _late(failure: Failure, unseen: Sequence[str], backend: Backend) -> Failure:
    """Return the failure with a note that lists the `unseen` calls: refused ones without a
    synchronisation, so that an error of a kernel they launched appears in a later call."""
    if backend.name == "cpu" or not unseen:
        return failure
    calls = "; ".join(unseen[-SHOWN_CALLS:])
    note = f"if a kernel failed, it may be of a call that was refused before: {calls}"
    return replace(failure, details=[*failure.details, note])


SHOWN_CALLS = 4
ALIGNED = 8  # elements: 16 bytes of the shortest floating dtypes, and a multiple of them for others
LARGEST = 1 << 16  # elements of a case's shape, for more than one call


def aligned_cases(cases: list[Case]) -> list[Case]:
    """Return, for each dtype, the smallest and the largest case with sizes that allow vector loads:
    a kernel takes its fastest path for them, unless it also tests addresses. The last size decides;
    if it never allows them (it may not be a tensor's size), any size does."""
    found: list[Case] = []
    for dtype in dict.fromkeys(case.dtype for case in cases):
        ordinary = [
            case
            for case in cases
            if case.dtype == dtype
            and case.values == "normal"
            and case.shape
            and 0 < math.prod(case.shape) <= LARGEST
        ]
        fitting = [case for case in ordinary if case.shape[-1] % ALIGNED == 0]
        fitting = fitting or [c for c in ordinary if any(n % ALIGNED == 0 for n in c.shape)]

        def rank(case: Case) -> tuple[int, int]:
            return sum(size % ALIGNED > 0 for size in case.shape), math.prod(case.shape)

        if fitting:
            fewest = min(rank(case)[0] for case in fitting)
            best = sorted((c for c in fitting if rank(c)[0] == fewest), key=rank)
            found += [best[0], best[-1]]
    return list(dict.fromkeys(found))


def good_case(cases: list[Case]) -> Case:
    """Return the case to start from: ordinary values and, if possible, distinct sizes above 1."""

    def rank(case: Case) -> tuple[bool, bool, bool, int]:
        return (
            case.values != "normal",
            0 in case.shape or math.prod(case.shape) == 1,
            1 in case.shape or len(set(case.shape)) < len(case.shape),
            math.prod(case.shape),
        )

    return min(cases, key=rank)


def starting_cases(cases: list[Case]) -> list[Case]:
    """Return the case from which all bad inputs are derived, then the cases for a few of them."""
    return list(dict.fromkeys([good_case(cases), *aligned_cases(cases)]))


# ---------------------------------------------------------------- the bad inputs


def fewer_bad_inputs(
    args: tuple[Any, ...], signature: Signature, only_shifted: bool = False
) -> Iterator[BadInput]:
    """Yield the bad inputs of a case whose sizes allow vector loads: unaligned tensors and,
    unless only_shifted, tensors with a size of 0."""
    yield from _shifted(args, signature)
    if not only_shifted:
        yield from _emptied(args, signature)


def bad_inputs(
    args: tuple[Any, ...],
    signature: Signature,
    backend: Backend,
    on_host: bool = False,
    two_gpus: bool = False,
) -> Iterator[BadInput]:
    """Yield all bad inputs. on_host: the arguments are host arrays. two_gpus: include inputs with a
    tensor on a second GPU, which the CPU backend simulates for common/cuda/tensor.cuh."""
    names = signature.names
    places = [place for place, value in enumerate(args) if isinstance(value, Tensor)]
    tensors = tuple(names[place] for place in places)

    def changed(place: int, value: Any) -> tuple[Any, ...]:
        return (*args[:place], value, *args[place + 1 :])

    for place in places:
        name, good = names[place], args[place]
        written = place in signature.writes
        for how, value in _tensor_variants(good, written):
            # If tensors disagree, the message may name any of them.
            yield BadInput(name, how, changed(place, value), tensors)
        where, elsewhere = _elsewhere(good, backend)
        yield BadInput(name, where, changed(place, elsewhere), tensors, by_dispatcher=True)
        if len(places) > 1 and backend.name == "cpu" and not on_host:
            # On a GPU the dispatcher accepts one tensor there and another on the host.
            how = f"{where}, with the others' kernel called"
            yield BadInput(name, how, changed(place, elsewhere), tensors, key="CPU")
            if two_gpus and good.numel():
                yield BadInput(name, "on another GPU", args, tensors, other_device=place)
        for how, value in _index_variants(good, [args[other] for other in places]):
            yield BadInput(name, how, changed(place, value), tensors, index=True)
    lists = tuple(names[place] for place, value in enumerate(args) if _are_tensors(value))
    for place, value in enumerate(args):
        name = names[place]
        for how, other in _scalar_variants(value):
            yield BadInput(name, how, changed(place, other), (name,))
        for how, other in _list_variants(value, place in signature.writes):
            yield BadInput(name, how, changed(place, other), lists)
        if name in lists:
            where, elsewhere = _elsewhere(value[-1], backend)
            how = f"with its last tensor {where}"
            other = changed(place, [*value[:-1], elsewhere])
            yield BadInput(name, how, other, lists, by_dispatcher=True)
            if backend.name == "cpu" and not on_host:
                how += ", with the others' kernel called"
                yield BadInput(name, how, other, lists, key="CPU")
                if two_gpus and value[-1].numel():
                    how = "with its last tensor on another GPU"
                    yield BadInput(name, how, args, lists, other_device=place)
    yield from _together(args, names, places, tensors, signature, backend)


def _tensor_variants(good: Tensor, written: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield (how, tensor) for one tensor argument; the others stay unchanged."""
    for dtype in _other_dtypes(good.dtype):
        yield f"as {dtype_name(dtype)} instead of {dtype_name(good.dtype)}", good.to(dtype)

    yield "with a dimension added in front", good.clone().unsqueeze(0)
    yield "with a dimension added at the end", good.clone().unsqueeze(-1)
    if good.dim() > 1:
        yield "flattened to one dimension", good.clone().flatten()
    if good.dim() > 0:
        yield "as a scalar tensor, without dimensions", good.new_ones(())

    for dim in range(good.dim()):
        last = good.narrow(dim, max(good.shape[dim] - 1, 0), min(good.shape[dim], 1))
        if good.shape[dim]:
            longer = torch.cat([good, last], dim)
            yield f"with dimension {dim} one longer, {tuple(longer.shape)}", longer
        if good.shape[dim] > 1:
            shorter = good.narrow(dim, 0, good.shape[dim] - 1).clone()
            yield f"with dimension {dim} one shorter, {tuple(shorter.shape)}", shorter
        empty = good.narrow(dim, 0, 0).clone()
        yield f"with dimension {dim} of size 0, {tuple(empty.shape)}", empty

    yield from layouts(good, written)


def layouts(good: Tensor, written: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield (how, tensor) with the same shape in another memory layout; all but the last have the
    same values."""
    if good.dim() == 0 or good.numel() < 2:
        return
    step = good.new_zeros((*good.shape[:-1], 2 * good.shape[-1]))[..., ::2]
    yield "not contiguous, every second element of a longer row", step.copy_(good)
    if good.dim() > 1 and min(good.shape[-2:]) > 1:
        transposed = good.transpose(-1, -2).contiguous().transpose(-1, -2)
        yield "not contiguous, the transpose of a contiguous tensor", transposed
        wide = good.new_zeros((*good.shape[:-1], good.shape[-1] + 3))[..., :-3]
        yield "not contiguous, the left part of wider rows", wide.copy_(good)
    if not written:
        yield "not contiguous, one row expanded", good[:1].clone().expand(good.shape)


def unaligned(good: Tensor, elements: int = 1) -> Tensor:
    """Return a contiguous copy that starts `elements` past an aligned address, like x[1:]."""
    room = good.new_zeros(good.numel() + elements)
    return room[elements:].view(good.shape).copy_(good)


def _shifted(args: tuple[Any, ...], signature: Signature) -> Iterator[BadInput]:
    """Yield inputs with unaligned tensors: each tensor alone, then all of them; of a list, the
    first or the last tensor."""
    places = [place for place, value in enumerate(args) if isinstance(value, Tensor)]
    names = tuple(signature.names[place] for place in places)
    for place, value in enumerate(args):
        if _are_tensors(value):
            name = signature.names[place]
            for index in dict.fromkeys((0, len(value) - 1)):
                one = [*value[:index], unaligned(value[index]), *value[index + 1 :]]
                how = f"with tensor {index} not aligned, like x[1:]"
                yield BadInput(name, how, (*args[:place], one, *args[place + 1 :]), (name,))
    for shift in (1, 8):
        moved = list(args)
        for place, name in zip(places, names, strict=True):
            good = args[place]
            elements = shift if shift == 1 else shift // good.element_size()
            if good.numel() < 2 or elements < 1 or elements * good.element_size() % 16 == 0:
                continue
            moved[place] = unaligned(good, elements)
            alone = (*args[:place], moved[place], *args[place + 1 :])
            how = f"not aligned, {elements * good.element_size()} bytes too far, like x[1:]"
            yield BadInput(name, how, alone, names)
        if len(places) > 1:
            how = f"all not aligned to 16 bytes, like x[{shift}:]"
            yield BadInput(" and ".join(names), how, tuple(moved), names)


def _emptied(args: tuple[Any, ...], signature: Signature) -> Iterator[BadInput]:
    """Yield, for each size that occurs, all tensors with that size replaced by 0."""
    places = [place for place, value in enumerate(args) if isinstance(value, Tensor)]
    names = tuple(signature.names[place] for place in places)
    for size in sorted({size for place in places for size in args[place].shape if size > 0}):
        new = [
            a.new_zeros([0 if s == size else s for s in a.shape]) if place in places else a
            for place, a in enumerate(args)
        ]
        how = f"with every dimension of size {size} made 0"
        yield BadInput(" and ".join(names), how, tuple(new), names)


def _index_variants(good: Tensor, tensors: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield (how, tensor) with one value that is out of range if the values are indices."""
    if good.dtype not in (torch.int32, torch.int64) or not good.numel():
        return
    most = int(good.max())
    sizes = {size for tensor in tensors for size in tensor.shape if size > most}
    values = [-1, min(sizes)] if sizes else [-1]
    if good.dtype == torch.int64:
        values.append(int(good.flatten()[0]) + 2**32)
    for value in values:
        changed = good.clone()
        changed.view(-1)[0] = value
        yield f"with the value {value} in the first place", changed


def _other_dtypes(dtype: torch.dtype) -> list[torch.dtype]:
    if dtype.is_floating_point:
        others = [torch.int64, torch.float64, torch.float32, torch.float16, torch.bfloat16]
    elif dtype == torch.bool:
        others = [torch.float32, torch.uint8, torch.int64]
    else:
        others = [torch.float32, torch.int64, torch.int32, torch.uint8, torch.bool]
    return [other for other in others if other != dtype]


def _elsewhere(good: Tensor, backend: Backend) -> tuple[str, Tensor]:
    """Return (how, tensor) with the tensor on a device where the rung does not expect it."""
    other = "meta"
    if backend.name == "cuda":
        other = "cpu" if good.device.type == "cuda" else "cuda"
    return f"on the device {other}", good.to(other)


def _scalar_variants(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (how, value) for one argument that is not a tensor."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int):
        others: list[Any] = [-1, 0, value - 1, value + 1, value + 2**32, HUGE, -HUGE]
    elif isinstance(value, float):
        others = [-1.0, 0.0, 1e300, -math.inf, math.inf, math.nan]
    elif isinstance(value, str):
        others = ["", f"{value}?"]
    elif isinstance(value, (list, tuple)):
        others = [value[:0], value[:-1], [*value, *value[-1:]]]
        for place, item in enumerate(value):
            others += [
                [*value[:place], other, *value[place + 1 :]] for _, other in _scalar_variants(item)
            ]
    else:
        return
    seen = [value]
    for other in others:
        if other not in seen:
            seen.append(other)
            yield f"= {_brief(other)} instead of {_brief(value)}", other


def _are_tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(each, Tensor) for each in value)


def _list_variants(value: Any, written: bool) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield (how, tensors) for one argument that is a list of tensors, with its first or last
    tensor changed."""
    if not _are_tensors(value):
        return
    for place in dict.fromkeys((0, len(value) - 1)):
        for how, other in _tensor_variants(value[place], written):
            yield f"with tensor {place} {how}", [*value[:place], other, *value[place + 1 :]]


def _together(
    args: tuple[Any, ...],
    names: tuple[str, ...],
    places: list[int],
    tensors: tuple[str, ...],
    signature: Signature,
    backend: Backend,
) -> Iterator[BadInput]:
    """Yield changes of all tensor arguments at once, so that they still agree with each other."""
    title = " and ".join(tensors)

    def everywhere(how: str, function: Callable[[Tensor], Tensor], **options: Any) -> BadInput:
        new = [function(a) if place in places else a for place, a in enumerate(args)]
        return BadInput(title, how, tuple(new), tensors, **options)

    yield from _emptied(args, signature)
    yield from _shifted(args, signature)
    if len(places) < 2:
        return
    kinds = {args[place].dtype for place in places}
    if len(kinds) == 1:
        for dtype in _other_dtypes(kinds.pop()):
            yield everywhere(f"all as {dtype_name(dtype)}", lambda t, dtype=dtype: t.to(dtype))
    yield everywhere("all with a dimension added in front", lambda t: t.clone().unsqueeze(0))
    yield everywhere("all flattened to one dimension", lambda t: t.clone().flatten())
    yield everywhere(
        "all on the wrong device", lambda t: _elsewhere(t, backend)[1], by_dispatcher=True
    )


def _brief(value: Any) -> str:
    """Return a value as short text; a list of tensors as their number."""
    if _are_tensors(value):
        return f"{len(value)} tensors"
    return repr(value)


# ---------------------------------------------------------------- the outcome


ROOM = 8 << 30  # bytes that a call with bad input, which may have huge sizes, may allocate


@contextmanager
def _limited_memory(backend: Backend) -> Iterator[None]:
    """Make allocations beyond ROOM fail on the CPU, so that the process is not killed."""
    if backend.name != "cpu":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    if before[1] != resource.RLIM_INFINITY:
        limit = min(limit, before[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@dataclass(frozen=True)
class Attempt:
    """The call under test and the good arguments from which bad ones are derived.

    source: key of these bad inputs, equal for all rungs of the problem that get the same ones.
    """

    problem: Problem
    call: Callable[..., Any]
    signature: Signature
    backend: Backend
    good: tuple[Any, ...]
    on_host: bool
    source: Hashable

    def _called(
        self, args: tuple[Any, ...], key: str = "", other_device: int | None = None
    ) -> Call:
        return call_guarded(
            self.call,
            self.signature,
            args,
            self.backend,
            on_host=self.on_host,
            key=key,
            other_device=other_device,
        )

    def _expected(self, args: tuple[Any, ...], number: int) -> Expected:
        """Return the expected results for bad input `number`, -1 for the good one."""
        return expectations.get(
            self.problem,
            self.backend.device,
            (self.source, self.signature, number),
            lambda: evaluate(self.problem, args, self.signature.writes),
        )

    def attempt(self, bad: BadInput, number: int) -> tuple[Failure | None, bool]:
        """Return the call's failure, None if it passed, and True if the call was refused.

        A refused call is not followed by a synchronisation: a launcher that refuses has launched
        nothing, and if several processes share the GPU, thousands of waits take most of a check. If
        a launched kernel fails after all, the next synchronisation reports it.
        """
        with _limited_memory(self.backend):
            return self._attempt(bad, number)

    def _attempt(self, bad: BadInput, number: int) -> tuple[Failure | None, bool]:
        before = self.backend.held()
        try:
            done = self._called(bad.args, bad.key, bad.other_device)
        except Mistake as error:
            failure = raised(error)
            return replace(failure, summary=f"it was accepted, and {failure.summary}"), False
        except Exception as error:
            refusal = error
        else:
            if bad.other_device is not None:
                advice = f"check that {bad.argument} is on the device of the others (same_device)"
                return Failure("it was accepted", [advice]), False
            return self._judge_accepted(bad, number, done), False
        wrong = self._judge_refused(bad.names, refusal, bad.by_dispatcher)
        return wrong or self._leak(bad, before), True

    def _leak(self, bad: BadInput, before: int) -> Failure | None:
        """Return a failure if each of several refused calls leaves something: one may fill a cache.

        before: what was held before the first of them.
        """
        for _ in range(REFUSALS):
            held = self.backend.held()
            if held <= before:
                return None
            before = held
            with suppress(Exception):
                self._called(bad.args, bad.key, bad.other_device)
        advice = "check the arguments first, or free in a destructor: a refusal is an exception"
        return Failure("a leak: each such call leaves memory allocated, or a stream open", [advice])

    def refusal(self) -> Failure | None:
        """Return the failure if the arguments are not refused, as the problem declares, or None."""
        try:
            if _share_memory(self.good):  # guarded copies would not share it
                with self.backend.watching(None, self.on_host), torch.no_grad():
                    self.call(*self.good)
                self.backend.synchronize()
            else:
                self._called(self.good)
        except Exception as error:
            return self._judge_refused(self.signature.names, error, wait=True)
        return Failure("it was accepted, although the problem lists it as refused")

    def _judge_refused(
        self,
        names: tuple[str, ...],
        refusal: Exception,
        by_dispatcher: bool = False,
        wait: bool = False,
    ) -> Failure | None:
        message = message_of(refusal)
        if wait:
            try:
                self.backend.synchronize()
            except Exception as error:
                return Failure("it left the device in error", [message, message_of(error)])
        if GAVE_UP.search(message):
            return Failure("it was not refused but broke on the way", message.splitlines()[:6])
        if names_one_of(message, names) or lacking(message):
            return None
        if by_dispatcher and isinstance(refusal, NotImplementedError):
            return None  # PyTorch's dispatcher found no kernel for that device
        return Failure(
            f"it was refused, but the message does not name {' or '.join(names)}",
            [f"{type(refusal).__name__}: {message}"],
        )

    def _judge_accepted(self, bad: BadInput, number: int, done: Call) -> Failure | None:
        failure = side_effects(done, bad.args, self.signature)
        try:
            if bad.index and self.backend.name == "cuda":
                # On a GPU PyTorch's operators end the process instead of raising IndexError.
                host = map_tensors(Tensor.cpu, bad.args)
                evaluate(self.problem, host, self.signature.writes)
            expected = self._expected(bad.args, number)
        except ProblemError:
            raise
        except Exception as error:
            if bad.index:
                return failure  # a launcher cannot read the values: any result is accepted
            return Failure(
                "it was accepted, although the reference itself refuses it",
                [
                    f"the reference: {type(error).__name__}: {message_of(error).splitlines()[0]}",
                    f"refuse it with a message that names {bad.argument}",
                ],
            )
        failure = failure or self._compare(expected, done, strides=False)
        if failure is None:
            return None
        advice = (
            f"compute it as the reference does, or refuse it with a message that names "
            f"{bad.argument}"
        )
        return Failure(f"it was accepted, and {failure.summary}", [advice, *failure.details])

    def judge_good(self) -> Failure | None:
        try:
            done = self._called(self.good)
        except Exception as error:
            return raised(error)
        expected = self._expected(self.good, -1)
        return side_effects(done, self.good, self.signature) or self._compare(expected, done)

    def _compare(self, expected: Expected, done: Call, strides: bool = True) -> Failure | None:
        samples = partial(rolled_samples, self.problem, expected, self.signature.writes)
        return judge(
            self.problem,
            expected,
            done.outputs,
            done.names,
            self.signature,
            samples,
            strides,
            drawn=True,
        )


def _share_memory(args: tuple[Any, ...]) -> bool:
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
    places = [storage_of(t) for t in tensors if t.device.type != "meta"]
    return len(set(places)) < len(places)
