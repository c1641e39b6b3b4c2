"""The runner over invented days: turns, workers, events, processes that misbehave."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.base.days import Day
from common.base.options import RunOptions, no_attention
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome, Status, Timing
from common.process.child import FORGED, Child, describe_exit, end_strays, fork
from common.process.events import (
    AskTurn,
    Channel,
    Checked,
    Ended,
    Event,
    Finished,
    Over,
    Planned,
    Progress,
    Ran,
    Stage,
    Table,
    TurnOver,
    Unbuilt,
    from_line,
    to_line,
)
from common.report.terminal import Report
from common.run import runner, scheduling
from common.run.exit_status import exit_code
from common.run.runner import ONE_BY_ONE, Capacity
from tests.progress import wait_for


def read_into(events: list[Event], child: Child) -> list[Event]:
    """Append what the child has emitted since, and return all of it."""
    events += child.read()
    return events


def test_a_process_that_ignores_signals_is_killed() -> None:
    def stubborn(channel: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1234"])
        channel.emit(Over())
        time.sleep(1234)

    child = fork(stubborn)
    events: list[Event] = []
    wait_for(lambda: read_into(events, child))
    child.kill(grace=0.1)
    child.close()
    assert child.exit_code == -signal.SIGKILL
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)


@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_what_a_child_started_in_a_session_of_its_own_ends_with_it(ends: str) -> None:
    """Here an orphan: its parent has ended before."""

    def start(channel: Any) -> None:
        started = subprocess.run(
            ["sh", "-c", "setsid sleep 1234 >&- 2>&- & echo $!"], capture_output=True, text=True
        )
        channel.emit(Stage("", started.stdout.strip()))
        time.sleep(0.0 if ends == "by itself" else 1234)

    child = fork(start)
    events: list[Event] = []
    wait_for(lambda: read_into(events, child))
    if ends == "killed":
        child.kill()
    wait_for(child.finished)
    child.close()
    (stage,) = events
    assert isinstance(stage, Stage)
    stat = Path(f"/proc/{stage.stage}/stat")
    wait_for(lambda: not stat.exists() or ") Z " in stat.read_text())


def test_much_output_is_bounded_and_does_not_block() -> None:
    def talkative(channel: Any) -> None:
        for i in range(50_000):
            print(f"line {i}")
        channel.emit(Over())

    child = fork(talkative)
    events: list[Event] = []
    wait_for(lambda: read_into(events, child) and child.finished())
    events += child.read()
    assert events == [Over()]
    output = child.output()
    child.close()
    assert output.startswith("line 0\n") and output.endswith("line 49999\n")
    assert "bytes left out" in output and len(output) < 200_000


@dataclasses.dataclass
class Fake:
    """A runner over invented days: builds and runs record in a file when they happen."""

    notes: Path
    runner: runner.Runner = dataclasses.field(init=False)
    shown: io.StringIO = dataclasses.field(default_factory=io.StringIO)

    def note(self, text: str) -> None:
        with open(self.notes, "a") as file:
            file.write(f"{text}\n")

    def run(
        self,
        platform: Any,
        step: Any,
        *,
        days: int,
        jobs: int = 1,
        ready: int = 0,
        capacity: Capacity = ONE_BY_ONE,
        limit: float = 20.0,
        attend: Any = no_attention,
    ) -> list[str]:
        def build(day: Day) -> None:
            self.note(f"build {day.number} begins")
            time.sleep(0.3)
            self.note(f"build {day.number} ends")

        all_days = [
            Day(number=n, folder=Path(f"day{n:02d}"), title="t", teaches="t", topics=("t",),
                source=Path("x.cu"))
            for n in range(1, days + 1)
        ]  # fmt: skip
        self.runner = runner.Runner(
            all_days, platform, RunOptions(jobs=jobs, time_limit=limit, attend=attend), step, build,
            lambda day: day.number <= ready, Report(self.shown), capacity,
        )  # fmt: skip
        self.runner.run()
        return self.notes.read_text().splitlines()


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "notes")


def passed(name: str) -> RungOutcome:
    return RungOutcome("p", name, "", PASS, checked=1)


def test_builds_and_timing_take_turns_on_the_cpu(fake: Fake) -> None:
    def step(day: Day, platform: Any, options: RunOptions, channel: Channel) -> None:
        channel.emit(Planned([["p", "r", ""]]))
        channel.wait(AskTurn(quiet=True))
        fake.note(f"timing {day.number} begins")
        time.sleep(0.2)
        fake.note(f"timing {day.number} ends")
        channel.emit(TurnOver())
        channel.emit(Finished(passed("r")))
        channel.emit(Over())

    notes = fake.run(SimpleNamespace(device="cpu"), step, days=5, jobs=2, ready=1)
    building: set[str] = set()
    most = 0
    for line in notes:
        kind, number, what = line.split()
        if kind == "build":
            (building.add if what == "begins" else building.discard)(number)
            most = max(most, len(building))
        else:
            assert not building, notes
    assert most == 2, "builds ran side by side"
    assert sum(line.startswith("timing") for line in notes) == 10
    assert [o.status for o in fake.runner.outcomes] == [PASS] * 5


GPU = SimpleNamespace(device="cuda", gpus=1)


@dataclasses.dataclass
class Steps:
    """The steps of days with these numbers: a check, then a turn. checks, turns: their seconds.
    together: no check ends before this many have begun, on a machine with any load. quiet: no build
    may run during a turn. crash: the step in which day 2 crashes, "check" or "turn"; hang: the step
    in which it never ends."""

    fake: Fake
    checks: float = 0.2
    turns: float = 0.1
    together: int = 1
    quiet: bool = False
    crash: str = ""
    hang: str = ""

    def __call__(self, day: Day, platform: Any, options: RunOptions, channel: Channel) -> None:
        channel.emit(Planned([["p", "r", ""]]))
        self._part("check", day.number, self.checks, channel)
        channel.emit(Checked(passed("r")))
        channel.wait(AskTurn(self.quiet))
        self._part("turn", day.number, self.turns, channel)
        channel.emit(TurnOver())
        channel.emit(Finished(passed("r")))
        channel.emit(Over())

    def _part(self, what: str, number: int, seconds: float, channel: Channel) -> None:
        channel.emit(Stage("r", what))
        self.fake.note(f"{what} {number} begins")
        if number == 2 and self.crash == what:
            self.fake.note(f"{what} {number} ends")
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(1234 if number == 2 and self.hang == what else seconds)
        while what == "check" and self._checks_begun() < self.together:
            time.sleep(0.01)
        self.fake.note(f"{what} {number} ends")

    def _checks_begun(self) -> int:
        lines = self.fake.notes.read_text().splitlines()
        return sum(line.startswith("check") and line.endswith("begins") for line in lines)


def side_by_side(notes: list[str]) -> dict[str, int]:
    """Return the largest number of each kind at a time, and of any kind during a turn."""
    running: set[str] = set()
    most = {"build": 0, "check": 0, "turn": 0, "beside": 0}
    for line in notes:
        what, _, begins = line.rpartition(" ")
        (running.add if begins == "begins" else running.discard)(what)
        kinds = [name.split()[0] for name in running]
        for kind in kinds:
            most[kind] = max(most[kind], kinds.count(kind))
        if "turn" in kinds:
            most["beside"] = max(most["beside"], len(kinds) - 1)
    return most


def test_days_are_checked_side_by_side_and_take_turns_alone(fake: Fake) -> None:
    notes = fake.run(GPU, Steps(fake, together=3), days=7, ready=7, capacity=Capacity(3, 5))
    assert side_by_side(notes) == {"build": 0, "check": 3, "turn": 1, "beside": 0}
    first = next(i for i, line in enumerate(notes) if line.startswith("turn"))
    checked = {line.split()[1] for line in notes[:first]}
    assert len(checked) == 5, "as many as there is room for, before the first turn"
    assert [outcome.status for outcome in fake.runner.outcomes] == [PASS] * 7


@dataclasses.dataclass
class MemoryFull(Steps):
    """Steps whose first days find in their turns that the others hold too much memory."""

    full: int = 1

    def __call__(self, day: Day, platform: Any, options: RunOptions, channel: Channel) -> None:
        channel.emit(Planned([["p", "r", ""]]))
        self._part("check", day.number, self.checks, channel)
        channel.wait(AskTurn(self.quiet))
        if day.number <= self.full:
            channel.emit(TurnOver())
            channel.wait(AskTurn(quiet=True, last=True))
        self._part("turn", day.number, self.turns, channel)
        channel.emit(TurnOver())
        channel.emit(Finished(passed("r")))
        self.fake.note(f"day {day.number} ends")
        channel.emit(Over())


@pytest.mark.parametrize(("full", "at_once"), [(1, 2), (2, 2), (1, 1)])
def test_a_day_that_finds_the_memory_full_is_timed_when_the_others_are_over(
    fake: Fake, full: int, at_once: int
) -> None:
    """Two such days do not wait for each other, and one waits for days that have not begun."""
    steps = MemoryFull(fake, together=at_once, full=full)
    notes = fake.run(GPU, steps, days=5, ready=5, capacity=Capacity(1 if at_once == 1 else 3, 5))
    ends = [line for line in notes if line.startswith("day")]
    assert {line.split()[1] for line in ends[-full:]} == {f"{n}" for n in range(1, full + 1)}
    last = next(i for i, line in enumerate(notes) if line.startswith("turn 1 "))
    assert sum(line.startswith("day") for line in notes[:last]) >= 5 - full
    assert [outcome.status for outcome in fake.runner.outcomes] == [PASS] * 5


def test_days_that_wait_use_none_of_their_time(fake: Fake) -> None:
    limit, turn = 6.0, 2.1
    steps = Steps(fake, 0.3, turn, together=2)
    notes = fake.run(GPU, steps, days=4, ready=4, capacity=Capacity(4, 4), limit=limit)
    assert side_by_side(notes)["check"] > 1
    outcomes = fake.runner.outcomes
    assert [outcome.status for outcome in outcomes] == [PASS] * 4
    longest = max(outcomes, key=lambda outcome: outcome.spent["waiting"])
    assert longest.spent["waiting"] > limit > longest.run_s
    assert longest.spent["turn"] >= turn and longest.spent["check"] >= 0.1


@pytest.mark.parametrize("where", ["check", "turn"])
def test_a_crash_beside_others_costs_one_day(fake: Fake, where: str) -> None:
    notes = fake.run(GPU, Steps(fake, crash=where), days=4, ready=4, capacity=Capacity(4, 4))
    assert side_by_side(notes)["beside"] == 0
    status = {outcome.number: outcome.status for outcome in fake.runner.outcomes}
    assert status == {1: PASS, 2: FAIL, 3: PASS, 4: PASS}


@pytest.mark.parametrize("where", ["check", "turn"])
def test_a_hang_beside_others_is_ended(fake: Fake, where: str) -> None:
    fake.run(GPU, Steps(fake, hang=where), days=3, ready=3, capacity=Capacity(3, 3), limit=3.0)
    status = {outcome.number: outcome.status for outcome in fake.runner.outcomes}
    assert status == {1: PASS, 2: FAIL, 3: PASS}
    hung = next(outcome for outcome in fake.runner.outcomes if outcome.number == 2)
    assert f"no end after 3 s, killed (--time-limit S changes it), while {where}" in (
        hung.rungs[0].reason
    )


def test_the_warm_up_has_the_limit_of_a_build(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles the libraries' functions, which takes minutes where many do so at once."""

    def step(day: Day, platform: Any, work: Any, channel: Channel) -> None:
        channel.emit(Planned([["p", "r", ""]]))
        channel.emit(Stage("", "warming up", "p"))
        time.sleep(1.5 if day.number == 1 else 1234)
        channel.emit(Finished(passed("r")))
        channel.emit(Over())

    monkeypatch.setattr(runner, "BUILD_LIMIT", 3.0)
    fake.notes.touch()
    fake.run(GPU, step, days=2, ready=2, capacity=Capacity(2, 2), limit=1.0)
    slow, hung = fake.runner.outcomes
    assert slow.status == PASS and slow.spent["warming up"] > 1.0
    assert hung.status == FAIL and "no end after 3 s, killed, while warming up" in hung.reason


