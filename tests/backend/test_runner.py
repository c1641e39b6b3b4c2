"""The runner on days that pass, fail, crash, hang: each costs one day, and no process stays."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from common.base.outcome import FAIL, PASS, SKIP
from tests.command_line import FIXTURE_DAYS, CommandLine
from tests.progress import finish, wait_for

TIME_LIMIT = "20"  # of a day that hangs; the others need one or two on a busy machine
SLEEPER = "sleep 1234.5"  # started by day 5


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of one run over all fixture days: exit code, output, outcomes by day,
    processes left."""
    run = CommandLine(FIXTURE_DAYS)
    report = tmp_path_factory.mktemp("whole") / "report.json"
    done = run("all", "--no-bench", "--time-limit", TIME_LIMIT, "--json", str(report))
    assert report.is_file(), done.stdout
    days = json.loads(report.read_text())["days"]
    return {
        "code": done.returncode,
        "output": done.stdout,
        "days": {day["number"]: day for day in days},
        "left": run.alive(),
    }


def rungs(day: dict[str, Any]) -> dict[str, str]:
    return {rung["rung"]: rung["status"] for rung in day["rungs"]}


def test_every_day_has_its_outcome_and_the_run_fails(whole: dict[str, Any]) -> None:
    expected = dict.fromkeys(range(1, 12), FAIL) | {1: PASS, 10: SKIP, 11: PASS}
    assert {number: day["status"] for number, day in whole["days"].items()} == expected
    assert whole["code"] == 1
    assert "11 days: 2 passed, 8 failed (2, 3, 4, 5, 6, 7, 8, 9), 1 skipped (10)" in whole["output"]


def test_nothing_is_left_behind(whole: dict[str, Any]) -> None:
    assert whole["left"] == []


def test_a_wrong_answer_fails_its_rung_alone(whole: dict[str, Any]) -> None:
    assert rungs(whole["days"][2]) == {"twice_v1": PASS, "twice_v2_wrong": FAIL}


def test_a_compile_error_is_shown_once_and_points_into_the_source(whole: dict[str, Any]) -> None:
    assert "does not build" in whole["days"][3]["reason"]
    assert whole["output"].count("‘undeclared’ was not declared") == 1
    assert re.search(r"fixture_days/day03/twice\.cu:3:\d+: error", whole["output"])


def test_a_crash_names_its_signal_rung_and_stage(whole: dict[str, Any]) -> None:
    day = whole["days"][4]
    assert rungs(day) == {"twice_v1": PASS, "twice_v2_crashes": FAIL, "twice_v3": SKIP}
    reason = day["rungs"][1]["reason"]
    assert "SIGSEGV" in reason and "checking" in reason and "--doctor" in reason
    assert "about to crash" in day["output"], "what a day printed is shown where it failed"
    assert "about to crash" in whole["output"]


def test_a_hang_is_ended_and_says_how_long_it_had(whole: dict[str, Any]) -> None:
    day = whole["days"][5]
    assert rungs(day) == {"twice_v1": PASS, "twice_v2_hangs": FAIL}
    assert f"no end after {TIME_LIMIT} s" in day["rungs"][1]["reason"]


def test_a_write_past_the_end_is_seen(whole: dict[str, Any]) -> None:
    (rung,) = whole["days"][6]["rungs"]
    assert "memory outside its tensors was written" in rung["reason"]


def test_a_modified_input_is_seen(whole: dict[str, Any]) -> None:
    (rung,) = whole["days"][7]["rungs"]
    assert "argument x was modified" in rung["reason"]


def test_missing_metadata_is_a_failure(whole: dict[str, Any]) -> None:
    assert whole["days"][8]["reason"] == "tests/fixture_days/day08/day.py: TEACHES is missing"


def test_a_day_that_raises_shows_where(whole: dict[str, Any]) -> None:
    day = whole["days"][9]
    assert day["reason"].startswith("ZeroDivisionError")
    assert any(line.startswith("tests/fixture_days/day09/day.py:8") for line in day["details"])


def test_skips_carry_the_command_that_fixes_them(whole: dict[str, Any]) -> None:
    assert "pip install moonbeam" in whole["days"][10]["reason"]
    assert rungs(whole["days"][11]) == {"twice_v1_talks": PASS, "twice_v2_moonbeam": SKIP}


