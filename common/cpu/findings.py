"""Read the findings of the CPU backend's tracer: races, unwritten reads, access counts.

The runtime reports addresses of code (runtime/trace_report.cpp). This module turns them into lines
of the source, through addr2line, and findings into sentences.
"""

from __future__ import annotations

import json
import linecache
import re
import subprocess
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.cpu.backend import INCLUDE_DIR, Runtime

_ROOT = INCLUDE_DIR.parents[2]
# Headers whose code is reported at the line that uses it.
_HELPERS = (
    *(f"{INCLUDE_DIR}/", f"{_ROOT}/common/cuda/ptx/", "/usr/include/", "nvidia/"),
    *(f"{_ROOT}/common/cpu/vendor/cub/cub/{part}/" for part in ("block", "warp", "thread")),
)
_WAIT = (
    "wait for the copy (cp_async_wait, mbarrier_wait, bulk_wait of a store), after its commit: a "
    "wait does not count what is committed later; then other threads need a barrier, too"
)
_WAIT_TO_REUSE = (
    "wait until it has been read (bulk_wait_read, wgmma_wait, the mbarrier of the copy); then "
    "other threads need a barrier, too"
)
_FENCE = (
    "TMA and wgmma see what threads have stored only after a fence: each thread calls "
    "fence_proxy_async() after its stores and before the barrier"
)
_MBARRIER_FENCE = (
    "TMA sees a new mbarrier only after a fence: the thread that initialises it calls "
    "fence_mbarrier_init() or fence_proxy_async() then, before the barrier that lets others "
    "use it"
)
_ONE_WARP = "__syncwarp() orders the lanes of a warp, __syncthreads() the whole block"
_ONE_BLOCK = "a __syncthreads() between the two lines, reached by all threads, would order them"
_MANY_BLOCKS = (
    "blocks run in any order, and no barrier of a block orders them: what one block writes, "
    "another may read in the next launch, or after a __threadfence() and an atomic flag, or a "
    "cuda::atomic that one releases and the other acquires"
)

_NO_FENCE = (
    "an atomic operation makes earlier accesses known only if a fence stands before it: "
    "__threadfence() between the access and the atomic operation, and one after the atomic "
    "operation by which the other thread sees it"
)
_HOST = (
    "a kernel cannot access memory of the host: copy what the pointer points to by cudaMalloc and "
    "cudaMemcpy as well, and store the device's pointer"
)

_SAME_PLACE = (
    "two threads write one place, and whose number stays is a matter of chance: should each have a "
    "place of its own, by its index, or only one of them write?"
)

# The questions that the debugger answers, of a day or a program.
ROWS = {
    "orders": "the same result, whichever thread, block or copy comes first",
    "waits": "barriers that all reach, masks that are full, no wait without an end",
    "addresses": "no access beyond an array: global, shared or local",
    "locals": "no local variable read before it is set",
    "indices": "no size or index of 64 bits kept in 32",
    "races": "no two threads at one place without a barrier between them",
    "unwritten": "no shared or device memory read that nothing has written",
}

# The runtime's errors begin with this. These of them are about addresses; the rest is about
# threads that wait forever.
THROWN = "CUDA on CPU: "
ABOUT_ADDRESSES = re.compile(
    r"out of bounds|illegal memory access|stack overflow|misaligned|host memory|device memory"
    r"|beyond the end"
)

# The checks' message on a wrong result if threads of a block had returned when the others met at
# a barrier (runtime/pytorch.cpp).
RETURNED_EARLY = re.compile(r"\d+ of \d+ threads of block \(\d+,\d+,\d+\) had returned when")

_UPDATE = re.compile(r"(\w+)\)?(?:\[[^=]*\])?\s*[-+*/|&^]=(?!=)(.*)")

# The kinds of findings about the order of accesses; the others are about one access.
RACES = ("race", "copy", "fence", "mbarrier")
_OF_ONE = ("unwritten", "host")
# If two findings have the same lines, the heavier one is reported.
_WEIGHT = {"unwritten": 0, "host": 1, "fence": 1, "mbarrier": 1, "race": 2, "copy": 3}


@dataclass(frozen=True)
class Access:
    """One side of a finding. file, line: "" and 0 if unknown. access: "read", "write" or "atomic".
    block, thread: (x, y, z)."""

    file: str
    line: int
    access: str
    bytes: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]

    def place(self) -> str:
        """Return "days/day05/softmax.cu:31"."""
        return f"{self.file}:{self.line}" if self.line else "an unknown line"

    def text(self) -> str:
        """Return the line of the source."""
        return source_text(self.file, self.line)

    def describe(self) -> str:
        """Return one line with the thread, the access and its place."""
        did = {"read": "reads", "write": "writes", "atomic": "updates atomically"}[self.access]
        size = f"{self.bytes} byte{'s' if self.bytes > 1 else ''}"
        who = f"thread {_index(self.thread)} of block {_index(self.block)}"
        return f"{self.place()}: {who} {did} {size}: {self.text()}"


