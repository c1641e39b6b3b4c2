"""Calls a rung with bad input, derived from a good case: computed right, or refused by name.

Every bad input must either give what the reference gives for that very input, or be refused with
an exception that names the argument. A crash, a wrong answer, an input accepted that the reference
itself refuses, or a device that does not work afterwards, is a failure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from common.base.declaration import Case, Problem, Rung
from common.check.call import Call, Failure, call_guarded, judge, side_effects
from common.check.draw import Draw
from common.check.expected import (
    Expected,
    ProblemError,
    Signature,
    evaluate,
    message_of,
    rolled_samples,
    signature_of,
)
from common.check.lacks import Lacking, lacking
from common.check.rungs import CheckResult

if TYPE_CHECKING:
    from common.check.device import Backend

HUGE = 2**62  # no size, and too large for the 32 bits it may be narrowed to

# Words of a device, a kernel or an allocator that gave up: not a refusal, whatever else is said.
_GAVE_UP = re.compile(
    r"CUDA error|illegal (memory|address|instruction)|misaligned address|out of memory"
    r"|can't allocate memory|segmentation fault|block \(\d+,\d+,\d+\) thread",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class BadInput:
    """One set of arguments.

    argument: the name that was changed, or several joined by " and ". how: what was done to it.
    names: a refusal has to name one of these. by_dispatcher: PyTorch may refuse it in its own
    words, because no kernel is registered for the device.
    """

    argument: str
    how: str
    args: tuple[Any, ...]
    names: tuple[str, ...]
    by_dispatcher: bool = False

    def __str__(self) -> str:
        return f"{self.argument} {self.how}"


def check_bad_input(
    problem: Problem, rung: Rung, call: Callable[..., Any], backend: Backend
) -> CheckResult:
    """Tries all bad inputs that can be derived from one small good case, then that case again.

    In the result, `checked` is the number of bad inputs tried; the failure says which argument,
    how it was made, and what happened.
    """
    result = CheckResult()
    cases = [case for case in problem.cases if not rung.dtypes or case.dtype in rung.dtypes]
    if not cases:
        result.failure = Failure(f"no case to derive bad input from, of {', '.join(rung.dtypes)}")
        return result
    signature = signature_of(call, problem.reference)
    backend.use(backend.schedules()[0])
    case = good_case(cases)
    args = problem.inputs(case, Draw(case, backend, seed=3))
    try:
        before = _judge_good(problem, call, signature, args, backend)
    except Lacking as lacks:
        result.remark(f"no bad input was tried: {case}: {lacks}")
        return result
    if before is not None:
        result.failure = before.about(f"the good case {case} itself")
        return result
    for bad in bad_inputs(args, signature, backend):
        result.checked += 1
        failure = _try(problem, call, signature, bad, backend)
        if failure is not None:
            result.failure = failure.about(f"bad input, {bad}")
            return result
    after = _judge_good(problem, call, signature, args, backend)
    if after is not None:
        result.failure = after.about(f"the good case {case}, after bad inputs were refused")
    return result


def good_case(cases: list[Case]) -> Case:
    """The case to start from: ordinary values, no size of 0 or 1 if possible, distinct sizes."""

    def rank(case: Case) -> tuple[bool, bool, bool, int]:
        return (
            case.values != "normal",
            0 in case.shape or math.prod(case.shape) == 1,
            1 in case.shape or len(set(case.shape)) < len(case.shape),
            math.prod(case.shape),
        )

    return min(cases, key=rank)


# ---------------------------------------------------------------- what is tried


def bad_inputs(args: tuple[Any, ...], signature: Signature, backend: Backend) -> Iterator[BadInput]:
    """All that is tried, one after the other."""
    names = signature.names
    places = [place for place, value in enumerate(args) if isinstance(value, Tensor)]
    tensors = tuple(names[place] for place in places)

    def changed(place: int, value: Any) -> tuple[Any, ...]:
        return (*args[:place], value, *args[place + 1 :])

    for place in places:
        name, good = names[place], args[place]
        written = place in signature.writes
        for how, value in _tensor_variants(good, written):
            # Where tensors disagree, whichever of them is named is as good.
            yield BadInput(name, how, changed(place, value), tensors)
        where, elsewhere = _elsewhere(good, backend)
        yield BadInput(name, where, changed(place, elsewhere), tensors, by_dispatcher=True)
    for place, value in enumerate(args):
        name = names[place]
        for how, other in _scalar_variants(value):
            yield BadInput(name, how, changed(place, other), (name,))
    yield from _together(args, names, places, tensors, backend)


def _tensor_variants(good: Tensor, written: bool) -> Iterator[tuple[str, Tensor]]:
    """(how, tensor) for one tensor argument, the others left as they are."""
    for dtype in _other_dtypes(good.dtype):
        yield f"as {_name(dtype)} instead of {_name(good.dtype)}", good.to(dtype)

    yield "with a dimension added in front", good.clone().unsqueeze(0)
    yield "with a dimension added at the end", good.clone().unsqueeze(-1)
    if good.dim() > 1:
        yield "flattened to one dimension", good.clone().flatten()
    if good.dim() > 0:
        yield (
            "as a scalar tensor, without dimensions",
            torch.ones_like(good).flatten()[:1].sum(dtype=good.dtype),
        )

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

    yield from _layouts(good, written)


def _layouts(good: Tensor, written: bool) -> Iterator[tuple[str, Tensor]]:
    """The same shape and, but for the last, the same values, otherwise in memory."""
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


def _unaligned(good: Tensor) -> Tensor:
    """Contiguous, but starting one element past an aligned address, like x[1:]."""
    room = good.new_zeros(good.numel() + 1)
    return room[1:].view(good.shape).copy_(good)


def _other_dtypes(dtype: torch.dtype) -> list[torch.dtype]:
    if dtype.is_floating_point:
        others = [torch.int64, torch.float64, torch.float32, torch.float16, torch.bfloat16]
    elif dtype == torch.bool:
        others = [torch.float32, torch.uint8, torch.int64]
    else:
        others = [torch.float32, torch.int64, torch.int32, torch.uint8, torch.bool]
    return [other for other in others if other != dtype]


def _elsewhere(good: Tensor, backend: Backend) -> tuple[str, Tensor]:
    """The tensor on a device where the rung does not expect it."""
    other = "meta"
    if backend.name == "cuda":
        other = "cpu" if good.device.type == "cuda" else "cuda"
    return f"on the device {other}", good.to(other)


def _scalar_variants(value: Any) -> Iterator[tuple[str, Any]]:
    """(how, value) for one argument that is no tensor."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int):
        others: list[Any] = [-1, 0, HUGE, -HUGE]
    elif isinstance(value, float):
        others = [-1.0, 0.0, 1e300, math.inf, math.nan]
    elif isinstance(value, str):
        others = ["", f"{value}?"]
    else:
        return
    for other in others:
        if other != value:
            yield f"= {other!r} instead of {value!r}", other


