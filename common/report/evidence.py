"""Hold the evidence of a day's kernels, from nvcc and from the CPU backend's profiler; show it.

    days/dayNN/results/evidence.json   written only by `run_day.py N --compile-only --write` and by
                                       `run_day.py N --profile --device cpu --write`

It needs no GPU: machine code is compiled for the GPU whose results stand in the README, and
accesses are counted on the small timing cases of the CPU backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common.base.toolchain import sm
from common.report.columns import markdown_table
from common.report.files import line_by_line, read_record

EVIDENCE = "evidence.json"  # in a day's folder of results
FORMAT = 1


@dataclass(frozen=True)
class KernelCode:
    """The machine code of a kernel.

    name: with its template arguments. registers: per thread. stack, spilled: bytes per thread of
    the stack frame, and of spilled registers, stores and loads together. shared: bytes of static
    shared memory. load, store: the widest access to global memory by a thread in bytes, 0 without
    any. bulk: bulk copies (TMA) move data between global and shared memory. split: number of
    vectors of 16 bytes that a thread loads in pieces of 1, 2 or 4 bytes, in a kernel that moves
    others whole. further: only the part beyond the day's main line has it.
    """

    name: str
    registers: int
    stack: int
    spilled: int
    shared: int
    load: int
    store: int
    bulk: bool
    split: int
    further: bool

    @property
    def base(self) -> str:
        """Return the name without template arguments."""
        return base_name(self.name)


@dataclass(frozen=True)
class KernelRun:
    """A kernel that a rung launches on the problem's small timing case, as text in `case`.

    kernel: as in KernelCode. threads: per block. dynamic: bytes of dynamic shared memory. resident:
    blocks per multiprocessor at one time. sectors: 32-byte sectors per global load of a warp, None
    without loads. passes: over the banks of shared memory, divided by their number without bank
    conflicts; None without accesses. further: beyond the day's main line.
    """

    problem: str
    rung: str
    case: str
    kernel: str
    threads: int
    dynamic: int
    resident: int
    sectors: float | None
    passes: float | None
    further: bool


@dataclass(frozen=True)
class Evidence:
    """The evidence of a day. sources: see `common.tools.kernel_evidence.sources_key`. nvcc: its
    version. codes: of all instances of the day's kernels. runs: [] if they are not counted."""

    day: int
    sources: str
    nvcc: str
    arch: str
    codes: list[KernelCode]
    runs: list[KernelRun] = field(default_factory=list)

    def faults(self) -> dict[str, list[str]]:
        """Return what is wrong with the machine code, by the kernel's name without template
        arguments: a line for each instance that spills registers or loads vectors in pieces."""
        found: dict[str, list[str]] = {}
        for code in self.codes:
            if code.spilled:
                text = f"{code.name} spills registers, {code.spilled} bytes per thread"
                found.setdefault(code.base, []).append(text)
            if code.split:
                text = f"{code.name} loads vectors of 16 bytes in pieces: {code.split}"
                found.setdefault(code.base, []).append(text)
        return found


def base_name(kernel: str) -> str:
    """Return a kernel's name without its template arguments."""
    return kernel.partition("<")[0]


def to_text(evidence: Evidence) -> str:
    """Return the file's text: a line per kernel."""
    data = asdict(evidence)
    lists = {name: data.pop(name) for name in ("codes", "runs")}
    return line_by_line({"format": FORMAT, **data}, lists)


def from_text(path: Path) -> Evidence:
    """Return the evidence in the file. Raise ResultsError, naming the file, if it is invalid."""
    evidence: Evidence = read_record(path, Evidence, FORMAT, "evidence")
    return evidence


# --- the table --------------------------------------------------------------------------------


def evidence_block(evidence: Evidence | None, further: bool) -> str:
    """Return the folded table of the kernels of a day's main line, or of `further`; "" without
    kernels."""
    codes = [code for code in evidence.codes if code.further == further] if evidence else []
    if evidence is None or not codes:
        return ""
    runs = [run for run in evidence.runs if run.further == further]
    table = _of_runs(evidence.codes, runs) if runs else _of_kernels(codes)
    shown = [code for code in codes if not runs or code.name in {run.kernel for run in runs}]
    summary = "Evidence: registers, shared memory, accesses to memory of each kernel"
    return "\n".join(
        [
            f"<details><summary>{summary}</summary>",
            "",
            *table,
            "",
            _legend(evidence, runs, any(code.spilled for code in shown)),
            "</details>",
        ]
    )


