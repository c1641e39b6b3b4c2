"""Implement `python -m common.cpu prog.cu --sanitize`: run a whole program in several orders of its
threads, and in builds that watch its memory accesses.

The rows are those of a day's report (common/tools/debugger.py), and one about streams, whose work
runs as late as legal (runtime/deferred.cpp). A program has no reference: its output and exit code
are compared with those of its first run. Lines that differ from one run to the next in the same
order, such as measured times, are ignored. Two runs may agree in such a line by chance, so the
first order is repeated before a row fails because of a line.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.base.compiling import BuildError
from common.base.outcome import FAIL, PASS, SKIP, RungOutcome, Status
from common.base.toolchain import Platform
from common.cpu import backend, findings, program
from common.cpu.findings import ABOUT_ADDRESSES, ROWS, THROWN

# Orders of threads and blocks after the first, which is forward.
_ORDERS = (("reverse", 0), ("random", 1), ("random", 2), ("random", 3))
# Orders with late streams: the work submitted last runs first, and random orders.
_LATE = (("forward", 0), ("random", 1), ("random", 2))
_RACES = {"CUDACPU_TRACE": "1", "CUDACPU_HINTS": "1"}  # of copies, which are not traced
_NEVER_WRITTEN = "that nothing has written"
# "unwritten" and "races" replace the program's hints; CUDA promises no order of printf by threads.
_OWN_ROWS = {"CUDACPU_HINTS": "0", "CUDACPU_PRINTS": "sorted"}
_NOTE = re.compile(r"^note: (.+:\d+: lane \d+ reads lane .*)$", re.MULTILINE)  # of program.cpp
STREAMS = "the same result, however late the work of streams runs"
_UNFINISHED = "nothing waits for "  # beginning of the last message of program.cpp
_LATE_COUNT = re.compile(r"^late: (\d+) operations$", re.MULTILINE)  # of program.cpp
_LATE_WAIT = re.compile(r"^(nothing waits in time for .+)$", re.MULTILINE)
_ALL_LATE = 10**9
_SHOWN = 40  # lines of a row's details
_REPEATS = 4  # further runs in the first order before a line of output counts as another


@dataclass(frozen=True)
class Run:
    """The result of running a program. order: for a message, e.g. "in reverse order"; code: None if
    it did not end in time."""

    order: str
    code: int | None
    output: str
    errors: str

    def thrown(self) -> list[str]:
        """Return the backend's messages about it, a paragraph each."""
        parts = self.errors.split(THROWN)[1:]
        return [part.strip() for part in parts]


