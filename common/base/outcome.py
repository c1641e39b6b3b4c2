"""Hold the outcomes of a rung and of a day: plain data, sent from worker to runner as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from common.base.decoding import decode

Status = Literal["PASS", "FAIL", "SKIP"]
PASS: Status = "PASS"
FAIL: Status = "FAIL"
SKIP: Status = "SKIP"

# A reason for FAIL that several modules use.
WRITTEN_OUTSIDE = "memory outside its tensors was written"

HOST_CLOCK = "host clock"  # how a call that itself waits for the GPU is timed
ABOVE_CEILING = 1.15  # of the copy's bandwidth; reading alone reaches 1.06


class Skip(Exception):
    """Raised by a day.py, or by a rung's `load`, if something optional is missing.

    The message names it, and the command that installs it.
    """


class Mistake(Exception):
    """Raised by the result of a rung's `load`, if it detects an error of the rung.

    The message is the failure: one line that names it, then lines that explain it.
    """


@dataclass
class Timing:
    """A measured time on the timing case.

    case: the case, as text. ms: median of one call. spread: half the interquartile range over the
    median. samples: their number. gbs: GB/s (1e9) of the declared bytes. tflops: of the declared
    operations. bound: the ceiling it is compared with ("copy", "read", "fp32", "int32", "tensor",
    "int8", "fp8"). share: the rate over that ceiling, None if unknown, as on the CPU; derived from
    the GPU's ceilings (common/base/ceilings.py), so it is not stored. pytorch_ms: the same in
    PyTorch, and libraries: in other libraries, ms by name, all interleaved with it. missing:
    libraries that were not timed, or computed something else: the reason by name.
    host_us: microseconds of the host per call of a small case, until it returns, and
    pytorch_host_us: those of PyTorch's call; None if they were not measured, as on the CPU. note:
    how it was timed ("events", "graph of 32 calls", "host clock").
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
    missing: dict[str, str] = field(default_factory=dict)
    host_us: float | None = None
    pytorch_host_us: float | None = None
    note: str = ""

    @property
    def best_library(self) -> tuple[str, float] | None:
        """Return the name and ms of the fastest library; None if none was timed.

        A time that implies a rate above the ceiling is ignored: the library did not do the work.
        """
        found = sorted(self.libraries.items(), key=lambda item: item[1])
        if self.share is not None:
            found = [(name, ms) for name, ms in found if self.share * self.ms / ms < ABOVE_CEILING]
        return found[0] if found else None


@dataclass
class RungOutcome:
    """One line of the report.

    status: PASS, FAIL or SKIP; reason: why, if not PASS; details: lines that explain a failure;
    checked: number of cases; bad_inputs: number tried; remarks: notes for a user, such as a skipped
    check and why. asides: notes for the day's author on how it was checked, shown by --verbose.
    build_s: seconds of a custom build. findings: of the CPU backend's tracer, each {"what": …,
    "places": two, "summary": a line, "details": lines}. counts: its memory accesses by line, if
    they were counted (common.cpu.findings.LineCounts). kernels: the counters of each by Nsight
    Compute's names, if they were counted or measured, in the order of the launches
    (common.bench.counters.Kernel). further: it belongs to the part beyond the day's main line.
    example: lines that show one tiny case of a wrong result in full (common/check/tiny_case.py).
    drawing: of its launches, if they were drawn (common.report.drawn_call.DrawnCall).
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
        """Return the outcome without a time: one on the CPU backend does not predict a GPU's."""
        return replace(self, timing=None, target_met=None)

    @staticmethod
    def from_json(data: Any, place: str = "") -> RungOutcome:
        """Return the outcome from its plain data. Raise PlainError, naming the field."""
        outcome: RungOutcome = decode(RungOutcome, data, place)
        return outcome


@dataclass
class DayOutcome:
    """A day's run: its rungs, or the reason why there are none.

    status: FAIL if any rung failed or the day did not build, crashed or hung; SKIP if every rung
    was skipped. build_s, run_s: seconds, without those of waiting for its turn. spent: seconds of
    the run by activity, including "waiting". output: the day's output, without its middle part if
    it is long. files: of its `show`, texts by name.
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
        """Return the outcome without times, see `RungOutcome.without_time`."""
        return replace(self, rungs=[rung.without_time() for rung in self.rungs])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Any, place: str = "") -> DayOutcome:
        """Return the outcome from the data of `to_json`. Raise PlainError, naming the field."""
        outcome: DayOutcome = decode(DayOutcome, data, place)
        return outcome
