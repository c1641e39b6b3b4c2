"""Prints a kernel as CUDA C++: the struct that the skeletons of fusion_jit.cu are given."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field

import torch

from .lazy import REDUCTIONS, Lazy

TYPES = {
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
    torch.bool: "bool",
}
# Of fp32 values; `where` and the comparisons have bool among them.
FORMULAS = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "div": "{} / {}",
    "neg": "-{}",
    "abs": "fabsf({})",
    "square": "{0} * {0}",
    "exp": "expf({})",
    "log": "logf({})",
    "sqrt": "sqrtf({})",
    "rsqrt": "rsqrtf({})",
    "tanh": "tanhf({})",
    "sigmoid": "1.0f / (1.0f + expf(-{}))",
    "erf": "erff({})",
    "relu": "larger({}, 0.0f)",
    "maximum": "larger({}, {})",
    "minimum": "smaller({}, {})",
    "where": "{} ? {} : {}",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "gt": "{} > {}",
    "ge": "{} >= {}",
    "eq": "{} == {}",
    "ne": "{} != {}",
    "to_float32": "{}",
    "to_float16": "rounded<__half>({})",
    "to_bfloat16": "rounded<__nv_bfloat16>({})",
    "to_bool": "{} != 0.0f",
}
# Many instructions each: where a later phase needs the result again, it is kept in registers.
COSTLY = ("div", "exp", "log", "sqrt", "tanh", "sigmoid", "erf")
IDENTITY = {"sum": "0.0f", "mean": "0.0f", "amax": "-INFINITY"}
COMBINED = {"sum": "{} + {}", "mean": "{} + {}", "amax": "larger({}, {})"}
REGISTERS = 32  # per thread for its part of a row: half of what 1024 threads leave to each
CHUNKS_WANTED = 2  # per thread, of 16 bytes: loads in flight, and little work per barrier


def literal(number) -> str:
    value = float(number)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value!r}f"  # read as double first, so that fp32 is rounded to once


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


@dataclass
class Printed:
    """A kernel as text. function: the launcher's name. rows, cols: its arguments."""

    function: str
    struct: str
    launcher: str
    rows: int
    cols: int
    plan: Plan