def report(
    sources: Sequence[Path],
    platform: Platform,
    flags: Sequence[str],
    arguments: Sequence[str],
    seconds: float,
) -> list[RungOutcome]:
    """Return the rows, each with its answer. seconds: limit of one run.

    Raise BuildError if the program does not build.
    """
    plain = program.executable(sources, platform, flags)

    def repeat() -> Run:
        return run(plain, arguments, "in forward order, again", seconds, {})

    first = run(plain, arguments, "in forward order", seconds, {"CUDACPU_STRICT": "1"})
    repeats = [repeat()]
    others = [
        run(
            plain,
            arguments,
            f"in {order} order" + (f" with seed {seed}" if seed else ""),
            seconds,
            {"CUDACPU_ORDER": order, "CUDACPU_SEED": str(seed)},
        )
        for order, seed in _ORDERS
    ]
    late = [
        run(
            plain,
            arguments,
            "with late streams" + (f" in random order with seed {seed}" if seed else ""),
            seconds,
            {"CUDACPU_STREAMS": "late", "CUDACPU_ORDER": order, "CUDACPU_SEED": str(seed)},
        )
        for order, seed in _LATE
    ]
    watched: Run | None = None
    missing = ""
    try:
        preloaded = backend.preloaded(platform.compiler)
        built = program.executable(sources, replace(platform, variant="address"), flags)
        watched = run(built, arguments, "with every access watched", seconds, preloaded)
    except FileNotFoundError as error:
        missing = str(error)
    compared = [judge_orders(first, repeats, others), judge_streams(first, repeats, others, late)]
    if any(row.details for row in compared if row.status == FAIL):
        repeats += [repeat() for _ in range(_REPEATS)]
        compared = [
            judge_orders(first, repeats, others),
            judge_streams(first, repeats, others, late),
        ]
    if compared[1].status == FAIL:
        blamed = missing_wait(plain, arguments, seconds, first, repeats, late)
        compared[1].details = [*blamed, *compared[1].details]
    addresses = judge_addresses([*([watched] if watched else []), first, *others], missing)
    zeroed: list[Run] = []
    unset: list[str] = []
    if watched and addresses.status == PASS and watched.output != first.output:
        built = program.executable(sources, replace(platform, variant="zeroed"), flags)
        order = "where local variables begin with zeros"
        zeroed = [run(built, arguments, order, seconds, preloaded) for _ in range(_REPEATS)]
        unset = program.unset_locals(sources, platform, flags)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        built = program.executable(sources, replace(platform, variant="trace"), flags)
        variables = {**_RACES, "CUDACPU_TRACE_FILE": str(trace)}
        traced = run(built, arguments, "with every access traced", seconds, variables)
        text = trace.read_text(encoding="utf-8") if trace.is_file() else ""
    of_host = judge_trace("addresses", traced, text, ("host",))
    rows = [
        *compared,
        judge_waits([first, *others]),
        of_host if of_host.status == FAIL and addresses.status != FAIL else addresses,
        judge_locals(watched, addresses, zeroed, unset),
        judge_indices(sources, platform, flags),
        judge_trace("races", traced, text, findings.RACES),
        judge_unwritten(traced, text),
    ]
    if first.code and all(row.status != FAIL for row in rows):
        # The program has found an error itself, and nothing after its exit was checked.
        said = [*first.output.splitlines(), *first.errors.splitlines()][-1:]
        reason = ": ".join([f"exit code {first.code} in every order", *said])
        rows[0] = _row("orders", FAIL, reason)
    return rows


