"""What a day's day.py declares, as plain data: cases, costs, rungs, problems.

Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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

    shape: sizes that the day's `inputs` understands, e.g. (rows, columns).
    dtype: name of a torch dtype, e.g. "float32", "bfloat16".
    values: which numbers are drawn, a key of `common.check.draw.VALUES`.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    values: str = "normal"

    @property
    def itemsize(self) -> int:
        """Return bytes per element of `dtype`."""
        return ITEMSIZES[self.dtype]

    def __str__(self) -> str:
        text = f"{'×'.join(map(str, self.shape))} {self.dtype}"
        return text if self.values == "normal" else f"{text} {self.values}"


@dataclass(frozen=True)
class Cost:
    """The least work that a case can take: bytes over the memory bus, operations on the units.

    bytes: each input read once and each output written once.
    flops: arithmetic operations, a multiply-add counted as two.
    unit: the ceiling for flops: "fp32", "int32", "tensor" (bf16 tensor cores), "int8" or "fp8"
        (tensor cores).
    """

    bytes: int = 0
    flops: int = 0
    unit: str = "fp32"


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from the float64 reference.

    ulps: units in the last place of the output's dtype that are always allowed.
    factor: how many times the error that PyTorch's own operator makes is allowed on top.
    at_zero: how far from 0 a floating element may be whose truth is exactly 0, in the output's
        unit. For terms that cancel: PyTorch's order of additions may give 0 there by chance.
    levels, share: of integer outputs, where neither of the two above counts: how far an element may
        be from the truth, and which share of the elements may differ at all, rounded up to whole
        ones. For fractions that are rounded to integers, where an error of any size moves some
        across the border between two. By default all are exact.
    why: the reason, required where a day departs from the default.
    """

    ulps: float = 4.0
    factor: float = 4.0
    at_zero: float = 0.0
    levels: int = 0
    share: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Target:
    """What a rung must reach on the GPU that the curriculum names; reported, never enforced.

    of: "copy" or "read" (share of that measured bandwidth), "tensor" (share of the measured rate of
        a large bf16 product), "fp32" (of the measured rate of multiply-adds), "pytorch" or the
        name of a library of the problem, such as "compile" (speed over theirs in the same run), or
        the name of another rung (speed over that rung).
    """

    at_least: float
    of: str

    def __str__(self) -> str:
        return f"≥ {self.at_least:g} × {self.of}"


TRITON_INTERPRETER, NUMBA_SIMULATOR = "Triton's interpreter", "Numba's simulator"


@dataclass(frozen=True)
class Rung:
    """One variant of a day's ladder.

    name: the operator's name in torch.ops.dayNN.
    idea: what this rung does, in a few words, for the report.
    dtypes: the dtypes it takes, where they are fewer than the cases'.
    not_captured: why it cannot be captured in a CUDA graph ("" if it can, and then it is tried).
    not_repeatable: why two runs may differ in bits ("" if they may not, and then it is tried).
    host_timed: True where the call itself waits for the GPU (copies to and from the host), so
        that the clock of the host is the right one.
    timed: False where a time says nothing (a rung that prints).
    target: what this rung must reach; several are met together.
    falls_back: why it hands nearly all cases to another rung's kernel, where that is meant.
    calls: PyTorch's operators that compute for it where that is the point, e.g. ("matmul",) for a
        launcher that takes the library's product. Any other but allocation, fill, copy and view
        fails its check.
    backward: makes the rung differentiable, by torch.library.register_autograd: (saved, *upstream)
        -> the gradients of the rung's inputs, a tensor or a tuple with None where there is none.
        The upstream gradients are contiguous. saves: (inputs, output) -> what `backward` gets as
        `saved`, a tuple of tensors and plain values.
    load: for a rung that is built some other way: takes a `common.build.own_way.Builder`, returns
        the callable. The default is torch.ops.dayNN.<name>.
    triton: for a kernel in Triton, the module of the day's folder whose function of the rung's name
        launches it. It is skipped where there is no Triton, and interpreted on the CPU.
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
        """Return all that it must reach."""
        if self.target is None:
            return ()
        return self.target if isinstance(self.target, tuple) else (self.target,)

    @property
    def in_python(self) -> bool:
        """Return whether its kernel is Python code, which is interpreted on the CPU."""
        return bool(self.interpreter)

    @property
    def interpreter(self) -> str:
        """Return what runs its kernel in Python on the CPU, "" for a kernel in CUDA."""
        return TRITON_INTERPRETER if self.triton else NUMBA_SIMULATOR if self.numba else ""

    @property
    def of_library(self) -> bool:
        """Return whether it is an operator of the day's library."""
        return self.load is None and not self.in_python


