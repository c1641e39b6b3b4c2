"""Attribute the CPU backend's record of a call's launches to tensors and shared arrays."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from common.base.figures import counted
from common.check.guard import GuardedTensor
from common.cpu.launch_record import RecordedAccess, RecordedLaunch, SharedVariable
from common.report.drawn_launch import (
    Cell,
    DrawnLaunch,
    DrawnShared,
    DrawnTensor,
    Marks,
    Phase,
)

MOST_CELLS = 64  # shown elements of a tensor
THREADS, BLOCKS = 8, 2  # threads and blocks whose elements are shown for a larger tensor
KEPT_LINKS = 16  # of a phase
CELL_PHASES = 3  # a shared array with more phases is shown phase by phase
WIDEST = 16  # bytes of an element of a shared array
READ_FIRST = 4  # elements read by the first thread in a phase

Who = tuple[int, int]  # block and thread


@dataclass
class _Tally:
    """Accesses of one kind to one piece of memory. who: for each element, in order. widths: numbers
    of accesses by their elements. continues: elements whose first access began at the element
    before. outside: accesses outside of the memory."""

    who: dict[int, list[Who]] = field(default_factory=lambda: defaultdict(list))
    continues: set[int] = field(default_factory=set)
    widths: Counter[int] = field(default_factory=Counter)
    atomic: bool = False
    outside: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, access: RecordedAccess, first: int, count: int, elements: int) -> None:
        """Add an access to `count` elements from `first` on, of memory with `elements` elements."""
        self.widths[count] += 1
        self.atomic |= access.kind == "atomic"
        for index in range(first, first + count):
            if not 0 <= index < elements:
                self.outside.append((index, access.block, access.thread))
                continue
            if index > first and index not in self.who:
                self.continues.add(index)
            self.who[index].append((access.block, access.thread))

    def marks(self, shown: Iterable[int]) -> Marks | None:
        """Return the marks for the shown elements; None if there was no access."""
        if not self.widths:
            return None
        cells = [
            Cell(i, list(dict.fromkeys(self.who[i])), len(self.who[i]), i in self.continues)
            for i in shown
            if i in self.who
        ]
        times = [len(who) for who in self.who.values()]
        return Marks(
            cells,
            len(self.who),
            min(times, default=0),
            max(times, default=0),
            self.widths.most_common(1)[0][0],
            self.atomic,
            "",
            len(self.outside),
            self.outside[0] if self.outside else None,
        )

    def writers(self) -> dict[int, Who] | None:
        """Return the block and thread that accessed each element; None if one has several."""
        found = {index: set(who) for index, who in self.who.items()}
        if any(len(each) > 1 for each in found.values()):
            return None
        return {index: next(iter(each)) for index, each in found.items()}


@dataclass
class _Memory:
    """A tensor, or memory of cudaMalloc, with a launch's accesses."""

    tensor: GuardedTensor
    reads: _Tally = field(default_factory=_Tally)
    writes: _Tally = field(default_factory=_Tally)

    def add(self, access: RecordedAccess) -> None:
        size = self.tensor.itemsize
        first = (access.address - self.tensor.address) // size
        tally = self.reads if access.kind == "read" else self.writes
        tally.add(access, first, max(access.bytes // size, 1), self.tensor.elements)


def drawn_launch(
    launch: RecordedLaunch,
    tensors: Sequence[GuardedTensor],
    constants: Mapping[str, int],
    never: Mapping[str, Sequence[int]],
) -> DrawnLaunch:
    """Return a launch as data for a drawing.

    tensors: all that it may have accessed, in the order of memory. constants: numbers named in
    declarations of shared arrays. never: for outputs, by name, the elements that no launch has
    written; for the last launch that wrote them.
    """
    memories = [_Memory(tensor) for tensor in (*tensors, *_allocated(launch))]
    in_global: dict[Who, None] = {}
    for access in launch.accesses:
        if access.shared:
            continue
        in_global[access.block, access.thread] = None
        memory = next((m for m in memories if m.tensor.holds(access.address)), None)
        if memory is not None:
            memory.add(access)
    drawn = DrawnLaunch(
        launch.kernel,
        launch.grid,
        launch.block,
        barriers=max(launch.barriers.values(), default=0),
        warp_meetings=sorted(set(launch.warp_meetings.values())),
        left_out=launch.left_out,
    )
    shown = _shown_threads(in_global)
    for memory in memories:
        missing = never.get(memory.tensor.name, ())
        tensor = _drawn_tensor(memory, shown, missing)
        if tensor.reads or tensor.writes or missing:
            drawn.tensors.append(tensor)
            drawn.threads = drawn.threads if tensor.whole else THREADS
    _note_same_writers(drawn, memories)
    drawn.shared = [
        found
        for variable in launch.shared
        if (found := _drawn_shared(launch, variable, constants, in_global)) is not None
    ]
    drawn.idle = _idle(launch, drawn, in_global)
    return drawn


def _allocated(launch: RecordedLaunch) -> list[GuardedTensor]:
    """Return the memory of cudaMalloc that it accessed, in the order of the first accesses."""
    found: list[GuardedTensor] = []
    for address, size in launch.allocations:
        of = [a.bytes for a in launch.accesses if not a.shared and 0 <= a.address - address < size]
        itemsize = min(of, default=1)
        name = f"allocation {len(found) + 1}"
        shape = (size // itemsize,)
        found.append(GuardedTensor(name, "", shape, itemsize, address, (address, address + size)))
    return found


def _shown_threads(accessed: Iterable[Who]) -> set[Who]:
    """Return the first threads of the first blocks that access global memory."""
    of_block: dict[int, list[int]] = defaultdict(list)
    for block, thread in sorted(accessed):
        of_block[block].append(thread)
    return {
        (block, thread) for block in list(of_block)[:BLOCKS] for thread in of_block[block][:THREADS]
    }


def _drawn_tensor(memory: _Memory, shown: set[Who], missing: Sequence[int]) -> DrawnTensor:
    tensor = memory.tensor
    drawn = DrawnTensor(tensor.name, tensor.dtype, tensor.shape)
    drawn.whole = tensor.elements <= MOST_CELLS
    for tally, name in ((memory.reads, "reads"), (memory.writes, "writes")):
        indices = sorted(tally.who)
        if not drawn.whole:
            indices = [i for i in indices if shown & set(tally.who[i])][:MOST_CELLS]
        setattr(drawn, name, tally.marks(indices))
    drawn.never = list(missing[:MOST_CELLS] if drawn.whole else missing[:THREADS])
    drawn.never_count = len(missing)
    return drawn


def _note_same_writers(drawn: DrawnLaunch, memories: Sequence[_Memory]) -> None:
    """Note for each read tensor a tensor of which each thread writes the same elements."""
    reads = {m.tensor.name: m.reads for m in memories}
    writers = [(m.tensor, m.writes.writers()) for m in memories if m.writes.widths]
    for tensor in drawn.tensors:
        if tensor.reads is None:
            continue
        readers = reads[tensor.name].writers()
        for written, theirs in writers:
            if readers and written.shape == tensor.shape and readers == theirs:
                tensor.reads.by_writer_of = written.name


# ---------------------------------------------------------------- shared memory


def _drawn_shared(
    launch: RecordedLaunch,
    variable: SharedVariable,
    constants: Mapping[str, int],
    in_global: Iterable[Who],
) -> DrawnShared | None:
    """Return the accesses of the first block that used an array; None if none did.

    in_global: the threads that accessed global memory; of a large array, the elements that these
    threads wrote are shown.
    """
    inside = [
        access
        for access in launch.accesses
        if access.shared and 0 <= access.address - variable.offset < variable.bytes
    ]
    if not inside:
        return None
    block = inside[0].owner
    inside = [access for access in inside if access.owner == block]
    name, shape, itemsize = _array(variable, constants, min(access.bytes for access in inside))
    name = name if name.startswith("shared") else f"shared {name}"
    place = (variable.offset, variable.offset + variable.bytes)
    memory = _Memory(GuardedTensor(name, "", shape, itemsize, variable.offset, place))
    phases: dict[int, list[RecordedAccess]] = defaultdict(list)
    for access in inside:
        memory.add(access)
        phases[access.phase].append(access)
    reads = sum(access.kind == "read" for access in inside)
    drawn = DrawnShared(
        variable.declaration,
        variable.bytes,
        variable.bytes // itemsize,
        block,
        reads,
        len(inside) - reads,
        [_phase(accesses, variable.offset, itemsize) for accesses in phases.values()],
    )
    if len(phases) <= CELL_PHASES:
        drawn.cells = _drawn_tensor(memory, set(), ())
        indices = _shown_of_array(memory, in_global)
        drawn.cells.reads = memory.reads.marks(indices)
        drawn.cells.writes = memory.writes.marks(indices)
        if drawn.cells.reads and memory.reads.writers() == memory.writes.writers() is not None:
            drawn.cells.reads.by_writer_of = name
    return drawn


def _shown_of_array(memory: _Memory, in_global: Iterable[Who]) -> list[int]:
    """Return the shown elements of a shared array: all accessed ones if they are few; else those of
    threads that also access global memory, or of the first of these threads."""
    touched = sorted(memory.reads.who.keys() | memory.writes.who.keys())
    writers = memory.writes.who
    for threads in (set(in_global), _shown_threads(in_global)):
        if len(touched) > MOST_CELLS:
            touched = [i for i in touched if i in writers and threads & set(writers[i])]
    return touched[:MOST_CELLS]


def _array(
    variable: SharedVariable, constants: Mapping[str, int], itemsize: int
) -> tuple[str, tuple[int, ...], int]:
    """Return the name of a shared array, its shape, and the bytes of an element; if the declared
    shape is unknown, all elements in a row, each as large as the smallest access."""
    flat = (variable.bytes // itemsize,)
    text = variable.declaration.strip()
    plain = re.sub(r"\[[^\]]*\]|<[^<>]*>", "", text)
    match = re.fullmatch(r".*?(\w+)((?:\s*\[[^\]]*\])*)", text)
    if not match or "," in plain:  # dynamic shared memory, or several variables
        return "shared memory", flat, itemsize
    sizes = [_number(size, constants) for size in re.findall(r"\[(.*?)\]", match[2])]
    total = math.prod(size for size in sizes if size)
    if sizes.count(0) == 1:  # the unknown one, e.g. of a template
        missing = variable.bytes // (itemsize * total)
        sizes[sizes.index(0)], total = missing, total * missing
    if not sizes or not total or variable.bytes % total or variable.bytes // total > WIDEST:
        return match[1], flat, itemsize
    return match[1], tuple(sizes), variable.bytes // total


def _number(text: str, constants: Mapping[str, int]) -> int:
    """Return the value of a size in a declaration: numbers and constants, added, subtracted,
    multiplied or divided; 0 for anything else."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return constants[name]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return value(left) + value(right)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return value(left) - value(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return value(left) * value(right)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return value(left) // value(right)
        raise ValueError(text)

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
        return 0


def constants_of(texts: Iterable[str]) -> dict[str, int]:
    """Return the integers that source files define as constants, by name."""
    found: dict[str, int] = {}
    for text in texts:
        pattern = r"constexpr\s+(?:static\s+)?\w+\s+(\w+)\s*=\s*([^;{]+);"
        for name, value in re.findall(pattern, text):
            if number := _number(value, found):
                found[name] = number
    return found


def _phase(accesses: Sequence[RecordedAccess], offset: int, itemsize: int) -> Phase:
    """Return the accesses to an array between two barriers."""
    written: dict[int, list[int]] = defaultdict(list)  # by thread
    read: dict[int, list[int]] = defaultdict(list)
    for access in accesses:
        first = (access.address - offset) // itemsize
        elements = range(first, first + max(access.bytes // itemsize, 1))
        if access.kind != "write":
            read[access.thread] += elements
        if access.kind != "read":
            written[access.thread] += elements
    links = [
        (source, target)
        for thread, targets in written.items()
        for target in dict.fromkeys(targets[-1:])
        for source in dict.fromkeys(read.get(thread, ()))
        if source != target
    ]
    step = -(-len(links) // KEPT_LINKS) or 1
    first_thread = min(written.keys() | read.keys())
    return Phase(
        len(written),
        len(read),
        _runs(element for elements in written.values() for element in elements),
        _runs(element for elements in read.values() for element in elements),
        links[::step],
        list(dict.fromkeys(read.get(first_thread, ())))[:READ_FIRST],
    )


def _runs(elements: Iterable[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive elements, (first, last)."""
    runs: list[tuple[int, int]] = []
    for element in sorted(set(elements)):
        if runs and runs[-1][1] + 1 == element:
            runs[-1] = runs[-1][0], element
        else:
            runs.append((element, element))
    return runs


# ---------------------------------------------------------------- threads that do nothing


def _idle(launch: RecordedLaunch, drawn: DrawnLaunch, in_global: Iterable[Who]) -> list[str]:
    """Return sentences about threads that accessed no memory, or only shared memory."""
    x, y, z = launch.grid
    blocks, threads = x * y * z, launch.block[0] * launch.block[1] * launch.block[2]
    if launch.left_out:
        return []  # not all accesses are known
    in_shared = {(a.block, a.thread) for a in launch.accesses if a.shared}
    touched = set(in_global)
    active = touched | in_shared
    said: dict[str, list[int]] = defaultdict(list)
    for block in range(min(blocks, MOST_CELLS)):
        groups: dict[str, list[int]] = defaultdict(list)
        for who in ((block, thread) for thread in range(threads)):
            if who not in active:
                groups["touched nothing"].append(who[1])
            elif who not in touched:
                groups["touched shared memory only"].append(who[1])
        for what, idle in groups.items():
            said[f"{_threads_text(idle, threads)} {{}} {what}"].append(block)
    return [
        " ".join(sentence.format(_blocks_text(drawn, where, blocks)).split())
        for sentence, where in list(said.items())[:3]
    ]


def _blocks_text(drawn: DrawnLaunch, where: Sequence[int], of: int) -> str:
    """Return "of each block", "of block 3", "of blocks 2 to 5"."""
    if len(where) == of:
        return "" if of == 1 else "of each block"
    if len(where) == 1:
        return f"of block {drawn.block_name(where[0])}"
    if len(_runs(where)) == 1:
        return f"of blocks {where[0]} to {where[-1]}"
    return f"of {counted(len(where), 'block')}"


def _threads_text(threads: Sequence[int], of: int) -> str:
    """Return "threads 10 to 255", "120 of 256 threads"."""
    if len(threads) == of:
        return "all threads"
    if len(threads) == 1:
        return f"thread {threads[0]}"
    if threads[-1] - threads[0] + 1 == len(threads):
        return f"threads {threads[0]} to {threads[-1]}"
    return f"{len(threads)} of {of} threads"