class Printer:
    """Prints one kernel. aligned: whether its inputs lie on multiples of 16 bytes."""

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
        self.values: dict[Lazy, str] = {}  # C++ of values per row, and of kept ones
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
        """The elements' values that a phase computes, in order; it takes `kept` ones as they are."""
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

    # Text ---------------------------------------------------------------------------------------

    def _value(self, node, arithmetic=True) -> str:
        """C++ of an argument."""
        if not isinstance(node, Lazy):
            return literal(node)
        if node in self.per_row and self.per_row[node]:
            text = f"row.{self.names[node]}"
        else:
            text = self.names[node]
        return f"float({text})" if arithmetic and node.dtype == torch.bool else text

    def _formula(self, node) -> str:
        args = [self._value(arg, node.op != "where" or i > 0) for i, arg in enumerate(node.args)]
        return FORMULAS[node.op].format(*args)

    def _row_values(self, phase):
        """Statements for the values per row that are known when so many phases are over."""
        lines = []
        for i, node in enumerate(self.sums[phase - 1] if phase else ()):
            mean = " / static_cast<float>(cols)" if node.op == "mean" else ""
            lines.append(f"row.{self.names[node]} = part[{i}]{mean};")
        for node in self.kernel.nodes:
            if self.per_row[node] and self.phase[node] == phase and node.op not in REDUCTIONS:
                lines.append(f"row.{self.names[node]} = {self._formula(node)};")
        return lines

    def _visit(self, phase):
        """The statements of a phase for N elements."""
        kept = self._kept() if self.keeps else {}
        earlier = {n for n in kept if any(n in self._needed(p, kept) for p in range(phase))}
        needed = self._needed(phase, earlier)
        held = {o.node for o in self._held()}
        before, inside, after = [], [], []
        for node in needed:
            name, kind = self.names[node], "bool" if node.dtype == torch.bool else "float"
            if node in self.operands:
                operand = self.operands[node]
                source = f"held.{operand.name}"
                if node not in held:
                    source = f"{operand.name}_chunk"
                    before.append(f"const auto {source} = read<N>({operand.name} + c);")
                inside.append(f"const {kind} {name} = {source}.at(k);")
            elif node in earlier:
                inside.append(f"const {kind} {name} = held.{name}[k];")
            else:
                inside.append(f"const {kind} {name} = {self._formula(node)};")
                if node in kept:
                    inside.append(f"held.{name}[k] = {name};")
        if phase < len(self.sums):
            for i, node in enumerate(self.sums[phase]):
                combined = COMBINED[node.op].format(f"part[{i}]", self._value(node.args[0]))
                inside.append(f"part[{i}] = {combined};")
        else:
            for out in self.outputs:
                if not self.per_row[out.node]:
                    kind = "bool" if out.node.dtype == torch.bool else "float"
                    before.append(f"{kind} {out.name}_values[N];")
                    inside.append(f"{out.name}_values[k] = {self._value(out.node, False)};")
                    after.append(f"write<N>({out.name} + {out.place}, {out.name}_values);")
        if not inside:
            return []
        loop = ["#pragma unroll", "for (int k = 0; k < N; ++k) {", *("  " + s for s in inside), "}"]
        return [*before, *loop, *after]

    def printed(self) -> Printed:
        self.names = {}
        for node in (*self.operands, *self.kernel.nodes):
            if node in self.operands:
                self.names[node] = f"x{len(self.names)}"
            else:
                self.names[node] = f"{node.op.split('_')[0]}{len(self.names)}"
        body = self._struct("NAME")
        mark = hashlib.sha256(body.encode()).hexdigest()[:8]
        ops = [node.op for node in self.kernel.nodes]
        title = "_".join(ops if len(ops) < 7 else [*ops[:3], f"{len(ops) - 5}_more", *ops[-2:]])
        name = f"{title}_{mark}"
        function = f"{name}_{self.plan}"
        return Printed(
            function, body.replace("NAME", name), self._launcher(name, function), self.rows,
            self.cols, self.plan,
        )

    def _struct(self, name) -> str:
        kept = self._kept() if self.keeps else {}
        phases = len(self.sums)
        held = [f"Raw<{TYPES[o.node.dtype]}, N> {o.name};" for o in self._held()]
        held += [f"{'bool' if n.dtype == torch.bool else 'float'} {self.names[n]}[N];" for n in kept]
        per_row = [n for n in (*self.operands, *self.kernel.nodes) if self.per_row[n]]
        row = [f"{'bool' if n.dtype == torch.bool else 'float'} {self.names[n]};" for n in per_row]
        pointers = [f"const {TYPES[o.node.dtype]}* {o.name};" for o in self.operands.values()]
        pointers += [f"{TYPES[o.node.dtype]}* {o.name};" for o in self.outputs]
        begin = [
            f"row.{self.names[o.node]} = read<1>({o.name} + {o.place}).at(0);"
            for o in self.operands.values()
            if o.per_row
        ]
        load = [f"held.{o.name} = read<N>({o.name} + {o.place});" for o in self._held()]
        leave = [
            f"{o.name}[r] = static_cast<{TYPES[o.node.dtype]}>({self._value(o.node, False)});"
            for o in self.outputs
            if self.per_row[o.node]
        ]
        most = max((len(each) for each in self.sums), default=1)
        at = "int64_t r, int64_t c, int64_t cols"
        lines = [
            f"struct {name} {{",
            *(f"  {line}" for line in pointers),
            f"  static constexpr int PHASES = {phases}, SUMS = {most};",
            "",
            "  struct Row {",
            *(f"    {line}" for line in row),
            "  };",
            "  template <int N>",
            "  struct Held {",
            *(f"    {line}" for line in held),
            "  };",
            "",
            "  __device__ void begin(Row& row, int64_t r) const {",
            *(f"    {line}" for line in (*begin, *self._row_values(0))),
            "  }",
            "  template <int N>",
            f"  __device__ void load(Held<N>& held, {at}) const {{",
            *(f"    {line}" for line in load),
            "  }",
            "  template <int P, int N>",
            f"  __device__ void visit(Held<N>& held, Row& row, float (&part)[SUMS], {at}) const {{",
        ]
        for phase in range(phases + 1):
            lines += [f"    if constexpr (P == {phase}) {{"]
            lines += [s if s.startswith("#") else f"      {s}" for s in self._visit(phase)]
            lines += ["    }"]
        lines += ["  }"]
        if phases:
            lines += self._reducing()
            lines += ["  __device__ void leave(const Row& row, int64_t r) const {"]
            lines += [*(f"    {line}" for line in leave), "  }"]
        return "\n".join([*lines, "};"])

    def _reducing(self):
        lines = ["", "  template <int P>", "  __device__ static void start(float (&part)[SUMS]) {"]
        for phase, sums in enumerate(self.sums):
            set_to = " ".join(f"part[{i}] = {IDENTITY[n.op]};" for i, n in enumerate(sums))
            lines.append(f"    if constexpr (P == {phase}) {{ {set_to} }}")
        lines += ["  }", "  template <int P>"]
        lines += ["  __device__ static float combine(int i, float a, float b) {"]
        for phase, sums in enumerate(self.sums):
            for i, node in enumerate(sums):
                combined = COMBINED[node.op].format("a", "b")
                lines.append(f"    if (P == {phase} && i == {i}) return {combined};")
        lines += ["    return a;", "  }", "  template <int P>"]
        lines += ["  __device__ static void finish(Row& row, float (&part)[SUMS], int64_t cols) {"]
        for phase in range(len(self.sums)):
            lines += [f"    if constexpr (P == {phase}) {{"]
            lines += [f"      {line}" for line in self._row_values(phase + 1)] + ["    }"]
        return [*lines, "  }"]

    def _launcher(self, name, function) -> str:
        pointers = []
        for i, operand in enumerate((*self.operands.values(), *self.outputs)):
            const = "const " if i < len(self.operands) else ""
            pointers.append(f"static_cast<{const}{TYPES[operand.node.dtype]}*>(operands[{i}])")
        skeleton = f"launch_elementwise<{self.plan.width}>"
        if self.plan.threads:
            plan = self.plan
            skeleton = f"launch_rows<{plan.width}, {plan.threads}, {plan.chunks}>"
        joined = ",\n      ".join(pointers)
        return (
            f'extern "C" cudaError_t {function}(\n'
            "    void* const* operands, int64_t rows, int64_t cols, cudaStream_t stream) {\n"
            f"  const {name} f{{\n      {joined}}};\n"
            f"  return {skeleton}(f, rows, cols, stream);\n}}"
        )


def source(skeletons: str, kernels: list[Printed]) -> str:
    """The text of a .cu with these kernels' launchers. skeletons: the text of fusion_jit.cu."""
    structs = dict.fromkeys(each.struct for each in kernels)
    launchers = dict.fromkeys(each.launcher for each in kernels)
    return "\n\n".join(["#define FUSION_JIT_GENERATED\n" + skeletons, *structs, *launchers]) + "\n"
