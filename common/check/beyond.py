"""Check a case of more than 2^31 elements on a GPU, where a 32-bit index overflows.

The full set of checks would take too long, so the rung is called once, and its output is compared
with that of PyTorch's operator in three parts: at the beginning, around element 2^31 and at the
end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from common.base.declaration import Case, Problem, Rung
from common.base.paths import ROOT
from common.check.call import Failure, outputs_of
from common.check.device import Backend
from common.check.draw import Draw
from common.check.expected import Signature, message_of, signature_of
from common.check.lacks import lacking
from common.check.refusal import GAVE_UP, names_one_of

BEYOND = (1 << 31) + (1 << 12)  # elements
MOST_WORK = 8.0  # operations per byte: above, a kernel is not limited by memory, and takes long
ROOM = 3.0  # times the bytes of the case: also for PyTorch's outputs and the random numbers
MOST_BYTES = 1 << 50  # of about 2^31 elements
NUMBERS = 4  # bytes per element, while random numbers are drawn
PART = 1 << 20  # elements that are compared at a time
# Reasons for the lack of such a case that do not depend on the machine.
UNTIMED, UNLIMITED = "nothing of it is timed", "it is not limited by memory"
OWN_NUMBERS = "PyTorch draws random numbers of its own"
ERROR = 0.05  # of an element and of the usual size: a wrong index reads another element


def large_case(problem: Problem, rung: Rung, free: int) -> tuple[Case | None, str]:
    """Return the case to try and "", or None and the reason why there is none.

    It is the timing case, in the shortest of the rung's dtypes, with its largest dimension made as
    long as necessary. free: bytes of the GPU's memory.
    """
    if not problem.timed or problem.pytorch is None or not problem.bench.shape:
        return None, UNTIMED
    if problem.own_numbers:
        return None, OWN_NUMBERS
    cost = problem.cost(problem.bench)
    if not cost.bytes or cost.flops > MOST_WORK * cost.bytes:
        return None, UNLIMITED
    known = {case.dtype: case for case in problem.cases_of(rung) if case.values == "normal"}
    if not known:
        return None, "no dtype to try it in"
    dtype = min(known, key=lambda name: known[name].itemsize)
    shape = list(problem.bench.shape)
    longest = shape.index(max(shape))
    # A 0 in a shape is an option (not causal, no padding), not a size.
    rest = math.prod(size for i, size in enumerate(shape) if i != longest and size)
    shape[longest] = -(-BEYOND // rest) + 1
    case = replace(problem.bench, shape=tuple(shape), dtype=dtype)
    needed = int(ROOM * problem.cost(case).bytes) + NUMBERS * rest * shape[longest]
    if needed > MOST_BYTES:
        return None, "its shape is a list of sizes, and no product"
    if needed > free:
        return None, f"it takes {needed / 1e9:.0f} GB, of which {free / 1e9:.0f} are free"
    return case, ""


def why_not(problem: Problem, rung: Rung) -> str:
    """Return why no such case exists even with unlimited memory; "" if one exists."""
    return large_case(problem, rung, MOST_BYTES)[1]


def check_beyond(
    problem: Problem, rung: Rung, call: Callable[..., Any], backend: Backend
) -> tuple[Failure | None, str]:
    """Return the failure beyond 2^31 elements, and the reason if nothing was tried, else "".

    A refusal that names an argument passes, too.
    """
    torch.cuda.empty_cache()
    case, reason = large_case(problem, rung, torch.cuda.mem_get_info()[0])
    if case is None:
        return None, reason
    try:
        return _compared(problem, case, call, backend)
    except torch.OutOfMemoryError:
        return None, "the GPU's memory is too small"
    finally:
        torch.cuda.empty_cache()


def _compared(
    problem: Problem, case: Case, call: Callable[..., Any], backend: Backend
) -> tuple[Failure | None, str]:
    signature = signature_of(call, problem.reference)
    if signature.writes:
        return None, "it writes its arguments"
    args = problem.inputs(case, Draw(case, backend, seed=0, fast=True))
    sizes = [value.numel() for value in args if isinstance(value, Tensor)]
    if max(sizes, default=0) <= 1 << 31:
        return None, "its case does not grow with its largest dimension"
    with torch.no_grad():
        try:
            # First, since memory freed by PyTorch's result would hold the right values.
            found, names = _outputs(call, args, signature)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            message = message_of(error).replace(f"{ROOT}/", "")  # it is stored with the results
            refused = names_one_of(message, signature.names) or lacking(message)
            if refused and not GAVE_UP.search(message):
                return None, f"it is refused: {message.splitlines()[0]}"
            return Failure(f"{case}: it raised {message.splitlines()[0]}"), ""
        assert problem.pytorch is not None
        try:
            own, _ = _outputs(problem.pytorch, args, signature)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            return None, f"PyTorch's own operator gives up: {message_of(error).splitlines()[0]}"
    compared = len(own)  # PyTorch's operator may return fewer outputs, as a baseline may, not more
    for got, expected, name in zip(found[:compared], own, names[:compared], strict=True):
        if wrong := difference(got, expected):
            return Failure(f"{case}: {name}: {wrong}"), ""
    return None, ""


def _outputs(
    call: Callable[..., Any], args: Sequence[Any], signature: Signature
) -> tuple[list[Tensor], list[str]]:
    result = call(*args)
    torch.cuda.synchronize()
    return outputs_of(result, tuple(args), signature)


def difference(got: Tensor, own: Tensor) -> str:
    """Return the first place where two outputs differ by more than rounding, compared in parts, or
    ""."""
    if got.shape != own.shape:
        return f"shape {tuple(got.shape)}, PyTorch's has {tuple(own.shape)}"
    mine, theirs = got.reshape(-1), own.reshape(-1)
    middle = min(1 << 31, mine.numel())
    for first in dict.fromkeys((0, max(middle - PART // 2, 0), max(mine.numel() - PART, 0))):
        a, b = mine[first : first + PART].double(), theirs[first : first + PART].double()
        usual = b[b.isfinite()].square().mean().sqrt().nan_to_num() if b.numel() else b.sum()
        same = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= ERROR * (b.abs() + usual))
        if not bool(same.all()):
            at = int((~same).nonzero()[0])
            return (
                f"element {first + at:,} of {mine.numel():,} is {a[at].item():g}, PyTorch's is "
                f"{b[at].item():g}"
            )
    return ""
