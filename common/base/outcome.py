"""What happened to a rung and to a day: plain data, sent from worker to runner as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from common.base.plain import decode

Status = Literal["PASS", "FAIL", "SKIP"]
PASS: Status = "PASS"
FAIL: Status = "FAIL"
SKIP: Status = "SKIP"

# A reason for FAIL that more than one module knows.
WRITTEN_OUTSIDE = "memory outside its tensors was written"

ABOVE_CEILING = 1.15  # of the copy's bandwidth; reading alone reaches 1.06


class Skip(Exception):
    """Raised by a day.py, or by a rung's `load`, where something optional is missing.

    The message says what, and the command that installs it.
    """


class Mistake(Exception):
    """Raised by what a rung's `load` returns, where it sees that the rung did wrong.

    The message is the failure: a line that says what is wrong, then lines that explain it.
    """


@dataclass
class Timing:
    """A measured time on the timing case.

    case: the case, as text. ms: median of one call. spread: half the interquartile range over the
    median. samples: how many were taken. gbs: GB/s (1e9) of the declared bytes. tflops: of the
    declared operations. bound: the ceiling it is held against ("copy", "read", "fp32",
    "int32", "tensor", "int8", "fp8"), share: the rate over that ceiling (None where none is known,
    as on the CPU).
    pytorch_ms: the same in PyTorch, and libraries: in other libraries, ms by name, all interleaved
    with it.
    host_us: microseconds of the host per call of a small case, until it returns, and
    pytorch_host_us: those of PyTorch's call; None where they were not measured, as on the CPU.
    note: how it was timed ("events", "graph of 32 calls", "host clock").
    """

    case: str
    ms: float
    spread: float
    samples: int
    gbs: float | None = None
    tflops: float | None = None
    bound: str = ""
    share: float | None = None
    pytorch_ms: float | None = None
    libraries: dict[str, float] = field(default_factory=dict)
    host_us: float | None = None
    pytorch_host_us: float | None = None
    note: str = ""

    @property
    def best_library(self) -> tuple[str, float] | None:
        """Name and ms of the fastest library; None where none was timed.

        A time that would mean a rate above the ceiling is no baseline: it did not do the work.
        """
        found = sorted(self.libraries.items(), key=lambda item: item[1])
        if self.share is not None:
            found = [(name, ms) for name, ms in found if self.share * self.ms / ms < ABOVE_CEILING]
        return found[0] if found else None


@dataclass
class RungOutcome:
    """One line of the report.

    status: PASS, FAIL or SKIP; reason: why, where it is not PASS; details: lines that explain a
    failure; checked: number of cases; bad_inputs: how many were tried; remarks: what a user should
    know of it, as what was not tried and why. asides: how it was checked, of interest to who writes
    the day: shown by --verbose. build_s: seconds that its build took, where it has one of its own.
    findings: what the CPU backend's tracer found, each {"what": …, "places": two, "summary": a
    line, "details": lines}. counts: of its accesses to memory, by line, where these were counted
    (common.cpu.findings.LineCounts). kernels: the counters of each by Nsight Compute's names, where
    these were counted or measured, in the order of the launches (common.bench.counters.Kernel).
    further: it goes beyond the day's main line. example: of a wrong result, lines that show one
    tiny case in full (common/check/tiny_case.py). drawing: of its launches, where these were drawn
    (common.report.drawn_call.DrawnCall).
    """

    problem: str
    rung: str
    idea: str
    status: Status
    reason: str = ""
    details: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    asides: list[str] = field(default_factory=list)
    checked: int = 0
    bad_inputs: int = 0
    build_s: float | None = None
    timing: Timing | None = None
    target: str = ""
    target_met: bool | None = None
    findings: list[dict[str, Any]] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    further: bool = False
    example: list[str] = field(default_factory=list)
    drawing: dict[str, Any] = field(default_factory=dict)

    def without_time(self) -> RungOutcome:
        """Return the outcome with no time: one on the CPU backend says nothing of a GPU's."""
        return replace(self, timing=None, target_met=None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Any, place: str = "") -> RungOutcome:
        """Return the outcome that `to_json` gave. Raises PlainError, naming the field."""
        outcome: RungOutcome = decode(RungOutcome, data, place)
        return outcome


@dataclass
class DayOutcome:
    """A day's run: its rungs, or the reason why there are none.

    status: FAIL if any rung failed or the day did not build, crashed or hung; SKIP if every rung
    was skipped. build_s, run_s: seconds, without those that it waited for its turn. spent: seconds
    of the run by what was done, "waiting" among it. output: what the day printed, its middle left
    out where it is long. files: those that its `show` made, texts by name.
    """

    number: int
    name: str
    title: str
    status: Status
    reason: str = ""
    details: list[str] = field(default_factory=list)
    rungs: list[RungOutcome] = field(default_factory=list)
    build_s: float = 0.0
    run_s: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    output: str = ""
    files: dict[str, str] = field(default_factory=dict)

    def without_times(self) -> DayOutcome:
        """Return the outcome with no times, see `RungOutcome.without_time`."""
        return replace(self, rungs=[rung.without_time() for rung in self.rungs])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Any, place: str = "") -> DayOutcome:
        """Return the outcome that `to_json` gave. Raises PlainError, naming the field."""
        outcome: DayOutcome = decode(DayOutcome, data, place)
        return outcome
