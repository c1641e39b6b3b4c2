"""The speed exercises: the ladder of a day, the learner's file, and the messages about a result."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.base.days import Day, discover
from common.base.declaration import Case, Problem, Rung
from common.base.ladder import Ladder, has_ladder, ladder_of
from common.base.options import RunOptions
from common.base.outcome import FAIL, PASS, DayOutcome, RungOutcome, Timing
from common.base.paths import DAYS
from common.base.toolchain import Platform
from common.cpu.findings import LineCounts
from common.practice.journal import Journal
from common.practice.progress import exercises, exercises_of, marks, next_exercise, next_line
from common.practice.speed import speed_challenge
from common.practice.steps import ExerciseError
from common.practice.work_counts import WorkCounts, goals, waste, work_counts
from common.report.terminal import Report
from common.run import speed_check
from common.run.exit_status import EXIT_FAILED
from common.run.tutor import Tutor

FOUND = discover()[0]
WITH_LADDER = [pytest.param(day, id=day.name) for day in FOUND if has_ladder(day)]


def rung(name: str, **changes: Any) -> Rung:
    return Rung(name, f"what {name} does", **changes)


def problem(*rungs: Rung, timed: bool = True) -> Problem:
    case = Case((64,))
    return Problem(
        "p", lambda c, d: (), abs, rungs, (case,), timed=timed, bench=case, bench_cpu=case
    )


LADDER = Ladder(problem(), (rung("k_v1"), rung("k_v2"), rung("k_v3")))

# ---------------------------------------------------------------- the ladder


def test_the_longest_timed_ladder_is_climbed() -> None:
    short = problem(rung("a_v1"), rung("a_v2"))
    long = problem(rung("b_v1"), rung("b_v2"), rung("b_v3", timed=False), rung("b_v4"))
    found = ladder_of([short, long, replace(long, name="again")])
    assert found and found.problem is long
    assert (found.first.name, found.last.name) == ("b_v1", "b_v4")
    assert ladder_of([replace(long, timed=False), problem(rung("c_v1"))]) is None
    library = rung("d_v2", load=lambda builder: abs)
    assert ladder_of([problem(rung("d_v1"), library)]) is None


def test_some_days_have_a_ladder_and_some_have_none() -> None:
    assert 0 < len(WITH_LADDER) < len(FOUND)
    without = next(day for day in FOUND if not has_ladder(day))
    with pytest.raises(ExerciseError, match="has no speed exercise: it times no two versions"):
        speed_challenge(without, DAYS)


# ---------------------------------------------------------------- the learner's file


def test_the_file_may_change_but_for_its_binding(tmp_path: Path) -> None:
    challenge = speed_challenge(next(d for d in FOUND if has_ladder(d)), tmp_path / "days")
    assert challenge.begin() and challenge.state().open == challenge.task
    challenge.file.write_text(challenge.start + "// a comment is no change\n")
    assert challenge.state().open
    challenge.file.write_text(challenge.start + "constexpr int MINE = 1;\n")
    assert not challenge.state().open
    challenge.file.write_text(challenge.start + "int f() {\n")  # the compiler reports that
    assert not challenge.state().open
    name = challenge.ladder.first.name
    challenge.file.write_text(challenge.start.replace(f" {name},", " mine,"))
    with pytest.raises(ExerciseError, match=rf"does not bind {name} any more.*--reset begins anew"):
        challenge.state()


# ---------------------------------------------------------------- counts


def line(kind: str, **counts: int) -> dict[str, Any]:
    return LineCounts("kernel", "x.cu", 1, kind, **counts).to_json()


def test_the_profile_of_a_rung_is_added_up() -> None:
    lines = [
        line("global load", requests=10, lanes=320, sectors=40),
        line("global atomic", requests=2, lanes=40, sectors=8),
        line("shared load", requests=5, lanes=160, wavefronts=25, conflicts=20),
    ]
    outcome = RungOutcome("p", "k_v1", "", PASS, counts=lines)
    assert work_counts(outcome) == WorkCounts(sectors=48, requests=17, passes=25, atomics=40)


def test_a_goal_is_what_the_last_rung_brings_down_and_its_price_is_a_limit() -> None:
    naive, tiled = WorkCounts(1000, 500, 0, 0), WorkCounts(100, 520, 64, 0)
    most = goals(naive, tiled)
    assert most == {"sectors": 110, "memory instr.": 572, "shared passes": 70}
    conflicting = WorkCounts(100, 520, 2000, 0)
    own = {"k_v1": naive, "k_v2": naive, "k_v3": tiled}
    assert not speed_check.judge_counts(LADDER, conflicting, own).solved
    assert goals(naive, WorkCounts(950, 480, 0, 0)) == {}
    assert goals(WorkCounts(10, 10, 0, 0), WorkCounts(5, 10, 0, 0)).get("shared passes") is None


COUNTED = {
    "k_v1": WorkCounts(1000, 500, 0, 0),
    "k_v2": WorkCounts(200, 500, 32, 0),
    "k_v3": WorkCounts(100, 250, 32, 0),
}


@pytest.mark.parametrize(
    ("mine", "solved", "hint"),
    [
        (COUNTED["k_v1"], False, "k_v2: what k_v2 does"),
        (COUNTED["k_v2"], False, "k_v3: what k_v3 does"),
        (COUNTED["k_v3"], True, ""),
        (WorkCounts(110, 275, 35, 0), True, ""),
        (WorkCounts(100, 250, 64, 0), False, "k_v2: what k_v2 does"),  # conflicts: too many passes
        (WorkCounts(50, 100, 0, 0), True, ""),
    ],
)
def test_counts_are_judged(mine: WorkCounts, solved: bool, hint: str) -> None:
    verdict = speed_check.judge_counts(LADDER, mine, COUNTED)
    assert (verdict.solved, verdict.hint) == (solved, hint)
    assert any("yours" in text for text in verdict.lines)
    assert all(len(text) <= 80 for text in verdict.lines)
    if not solved:
        assert "of the goal" in verdict.lines[-1]


def test_without_a_goal_it_is_set_aside() -> None:
    same = dict.fromkeys(COUNTED, COUNTED["k_v1"])
    verdict = speed_check.judge_counts(LADDER, COUNTED["k_v1"], same)
    assert not verdict.solved and verdict.needs == "a GPU"
    assert "its gain is time" in verdict.lines[-1]


def test_waste_is_said_where_it_is_much() -> None:
    own = WorkCounts(1000, 500, 0, 0)
    assert waste(own, own) == "" and waste(WorkCounts(1400, 500, 99, 0), own) == ""
    said = waste(WorkCounts(1600, 4000, 0, 0), own)
    assert said == (
        "instructions that access memory: 4,000, 8.0 times as many as the day's own (500)"
    )


# ---------------------------------------------------------------- times


def timing(ms: float, share: float | None = None) -> Timing:
    return Timing("64", ms, 0.01, 9, gbs=100 / ms, bound="copy" if share else "", share=share)


TIMED = {"k_v1": timing(2.0, 0.42), "k_v2": timing(1.0, 0.81), "k_v3": timing(0.85, 0.97)}


@pytest.mark.parametrize(
    ("ms", "solved", "hint"),
    [(2.0, False, "k_v2"), (1.0, False, "k_v3"), (0.9, False, "k_v3"), (0.89, True, "")],
)
def test_times_are_judged(ms: float, solved: bool, hint: str) -> None:
    verdict = speed_check.judge_times(LADDER, timing(ms, 0.42), TIMED)
    assert verdict.solved == solved
    assert verdict.hint == (f"{hint}: what {hint} does" if hint else "")
    assert verdict.lines[-1] == "0.42 of copy; v2 reaches 0.81, v3 reaches 0.97"


def test_without_a_ceiling_times_are_shown() -> None:
    own = {name: timing(t.ms) for name, t in TIMED.items()}
    assert speed_check.judge_times(LADDER, timing(2.0), own).lines[-1] == (
        "2.00 ms; v2 reaches 1.00 ms, v3 reaches 0.850 ms"
    )


# ---------------------------------------------------------------- the tutor


class FakeTutor(Tutor):
    """A tutor whose checks return the test's results."""

    outcome = DayOutcome(1, "day01", "", PASS)

    def _run(self, *_: Any, **__: Any) -> DayOutcome:
        self._platform = object()  # type: ignore[assignment]
        return self.outcome


