"""What a kernel computes when, what it keeps, and how many threads and registers a row takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .lazy import REDUCTIONS, Lazy

# Many instructions each: where a later phase needs the result again, it is kept in registers.
COSTLY = ("div", "exp", "log", "sqrt", "tanh", "sigmoid", "erf")
REGISTERS = 32  # per thread for its part of a row: half of what 1024 threads leave to each
CHUNKS_WANTED = 2  # per thread, of 16 bytes: loads in flight, and little work per barrier


@dataclass
class Operand:
    """How a kernel reads or writes the elements of a node. name: of the pointer. per_row: whether
    it has one value per row. same_row: whether all rows have the same values. place: C++ for the
    index of the element at row r and column c."""

    node: Lazy
    name: str
    per_row: bool
    same_row: bool
    place: str


@dataclass(frozen=True)
class Plan:
    """Template arguments of a skeleton. width: elements per load. threads: per row, 0 for an
    element-wise kernel. chunks: of `width` elements per thread, 0 where a row does not fit."""

    width: int
    threads: int = 0
    chunks: int = 0

    def __str__(self):
        numbers = (self.width, self.threads, self.chunks) if self.threads else (self.width,)
        return "_".join(map(str, numbers))


class Planned:
    """A kernel with its plan. wide: 16 bytes per load, where possible. aligned: whether its
    inputs lie on multiples of 16 bytes."""

    def __init__(self, kernel, wide: bool, aligned: bool):
        self.kernel = kernel
        self.domain = kernel.domain or (1,)
        inputs, outputs = kernel.inputs, kernel.outputs
        full = all(node.shape == kernel.domain or node.meta.numel() == 1 for node in inputs)
        self.flat = full and not kernel.reduces
        self.rows = 1 if self.flat else math.prod(self.domain[:-1])
        self.cols = math.prod(self.domain) if self.flat else self.domain[-1]
        names = iter(f"in{i}" for i in range(len(inputs)))
        self.operands = {node: self._operand(node, next(names)) for node in inputs}
        self._levels()
        self.outputs = [self._operand(node, f"out{i}") for i, node in enumerate(outputs)]
        self.keeps = True
        self.plan = self._plan(wide and aligned)

    # What is computed when ---------------------------------------------------------------------

    def _operand(self, node, name) -> Operand:
        shape = (1,) * (len(self.domain) - len(node.shape)) + node.shape
        if self.flat:
            alone = node.shape != self.kernel.domain
            return Operand(node, name, alone, False, "0" if alone else "c")
        per_row = shape[-1] != self.domain[-1]
        lead = shape[:-1]
        if lead == self.domain[:-1]:
            row = "r"
        else:  # broadcast along some of the leading dimensions
            terms, below, stride = [], 1, 1
            for size, of_domain in zip(reversed(lead), reversed(self.domain[:-1]), strict=True):
                if size > 1:
                    terms.append(f"r / {below} % {size} * {stride}")
                below, stride = below * of_domain, stride * size
            row = f"({' + '.join(terms)})" if terms else ""
        if per_row:
            return Operand(node, name, True, False, row or "0")
        place = f"{row} * cols + c" if row else "c"
        return Operand(node, name, False, not row, place)

    def _levels(self):
        """per_row: the nodes with one value per row. phase: of each node, the number of phases that
        must be over before it can be computed."""
        self.per_row: dict[Lazy, bool] = {n: o.per_row for n, o in self.operands.items()}
        self.phase: dict[Lazy, int] = dict.fromkeys(self.operands, 0)
        for node in self.kernel.nodes:
            before = max((self.phase[arg] for arg in node.inputs), default=0)
            reduces = node.op in REDUCTIONS
            self.phase[node] = before + reduces
            self.per_row[node] = reduces or all(self.per_row[arg] for arg in node.inputs)
        self.sums = [
            [n for n in self.kernel.nodes if n.op in REDUCTIONS and self.phase[n] == p + 1]
            for p in range(max(self.phase.values()))
        ]

    def _targets(self, phase):
        """The nodes with a value per element that a phase needs; the last one stores."""
        if phase < len(self.sums):
            return [node.args[0] for node in self.sums[phase]]
        return [out.node for out in self.outputs if not self.per_row[out.node]]

    def _needed(self, phase, kept=()):
        """The values per element that a phase computes, in order; `kept` ones are there."""
        found, stack = set(), list(self._targets(phase))
        while stack:
            node = stack.pop()
            if node in found or self.per_row[node]:
                continue
            found.add(node)
            if node not in kept and node not in self.operands:
                stack += node.inputs
        return {n: None for n in (*self.operands, *self.kernel.nodes) if n in found}

    def _kept(self):
        """Costly values that an earlier phase computes and a later one needs."""
        available, kept = set(), {}
        for phase in range(len(self.sums) + 1):
            needed = self._needed(phase, available)
            kept |= {node: None for node in needed if node in available}
            available |= {node for node in needed if node.op in COSTLY}
        return kept

    def _held(self):
        """Inputs of which a thread keeps its elements: not what is the same for all rows."""
        return [o for o in self.operands.values() if not o.per_row and not o.same_row]

    def _plan(self, wide) -> Plan:
        elements = [o for o in (*self.operands.values(), *self.outputs) if not self.per_row[o.node]]
        sizes = [o.node.dtype.itemsize for o in elements if o.node.dtype != torch.bool]
        width = 16 // min(sizes, default=16) if wide else 1
        if not self.flat and self.cols % width:
            width = 1
        if not self.kernel.reduces:
            return Plan(width)
        chunks = -(-self.cols // width)
        wanted = CHUNKS_WANTED if width > 1 else 4 * CHUNKS_WANTED
        threads = min(1024, max(32, -(-chunks // (32 * wanted)) * 32))
        per_thread = max(1, -(-chunks // threads))
        raw = sum(max(1, width * o.node.dtype.itemsize // 4) for o in self._held())
        for self.keeps in (True, False):
            per_chunk = raw + width * len(self._kept() if self.keeps else {})
            if per_thread * per_chunk <= REGISTERS:
                return Plan(width, threads, per_thread)
        return Plan(width, threads, 0)