def test_builds_go_on_until_the_room_is_full_of_days_to_be_timed(fake: Fake) -> None:
    platform = SimpleNamespace(device="cpu")
    notes = fake.run(
        platform, Steps(fake, quiet=True), days=6, jobs=2, ready=1, capacity=Capacity(1, 3)
    )
    found = side_by_side(notes)
    assert (found["build"], found["check"], found["turn"], found["beside"]) == (2, 1, 1, 0)
    first = notes.index(next(line for line in notes if line.startswith("turn")))
    assert sum(line.startswith("check") and "ends" in line for line in notes[:first]) == 3


def test_lines_of_a_day_stand_together(fake: Fake) -> None:
    def step(day: Day, platform: Any, options: RunOptions, channel: Channel) -> None:
        channel.emit(Planned([["p", name, ""] for name in "ab"]))
        channel.emit(Finished(passed("a")))
        time.sleep(0.3)
        channel.emit(Finished(passed("b")))
        channel.emit(Over())

    fake.notes.touch()
    fake.run(GPU, step, days=3, ready=3, capacity=Capacity(3, 3))
    lines = [line.split() for line in fake.shown.getvalue().splitlines()[1:]]
    assert [name for _, name, *_ in lines] == list("ababab")
    assert sorted({number for number, *_ in lines}) == list("123")


