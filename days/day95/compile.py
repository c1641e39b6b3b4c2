"""From a function on lazy tensors to launches: traces it, builds its kernels, and runs them."""

from __future__ import annotations

import ctypes
import inspect
from dataclasses import dataclass

import torch

from . import codegen
from .lazy import Lazy, check_leaf, leaf
from .schedule import Kernel, ordered, schedule, unique


@dataclass(frozen=True)
class Options:
    """fusion: one of schedule.FUSIONS. wide: 16 bytes per load where possible."""

    fusion: str = "rows"
    wide: bool = True


class Compiler:
    """Builds generated sources, and finds launchers in what is built. seconds: of all builds."""

    def __init__(self, builder):
        self.builder = builder
        self.launch = builder.operators().launch
        self.skeletons = builder.text()
        self.functions: dict[str, int | None] = {}  # addresses of launchers
        self.seconds = 0.0

    def build(self, kernels) -> None:
        """Builds the launchers of these Printed kernels that are not there, as one library."""
        missing = {k.function: k for k in kernels if k.function not in self.functions}
        if not missing:
            return
        text = codegen.source(self.skeletons, list(missing.values()))
        library = self.builder.generated("fused", text)
        self.seconds += self.builder.seconds
        for name in missing:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            self.functions[name] = address


@dataclass
class Launch:
    """One launch of a program: the places of its operands among the program's tensors."""

    kernel: Kernel
    printed: codegen.Printed
    inputs: list[int]
    outputs: list[int]


class Program:
    """A graph as launches. Its tensors: the leaves, then what the launches store."""

    def __init__(self, leaves, outputs, options, aligned):
        """leaves, outputs: nodes. aligned: whether the leaves lie on multiples of 16 bytes."""
        outputs = unique(outputs)
        place = {node: i for i, node in enumerate(leaves)}
        self.steps: list[Launch | tuple[int, int]] = []
        self.made: list[tuple[int, tuple[int, ...], torch.dtype]] = []
        for step in schedule(outputs, options.fusion):
            if isinstance(step, Lazy):
                self.steps.append((place[step.inputs[0]], place.setdefault(step, len(place))))
                continue
            inputs = [place[node] for node in step.inputs]
            for node in step.outputs:
                place[node] = len(place)
            printer = codegen.Printer(step, options.wide, aligned)
            stored = [place[node] for node in step.outputs]
            self.steps.append(Launch(step, printer.printed(), inputs, stored))
        self.outputs = [place[node] for node in outputs]
        self.size = len(place)

    @property
    def launches(self) -> list[Launch]:
        return [step for step in self.steps if isinstance(step, Launch)]

    @property
    def bytes(self) -> int:
        return sum(step.kernel.bytes for step in self.launches)

    def run(self, compiler: Compiler, leaves):
        """The outputs, for these tensors in the place of the leaves."""
        tensors = [*leaves, *[None] * (self.size - len(leaves))]
        device = leaves[0].device
        for step in self.steps:
            if not isinstance(step, Launch):
                tensors[step[1]] = tensors[step[0]].squeeze(-1)
                continue
            for place, node in zip(step.outputs, step.kernel.outputs, strict=True):
                tensors[place] = torch.empty(node.shape, dtype=node.dtype, device=device)
            printed = step.printed
            if printed.rows == 0 or all(tensors[place].numel() == 0 for place in step.outputs):
                continue
            compiler.launch(
                [tensors[place] for place in step.inputs],
                [tensors[place] for place in step.outputs],
                compiler.functions[printed.function],
                printed.rows,
                printed.cols,
            )
        return [tensors[place] for place in self.outputs]


def is_aligned(tensors) -> bool:
    return all(tensor.data_ptr() % 16 == 0 for tensor in tensors)


class Fused:
    """A function on lazy tensors, compiled for each combination of shapes, dtypes, numbers and
    alignment that it is called with."""

    def __init__(self, function, compiler, options=None, check=None):
        """check: is called with the arguments before a program is made for such ones."""
        self.function, self.compiler, self.check = function, compiler, check
        self.options = options or Options()
        self.names = list(inspect.signature(function).parameters)
        self.programs = {}
        self.__signature__ = inspect.signature(function)

    def __call__(self, *args):
        tensors, key = [], []
        for name, arg in zip(self.names, args, strict=False):
            if isinstance(arg, (bool, int, float)):
                key.append(repr(arg))
                continue
            check_leaf(arg, name)
            if tensors and arg.device != tensors[0].device:
                raise ValueError(f"{name}: expected a tensor on {tensors[0].device}")
            tensors.append(arg)
            key += (arg.shape, arg.dtype)
        aligned = is_aligned(tensors)
        entry = self.programs.get((aligned, *key))
        if entry is None:
            if self.check is not None:
                self.check(*args)
            program, single = self.trace(args, aligned)
            self.compiler.build([step.printed for step in program.launches])
            entry = self.programs[aligned, *key] = program, single
        program, single = entry
        result = program.run(self.compiler, tensors)
        return result[0] if single else tuple(result)

    def trace(self, args, aligned=True):
        """The program for arguments like these, and whether it has a single result that is no
        tuple. Builds nothing; tensors may be of the device "meta"."""
        given = [
            arg if isinstance(arg, (bool, int, float)) else leaf(arg, name)
            for name, arg in zip(self.names, args, strict=False)
        ]
        result = self.function(*given)
        single = isinstance(result, Lazy)
        leaves = [each for each in given if isinstance(each, Lazy)]
        return Program(leaves, [result] if single else list(result), self.options, aligned), single

    def prepare(self, examples) -> None:
        """Builds what calls with such arguments will need, as one library."""
        programs = [self.trace(args, aligned)[0] for args in examples for aligned in (True, False)]
        self.compiler.build([step.printed for each in programs for step in each.launches])


def realize(compiler, outputs, options=None):
    """Computes lazy tensors whose leaves exist. Raises RuntimeError where a leaf was changed in
    place after it was recorded."""
    return realize_all(compiler, [outputs], options)[0]


def realize_all(compiler, graphs, options=None):
    """The same for several graphs, whose kernels are built as one library."""
    programs = []
    for outputs in graphs:
        leaves = list(dict.fromkeys(each for each in ordered(outputs) if each.op == "leaf"))
        for each in leaves:
            if each.value._version != each.version:
                raise RuntimeError(f"{each.name}: changed in place after it was recorded")
        tensors = [each.value for each in leaves]
        programs.append(
            (Program(leaves, outputs, options or Options(), is_aligned(tensors)), tensors)
        )
    compiler.build([step.printed for program, _ in programs for step in program.launches])
    return [program.run(compiler, tensors) for program, tensors in programs]
