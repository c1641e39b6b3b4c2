"""Define the declarations of a day's day.py as plain data: cases, costs, rungs, problems.

This module does not import torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

ITEMSIZES = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
}


@dataclass(frozen=True)
class Case:
    """One input to check or to time.

    shape: sizes that the day's `inputs` interprets, e.g. (rows, columns).
    dtype: name of a torch dtype, e.g. "float32", "bfloat16".
    values: the kind of numbers, a key of `common.check.draw.VALUES`.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    values: str = "normal"

    @property
    def itemsize(self) -> int:
        """Return the bytes per element of `dtype`."""
        return ITEMSIZES[self.dtype]

    def __str__(self) -> str:
        text = f"{'×'.join(map(str, self.shape))} {self.dtype}"
        return text if self.values == "normal" else f"{text} {self.values}"


@dataclass(frozen=True)
class Cost:
    """The least work that a case can take: bytes over the memory bus, operations on the units.

    bytes: each input read once and each output written once.
    flops: arithmetic operations; a multiply-add counts as two.
    unit: the ceiling for flops: "fp32", "int32", "tensor" (bf16 tensor cores), "int8" or "fp8"
        (tensor cores).
    """

    bytes: int = 0
    flops: int = 0
    unit: str = "fp32"


@dataclass(frozen=True)
class Tolerance:
    """The allowed distance of a result from the float64 reference.

    ulps: units in the last place of the output's dtype that are always allowed.
    factor: how many times the error of PyTorch's own operator is allowed in addition.
    at_zero: allowed distance from 0 of a floating element whose truth is exactly 0, in the
        output's unit. For terms that cancel: PyTorch's order of additions may give 0 by chance.
    levels, share: for integer outputs, to which ulps and factor do not apply: the allowed distance
        of an element from the truth, and the share of elements that may differ at all, rounded up
        to whole ones. For fractions that are rounded to integers, where an error of any size moves
        some across the border between two. By default all are exact.
    why: the reason, required if a day changes the default.
    """

    ulps: float = 4.0
    factor: float = 4.0
    at_zero: float = 0.0
    levels: int = 0
    share: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Target:
    """The goal of a rung on the GPU that the curriculum names; reported, never enforced.

    of: "copy", "read", "tensor" or "fp32" (share of that ceiling of the GPU, see
        common/base/ceilings.py), "pytorch" or the name of a library of the problem, such as
        "compile" (speed over theirs in the same run), or the name of another rung (speed over that
        rung).
    """

    at_least: float
    of: str

    def __str__(self) -> str:
        return f"≥ {self.at_least:g} × {self.of}"

    @staticmethod
    def of_text(text: str) -> tuple[Target, ...]:
        """Return the targets in a text such as "≥ 1.5 × compile and ≥ 0.7 × copy"."""
        found = re.findall(r"≥ (\S+) × (.+?)(?= and ≥ |$)", text)
        return tuple(Target(float(at_least), of) for at_least, of in found)


TRITON_INTERPRETER, NUMBA_SIMULATOR = "Triton's interpreter", "Numba's simulator"


@dataclass(frozen=True)
class Rung:
    """One variant of a day's ladder.

    name: the operator's name in torch.ops.dayNN.
    idea: a short description of the rung, for the report.
    dtypes: the dtypes it takes, if they are fewer than the cases'.
    not_captured: why it cannot be captured in a CUDA graph ("" if it can; then it is tried).
    not_repeatable: why two runs may differ in bits ("" if they may not; then it is tried).
    host_timed: True if the call itself waits for the GPU (copies to and from the host), so
        that it must be timed by the host's clock.
    timed: False if a time has no meaning (a rung that prints).
    target: the goal of this rung; several must be met together.
    falls_back: why it intentionally passes nearly all cases to another rung's kernel.
    calls: PyTorch's operators that intentionally compute for it, e.g. ("matmul",) for a launcher
        that calls the library's product. Its check fails for other operators than these and those
        for allocation, fill, copy and view.
    backward: makes the rung differentiable, by torch.library.register_autograd: (saved, *upstream)
        -> the gradients of the rung's inputs, a tensor or a tuple with None for inputs without one.
        The upstream gradients are contiguous. saves: (inputs, output) -> the argument `saved` of
        `backward`, a tuple of tensors and plain values.
    load: for a custom build: takes a `common.build.custom_build.Builder`, returns the callable. The
        default is torch.ops.dayNN.<name>.
    triton: for a kernel in Triton, the module of the day's folder whose function of the rung's name
        launches it. It is skipped without Triton, and interpreted on the CPU.
    numba: the same for a kernel in Numba, whose simulator runs it on the CPU.
    """

    name: str
    idea: str
    dtypes: tuple[str, ...] = ()
    not_captured: str = ""
    not_repeatable: str = ""
    host_timed: bool = False
    timed: bool = True
    target: Target | tuple[Target, ...] | None = None
    falls_back: str = ""
    calls: tuple[str, ...] = ()
    backward: Callable[..., Any] | None = None
    saves: Callable[[tuple[Any, ...], Any], tuple[Any, ...]] | None = None
    load: Callable[[Any], Callable[..., Any]] | None = None
    triton: str = ""
    numba: str = ""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return all goals of the rung."""
        if self.target is None:
            return ()
        return self.target if isinstance(self.target, tuple) else (self.target,)

    @property
    def in_python(self) -> bool:
        """Return True if its kernel is Python code, which is interpreted on the CPU."""
        return bool(self.interpreter)

    @property
    def interpreter(self) -> str:
        """Return the interpreter of its kernel in Python on the CPU, "" for a kernel in CUDA."""
        return TRITON_INTERPRETER if self.triton else NUMBA_SIMULATOR if self.numba else ""

    @property
    def of_library(self) -> bool:
        """Return True if it is an operator of the day's library."""
        return self.load is None and not self.in_python