def test_on_the_cpu_days_are_shown_in_order(fake: Fake) -> None:
    def step(day: Day, platform: Any, options: RunOptions, channel: Channel) -> None:
        channel.emit(Planned([["p", "a", ""]]))
        time.sleep(0.5 if day.number == 1 else 0.1)
        channel.emit(Finished(passed("a")))
        channel.emit(Over())

    fake.notes.touch()
    fake.run(SimpleNamespace(device="cpu"), step, days=3, ready=3, capacity=Capacity(3, 3))
    assert [line.split()[0] for line in fake.shown.getvalue().splitlines()[1:]] == list("123")


def test_what_ends_a_run_ends_all_that_runs_beside(fake: Fake) -> None:
    class Ended(BaseException):
        pass

    def attend() -> None:
        if fake.notes.exists() and fake.notes.read_text().count("check") == 4:
            raise Ended

    def step(day: Day, platform: Any, options: RunOptions, channel: Channel) -> None:
        fake.note(f"check {os.getpid()}")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1234)

    with pytest.raises(Ended):
        fake.run(GPU, step, days=6, ready=6, capacity=Capacity(4, 4), attend=attend)
    pids = [int(line.split()[1]) for line in fake.notes.read_text().splitlines()]
    assert len(pids) == 4
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


def test_a_child_that_is_held_no_longer_is_ended() -> None:
    child = fork(lambda channel: time.sleep(1234))
    end_strays()
    assert child.exit_code == -signal.SIGKILL
    child.close()