def _together(
    args: tuple[Any, ...],
    names: tuple[str, ...],
    places: list[int],
    tensors: tuple[str, ...],
    backend: Backend,
) -> Iterator[BadInput]:
    """Changes of all tensor arguments at once, so that they still agree with each other."""
    if not places:
        return
    title = " and ".join(tensors)

    def everywhere(how: str, function: Callable[[Tensor], Tensor], **options: Any) -> BadInput:
        new = [function(a) if place in places else a for place, a in enumerate(args)]
        return BadInput(title, how, tuple(new), tensors, **options)

    sizes = sorted({size for place in places for size in args[place].shape if size > 0})
    for size in sizes:
        yield everywhere(
            f"with every dimension of size {size} made 0",
            lambda t, size=size: t.new_zeros([0 if s == size else s for s in t.shape]),
        )
    yield everywhere("not aligned to 16 bytes, like x[1:]", _unaligned)
    if len(places) == 1:
        return
    kinds = {args[place].dtype for place in places}
    if len(kinds) == 1:
        for dtype in _other_dtypes(kinds.pop()):
            yield everywhere(f"all as {_name(dtype)}", lambda t, dtype=dtype: t.to(dtype))
    yield everywhere("all with a dimension added in front", lambda t: t.clone().unsqueeze(0))
    yield everywhere("all flattened to one dimension", lambda t: t.clone().flatten())
    yield everywhere(
        "all on the wrong device", lambda t: _elsewhere(t, backend)[1], by_dispatcher=True
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------- what becomes of it


def names_one_of(message: str, names: tuple[str, ...]) -> bool:
    """Whether a message names one of the arguments, as a word.

    "a" and "A" are words of English too: they count only in quotes or before a colon, "must",
    "has", "is" or "expected".
    """
    for name in names:
        word = rf"(?<![\w.]){re.escape(name)}(?!\w)"
        if name in ("a", "A"):
            word = rf"['\"`]{name}['\"`]|{word}(?=\s*(:|=|must\b|has\b|is\b|expected\b))"
        if re.search(word, message):
            return True
    return False


def _try(
    problem: Problem,
    call: Callable[..., Any],
    signature: Signature,
    bad: BadInput,
    backend: Backend,
) -> Failure | None:
    try:
        done = call_guarded(call, signature, bad.args, backend)
    except Exception as error:
        refusal = error
    else:
        return _judge_accepted(problem, signature, bad, done)
    message = message_of(refusal)
    try:
        backend.synchronize()
    except Exception as error:
        return Failure("it left the device in error", [message, message_of(error)])
    if _GAVE_UP.search(message):
        return Failure("it was not refused but broke on the way", message.splitlines()[:6])
    if names_one_of(message, bad.names) or lacking(message):
        return None
    if bad.by_dispatcher and isinstance(refusal, NotImplementedError):
        return None  # PyTorch's dispatcher found no kernel for that device
    return Failure(
        f"it was refused, but the message does not name {' or '.join(bad.names)}",
        [f"{type(refusal).__name__}: {message}"],
    )


def _judge_accepted(
    problem: Problem, signature: Signature, bad: BadInput, done: Call
) -> Failure | None:
    try:
        expected = evaluate(problem, bad.args, signature.writes)
    except ProblemError:
        raise
    except Exception as error:
        return Failure(
            "it was accepted, although the reference itself refuses it",
            [
                f"the reference: {type(error).__name__}: {message_of(error).splitlines()[0]}",
                f"refuse it with a message that names {bad.argument}",
            ],
        )
    failure = side_effects(done, bad.args, signature) or _compare(
        problem, signature, expected, done, strides=False
    )
    if failure is None:
        return None
    advice = (
        f"compute it as the reference does, or refuse it with a message that names {bad.argument}"
    )
    return Failure(f"it was accepted, and {failure.summary}", [advice, *failure.details])


def _judge_good(
    problem: Problem,
    call: Callable[..., Any],
    signature: Signature,
    args: tuple[Any, ...],
    backend: Backend,
) -> Failure | None:
    try:
        done = call_guarded(call, signature, args, backend)
    except Exception as error:
        if lacks := lacking(message_of(error)):
            raise Lacking(lacks) from error
        return Failure(f"it raised {type(error).__name__}: {message_of(error)}")
    expected = evaluate(problem, args, signature.writes)
    return side_effects(done, args, signature) or _compare(problem, signature, expected, done)


def _compare(
    problem: Problem, signature: Signature, expected: Expected, done: Call, strides: bool = True
) -> Failure | None:
    def samples() -> list[Expected]:
        return rolled_samples(problem, expected, signature.writes)

    return judge(problem, expected, done.outputs, done.names, signature, samples, strides)