@dataclass(frozen=True)
class Library:
    """Another implementation, timed together with a problem's rungs.

    name: for the report and for targets. call: takes the rungs' arguments; None stands for
    torch.compile of the problem's `pytorch`. It raises Skip at its first call if the library is
    missing. not_captured: why it cannot be captured in a CUDA graph, "" if it can. writes:
    positions of the arguments that it overwrites and the rungs do not.
    """

    name: str
    call: Callable[..., Any] | None = None
    not_captured: str = ""
    writes: tuple[int, ...] = ()


COMPILE = Library("compile")
# For Problem.unwatched.
CUBLAS_UNWATCHED = "the tools fail on cuBLAS kernels for 16-bit products (nvjet)"


@dataclass(frozen=True)
class Problem:
    """One function that a day computes, and the ladder of rungs that compute it.

    name: of the function, e.g. "softmax".
    inputs: (case, draw) -> tuple of arguments for a rung; `draw` is a `common.check.draw.Draw`.
    reference: the same mathematics in PyTorch, called with the same arguments. Called with
        float64 tensors it is the truth; called with the given ones, it defines the error that the
        rungs' is compared with. Returns a tensor or a tuple of tensors.
    cases: the cases to check.
    refused: cases that every rung must refuse by the name of an argument.
    timed: False for a problem that is only checked; the fields below are for timing only.
    bench: the case timed on a GPU. bench_cpu: the case timed on the CPU. cost: case -> Cost.
    pytorch: the call of somebody who knows PyTorch, timed together with the rungs. Required if the
        problem is timed.
    pytorch_not_captured: why PyTorch's call cannot be captured in a CUDA graph, "" if it can.
    own_numbers: True if PyTorch and the libraries draw other random numbers, so that only the norm
        of their result is compared with that of the rungs.
    libraries: the strongest others, timed too: COMPILE, or a Library of cuBLASLt, cuDNN, …
    rivals: libraries that no requirement brings, timed only if --rivals was given; their names are
        those of common/base/rivals.py, and their calls import what they need themselves.
    outputs_exact: outputs must be equal to the last bit (integers, copies).
    several_streams: True if rungs use further streams. The CPU backend checks every rung with
        streams that run their work as late as legal (common/cpu/README.md), so that a missing event
        gives a wrong result; these in three orders, and with host arrays that count as pinned.
    gradients: True if the operator has a backward, checked against float64 autograd. Then a
        training step is timed: the forward pass and the backward pass together.
    unwatched: why compute-sanitizer cannot run it, "" if it can: under that tool, the problem is
        skipped, and the report contains the reason.
    further: True beyond the day's main line; set when the folder `further` is loaded.
    case_words: case -> its name in a failure, if sizes and dtype are not clear enough.
    """

    name: str
    inputs: Callable[[Case, Any], tuple[Any, ...]]
    reference: Callable[..., Any]
    rungs: tuple[Rung, ...]
    cases: tuple[Case, ...]
    refused: tuple[Case, ...] = ()
    timed: bool = True
    bench: Case = Case(())
    bench_cpu: Case = Case(())
    cost: Callable[[Case], Cost] = field(default=lambda case: Cost())
    pytorch: Callable[..., Any] | None = None
    pytorch_not_captured: str = ""
    own_numbers: bool = False
    libraries: tuple[Library, ...] = ()
    rivals: tuple[Library, ...] = ()
    outputs_exact: bool = False
    several_streams: bool = False
    gradients: bool = False
    unwatched: str = ""
    further: bool = False
    tolerance: Tolerance = field(default_factory=Tolerance)
    case_words: Callable[[Case], str] = str

    def cases_of(self, rung: Rung) -> list[Case]:
        """Return the cases with the dtypes that the rung takes."""
        return [case for case in self.cases if not rung.dtypes or case.dtype in rung.dtypes]

    def timing_case(self, device: str) -> Case:
        """Return the case timed, or profiled, on "cuda" or "cpu"; the first case of a problem that
        is only checked."""
        if not self.timed:
            return self.cases[0]
        return self.bench if device == "cuda" else self.bench_cpu


def grid(
    shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], values: str = "normal"
) -> tuple[Case, ...]:
    """Return a case for every shape with every dtype."""
    return tuple(Case(shape, dtype, values) for shape in shapes for dtype in dtypes)


def streamed(tensors: int, operations: int = 1) -> Callable[[Case], Cost]:
    """Return the cost of a memory-bound problem: `tensors` tensors of the case's shape are read or
    written once, with `operations` operations per element. Smaller tensors are neglected."""

    def cost(case: Case) -> Cost:
        elements = math.prod(case.shape)
        return Cost(bytes=tensors * elements * case.itemsize, flops=operations * elements)

    return cost


def one_tensor(case: Case, draw: Any) -> tuple[Any, ...]:
    """Return the `inputs` of a problem with one argument: a tensor of the case's shape."""
    return (draw(*case.shape),)