def test_room_is_bounded_by_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cpu, two = SimpleNamespace(device="cpu"), SimpleNamespace(device="cuda", gpus=2)

    def found(platform: Any, quick: bool = True, requested: int = 0) -> Capacity:
        return scheduling.capacity(platform, 100, quick, requested)

    def has(gpu: float | None, host: float) -> None:
        monkeypatch.setattr(scheduling, "free_gpu_memory", lambda: gpu)
        monkeypatch.setattr(scheduling, "free_memory", lambda: host)

    monkeypatch.setattr(scheduling, "cores", lambda: 16)
    has(140e9, 128e9)
    assert found(GPU, quick=False) == Capacity(16, 42)
    assert found(GPU) == Capacity(16, 64)
    assert found(GPU, requested=1) == ONE_BY_ONE
    assert found(two) == Capacity(8, 32)
    assert found(cpu) == Capacity(8, 8)
    has(15e9, 128e9)
    assert found(GPU) == Capacity(2, 7)
    has(140e9, 8e9)
    assert found(GPU) == Capacity(2, 4)
    has(None, 128e9)
    assert found(GPU) == ONE_BY_ONE
    has(None, 1)
    assert found(cpu) == ONE_BY_ONE


def test_what_took_longest_starts_first(tmp_path: Path) -> None:
    days = [
        SimpleNamespace(name=f"day{n:02d}", library_sources=(tmp_path / f"{n}",), other_sources=())
        for n in range(1, 5)
    ]
    file = tmp_path / "seconds.json"
    assert scheduling.longest_first(days, file) == days  # type: ignore[arg-type]
    took = {"day01": 1.0, "day02": 3.0, "day04": 2.0}
    outcomes = [
        DayOutcome(1, name, "t", PASS, rungs=[passed("r")], run_s=seconds)
        for name, seconds in took.items()
    ]
    scheduling.keep_seconds(outcomes, file)
    ordered = scheduling.longest_first(days, file)  # type: ignore[arg-type]
    assert [day.name for day in ordered] == ["day03", "day02", "day04", "day01"]
    file.write_text("cut sho")
    assert scheduling.longest_first(days, file) == days  # type: ignore[arg-type]
    (tmp_path / "3").write_text("a long source")
    assert scheduling.longest_first(days, file)[0].name == "day03"  # type: ignore[arg-type]