def _of_runs(codes: Sequence[KernelCode], runs: Sequence[KernelRun]) -> list[str]:
    """Return a table with a row for each kernel of a rung."""
    by_name = {code.name: code for code in codes}
    rows: dict[tuple[str, ...], list[str]] = {}  # names of the problems by the rest of the row
    for run in runs:
        code = by_name[run.kernel]
        figures = (
            str(code.registers),
            _bytes(code.spilled),
            _bytes(code.shared + run.dynamic),
            str(run.threads),
            str(run.resident),
            " ".join(filter(None, ["bulk" if code.bulk else "", _bytes(code.load)])),
            _bytes(code.store),
            "" if run.sectors is None else f"{run.sectors:.3g}",
            "" if run.passes is None else f"{run.passes:.2f}×",
        )
        kernel = f"`{code.base}`" if code.base != f"{run.rung}_kernel" else ""
        problems = rows.setdefault((f"`{run.rung}`", kernel, *figures), [])
        problems += [run.problem] if run.problem not in problems else []
    table = [["; ".join(names), *row] for row, names in rows.items()]
    header = ["problem", "rung", "kernel", "registers", "spilled", "shared memory", "threads"]
    header += ["resident blocks", "load", "store", "sectors", "shared passes"]
    differ = len({tuple(row[1:3]) for row in table}) < len(table)  # a kernel, among problems
    keep = [i for i in range(len(header)) if any(row[i] for row in table) and (i or differ)]
    return _table(header, table, keep, 3)


def _of_kernels(codes: Sequence[KernelCode]) -> list[str]:
    """Return a table with a row for each kernel, whose figures are those of its instances."""
    table = []
    for base in dict.fromkeys(code.base for code in codes):
        of_base = [code for code in codes if code.base == base]
        bulk = "bulk " if any(code.bulk for code in of_base) else ""
        table.append(
            [
                f"`{base}`",
                _range([code.registers for code in of_base], str),
                _range([code.spilled for code in of_base], _bytes),
                _range([code.shared for code in of_base], _bytes),
                (bulk + _range([code.load for code in of_base], _bytes)).strip(),
                _range([code.store for code in of_base], _bytes),
            ]
        )
    header = ["kernel", "registers", "spilled", "static shared memory", "load", "store"]
    return _table(header, table, [i for i in range(6) if any(row[i] for row in table)], 1)


def _table(
    header: Sequence[str], table: Sequence[Sequence[str]], keep: Sequence[int], names: int
) -> list[str]:
    """Return the columns `keep` of a table; the first `names` of all columns are text."""
    rows = [[row[i] for i in keep] for row in table]
    return markdown_table([header[i] for i in keep], [i < names for i in keep], rows)


def _range(numbers: Sequence[int], text: Callable[[int], str]) -> str:
    """Return "32–49", or one of the two if they are equal or the other one is 0 without a text."""
    texts = [text(min(numbers)), text(max(numbers))]
    return "–".join(dict.fromkeys(filter(None, texts)))


def _bytes(count: int) -> str:
    """Return "" for 0, "16 B", "8.5 KB"."""
    return "" if not count else f"{count} B" if count < 1024 else f"{count / 1024:.3g} KB"


def _legend(evidence: Evidence, runs: Sequence[KernelRun], spilled: bool) -> str:
    """Return what the columns mean, for which architecture, and on which cases."""
    text = (
        f"Machine code of sm_{sm(evidence.arch)} by nvcc {evidence.nvcc}: registers per thread, "
        f"{'bytes of them spilled' if spilled else 'none of them spilled'}, the widest load and "
        "store of global memory by a thread (bulk: copies by TMA)."
    )
    if not runs:
        return f"{text} A range is that of a kernel's instances."
    cases = "; ".join(dict.fromkeys(run.case for run in runs))
    return (
        f"{text} Threads and shared memory per block, and the blocks that are resident per "
        "multiprocessor. Counted on the CPU backend: 32-byte sectors per global load of a warp; "
        "passes over the banks of shared memory, over those without bank conflicts. Cases: "
        f"{cases}."
    )