def run(
    built: Path, arguments: Sequence[str], order: str, seconds: float, variables: Mapping[str, str]
) -> Run:
    """Run a built program, with further environment variables, for at most `seconds`."""
    try:
        done = subprocess.run(
            [str(built), *arguments],
            env={**os.environ, **_OWN_ROWS, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        output, errors = error.stdout or b"", error.stderr or b""
        assert isinstance(output, bytes) and isinstance(errors, bytes)
        return Run(order, None, output.decode(errors="replace"), errors.decode(errors="replace"))
    return Run(order, done.returncode, done.stdout, done.stderr)


def _row(
    name: str, status: Status = PASS, reason: str = "", details: Sequence[str] = ()
) -> RungOutcome:
    return RungOutcome("sanitize", name, ROWS[name], status, reason, list(details))


def judge_orders(first: Run, repeats: Sequence[Run], others: Sequence[Run]) -> RungOutcome:
    """Return the row "orders": the first run whose exit code or output differs.

    repeats: further runs in the order of the first.
    """
    row = _row("orders")
    row.reason = _why_not_compared(first, repeats)
    if row.reason:
        row.status = SKIP
        return row
    for run in others:
        if run.code is None or (run.thrown() and not first.thrown()):
            continue  # the other rows are about that
        if _differs(row, first, repeats, run):
            row.details += _NOTE.findall(run.errors)
            return row
    return row


def judge_streams(
    first: Run, repeats: Sequence[Run], others: Sequence[Run], late: Sequence[Run]
) -> RungOutcome:
    """Return the row "streams": the first late run that fails, or whose exit code or output
    differs.

    Runs in random order count only if the order alone changes nothing: `others` are those orders.
    """
    row = RungOutcome("sanitize", "streams", STREAMS, PASS)
    row.reason = _why_not_compared(first, repeats)
    if row.reason:
        row.status = SKIP
        return row
    depends = judge_orders(first, repeats, others).status == FAIL
    for run in late[:1] if depends else late:
        if run.code is None:
            row.status, row.reason = SKIP, f"the program did not end in time {run.order}"
            return row
        said = [text for text in run.thrown() if not text.startswith(_UNFINISHED)]
        if said and not first.thrown():
            lines = said[0].splitlines()
            row.status, row.reason, row.details = FAIL, f"{run.order}: {lines[0]}", lines[1:_SHOWN]
            return row
        unfinished = [text for text in run.thrown() if text.startswith(_UNFINISHED)]
        if _differs(row, first, repeats, run):
            row.details += unfinished
            return row
        row.details = row.details or unfinished
    return row


def missing_wait(
    built: Path,
    arguments: Sequence[str],
    seconds: float,
    first: Run,
    repeats: Sequence[Run],
    late: Sequence[Run],
) -> list[str]:
    """Return the operation that some code uses before it waits for it, or [].

    The first late run that differs is repeated with the first n operations late, and the others run
    when they are submitted; the largest n that changes nothing is searched by bisection.
    """

    def is_wrong(run: Run) -> bool:
        scratch = RungOutcome("sanitize", "streams", STREAMS, PASS)
        return run.code is not None and _differs(scratch, first, repeats, run)

    modes = (mode for run, mode in zip(late, _LATE, strict=True) if is_wrong(run))
    order, seed = next(modes, ("", 0))
    if not order:
        return []
    variables = {"CUDACPU_STREAMS": "late", "CUDACPU_ORDER": order, "CUDACPU_SEED": str(seed)}

    def limited(operations: int) -> Run:
        limit = {**variables, "CUDACPU_LAST_LATE": str(operations)}
        return run(built, arguments, "with some late streams", seconds, limit)

    count = _LATE_COUNT.search(limited(_ALL_LATE).errors)
    right, last = 0, int(count[1]) if count else 0
    found = limited(last)
    if not last or not is_wrong(found):
        return []
    while last - right > 1:
        middle = (right + last) // 2
        tried = limited(middle)
        if is_wrong(tried):
            last, found = middle, tried
        else:
            right = middle
    return _LATE_WAIT.findall(found.errors)


def _why_not_compared(first: Run, repeats: Sequence[Run]) -> str:
    """Return why no other run can be compared with the first; "" if it can."""
    if None in (first.code, *(each.code for each in repeats)):
        return "the program did not end in time; --time-limit gives it more"
    if len({len(each.output.splitlines()) for each in (first, *repeats)}) > 1:
        return "the number of lines that it prints changes from run to run"
    return ""


def _differs(
    row: RungOutcome, first: Run, repeats: Sequence[Run], run: Run, name: str = "forward"
) -> bool:
    """Return True if the exit code or the output of a run differs, and set it in the row. Lines
    that change when the first run is repeated do not count. name: of the first run, in details."""
    if run.code != first.code:
        row.status, row.reason = FAIL, f"exit code {first.code}, but {run.code} {run.order}"
        return True
    lines, got = first.output.splitlines(), run.output.splitlines()
    printed = zip(*(each.output.splitlines() for each in (first, *repeats)), strict=True)
    stable = [each[0] if len(set(each)) == 1 else None for each in printed]
    if len(got) == len(stable):
        pairs = list(zip(stable, got, strict=True))
        different = [(a, b) for a, b in pairs if a is not None and a != b]
    else:
        different = [("", line) for line in difflib.unified_diff(lines, got, lineterm="", n=0)]
    if different:
        row.status, row.reason = FAIL, f"another output {run.order} than in forward order"
        now = f"{'now:':{len(name) + 1}}"
        details = [line for a, b in different for line in (f"{name}: {a}", f"{now} {b}")]
        row.details = details[:_SHOWN]
    return bool(different)


def judge_waits(runs: Sequence[Run]) -> RungOutcome:
    """Return the row "waits": launches that the runtime ended because threads waited forever."""
    return _thrown(_row("waits"), runs, about_addresses=False)


def judge_addresses(runs: Sequence[Run], missing: str) -> RungOutcome:
    """Return the row "addresses", from all runs; missing: why no run watches addresses, or ""."""
    row = _thrown(_row("addresses"), runs, about_addresses=True)
    if missing and row.status == PASS:
        row.status, row.reason = SKIP, missing
    return row


def _thrown(row: RungOutcome, runs: Sequence[Run], about_addresses: bool) -> RungOutcome:
    for run in runs:
        for text in run.thrown():
            if bool(ABOUT_ADDRESSES.search(text)) is about_addresses:
                lines = text.splitlines()
                row.status, row.reason = FAIL, f"{run.order}: {lines[0]}"
                row.details = lines[1:_SHOWN]
                return row
    late = [run for run in runs if run.code is None]
    if late and not about_addresses:
        row.status, row.reason = FAIL, f"the program did not end in time {late[0].order}"
    return row


def judge_locals(
    watched: Run | None, addresses: RungOutcome, zeroed: Sequence[Run], unset: Sequence[str]
) -> RungOutcome:
    """Return the row "locals": an output that depends on the values with which local variables
    begin.

    watched: the run in which they begin with a pattern. addresses: that row. zeroed: equal runs in
    which they begin with zeros, if the output of `watched` is another than that of an ordinary run.
    unset: variables that the compiler suspects.
    """
    row = _row("locals")
    if watched is None or addresses.status != PASS:
        row.status, row.reason = SKIP, addresses.reason if watched is None else "see addresses"
    elif zeroed:
        same, *repeats = zeroed
        if _why_not_compared(same, repeats):
            row.status, row.reason = SKIP, _why_not_compared(same, repeats)
        elif _differs(row, same, repeats, watched, "zeros"):
            reason = "another output where local variables begin with other values"
            row.reason, *suspects = [*unset, f"{reason}: one is read before it is set"]
            row.details = [*suspects, *row.details]
    return row


def judge_indices(sources: Sequence[Path], platform: Platform, flags: Sequence[str]) -> RungOutcome:
    """Return the row "indices": the compiler's findings in device code.

    It passes also with findings: they are wrong from 2^31 elements on, and the program may have
    fewer.
    """
    row = _row("indices")
    try:
        row.details = program.narrowed(sources, platform, flags)[:_SHOWN]
    except BuildError as error:
        lines = error.text.splitlines()
        said = next((line for line in lines if "error:" in line), "the compiler failed")
        row.status, row.reason = SKIP, f"the program does not compile as C++20: {said}"
    if row.details:
        row.reason = "right only for fewer than 2^31 elements:"
    return row


def judge_trace(name: str, run: Run, text: str, kinds: tuple[str, ...]) -> RungOutcome:
    """Return the row `name`: the tracer's findings of these kinds."""
    if not text:
        ended = [part.splitlines()[0] for part in run.thrown()]
        reason = [*ended[-1:], *run.errors.strip().splitlines()[-1:], f"exit code {run.code}"]
        return _row(name, SKIP, f"the traced program left no report: {reason[0]}")
    found = [finding for finding in findings.read(text).findings if finding.what in kinds]
    if not found:
        return _row(name)
    lines = [line for f in found for line in (f.summary(), *f.details())]
    return _row(name, FAIL, lines[0], lines[1:_SHOWN])


def judge_unwritten(run: Run, text: str) -> RungOutcome:
    """Return the row "unwritten": unwritten memory that a kernel read or a copy brought back."""
    row = judge_trace("unwritten", run, text, ("unwritten",))
    copied = [said for said in run.thrown() if _NEVER_WRITTEN in said]
    if row.status == PASS and copied:
        row.status, row.reason = FAIL, copied[0]
    return row


def show(rows: Sequence[RungOutcome]) -> str:
    """Return the report as text: a line for each row, with its findings below."""
    lines = []
    for row in rows:
        lines.append(f"{row.rung:10} {row.status}  {row.reason or row.idea}")
        lines += [f"             {line}" for line in row.details]
    return "\n".join(lines)