def test_every_gpu_gets_a_worker(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def step(day: Day, platform: Any, options: RunOptions, channel: Channel) -> None:
        channel.emit(Planned([["p", "r", ""]]))
        fake.note(f"{os.environ['CUDA_VISIBLE_DEVICES']} begins")
        time.sleep(0.3)
        fake.note(f"{os.environ['CUDA_VISIBLE_DEVICES']} ends")
        channel.emit(Finished(passed("r")))
        channel.emit(Over())

    notes = fake.run(SimpleNamespace(device="cuda", gpus=2), step, days=4, jobs=1, ready=4)
    assert sorted(notes[:2]) == ["0 begins", "1 begins"], "both at once"
    busy: set[str] = set()
    for line in notes:
        gpu, what = line.split()
        assert (gpu in busy) == (what == "ends"), f"two days on one GPU: {notes}"
        (busy.add if what == "begins" else busy.discard)(gpu)
    assert len(fake.runner.outcomes) == 4


def test_a_single_day_has_all_gpus(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def step(day: Day, platform: Any, options: RunOptions, channel: Channel) -> None:
        channel.emit(Planned([["p", "r", ""]]))
        fake.note(f"given: {os.environ.get('CUDA_VISIBLE_DEVICES')}")
        channel.emit(Finished(passed("r")))
        channel.emit(Over())

    platform = SimpleNamespace(device="cuda", gpus=2)
    assert fake.run(platform, step, days=1, jobs=1, ready=1) == ["given: None"]


def test_a_device_left_in_error_ends_the_day(fake: Fake) -> None:
    def step(day: Day, platform: Any, options: RunOptions, channel: Channel) -> None:
        channel.emit(Planned([["p", name, ""] for name in "abc"]))
        channel.emit(Checked(passed("a")))
        failed = RungOutcome("p", "b", "", FAIL, "illegal address")
        channel.emit(Finished(failed))
        channel.emit(Ended(FAIL, "b left the device in error"))
        channel.emit(Over())

    fake.notes.touch()
    fake.run(SimpleNamespace(device="cpu"), step, days=1, jobs=1, ready=1)
    (outcome,) = fake.runner.outcomes
    assert outcome.status == FAIL
    assert {rung.rung: rung.status for rung in outcome.rungs} == {"a": PASS, "b": FAIL, "c": SKIP}


def test_rungs_are_kept_in_the_order_of_the_day(fake: Fake) -> None:
    def step(day: Day, platform: Any, options: RunOptions, channel: Channel) -> None:
        channel.emit(Planned([["p", name, ""] for name in "abc"]))
        for name in "cab":
            channel.emit(Finished(passed(name)))
        channel.emit(Over())

    fake.notes.touch()
    fake.run(SimpleNamespace(device="cpu"), step, days=1, jobs=1, ready=1)
    (outcome,) = fake.runner.outcomes
    assert [rung.rung for rung in outcome.rungs] == ["a", "b", "c"]


def test_a_day_that_runs_no_rung_fails(fake: Fake) -> None:
    fake.notes.touch()
    fake.run(
        SimpleNamespace(device="cpu"), lambda *args: args[-1].emit(Over()), days=1, jobs=1, ready=1
    )
    (outcome,) = fake.runner.outcomes
    assert (outcome.status, outcome.reason) == (FAIL, "the day ran no rung")


def test_exit_codes() -> None:
    def day(status: Status) -> DayOutcome:
        return DayOutcome(1, "day01", "t", status)

    assert exit_code([day(PASS)]) == 0
    assert exit_code([day(PASS), day(SKIP)]) == 0
    assert exit_code([day(SKIP)]) == 1
    assert exit_code([day(PASS), day(FAIL)]) == 1
    assert exit_code([]) == 1


def test_jobs_are_bounded_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "free_memory", lambda: 1_300_000_000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)
    assert runner.jobs_allowed(0) == 2
    assert runner.jobs_allowed(7) == 7
    monkeypatch.setattr(runner, "free_memory", lambda: 1)
    assert runner.jobs_allowed(0) == 1
    monkeypatch.setattr(runner, "free_memory", lambda: None)
    assert runner.jobs_allowed(0) == 16


def test_exits_in_words() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-signal.SIGSEGV) == "killed by SIGSEGV (segmentation fault)"