@dataclass(frozen=True)
class Finding:
    """A finding of the tracer. what: "race"; "copy", if memory is used before an asynchronous copy
    to it was waited for, or changed while one from it, or a wgmma, is in flight; "fence", if
    TMA or wgmma reads data stored without fence_proxy_async; "mbarrier", if a copy
    completes at an mbarrier without a fence after its initialisation; "unwritten", if shared
    memory is read that no thread of the block has written, or unwritten memory of cudaMalloc; or
    "host", if a kernel of a program accesses memory of the host.

    memory: the place in a variable or tensor, as far as known. first, second: in the order in which
    they ran; for "unwritten" and "host", equal. unfenced: True if an atomic operation would order
    the two if a fence stood before it.
    """

    what: str
    kernel: str
    launched_at: str
    memory: str
    first: Access
    second: Access
    unfenced: bool = False

    def places(self) -> list[str]:
        """Return the two lines in a fixed order; findings with the same lines are alike."""
        return sorted((self.first.place(), self.second.place()))

    def summary(self) -> str:
        """Return one line."""
        if self.what == "unwritten":
            return f"{self.second.place()} reads {self.memory}, which nothing has written"
        if self.what == "copy" and self.first.access == "read":
            return (
                f"{self.second.place()} changes {self.memory} while what {self.first.place()} "
                "started may still read it"
            )
        if self.what == "copy":
            return (
                f"{self.second.place()} uses {self.memory} while the copy of "
                f"{self.first.place()} may still be in flight"
            )
        if self.what == "fence":
            return (
                f"no fence_proxy_async between {self.first.place()}, which stores to "
                f"{self.memory}, and {self.second.place()}"
            )
        if self.what == "mbarrier":
            return (
                f"no fence between the mbarrier's initialisation at {self.first.place()} and the "
                f"copy that completes at it, {self.second.place()}: {self.memory}"
            )
        if self.what == "host":
            return f"{self.second.place()} follows a pointer to host memory"
        missing = ", which atomics do not order without __threadfence()" if self.unfenced else ""
        return f"race on {self.memory}: {self.first.place()} and {self.second.place()}{missing}"

    def details(self) -> list[str]:
        """Return lines with the two accesses and the likely fix."""
        where = f"in kernel {self.kernel}, launched at {self.launched_at}"
        if self.what == "unwritten":
            return [self.second.describe(), "fresh memory holds arbitrary values", where]
        if self.what == "host":
            return [self.second.describe(), _HOST, where]
        if self.what == "copy":
            wait = _WAIT_TO_REUSE if self.first.access == "read" else _WAIT
            return [self.first.describe(), self.second.describe(), wait, where]
        if self.what == "fence":
            return [self.first.describe(), self.second.describe(), _FENCE, where]
        if self.what == "mbarrier":
            return [self.first.describe(), self.second.describe(), _MBARRIER_FENCE, where]
        return [self.first.describe(), self.second.describe(), self._advice(), where]

    def _advice(self) -> str:
        if self.unfenced:
            return _NO_FENCE
        kinds = {self.first.access, self.second.access}
        if kinds == {"write"} and self.first.place() == self.second.place():
            return _SAME_PLACE
        if "atomic" in kinds:
            reason = "one of the two is not atomic, and nothing orders them"
        elif self.first.place() == self.second.place() and _is_update(self.first.text()):
            reason = (
                "both may read the old value, so that one of the changes is lost: atomicAdd and "
                "its like read and write at once"
            )
        else:
            reason = "there is no barrier between them: either may come first"
        if self.first.block != self.second.block:
            return f"{reason}; {_MANY_BLOCKS}"
        return f"{reason}; {_ONE_WARP if self._in_one_warp else _ONE_BLOCK}"

    @property
    def _in_one_warp(self) -> bool:
        a, b = self.first.thread, self.second.thread
        return a[1:] == b[1:] and a[0] // 32 == b[0] // 32

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _is_update(line: str) -> bool:
    """Return True if a line changes a variable by its old value, and reads no other element of the
    array: in a sum by a tree, a barrier is missing."""
    match = _UPDATE.search(line)
    return match is not None and not re.search(rf"\b{match[1]}\b", match[2])


@dataclass
class LineCounts:
    """Totals over the accesses of one line and kind, in one kernel.

    kind: "global load", "global store", "global atomic", the same with "shared", "constant load".
    requests: of warps. lanes, bytes: totals of participating lanes and requested bytes. sectors: of
    32 bytes, of global memory. wavefronts: passes over shared memory; conflicts: those caused by
    bank conflicts.
    """

    kernel: str
    file: str
    line: int
    kind: str
    requests: int = 0
    lanes: int = 0
    bytes: int = 0
    sectors: int = 0
    wavefronts: int = 0
    conflicts: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Trace:
    """All findings. remarks: skipped checks, and why. launches: of the counted kernels by name, the
    threads per block and the bytes of dynamic shared memory, each pair once."""

    findings: list[Finding]
    counts: list[LineCounts]
    remarks: list[str]
    launches: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


def take(runtime: Runtime) -> Trace:
    """Return the tracer's findings since the last call; `runtime` is of the variant "trace"."""
    return read(runtime.take_trace())


