"""The runner over days that exist nowhere: turns, workers, events, processes that misbehave."""

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
from common.base.outcome import FAIL, PASS, SKIP, DayOutcome, RungOutcome, Timing
from common.process.child import describe_exit, fork
from common.process.events import (
    AskTiming,
    Channel,
    Checked,
    Ended,
    Event,
    Finished,
    Over,
    Planned,
    Progress,
    Stage,
    Table,
    Timed,
    Unbuilt,
    from_line,
    to_line,
)
from common.report.terminal import Report
from common.run import command, runner
from tests.command_line import wait_for


def test_a_process_that_ignores_signals_is_killed() -> None:
    def stubborn(channel: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1234"])
        channel.emit(Over())
        time.sleep(1234)

    child = fork(stubborn)
    events: list[Event] = []
    wait_for(lambda: events.extend(child.read()) or events)
    child.kill(grace=0.1)
    child.close()
    assert child.exit_code == -signal.SIGKILL
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)


def test_much_output_is_bounded_and_does_not_block() -> None:
    def talkative(channel: Any) -> None:
        for i in range(50_000):
            print(f"line {i}")
        channel.emit(Over())

    child = fork(talkative)
    events: list[Event] = []
    wait_for(lambda: events.extend(child.read()) or child.finished())
    events += child.read()
    assert events == [Over()]
    output = child.output()
    child.close()
    assert output.startswith("line 0\n") and output.endswith("line 49999\n")
    assert "bytes left out" in output and len(output) < 200_000


@dataclasses.dataclass
class Fake:
    """A runner over days that exist nowhere: builds and runs note in a file when they happen."""

    notes: Path
    runner: runner.Runner = dataclasses.field(init=False)

    def note(self, text: str) -> None:
        with open(self.notes, "a") as file:
            file.write(f"{text}\n")

    def run(self, platform: Any, step: Any, *, days: int, jobs: int, ready: int = 0) -> list[str]:
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
            all_days, platform, step, build, lambda day: day.number <= ready, None,
            Report(io.StringIO()), jobs, 20.0,
        )  # fmt: skip
        self.runner.run()
        return self.notes.read_text().splitlines()


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "notes")


def passed(name: str) -> RungOutcome:
    return RungOutcome("p", name, "", PASS, checked=1)


def test_builds_and_timing_take_turns_on_the_cpu(fake: Fake) -> None:
    def step(day: Day, platform: Any, work: Any, channel: Channel) -> None:
        channel.emit(Planned([["p", "r", ""]]))
        channel.wait(AskTiming(alone=True))
        fake.note(f"timing {day.number} begins")
        time.sleep(0.2)
        fake.note(f"timing {day.number} ends")
        channel.emit(Timed())
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


def test_every_gpu_gets_a_worker(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def step(day: Day, platform: Any, work: Any, channel: Channel) -> None:
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

    def step(day: Day, platform: Any, work: Any, channel: Channel) -> None:
        channel.emit(Planned([["p", "r", ""]]))
        fake.note(f"given: {os.environ.get('CUDA_VISIBLE_DEVICES')}")
        channel.emit(Finished(passed("r")))
        channel.emit(Over())

    platform = SimpleNamespace(device="cuda", gpus=2)
    assert fake.run(platform, step, days=1, jobs=1, ready=1) == ["given: None"]


def test_a_device_left_in_error_ends_the_day(fake: Fake) -> None:
    def step(day: Day, platform: Any, work: Any, channel: Channel) -> None:
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
    def step(day: Day, platform: Any, work: Any, channel: Channel) -> None:
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
    def day(status: str) -> DayOutcome:
        return DayOutcome(1, "day01", "t", status)

    assert command.exit_code([day(PASS)]) == 0
    assert command.exit_code([day(PASS), day(SKIP)]) == 0
    assert command.exit_code([day(SKIP)]) == 1
    assert command.exit_code([day(PASS), day(FAIL)]) == 1
    assert command.exit_code([]) == 1


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


def test_what_is_no_event_is_output() -> None:
    """A day may write into any descriptor: nothing of the run is lost by it."""

    def noisy(channel: Any) -> None:
        os.write(channel._events, b'stray\n{"event": "Nothing"}\n[1]\n\xff\xfe\n')
        channel.emit(Stage("a", "b"))
        os.write(channel._events, b'{"event": "Stage", "rung": 1}\n')
        channel.emit(Over())

    child = fork(noisy)
    events: list[Event] = []
    wait_for(lambda: events.extend(child.read()) or child.finished())
    events += child.read()
    assert events == [Stage("a", "b"), Over()]
    assert "stray" in child.output()
    child.close()


def test_a_child_whose_output_is_gone_still_ends() -> None:
    """Whatever fails at its end, it must never go on with its parent's work."""

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
    AskTiming(True),
    Timed(),
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