def test_a_passing_day_is_silent_among_others_and_heard_alone(
    whole: dict[str, Any], run_day: CommandLine
) -> None:
    assert "hello from a rung" not in whole["output"]
    assert "hello from a rung" in whole["days"][11]["output"], "kept in --json"
    alone = run_day("11")
    assert alone.returncode == 0
    assert "hello from a rung" in alone.stdout


def test_days_that_are_all_skipped_do_not_pass(run_day: CommandLine) -> None:
    assert run_day("10").returncode == 1


def test_timing_on_the_cpu(run_day: CommandLine, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run_day("1", "--quick", "--json", str(report))
    assert done.returncode == 0, done.stdout
    (day,) = json.loads(report.read_text())["days"]
    for rung in day["rungs"]:
        assert rung["timing"]["ms"] > 0 and rung["timing"]["pytorch_ms"] > 0
        assert rung["target_met"] is None and rung["timing"]["share"] is None


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_run_and_everything_it_started(
    run_day: CommandLine, number: int, code: int, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    one_by_one = ("--side-by-side", "1")
    process = run_day.start("1,5,11", "--no-bench", *one_by_one, "--json", str(report))
    wait_for(lambda: any(SLEEPER in line for line in run_day.alive()), process)
    process.send_signal(number)
    output, _ = finish(process)
    assert process.returncode == code
    assert "interrupted" in output
    assert "Traceback" not in output
    assert "2 days: 1 passed, 1 skipped (5); 4 rungs" in output, "what was known is reported"
    first, second = json.loads(report.read_text())["days"]
    assert first["status"] == PASS and second["status"] == SKIP
    assert second["reason"] == "interrupted, while twice_v2_hangs checking"
    assert rungs(second) == {"twice_v1": PASS, "twice_v2_hangs": SKIP}
    assert run_day.alive() == []


def test_ctrl_c_while_starting(run_day: CommandLine) -> None:
    process = run_day.start("5")
    wait_for(lambda: children(process.pid) != [], process)
    maps = Path(f"/proc/{children(process.pid)[0]}/maps")
    wait_for(lambda: "libtorch" in maps.read_text(), process)  # PyTorch is being imported
    process.send_signal(signal.SIGINT)
    finish(process)
    assert process.returncode in (130, -signal.SIGINT)
    wait_for(lambda: run_day.alive() == [])


def children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("who", ["supervised", "supervisor"])
def test_a_killed_run_leaves_nothing(run_day: CommandLine, who: str) -> None:
    """Not even processes that a day has started in another session."""
    process = run_day.start("5", "--no-bench")
    wait_for(lambda: sum(SLEEPER in line for line in run_day.alive()) == 2, process)
    os.kill(process.pid if who == "supervisor" else children(process.pid)[0], signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    wait_for(lambda: run_day.alive() == [])


def test_ctrl_c_in_a_build_leaves_the_next_build_working(
    run_copy: CommandLine, tmp_path: Path
) -> None:
    """The compiler is one that waits, so that the signal comes in the middle of the build."""
    slow = tmp_path / "slow-c++"
    started = tmp_path / "started"
    slow.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--version*) exec c++ "$@";; esac\n'
        f'case "$*" in *twice*) [ -e {tmp_path}/go ] || {{ touch {started}; sleep 600; }};; esac\n'
        'exec c++ "$@"\n'
    )
    slow.chmod(0o755)
    run_copy.environment["CXX"] = str(slow)
    process = run_copy.start("1", "--no-bench")
    wait_for(started.exists, process)
    process.send_signal(signal.SIGINT)
    output, _ = finish(process)
    assert process.returncode == 130, output
    assert run_copy.alive() == []
    (tmp_path / "go").touch()
    again = run_copy("1", "--no-bench")
    assert again.returncode == 0, again.stdout


def test_a_compiler_that_crashes_costs_one_day(run_copy: CommandLine, tmp_path: Path) -> None:
    dying = tmp_path / "dying-c++"
    dying.write_text(
        "#!/bin/sh\n"
        'case "$*" in *--version*) exec c++ "$@";; esac\n'
        'case "$*" in *day01*) echo "compiler: out of memory" >&2; kill -9 $$;; esac\n'
        'exec c++ "$@"\n'
    )
    dying.chmod(0o755)
    run_copy.environment["CXX"] = str(dying)
    done = run_copy("1,11", "--no-bench")
    assert done.returncode == 1
    assert "2 days: 1 passed, 1 failed (1)" in done.stdout
    assert "out of memory" in done.stdout
