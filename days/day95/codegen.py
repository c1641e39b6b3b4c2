"""Prints a kernel as CUDA C++: the struct that the skeletons of fusion_jit.cu are given."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch

from .lazy import REDUCTIONS, Lazy
from .plan import Plan, Planned

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
IDENTITY = {"sum": "0.0f", "mean": "0.0f", "amax": "-INFINITY"}
COMBINED = {"sum": "{} + {}", "mean": "{} + {}", "amax": "larger({}, {})"}


def literal(number) -> str:
    value = float(number)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value!r}f"  # read as double first, so that fp32 is rounded to once


@dataclass
class Printed:
    """A kernel as text. function: the launcher's name. rows, cols: its arguments."""

    function: str
    struct: str
    launcher: str
    rows: int
    cols: int
    plan: Plan


class Printer(Planned):
    """Prints one kernel."""

    def _value(self, node, arithmetic=True) -> str:
        """C++ of an argument."""
        if not isinstance(node, Lazy):
            return literal(node)
        text = ("row." if self.per_row[node] else "") + self.names[node]
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
            function,
            body.replace("NAME", name),
            self._launcher(name, function),
            self.rows,
            self.cols,
            self.plan,
        )

    def _struct(self, name) -> str:
        kept = self._kept() if self.keeps else {}
        phases = len(self.sums)
        held = [f"Raw<{TYPES[o.node.dtype]}, N> {o.name};" for o in self._held()]
        held += [
            f"{'bool' if n.dtype == torch.bool else 'float'} {self.names[n]}[N];" for n in kept
        ]
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
        most = max(map(len, self.sums))
        lines = ["", "  template <int P>", "  __device__ static void start(float (&part)[SUMS]) {"]
        for phase, sums in enumerate(self.sums):
            values = [*(IDENTITY[node.op] for node in sums), *["0.0f"] * (most - len(sums))]
            set_to = " ".join(f"part[{i}] = {value};" for i, value in enumerate(values))
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
