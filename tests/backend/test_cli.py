"""The command line: help, listing, typos, exit codes, and its output on different terminals."""

from __future__ import annotations

import os
import pty
import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import run_day as script
from common.base.options import RunOptions
from common.base.paths import ROOT
from common.run import command
from tests.command_line import FIXTURE_DAYS, CommandLine
from tests.progress import run, wait_for

ESCAPE = "\x1b"
PYTHON_S_OWN = "import argparse, ast, dataclasses, importlib.util, pathlib, re"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def usage(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the message of a command line that is refused with exit code 2."""
    with pytest.raises(SystemExit) as refused:
        script.main(list(arguments))
    assert refused.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("--qick", "--quick"),
        ("--devise", "--device"),
        ("--no-bensh", "--no-bench"),
        ("--compile_only", "--compile-only"),
        ("--sanitise", "--sanitize"),
        ("--jsn=x", "--json"),
    ],
)
def test_a_mistyped_option_gets_the_nearest(
    capsys: pytest.CaptureFixture[str], typo: str, meant: str
) -> None:
    assert f"did you mean {meant}?" in usage(capsys, "1", typo)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mutants"], "name a day"),
        (["--hint", "--solution"], "do not go together"),
        (["5", "--practice", "--json", "x.json"], "--practice checks one file"),
        (["1", "--arch", "8.0"], "--arch goes with --compile-only"),
        (["1", "--write", "--quick"], "not with --quick"),
        (["1", "--write", "--rungs", "relu_v1"], "not with --rungs"),
        (["1", "--write", "--sanitize"], "not with"),
        (["1", "--write", "--draw"], "not with"),
        (["1", "--practice", "--draw"], "not with --practice"),
        (["--draw", "1"], "'1' is no FILE.svg; days stand before --draw"),
        (["1", "--from", "x.json"], "--from goes with --write"),
        (["1", "--sanitize", "--profile"], "not allowed with"),
        (["1", "-j", "0"], "whole number above 0"),
        (["1", "-j", "\u0661"], "whole number above 0"),
        (["1", "--time-limit", "\u0661"], "number above 0"),
        (["1", "--mutants", "--sample", "1", "--seed", "1_0"], "whole number"),
        (["1", "--diff", "v1", "v2", "--json", "x"], "--diff runs no day: not with --json"),
        (["1", "--diff", "v1", "v2", "--write"], "--diff runs no day: not with --write"),
        (["--doctor", "1"], "--doctor runs no day: not with a day"),
        (["--list", "--html", "x"], "--list runs no day: not with --html"),
        (["1", "--time-limit", "soon"], "number above 0"),
        (["--shard", "1/2", "--doctor"], "--shard"),
        (["1", "--device", "tpu"], "invalid choice"),
    ],
)
def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in usage(capsys, *arguments)


def test_an_architecture_that_is_none(run_day: CommandLine) -> None:
    done = run_day("1", "--compile-only", "--arch", "9.0a,ninety")
    assert done.returncode == 2
    assert "'ninety' is no architecture" in done.stdout


@pytest.mark.parametrize(
    ("original", "other", "message"),
    [
        ("twice.cu", "mine.cu", "twice.cu: is no file"),
        ("day01/twice.cu", "none.cu", "none.cu: is no file"),
        ("mine.cu", "mine.cu", "mine.cu is no source of the days that are named"),
    ],
)
def test_a_file_that_takes_no_source_s_place_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    original: str,
    other: str,
    message: str,
) -> None:
    shutil.copytree(FIXTURE_DAYS / "day01", tmp_path / "day01")
    (tmp_path / "mine.cu").touch()
    monkeypatch.chdir(tmp_path)
    assert script.main(["1", "--days", ".", "--swap", original, other]) == 2
    assert message in capsys.readouterr().err


def test_a_path_of_a_swap_counts_from_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(FIXTURE_DAYS / "day01", tmp_path / "day01")
    (tmp_path / "mine.cu").touch()
    monkeypatch.chdir(tmp_path / "day01")
    taken: list[command.Selection] = []

    def run(options: RunOptions, selection: command.Selection, report: object) -> int:
        assert options.swap == (tmp_path / "day01" / "twice.cu", tmp_path / "day01/../mine.cu")
        taken.append(selection)
        return 0

    monkeypatch.setattr(command, "_run", run)
    words = ["1", "--days", "..", "--in-process", "--swap", "twice.cu", "../mine.cu"]
    assert script.main(words) == 0
    assert [day.source for day in taken[0].days] == [tmp_path / "day01/../mine.cu"]


def test_help_shows_every_option_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    shown = "--list --device --quick --no-bench --jobs --shard --json --write --compile-only"
    for option in f"{shown} --arch --doctor --sanitize --profile --merge --time-limit".split():
        assert option in text
    assert "examples:" in text and "exit codes:" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        ("99", "there is no day 99; there are days 1-11"),
        ("softmux", "did you mean 'softmax'"),
        ("90-95", "no day in range"),
    ],
)
def test_a_day_that_does_not_exist(run_day: CommandLine, selected: str, message: str) -> None:
    done = run_day(selected)
    assert done.returncode == 2
    assert message in done.stdout


def test_no_day_at_all(tmp_path: Path) -> None:
    done = CommandLine(tmp_path)("all")
    assert done.returncode == 2
    assert "no day found" in done.stdout


def hundred_days(root: Path) -> None:
    for number in range(1, 101):
        folder = root / f"day{number:02d}"
        folder.mkdir()
        original = sorted((ROOT / "days").glob("day*/day.py"))[number % 4]
        text = re.sub(r'^SOURCE = ".*"$', 'SOURCE = "x.cu"', original.read_text(), flags=re.M)
        (folder / "day.py").write_text(text)
        shutil.copy(original.parent / "exercises.toml", folder)
        (folder / "x.cu").touch()


def cpu_seconds_of_children() -> float:
    """Return the processor seconds of ended children: unlike the time on the clock, about the same
    on a busy machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_list_is_instant_and_imports_neither_torch_nor_rich(tmp_path: Path) -> None:
    hundred_days(tmp_path)
    code = (
        "import sys, run_day\n"
        f"code = run_day.main(['--list', '--days', {str(tmp_path)!r}])\n"
        "heavy = {'torch', 'numpy', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    lines: list[str] = []
    times: dict[str, list[float]] = {code: [], PYTHON_S_OWN: []}
    # Compared with a program of a few standard modules: on a busy machine, both take longer, not
    # always by the same factor.
    for _ in range(20):
        for each, taken in times.items():
            began = cpu_seconds_of_children()
            done = subprocess.run(
                [sys.executable, "-c", each], cwd=ROOT, capture_output=True, text=True
            )
            taken.append(cpu_seconds_of_children() - began)
            assert done.returncode == 0, done.stderr
            lines = done.stdout.splitlines() or lines
        ours, usual = (min(taken) for taken in times.values())
        if ours < 8 * usual:
            break
    assert lines.index("") == 100  # the learner's progress follows
    assert ours < 8 * usual, f"--list took {ours:.3f} s at best, another program {usual:.3f} s"


def test_without_arguments_it_says_where_one_is(run_day: CommandLine) -> None:
    done = run_day()
    assert done.returncode == 0
    assert "python run_day.py 5        build, check and time day 5" in done.stdout


def test_a_report_that_cannot_be_written_costs_no_run(run_day: CommandLine) -> None:
    done = run_day("1", "--no-bench", "--json", f"{'x' * 300}.json")
    assert done.returncode == 1
    assert done.stdout == f"run_day.py: cannot write {'x' * 300}.json: File name too long\n"


def test_list_names_broken_days(run_day: CommandLine) -> None:
    done = run_day("--list")
    assert done.returncode == 1
    assert "Passes in part" in done.stdout
    assert "day08/day.py: TEACHES is missing" in done.stdout


def test_plain_output_is_plain_and_stable(run_day: CommandLine) -> None:
    run_day("1,2,10", "--no-bench")  # builds, which end in any order
    first, second = (run_day("1,2,10", "--no-bench").stdout for _ in range(2))
    assert ESCAPE not in first and "\r" not in first
    # Times, and text that depends on them: the activities and days that took longest.
    times = re.compile(r"[\d.]+ (s|ms|µs)\b|; summed over days: .*|slowest: .*")
    assert times.sub("T", first) == times.sub("T", second)
    for line in first.splitlines():
        assert line == line.rstrip()


def test_lines_of_rungs_fit_80_columns(run_day: CommandLine) -> None:
    lines = run_day("1", "--quick").stdout.splitlines()
    timed = [line for line in lines if " PASS " in line]
    assert timed
    assert max(map(len, timed)) <= 80


def on_a_terminal(run: CommandLine, *arguments: str, **environment: str) -> str:
    """Return the output of the command line on a terminal of 100 columns."""
    parent, child = pty.openpty()
    inherited = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    process = subprocess.Popen(
        run.command(*arguments),
        env={**inherited, **run.environment, "TERM": "xterm-256color", "COLUMNS": "100"}
        | environment,
        stdin=subprocess.DEVNULL,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    parts = []
    while True:
        try:
            data = os.read(parent, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        parts.append(data)
    os.close(parent)
    process.wait()
    return b"".join(parts).decode()


def test_a_terminal_gets_colour_and_a_live_line(run_day: CommandLine) -> None:
    text = on_a_terminal(run_day, "1,2", "--no-bench", "--side-by-side", "1")
    assert COLOUR.search(text)
    assert "running day 1" in text
    assert "1 day left" in text and "0 days left" not in text


@pytest.mark.parametrize("way", ["NO_COLOR", "--no-color", "dumb"])
def test_colour_can_be_switched_off(run_day: CommandLine, way: str) -> None:
    arguments = ["1,2", "--no-bench", *([way] if way.startswith("--") else [])]
    environment = {"NO_COLOR": {"NO_COLOR": "1"}, "dumb": {"TERM": "dumb"}}.get(way, {})
    text = on_a_terminal(run_day, *arguments, **environment)
    coloured = [code for code in COLOUR.findall(text) if re.search(r"[\[;][349]\d", code)]
    assert not coloured
    assert "FAIL" in text and "PASS" in text


def test_a_reader_that_goes_away_is_no_error(run_day: CommandLine) -> None:
    process = run_day.start("1", "--no-bench")
    assert process.stdout
    process.stdout.close()
    wait_for(lambda: process.poll() is not None, process)
    assert process.returncode == 141
    assert run_day.alive() == []


@pytest.mark.parametrize("arguments", [("--list",), ("1", "--no-bench")])
def test_an_output_on_a_full_disk_is_said_without_a_traceback(
    run_day: CommandLine, arguments: tuple[str, ...]
) -> None:
    command = f"exec {shlex.join(run_day.command(*arguments))} >/dev/full"
    done = run(["bash", "-c", command], env={**os.environ, **run_day.environment})
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last == "run_day.py: no more output can be written: No space left on device"
    assert "Traceback" not in done.stderr
    assert run_day.alive() == []


def test_a_warm_run_costs_little_beside_importing_torch(run_day: CommandLine) -> None:
    """At most 2.5 times the processor time of the import, which is 1.6 to 2.0 times on an idle
    machine; a build of anything makes it 4. Seconds on the clock would depend on other programs,
    and the two take turns, so that both see the same machine."""
    run_day("1", "--no-bench")

    def spent(command: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command, env={**os.environ, **run_day.environment}, capture_output=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    whole = torch_alone = 0.0
    for _ in range(3):
        whole += spent(run_day.command("1", "--no-bench"))
        torch_alone += spent([sys.executable, "-c", "import torch, os; os._exit(0)"])
    assert whole < 2.5 * torch_alone, f"{whole:.2f} s, of which torch {torch_alone:.2f} s"


def test_a_terminal_that_knows_ascii_alone_is_no_error() -> None:
    run_day = CommandLine(ROOT / "days")
    run_day.environment |= {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = run_day("--list")  # with squares for exercises
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout and "? open: the steps" in done.stdout


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "2>&-"])
def test_a_closed_output_is_no_error(run_day: CommandLine, closed: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = run_day.command("1", "--no-bench", "--json", str(report))
    environment = {**os.environ, **run_day.environment}
    command = f"exec {shlex.join(words)} {closed}"
    done = run(["bash", "-c", command], env=environment, stdout=None, stderr=None)
    assert done.returncode == 0
    assert report.is_file()


@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.4])
def test_an_interrupt_during_the_imports_shows_no_traceback(
    run_day: CommandLine, seconds: float
) -> None:
    """Until the script's first line, Python itself handles it; a module's import shows that the
    script ran."""
    script = (
        "import os, runpy, signal, sys, threading\n"
        f"threading.Timer({seconds}, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.argv = {run_day.command('1', '--no-bench')[1:]!r}\n"
        f"runpy.run_path({str(ROOT / 'run_day.py')!r}, run_name='__main__')\n"
    )
    environment = {**os.environ, **run_day.environment}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode in (-2, 130), done.stderr
    assert "Traceback" not in done.stdout + done.stderr