@dataclass(frozen=True)
class Library:
    """Somebody else's implementation that a problem's rungs are timed beside.

    name: for the report and for targets. call: takes the rungs' arguments; None stands for
    torch.compile of the problem's `pytorch`. Raises Skip, when first called, where it is missing.
    not_captured: why it cannot be captured in a CUDA graph, where it cannot.
    """

    name: str
    call: Callable[..., Any] | None = None
    not_captured: str = ""


COMPILE = Library("compile")
# For Problem.unwatched.
CUBLAS_UNWATCHED = "the tools fail on cuBLAS kernels for 16-bit products (nvjet)"


@dataclass(frozen=True)
class Problem:
    """One function that a day computes, and the ladder of rungs that compute it.

    name: what is computed, e.g. "softmax".
    inputs: (case, draw) -> tuple of arguments for a rung; `draw` is a `common.check.draw.Draw`.
    reference: the same mathematics in PyTorch, called with the same arguments. Called with
        float64 tensors it is the truth; called as they are, it gives the error that the rungs' is
        compared with. Returns a tensor or a tuple of tensors.
    cases: what is checked.
    refused: what no rung may take: each of these must be refused by the name of an argument.
    timed: False for a problem that is only checked; the fields below are for timing alone.
    bench: what is timed on a GPU. bench_cpu: what is timed on the CPU. cost: case -> Cost.
    pytorch: how somebody who knows PyTorch would call it; timed beside the rungs. Required where
        the problem is timed.
    pytorch_not_captured: why PyTorch's call cannot be captured in a CUDA graph, where it cannot.
    own_numbers: whether PyTorch and the libraries draw random numbers of their own, so that only
        the norm of their result is compared with that of the rungs.
    libraries: the strongest others, timed too: COMPILE, or a Library of cuBLASLt, cuDNN, CUB, …
    outputs_exact: outputs must be equal to the last bit (integers, copies).
    several_streams: whether rungs give work to streams of their own. Then the CPU backend checks
        them also with the work of streams put off as late as legal (common/cpu/README.md), where a
        missing event gives a wrong result.
    gradients: whether the operator has a backward, checked against float64 autograd. Then a step of
        training is timed: the forward pass and the backward pass together.
    unwatched: why compute-sanitizer cannot run it, where it cannot: under it, the problem is left
        out, and the report says why.
    further: whether it goes beyond the day's main line; set where the folder `further` is loaded.
    case_words: case -> what a failure calls it, where sizes and dtype do not say what it is.
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
    outputs_exact: bool = False
    several_streams: bool = False
    gradients: bool = False
    unwatched: str = ""
    further: bool = False
    tolerance: Tolerance = field(default_factory=Tolerance)
    case_words: Callable[[Case], str] = str

    def cases_of(self, rung: Rung) -> list[Case]:
        """Return those of the dtypes that the rung takes."""
        return [case for case in self.cases if not rung.dtypes or case.dtype in rung.dtypes]

    def timing_case(self, device: str) -> Case:
        """Return what is timed, or profiled, on "cuda" or "cpu"; of a problem that is only checked,
        its first case."""
        if not self.timed:
            return self.cases[0]
        return self.bench if device == "cuda" else self.bench_cpu


def grid(
    shapes: list[tuple[int, ...]], dtypes: list[str], values: str = "normal"
) -> tuple[Case, ...]:
    """Return every shape with every dtype, as cases."""
    return tuple(Case(shape, dtype, values) for shape in shapes for dtype in dtypes)


def streamed(tensors: int, operations: int = 1) -> Callable[[Case], Cost]:
    """Return the cost of a memory-bound problem: so many tensors of the case's shape are read or
    written once, with so many operations per element. Smaller tensors are neglected."""

    def cost(case: Case) -> Cost:
        elements = math.prod(case.shape)
        return Cost(bytes=tensors * elements * case.itemsize, flops=operations * elements)

    return cost


def one_tensor(case: Case, draw: Any) -> tuple[Any, ...]:
    """Return the `inputs` of a problem with one argument: a tensor of the case's shape."""
    return (draw(*case.shape),)