@pytest.mark.parametrize(
    "stray",
    [
        b'stray\n{"event": "Nothing"}\n[1]\n\xff\xfe\n',
        to_line(Finished(RungOutcome("p", "stray", "", PASS))),
        b"stray: the next event follows in this line",
    ],
)
def test_what_is_no_event_of_ours_is_output_and_fails_the_day(stray: bytes) -> None:
    """A day may write to any descriptor: it adds and removes no event."""

    def forging(channel: Any) -> None:
        os.write(channel._events, stray)
        channel.emit(Stage("a", "b"))
        channel.emit(Over())

    child = fork(forging)
    events: list[Event] = []
    wait_for(lambda: read_into(events, child) and child.finished())
    events += child.read()
    assert [event for event in events if not isinstance(event, Ended)] == [Stage("a", "b"), Over()]
    assert Ended(FAIL, FORGED) in events
    assert "stray" in child.output() and child._secret.decode() not in child.output()
    child.close()


def test_a_child_has_no_end_of_its_parent_s() -> None:
    """With one, its work could take events away, before the parent reads them."""

    def waiting(channel: Any) -> None:
        channel.emit(Over())
        time.sleep(1234)

    def descriptors(pid: int) -> set[str]:
        return {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}

    children = [fork(waiting) for _ in range(2)]
    for child in children:
        wait_for(child.read)
    ours = {os.readlink(f"/proc/self/fd/{child._events}") for child in children}
    assert len(ours) == 2
    assert not any(ours & descriptors(child.pid) for child in children)
    for child in children:
        child.kill()
        child.close()


def test_a_child_whose_output_is_gone_still_ends() -> None:
    """After any failure at its end, it must never continue with its parent's work."""

    def silent(channel: Any) -> None:
        os.close(1)
        os.close(2)
        print("nowhere")

    child = fork(silent)
    wait_for(child.finished)
    assert child.exit_code is not None
    child.close()


EVENTS = [
    Planned([["p", "r", "idea"]]),
    Stage("r", "checking"),
    Checked(RungOutcome("p", "r", "", PASS, timing=Timing("1", 1.0, 0.0, 3))),
    Finished(RungOutcome("p", "r", "", FAIL, "why", ["×"])),
    AskTurn(True),
    TurnOver(),
    Ran("p", "r", PASS, 0.5, ["v1"], 2),
    Table("t", ["a"], [["1"]]),
    Unbuilt("no", ["line"]),
    Ended(SKIP, "nothing here"),
    Over(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_survive_the_pipe(event: Event) -> None:
    line = to_line(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert from_line(line) == event


def test_progress_is_what_the_events_add_up_to() -> None:
    progress = Progress(DayOutcome(1, "day01", "t", PASS))
    for event in (Planned([["p", n, "idea"] for n in "abcd"]), Finished(passed("b")),
                  Checked(passed("a")), Stage("c", "checking")):  # fmt: skip
        progress.take(event)
    assert progress.doing() == "c checking" and not progress.over
    added = progress.complete("it died")
    assert {r.rung: (r.status, r.reason) for r in added} == {
        "a": (PASS, ""),
        "c": (FAIL, "it died"),
        "d": (SKIP, "not run: the day ended before"),
    }
    progress.conclude()
    assert [r.rung for r in progress.outcome.rungs] == list("abcd")
    assert (progress.outcome.status, progress.outcome.reason) == (FAIL, "failed: c")


def test_an_end_is_put_down_to_the_rung_of_its_problem() -> None:
    """Rungs of several problems may share a name, and one that passed may fail in its turn."""
    progress = Progress(DayOutcome(1, "day01", "t", PASS))
    for event in (Planned([["p", "a", ""], ["q", "a", ""]]), Checked(passed("a")),
                  Stage("a", "checking", "q")):  # fmt: skip
        progress.take(event)
    found = {r.problem: r.status for r in dataclasses.replace(progress).complete("it died")}
    assert found == {"p": PASS, "q": FAIL}
    progress = Progress(DayOutcome(1, "day01", "t", PASS))
    for event in (Planned([["p", "a", ""]]), Checked(passed("a")), Stage("a", "beyond", "p")):
        progress.take(event)
    assert [(r.status, r.reason) for r in progress.complete("it died")] == [(FAIL, "it died")]
    progress.take(Stage("", "timing", "p"))
    assert progress.doing() == "timing p"