def read(text: str) -> Trace:
    """Return the tracer's findings from the runtime's JSON."""
    report = json.loads(text)
    lines = _lines(report["sites"])
    kernels = [(kernel_name(k["name"]), _relative(k["launched_at"])) for k in report["kernels"]]

    findings: dict[tuple[Any, ...], Finding] = {}
    for item in report["findings"]:
        kernel, launched_at = kernels[item["kernel"]]
        finding = Finding(
            item["what"],
            kernel,
            launched_at,
            item["memory"] or ("shared memory" if item["shared"] else "global memory"),
            _access(item["first"], lines),
            _access(item["second"], lines),
            "unfenced" in item,
        )
        # Inlined code and templates give several findings for one line. A copy that no thread
        # waits for also races with what ran before its start, and a missing barrier matters more
        # than a missing fence.
        key = (finding.what in _OF_ONE, *finding.places())
        known = findings.get(key)
        if known is None or _WEIGHT[finding.what] > _WEIGHT[known.what]:
            findings[key] = finding
    raced = {
        a.place() for f in findings.values() if f.what != "unwritten" for a in (f.first, f.second)
    }
    kept = [
        finding
        for finding in findings.values()
        # An element read too early is often unwritten: the race is the reason.
        if finding.what != "unwritten" or finding.second.place() not in raced
    ]

    counts: dict[tuple[str, str, int, str], LineCounts] = {}
    launches: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for item in report["counts"]:
        file, line = lines[item["site"]]
        name, launch = kernels[item["kernel"]][0], report["kernels"][item["kernel"]]
        launched = (launch["threads"], launch["shared_bytes"])
        if launched not in launches[name]:
            launches[name].append(launched)
        place = (name, file, line, item["kind"])
        sums = counts.setdefault(place, LineCounts(*place))
        for name in ("requests", "lanes", "bytes", "sectors", "wavefronts", "conflicts"):
            setattr(sums, name, getattr(sums, name) + item[name])

    remarks = []
    if report["more"]:
        remarks.append(f"{report['more']} further findings are not shown")
    if report["left_out"]:
        remarks.append("global memory beyond the first 128 MB of a launch was not looked at")
    in_order = sorted(counts.values(), key=lambda c: (c.kernel, c.file, c.line, c.kind))
    return Trace(kept, in_order, remarks, dict(launches))


def source_text(file: str, line: int) -> str:
    """Return the line of this number in a file, whose name may be relative to the repository; "" if
    it does not exist."""
    return linecache.getline(str(_ROOT / file), line).strip()


def _access(item: dict[str, Any], lines: list[tuple[str, int]]) -> Access:
    file, line = lines[item["site"]]
    block, thread = (tuple(item[name]) for name in ("block", "thread"))
    return Access(file, line, item["access"], item["bytes"], block, thread)


def _index(xyz: tuple[int, int, int]) -> str:
    return "({},{},{})".format(*xyz)


def kernel_name(text: str) -> str:
    """Return the kernel's name from its signature:
    "void {anonymous}::scan(const T*, int) [with T = float; int N = 4]" -> "scan<float, 4>"."""
    function, _, arguments = text.replace("{anonymous}::", "").rstrip("]").partition(" [with ")
    name = re.sub(r"^.*[ *&](?=[\w:]+\()", "", function).split("(")[0]
    pairs = [argument.partition(" = ") for argument in arguments.split("; ") if argument]
    # gcc also prints the type of int64_t.
    values = [value for parameter, _, value in pairs if not parameter.endswith("_t")]
    return f"{name}<{', '.join(values)}>" if values else name


def _relative(place: str) -> str:
    return place.removeprefix(f"{_ROOT}/")


Frames = list[tuple[str, int]]  # file and line of a code address, inlined functions first
_known: dict[tuple[str, int], Frames] = {}  # by library and offset; a process loads few


def _lines(sites: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the file and line of each site."""
    needed: dict[str, set[int]] = defaultdict(set)
    for site in sites:
        for library, offset in filter(None, site.get("code", ())):
            if (library, offset) not in _known:
                needed[library].add(offset)
    for library, offsets in needed.items():
        _look_up(library, sorted(offsets))

    def line_of(site: dict[str, Any]) -> tuple[str, int]:
        if "file" in site:
            return _relative(site["file"]), site["line"]
        # The innermost line that is the user's own, or the one that called the function.
        for library, offset in filter(None, site["code"]):
            for file, line in _known[library, offset]:
                if not any(helper in file for helper in _HELPERS):
                    return _relative(file), line
        return "", 0

    return [line_of(site) for site in sites]


def _look_up(library: str, offsets: list[int]) -> None:
    """Look up the lines of these code addresses and store them."""
    for offset in offsets:
        _known[library, offset] = []
    command = ["addr2line", "-a", "-i", "-e", library, *(hex(offset) for offset in offsets)]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return  # without binutils, findings have no lines
    frames: Frames = []
    for text in output.splitlines():
        if text.startswith("0x"):
            frames = _known[library, int(text, 16)]
        elif match := re.match(r"(.+):(\d+)", text):
            frames.append((str(Path(match[1])), int(match[2])))