@pytest.fixture
def tutor(tmp_path: Path) -> FakeTutor:
    return FakeTutor(RunOptions(days=tmp_path / "days"), FOUND, Journal(tmp_path / "practice"))


def finish(
    tutor: FakeTutor,
    monkeypatch: pytest.MonkeyPatch,
    verdict: speed_check.Verdict | None,
    out: io.StringIO | None = None,
) -> int:
    def judge(*_: Any) -> speed_check.Verdict:
        assert verdict is not None, "a wrong kernel was measured"
        return verdict

    monkeypatch.setattr(speed_check.SpeedCheck, "judge", judge)
    day = next(day for day in FOUND if has_ladder(day))
    challenge, _ = tutor.begin(tutor.challenge(day, "speed"), Report(io.StringIO()))
    challenge.file.write_text(challenge.start + "constexpr int MINE = 1;\n")
    return tutor.check(challenge, Report(out or io.StringIO()))


def test_a_wrong_kernel_is_never_measured(
    tutor: FakeTutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tutor.outcome = DayOutcome(1, "day01", "", FAIL)
    assert finish(tutor, monkeypatch, None) == EXIT_FAILED
    tutor.options = replace(tutor.options, quick=True)
    tutor.outcome = DayOutcome(1, "day01", "", PASS)
    assert finish(tutor, monkeypatch, None) == 0, "not all was checked, so nothing is measured"


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("k: no end after 20 s, killed", "were not counted to the end in 20 s; those of the day's"),
        ("it crashed", None),
    ],
)
def test_counting_without_end_is_waste(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str, said: str | None
) -> None:
    def counted(
        self: speed_check.SpeedCheck, day: Day, challenge: object, *rest: Any
    ) -> DayOutcome:
        if challenge:
            raise ExerciseError(why)
        return DayOutcome(1, "day01", "", PASS, run_s=1.0)

    monkeypatch.setattr(speed_check.SpeedCheck, "_counted", counted)
    challenge = speed_challenge(next(d for d in FOUND if has_ladder(d)), tmp_path / "days")
    challenge.begin()
    cpu = Platform("cpu", "g++", "g++ 12", Path("/"), "2.11")
    judge = speed_check.SpeedCheck(RunOptions(), cpu, Report(io.StringIO()))
    if said is None:
        with pytest.raises(ExerciseError):
            judge.waste(challenge)
    else:
        assert said in judge.waste(challenge)


def test_a_goal_that_is_reached_is_remembered(
    tutor: FakeTutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = next(day for day in FOUND if has_ladder(day))
    assert finish(tutor, monkeypatch, speed_check.Verdict(False, ("far",), "h")) == EXIT_FAILED
    assert not tutor.journal.solved(day.number, "speed")
    out = io.StringIO()
    assert finish(tutor, monkeypatch, speed_check.Verdict(True, ("near",)), out) == 0
    assert Journal(tutor.journal.path.parent).solved(day.number, "speed")
    assert marks(day, tutor.journal) == "□" * (len(exercises_of(day)) - 1) + "■"
    following = next_line(FOUND, tutor.journal, (day, "speed"))
    assert following.startswith("next: day ") and f"day {day.number}," not in following
    assert "near\nsolved: 0 checks passed\n" in out.getvalue() and following in out.getvalue()


def test_what_needs_a_gpu_is_not_what_comes_next(
    tutor: FakeTutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = next(day for day in FOUND if has_ladder(day))
    for name in exercises_of(day)[:-1]:
        tutor.journal.entry(day.number, name).solved = "2026-01-31"
    assert next_exercise([day], tutor.journal) == (day, "speed")
    finish(tutor, monkeypatch, speed_check.Verdict(False, ("no goal",), needs="a GPU"))
    assert next_exercise([day], Journal(tutor.journal.path.parent)) is None
    assert len(exercises([day])) == len(exercises_of(day))


def test_the_header_lists_no_rung_that_is_not_there() -> None:
    day = next(day for day in discover()[0] if day.number == 2)
    text = speed_challenge(day, DAYS).start
    assert "host_arrays" in day.source.read_text(encoding="utf-8")
    assert "host_arrays" not in text.partition("#include")[0]
    assert "Operations: n additions" in text
